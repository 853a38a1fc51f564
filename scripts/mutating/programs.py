# SPDX-License-Identifier: MIT
"""Test programs with one file changed: compiled by the commands of a finished build, linked before its static libraries.

An object that stands before a library in the linker's command takes the place of the library's own, so a fault costs the
compilation of the files that include it and the linking of the programs that are run, and the build stays as it was.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

SOURCES = ("include", "src", "kernels", "harness")  # folders that are copied, for a fault to be put in
STRICT = ["-g0", "-Werror=int-conversion", "-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration"]


class Build:
    """A build folder of Unix Makefiles: how it compiles, what depends on what, how it links, which tests it has."""

    def __init__(self, root, folder):
        self.root, self.folder = Path(root).resolve(), Path(folder).resolve()
        database = json.loads((self.folder / "compile_commands.json").read_text(encoding="utf-8"))
        self.compiles = {}  # source: command and folder; a source of several targets counts for its library
        for entry in database:
            if "/tests/" not in entry["file"]:
                self.compiles.setdefault(entry["file"], (shlex.split(entry["command"]), entry["directory"]))
        self.users = self._users()
        self.links = {str(path.parent.parent.parent / path.parent.name[:-4]): path
                      for path in self.folder.glob("**/CMakeFiles/*.dir/link.txt")}
        self.tests = self._tests()

    def _users(self):
        """{file: sources that include it, or itself}, from the compiler's lists of dependencies."""
        users = {source: {source} for source in self.compiles}
        for path in self.folder.glob("**/CMakeFiles/*.dir/**/*.c.o.d"):
            names = path.read_text(encoding="utf-8").replace("\\\n", " ").split()[1:]
            if names and names[0] in self.compiles:
                for name in names:
                    users.setdefault(os.path.normpath(name), set()).add(names[0])
        return users

    def _tests(self):
        """{name: (command, environment)} of ctest's tests; those in Python stop at the first failure."""
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
    """A copy of the sources, and the programs that were linked from it; one for each job."""

    def __init__(self, build, folder, prefix):
        self.build, self.folder, self.prefix = build, Path(folder), prefix
        self.sources = self.folder / "sources"
        for name in SOURCES:
            shutil.copytree(build.root / name, self.sources / name)
        self.unchanged = {}  # source: hash of its object without a fault
        self.objects, self.programs = [], {}

    def _moved(self, word):
        """A word of a compiler's command, with the copy's folders in place of the sources' own."""
        option, path = re.fullmatch(r"(-I)?(.*)", word).groups(default="")
        root, build = self.build.root, self.build.folder
        if not path.startswith(f"{root}/") or path == str(build) or path.startswith(f"{build}/"):
            return word
        return f"{option}{self.sources}{path[len(str(root)):]}"

    def _compile(self, source):
        """The object of a source in the copy; None if it does not compile."""
        command, folder = self.build.compiles[source]
        output = self.folder / (hashlib.sha1(source.encode()).hexdigest()[:16] + ".o")
        words = [self._moved(word) for word in command]
        words[words.index("-o") + 1] = str(output)
        done = subprocess.run([*self.prefix, *words, *STRICT], cwd=folder, stderr=subprocess.DEVNULL, check=False)
        return None if done.returncode else output

    def build_with(self, mutation):
        """Puts a fault in and compiles what it touches: "changed", "same code" or "not compiled"."""
        path = self.sources / mutation.file
        text = path.read_text(encoding="utf-8")
        users = sorted(self.build.users.get(str(self.build.root / mutation.file), []))
        for source in users:
            if source not in self.unchanged:
                self.unchanged[source] = hash_of(self._compile(source))
        lines = text.split("\n")
        lines[mutation.number] = mutation.after
        path.write_text("\n".join(lines), encoding="utf-8")
        self.programs = {}
        try:
            objects = {}
            for source in users:
                objects[source] = self._compile(source)
                if objects[source] is None:
                    return "not compiled"
            self.objects = [objects[each] for each in users if hash_of(objects[each]) != self.unchanged[each]]
        finally:
            path.write_text(text, encoding="utf-8")
        return "changed" if self.objects else "same code"

    def _program(self, path):
        """A program of the build, linked with the fault."""
        if path not in self.programs:
            script = self.build.links[path]
            words = shlex.split(script.read_text(encoding="utf-8"))
            output = self.folder / Path(path).name
            at = words.index("-o")
            words[at + 1:at + 2] = [str(output), *map(str, self.objects)]
            subprocess.run([*self.prefix, *words], cwd=script.parent.parent.parent, check=True)
            self.programs[path] = str(output)
        return self.programs[path]

    def command_of(self, test, linked=True):
        """Command and environment of a test, with the fault, or as it is."""
        command, environment = self.build.tests[test]
        return [self._program(word) if linked and word in self.build.links else word for word in command], environment


def hash_of(path):
    return path and hashlib.sha1(path.read_bytes()).hexdigest()
