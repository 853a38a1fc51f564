# SPDX-License-Identifier: MIT
"""Test programs with faults: compiled by the commands of a finished build, linked before its static libraries.

The linker uses an object before a library instead of the library's object of that name. So faults cost only compiling the
files that include them and linking the programs that run, and the build does not change.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from mutating.together import READER, with_all

SOURCES = ("include", "src", "kernels", "harness", "mpi", "tests", "python")  # copied; faults go into the copies
FEW = re.compile(r"/(src|tests|kernels/(common|library|ref|avx2))/")  # users of a header of kernels/ that are compiled
ALONE = ("/kernels/plugin/", "/harness/shared/")  # plug-ins and libattnbench.so, which define names again
STRICT = ["-g0", "-Wno-error",
          *(f"-Werror={each}" for each in ("int-conversion", "incompatible-pointer-types", "implicit-function-declaration"))]


class Build:
    """A build folder of Unix Makefiles: its compiler commands, dependencies, linker commands and tests."""

    def __init__(self, root, folder):
        self.root, self.folder = Path(root).resolve(), Path(folder).resolve()
        database = json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8"))
        self.compiles = {}  # source: command and folder, of its library if several targets have the source
        for entry in database:
            self.compiles.setdefault(entry["file"], (shlex.split(entry["command"]), entry["directory"]))
        self.users = self._users()
        self.links = dict(filter(None, map(self._link, self.folder.glob("**/CMakeFiles/*.dir/link.txt"))))
        self.sanitized = bool(re.search("^ATTN_SANITIZE:.*=.", (self.folder / "CMakeCache.txt").read_text(encoding="utf-8"),
                                        flags=re.M))
        self.tests = self._tests()

    @staticmethod
    def _link(path):
        """A program or a shared library, and its linker's command and folder; None for an archive."""
        words, folder = shlex.split(path.read_text(encoding="utf-8")), path.parent.parent.parent
        return (os.path.normpath(folder / words[words.index("-o") + 1]), (words, folder)) if "-o" in words else None

    def _users(self):
        """{file: sources that include it, or the file itself}, from the compiler's dependency files."""
        users = {source: {source} for source in self.compiles}
        for path in self.folder.glob("**/CMakeFiles/*.dir/**/*.c.o.d"):
            directory = str(path).split("/CMakeFiles/")[0]  # ccache may make names relative to it
            names = [os.path.normpath(os.path.join(directory, name))
                     for name in path.read_text(encoding="utf-8").replace("\\\n", " ").split()[1:]]
            if names and names[0] in self.compiles:
                for name in names:
                    users.setdefault(name, set()).add(names[0])
        return users

    def users_of(self, file):
        """Sources that include a file. For a header of kernels/: those of two tiers and of its own folder, if any."""
        users = self.users.get(str(self.root / file), [])
        users = sorted(each for each in users if not any(word in each for word in ALONE))
        few = [each for each in users if FEW.search(each) or f"/{Path(file).parent}/" in each]
        return few if few and file.startswith("kernels/") else users

    def _tests(self):
        """{name: (command, environment)} of ctest's tests that run in this build. Python tests stop at a failure."""
        shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=self.folder, stdout=subprocess.PIPE, check=True)
        tests = {}
        for test in json.loads(shown.stdout)["tests"]:
            properties = {each["name"]: each["value"] for each in test.get("properties", [])}
            if self.sanitized and "sanitize" not in properties.get("LABELS", []):
                continue
            environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
            command = test.get("command") or []
            environment["PYTEST_ADDOPTS"] = "-x"
            stop = ["--failfast"] if len(command) > 1 and re.search(r"/test_\w+\.py$", command[1]) else []
            tests[test["name"]] = (command + stop, environment)
        return tests


class Workplace:
    """A copy of the sources, and the programs that are linked from it."""

    def __init__(self, build, folder):
        self.build, self.folder = build, Path(folder)
        self.sources = self.folder / "sources"
        for name in SOURCES:
            shutil.copytree(build.root / name, self.sources / name, ignore=shutil.ignore_patterns("corpus", "minilm"))
        self.objects, self.programs = {}, {}
        self.number = "0"  # the fault's among those that are compiled together
        (self.folder / "reader.c").write_text(READER, encoding="utf-8")
        command = ["cc", "-fPIC", "-fvisibility=hidden", "-c", "-o", "reader.o", "reader.c"]
        subprocess.run(command, cwd=self.folder, check=True)

    def _moved(self, word):
        """A word of a compiler's command, with folders of the sources replaced by those of the copy."""
        option, path = re.fullmatch(r"(-I)?(.*)", word).groups(default="")
        root, build = self.build.root, self.build.folder
        if not f"{path}/".startswith(f"{root}/") or path == str(build) or path.startswith(f"{build}/"):
            return word
        return f"{option}{self.sources}{path[len(str(root)):]}"

    def _compile(self, source):
        """The object of a source in the copy, or None: `errors` says why."""
        command, folder = self.build.compiles[source]
        words = [self._moved(word) for word in command]
        output = self.folder / (hashlib.sha1(source.encode()).hexdigest()[:16] + ".o")
        words[words.index("-o") + 1] = str(output)
        done = subprocess.run([*words, *STRICT], cwd=folder, capture_output=True, check=False)
        self.errors = done.stderr.decode(errors="replace")
        return None if done.returncode else output

    def _write(self, file, change=lambda text: text):
        (self.sources / file).write_text(change((self.build.root / file).read_text(encoding="utf-8")), encoding="utf-8")

    def build_alone(self, mutation):
        """Puts one fault in and compiles the sources that include it: "changed", "same code" or "not compiled"."""
        users = self.build.users_of(mutation.file)
        before = {source: hash_of(self._compile(source)) for source in users}
        self._write(mutation.file, lambda text: "\n".join(mutation.after if number == mutation.number else line
                                                          for number, line in enumerate(text.split("\n"))))
        try:
            objects = {source: self._compile(source) for source in users}
        finally:
            self._write(mutation.file)
        if None in objects.values():
            return "not compiled"
        self.programs, self.number = {}, "0"
        self.objects = {source: each for source, each in objects.items() if hash_of(each) != before[source]}
        return "changed" if self.objects else "same code"

    def build_together(self, mutations):
        """Compiles many faults at once. Returns {mutation: number} of those for which that is possible."""
        numbers, files = {mutation: number for number, mutation in enumerate(mutations, 1)}, {}
        for mutation in mutations:
            files.setdefault(mutation.file, {})[numbers[mutation]] = mutation
        owners = {file: self._write_together(file, own) for file, own in files.items()}
        self.objects = {}
        for source in sorted({each for file in files for each in self.build.users_of(file)}):
            while not (done := self._compile(source)):
                if not self._leave_wrong_ones_out(files, owners):
                    raise RuntimeError(f"{source} does not compile with many faults:\n{self.errors}")
            self.objects[source] = done
        return {mutation: number for mutation, number in numbers.items() if number in owners[mutation.file].values()}

    def _write_together(self, file, numbered):
        owners = {}

        def change(text):
            text, found = with_all(text, numbered)
            owners.update(found)
            return text

        self._write(file, change)
        return owners

    def _leave_wrong_ones_out(self, files, owners):
        """Takes out the faults in whose copies the compiler found errors. Returns whether there are any."""
        wrong, told = set(), r"[Ee]rror|note: (?:in expansion of macro|previous definition)"
        place = rf"^(?:In file included from )?(\S+?):(\d+):(?:\d+:)? (?:{told})"
        for name, line in re.findall(place, self.errors, flags=re.M):
            file = os.path.relpath(name, self.sources)
            wrong |= {(file, number) for number in [owners.get(file, {}).get(int(line))] if number}
        for file, number in wrong:
            del files[file][number]
        for file in {file for file, _ in wrong}:
            owners[file] = self._write_together(file, files[file])
        return bool(wrong)

    def choose(self, number):
        """Lets programs run with one of the faults that were compiled together; 0: with none."""
        self.number = str(number)

    def touches(self, test, mutation):
        """Whether a test can see the fault. A test named after a tier cannot see faults in other tiers."""
        tier = re.search(r"_(c|portable|avx\w*|amx|neon\w*)$", test)
        folders = {match and match[1] for match in (re.search(r"/kernels/(ref|portable|avx\w*|amx|neon\w*)/", each)
                                                    for each in self.build.users_of(mutation.file))}
        return not tier or None in folders or {"c": "ref"}.get(tier[1], tier[1]) in folders

    def _program(self, path):
        """A program or a shared library of the build, linked with the faults."""
        if path not in self.programs:
            (words, folder), output = self.build.links[path], self.folder / Path(path).name
            at = words.index("-o")
            libraries = [word for word in words[:at] + words[at + 2:] if os.path.normpath(folder / word) in self.build.links]
            words = [self._library(folder / word) if word in libraries else word for word in words]
            words = [f"-Wl,-rpath,{self.folder}" if word.startswith("-Wl,-rpath,") and libraries else word for word in words]
            own = {source[len(str(self.build.root)) + 1:]: str(each) for source, each in self.objects.items()}
            if not any(word.endswith("libattn_nn.a") for word in words):
                own = {source: each for source, each in own.items() if not source.startswith("src/nn/")}
            inside = libraries or "-shared" in words  # the faults of a shared library stay there
            placed = {f".dir/{re.sub('^(tests|python)/', '', source)}.o": own.pop(source) for source in list(own)
                      if inside or source.startswith(("tests/", "python/"))}
            words = [word for word in words if not any(word.endswith(f"/{source}.o") for source in own)]
            words = [next((each for end, each in placed.items() if word.endswith(end)), word) for word in words]
            at = words.index("-o")
            # Where a test defines a name of the library itself, its own is the one that counts: it comes first.
            words[at + 1:at + 2] = [str(output), "-Wl,-z,muldefs", *own.values(), str(self.folder / "reader.o")]
            subprocess.run(words, cwd=folder, check=True)
            self.programs[path] = str(output)
        return self.programs[path]

    def _library(self, path):
        """A shared library with the faults, which the loader finds by its short name, too."""
        made = Path(self._program(os.path.normpath(path)))
        short = made.with_name(re.sub(r"(\.so\.\d+)\..*", r"\1", made.name))
        if short != made:
            short.unlink(missing_ok=True)
            short.symlink_to(made.name)
        return str(made)

    def command_of(self, test):
        """Command and environment of a test with the fault."""
        command, environment = self.build.tests[test]
        made = lambda word: self._program(word) if word in self.build.links else word
        environment = {name: made(value) for name, value in environment.items()}
        return list(map(made, command)), {**environment, "MUTANT": self.number}


def hash_of(path):
    return path and hashlib.sha1(path.read_bytes()).hexdigest()
