# SPDX-License-Identifier: MIT
"""Test programs with one file changed: compiled by the commands of a finished build, linked before its static libraries.

The linker uses an object before a library instead of the library's object of that name. So a fault costs only compiling
the files that include it and linking the programs that run, and the build does not change.
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

SOURCES = ("include", "src", "kernels", "harness", "tests")  # copied folders; faults are put into the copies
FIRST = re.compile(r"/(src|tests|kernels/(common|library|ref|avx2))/")  # compiled first for a header of kernels/
STRICT = ["-g0", "-Werror=int-conversion", "-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration"]


class Build:
    """A build folder of Unix Makefiles: its compiler commands, dependencies, linker commands and tests."""

    def __init__(self, root, folder):
        self.root, self.folder = Path(root).resolve(), Path(folder).resolve()
        database = json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8"))
        self.compiles = {}  # source: command and folder, of its library if several targets have the source
        for entry in database:
            self.compiles.setdefault(entry["file"], (shlex.split(entry["command"]), entry["directory"]))
        self.users = self._users()
        self.links = {str(path.parent.parent.parent / path.parent.name[:-4]): path
                      for path in self.folder.glob("**/CMakeFiles/*.dir/link.txt")}
        self.tests = self._tests()
        self.sanitized = bool(re.search("^ATTN_SANITIZE:.*=.", (self.folder / "CMakeCache.txt").read_text(encoding="utf-8"),
                                        flags=re.M))

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
        """Sources that include a file, in groups. The second is compiled only if the objects of the first did not change.

        The first group of a header of kernels/common has two tiers, the second the other tiers and the harness. A tier's
        own headers begin with that tier.
        """
        users = sorted(self.users.get(str(self.root / file), []))
        if not file.startswith("kernels/") or file.endswith(".c"):
            return [users]
        own = f"/{Path(file).parent}/"
        return [[each for each in users if bool(FIRST.search(each) or own in each) == first] for first in (True, False)]

    def _tests(self):
        """{name: (command, environment)} of ctest's tests. Python tests get --failfast."""
        shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=self.folder, stdout=subprocess.PIPE, check=True)
        tests = {}
        for test in json.loads(shown.stdout)["tests"]:
            properties = {each["name"]: each["value"] for each in test.get("properties", [])}
            environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
            command = test.get("command") or []
            stop = ["--failfast"] if len(command) > 1 and re.search(r"/test_\w+\.py$", command[1]) else []
            tests[test["name"]] = (command + stop, environment)
        return tests


class Workplace:
    """A copy of the sources and the programs linked from it, one for each job."""

    def __init__(self, build, folder):
        self.build, self.folder = build, Path(folder)
        self.sources = self.folder / "sources"
        for name in SOURCES:
            shutil.copytree(build.root / name, self.sources / name, ignore=shutil.ignore_patterns("corpus", "minilm"))
        self.unchanged = {}  # source: hash of its object without a fault
        self.objects, self.programs = [], {}
        self.changed = set()  # sources whose objects a fault changes
        self.number = None  # of the fault among those that were compiled together

    def _moved(self, word):
        """A word of a compiler's command, with folders of the sources replaced by those of the copy."""
        option, path = re.fullmatch(r"(-I)?(.*)", word).groups(default="")
        root, build = self.build.root, self.build.folder
        if not f"{path}/".startswith(f"{root}/") or path == str(build) or path.startswith(f"{build}/"):
            return word
        return f"{option}{self.sources}{path[len(str(root)):]}"

    def _run_compiler(self, source, output, *more):
        """Compiles a source of the copy. None if it does not compile."""
        command, folder = self.build.compiles[source]
        words = [self._moved(word) for word in command]
        words[words.index("-o") + 1] = str(output)
        done = subprocess.run([*words, *STRICT, *more], cwd=folder, capture_output=True, check=False)
        self.errors = done.stderr.decode(errors="replace")
        return None if done.returncode else done

    def _compile(self, source):
        """The object of a source in the copy; None if it does not compile."""
        output = self.folder / (hashlib.sha1(source.encode()).hexdigest()[:16] + ".o")
        return output if self._run_compiler(source, output) else None

    def _numbers_in(self, source):
        """Numbers of the faults that the compiler sees in a source: code for other systems is gone by then."""
        seen = self._run_compiler(source, "-", "-E").stdout.decode(errors="replace")
        return {int(number) for number in re.findall(r"attn_mutant == (\d+)", seen)}

    def build_with(self, mutation, every=False):
        """Puts a fault in and compiles the sources that include it: "changed", "same code" or "not compiled".

        Stops after the first group of sources with an object that changed, unless all are wanted.
        """
        path = self.sources / mutation.file
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        lines[mutation.number] = mutation.after
        self.programs = {}
        groups = self.build.users_of(mutation.file)
        for users in [[each for group in groups for each in group]] if every else groups:
            for source in users:
                if source not in self.unchanged:
                    self.unchanged[source] = hash_of(self._compile(source))
            path.write_text("\n".join(lines), encoding="utf-8")
            try:
                objects = {source: self._compile(source) for source in users}
            finally:
                path.write_text(text, encoding="utf-8")
            if None in objects.values():
                return "not compiled"
            self.objects = {source: each for source, each in objects.items() if hash_of(each) != self.unchanged[source]}
            self.changed = set(self.objects)
            if self.objects:
                return "changed"
        return "same code"

    def build_together(self, mutations):
        """Compiles many faults at once. Returns {mutation: number} of those for which that is possible."""
        numbers, own, lines = {}, {}, {}
        for mutation in mutations:
            numbers[mutation] = len(numbers) + 1
            own.setdefault(mutation.file, []).append(mutation)
        for file in own:
            lines[file] = self._write_together(file, own[file], numbers)
        self.objects = {}
        for file in own:
            for source in self._first_users(file):
                while source not in self.objects:
                    done = self._compile(source)
                    if done:
                        self.objects[source] = done
                    elif not self._leave_wrong_ones_out(own, lines, numbers):
                        raise RuntimeError(f"{source} does not compile with many faults:\n{self.errors}")
        self.users = {file: set(self._first_users(file)) for file in own}
        reader = self.folder / "reader.c"
        reader.write_text(READER, encoding="utf-8")
        subprocess.run(["cc", "-c", "-o", reader.with_suffix(".o"), reader], check=True)
        self.objects["reader.c"] = reader.with_suffix(".o")
        kept = {number for numbered in lines.values() for number in numbered.values()}
        kept &= set().union(*(self._numbers_in(source) for users in self.users.values() for source in users))
        return {mutation: number for mutation, number in numbers.items() if number in kept}

    def _first_users(self, file):
        """Sources of the first group that include a file, but for plug-ins and libattnbench.so: they define names again."""
        users = next(filter(None, self.build.users_of(file)), [])
        return [each for each in users if "/kernels/plugin/" not in each and "/harness/shared/" not in each]

    def _write_together(self, file, mutations, numbers):
        text = (self.build.root / file).read_text(encoding="utf-8")
        text, lines = with_all(text, {numbers[each]: each for each in mutations})
        (self.sources / file).write_text(text, encoding="utf-8")
        return lines

    def _leave_wrong_ones_out(self, own, lines, numbers):
        """Takes the faults out that the compiler's errors are at, or before. Returns whether there are any."""
        wrong = set()
        place = r"^(?:In file included from )?(\S+?):(\d+):(?:\d+:)? (?:[Ee]rror|note: in expansion of macro)"
        for name, line in re.findall(place, self.errors, flags=re.M):
            file = os.path.relpath(name, self.sources)
            before = [number for number in lines.get(file, {}) if number <= int(line)]
            if before:
                wrong.add((file, lines[file][max(before)]))
        for file in {file for file, _ in wrong}:
            own[file] = [each for each in own[file] if (file, numbers[each]) not in wrong]
            lines[file] = self._write_together(file, own[file], numbers)
        return bool(wrong)

    def choose(self, mutation, number):
        """Lets programs run with one of the faults that were compiled together."""
        self.number = str(number)
        self.changed = self.users[mutation.file]

    def touches(self, test):
        """Whether a test can see the fault. A test named after a tier cannot see faults in other tiers."""
        tier = re.search(r"_(c|portable|avx\w*|amx|neon\w*)$", test)
        folders = {match and match[1] for match in (re.search(r"/kernels/(ref|portable|avx\w*|amx|neon\w*)/", each)
                                                    for each in self.changed)}
        return not tier or None in folders or {"c": "ref"}.get(tier[1], tier[1]) in folders

    def _program(self, path):
        """A program of the build, linked with the fault."""
        if path not in self.programs:
            script = self.build.links[path]
            words = shlex.split(script.read_text(encoding="utf-8"))
            output = self.folder / Path(path).name
            own = {source[len(str(self.build.root)) + 1:]: str(each) for source, each in self.objects.items()}
            tests = {f".dir/{source[6:]}.o": own.pop(source) for source in list(own) if source.startswith("tests/")}
            words = [word for word in words if not any(word.endswith(f"/{source}.o") for source in own)]
            words = [next((each for end, each in tests.items() if word.endswith(end)), word) for word in words]
            at = words.index("-o")
            words[at + 1:at + 2] = [str(output), *own.values()]
            subprocess.run(words, cwd=script.parent.parent.parent, check=True)
            self.programs[path] = str(output)
        return self.programs[path]

    def command_of(self, test, linked=True):
        """Command and environment of a test. linked: with the fault."""
        command, environment = self.build.tests[test]
        if self.number is not None:
            environment = {**environment, "MUTANT": self.number}
        return [self._program(word) if linked and word in self.build.links else word for word in command], environment


def hash_of(path):
    return path and hashlib.sha1(path.read_bytes()).hexdigest()
