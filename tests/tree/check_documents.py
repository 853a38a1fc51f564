#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The documents are right: their links lead somewhere, their commands are accepted, their code compiles and runs.

    check_documents.py links
    check_documents.py facts
    check_documents.py commands ATTNBENCH [ATTNBENCH_GBENCH]
    check_documents.py snippets DOCUMENT COMPILER FLAG...
    check_documents.py tutorial FOLDER COMPILER

`commands` tries every line of a ```sh block that calls build/harness/attnbench: run and check with --dry-run, other commands
unchanged. `snippets` makes one program of the ```c blocks of a document and runs it. A block that begins with `#include` or
`static` goes to file scope; any other becomes the body of a function. `tutorial` follows docs/tutorial.md in a copy of the
source tree: it writes each ```c block to the file that the block's first comment names, and runs each ```sh block. Then
scripts/bench.sh must have left all its files.
"""

import importlib.util
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77


def documents():
    """The files of a fresh clone. Other tests may be writing to build folders, which are not read."""
    for top in sorted(ROOT.iterdir()):
        if not top.name.startswith(("build", ".")):
            for path in sorted(top.rglob("*.md")) if top.is_dir() else [top] if top.suffix == ".md" else []:
                if path.relative_to(ROOT).parts[:2] != ("results", "local"):
                    yield path


def blocks(path, language):
    """(line number, text) of every fenced block of this language."""
    text = path.read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start()) + 2, match[1]


# ---- Links -----------------------------------------------------------------------------------------------------------


def anchors(path):
    """The names that GitHub gives to the headings of a document."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links():
    for path in documents():
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"(?:\]\(|^\[[^\]]+\]: +)([^)\s]+)", text, re.MULTILINE):
            file, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            aim = (path.parent / file).resolve() if file else path
            if not aim.exists():
                yield f"{path.relative_to(ROOT)}: {target} does not exist"
            elif anchor and anchor not in anchors(aim):
                yield f"{path.relative_to(ROOT)}: {target}: no such heading"


def check_links():
    problems = list(broken_links())
    print("\n".join(problems) or "every link leads somewhere")
    return 1 if problems else 0


# ---- Facts -----------------------------------------------------------------------------------------------------------


def version_in(file, pattern):
    return ".".join(re.search(pattern, (ROOT / file).read_text(), re.DOTALL).groups())


def check_facts():
    """All files state one version, and LICENSES.md lists all test data."""
    versions = {
        "CMakeLists.txt": version_in("CMakeLists.txt", r"project\(attn VERSION ([\d.]+)"),
        "include/attn/attn.h": version_in("include/attn/attn.h", r"MAJOR (\d+).*MINOR (\d+).*PATCH (\d+)"),
        "CITATION.cff": version_in("CITATION.cff", r"\nversion: ([\d.]+)"),
    }
    licences = (ROOT / "LICENSES.md").read_text()
    folders = [f"tests/data/{path.name}" for path in (ROOT / "tests/data").iterdir()]
    wrong = [f"{folder} is not in LICENSES.md" for folder in folders if folder not in licences]
    if len(set(versions.values())) > 1:
        wrong.append(f"versions differ: {versions}")
    print("\n".join(wrong) or "versions agree, and all test data has a licence")
    return 1 if wrong else 0


# ---- Commands --------------------------------------------------------------------------------------------------------


def commands(text):
    """Shell lines without their comments, joined where they end with a backslash."""
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if line:
            yield line


def dry(words, attnbench, gbench):
    """The command to run instead, which times nothing and needs no file; None if there is none."""
    if words[0] == "build/harness/gbench/attnbench-gbench":
        options = [word for word in words[1:] if "benchmark_out" not in word]
        return [gbench, *options, "--benchmark_list_tests"] if gbench else None
    command = next((word for word in words[1:] if not word.startswith("-")), "run")
    if command in ("peak", "eval", "tune", "merge") or "--paired" in words:
        return None
    if command == "compare":  # published results stand for the reader's, and nothing is written or fails
        published = str(ROOT / "results" / "2026-11-21-amd-zen3")
        kept = [published if word in ("before", "after") else word for word in words[1:]]
        for option in ("--save", "--markdown", "--fail-on"):
            if option in kept:
                del kept[kept.index(option):kept.index(option) + 2]
        return [attnbench, *kept, *([published] if kept.count(published) == 1 else [])]
    dry_by = {"run": ["--dry-run"], "check": ["--dry-run"], "plot": ["--help"], "report": ["--help"]}
    return [attnbench, *words[1:], *dry_by.get(command, [])]


def try_command(line, attnbench, gbench):
    """Why the line is wrong; None if it is not."""
    words = shlex.split(line)
    environment = dict(os.environ)
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words or not words[0].startswith("build/harness/"):
        return None
    for option in ("--cpus", "-t"):  # this machine may have fewer cores
        if "HWLOC_SYNTHETIC" not in environment and option in words:
            at = words.index(option)
            del words[at:at + 2]
    arguments = dry(words, attnbench, gbench)
    if arguments is None:
        return None
    print("  " + line, flush=True)
    answer = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if answer.returncode == 0 or "libhwloc-dev" in answer.stderr:  # this attnbench may be built without hwloc
        return None
    return f"exit code {answer.returncode}: {answer.stderr or answer.stdout}"


def check_commands(attnbench, gbench=None):
    wrong = 0
    for path in documents():
        if path.name == "tutorial.md":  # has a test of its own
            continue
        for number, text in blocks(path, "sh"):
            for line in commands(text):
                problem = try_command(line, attnbench, gbench)
                if problem:
                    print(f"WRONG: {path.relative_to(ROOT)}:{number}: {line}\n{problem}")
                    wrong += 1
    return 1 if wrong else 0


# ---- Snippets --------------------------------------------------------------------------------------------------------


def program_of(path):
    """One C program of all ```c blocks: every snippet is a function, and main() calls them in order."""
    parts, calls = [], []
    for number, text in blocks(path, "c"):
        parts.append(f'#line {number} "{path.name}"')
        if re.match(r"#include|static|/\* file scope", text):
            parts.append(text)
        else:
            calls.append(f'  puts("---- line {number}");\n  snippet_{number}();')
            parts.append(f"static void snippet_{number}(void) {{\n#line {number} \"{path.name}\"\n{text}}}\n")
    return "\n".join([*parts, "int main(void) {", *calls, "  return 0;", "}", ""]), len(calls)


def check_snippets(document, compiler, *flags):
    text, count = program_of(ROOT / document)
    folder = pathlib.Path(f"snippets-{pathlib.Path(document).stem}").resolve()
    folder.mkdir(exist_ok=True)
    (folder / "snippets.c").write_text(text)
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-Wno-unused-function"]
    sources = [compiler, "-std=c11", "-O1", *warnings, "snippets.c", "-o", "snippets", *flags]
    for command in (sources, ["./snippets"]):
        answer = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
        print(answer.stdout + answer.stderr)
        if answer.returncode:
            print(f"WRONG: {document}: exit code {answer.returncode} of {command[0]}")
            return 1
    print(f"{count} snippets compile and run")
    return 0 if count else 1


# ---- Tutorial --------------------------------------------------------------------------------------------------------


def copy_sources(folder):
    """Copies the files of a clone except for the results. Keeps an existing build folder."""
    names = [path.name for path in ROOT.iterdir() if not path.name.startswith(("build", ".")) and path.name != "results"]
    for name in [*names, ".clang-format"]:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy)
    if (ROOT / ".venv").exists() and not (folder / ".venv").exists():
        (folder / ".venv").symlink_to((ROOT / ".venv").resolve())


def expecting(text):
    """A script in which every command must succeed, or end with the exit code that its comment names."""
    return "set -eu\n" + re.sub(r"^(.*\S) +# .*\bexit code (\d+)\b.*$", r"if \1; then exit 99; else [ $? = \2 ]; fi", text,
                                flags=re.MULTILINE)


CONFIGURE = ("cmake --preset release -DCMAKE_C_FLAGS_RELEASE=-O1 -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF "
             "-DATTN_OPENBLAS=OFF -DATTN_ONEDNN=OFF -DATTN_GBENCH=OFF {} >configure.log")


def steps_of(document):
    """(line number, language, text) in order. An additional first step configures builds that take little time."""
    found = [(number, language, text) for language in ("sh", "c") for number, text in blocks(document, language)]
    cap = "-DATTN_MAX_ISA=c" if platform.machine() == "x86_64" else ""  # the others take half of the time
    return [(0, "sh", CONFIGURE.format(cap)), *sorted(found)]


def follow(folder, language, text, environment):
    """Whether one step succeeds."""
    if language == "c":
        return (folder / re.match(r"/\* ([\w./]+\.c)\b", text)[1]).write_text(text) > 0
    return subprocess.run(["bash", "-c", expecting(text)], cwd=folder, env=environment, check=False).returncode == 0


def files_missing(results):
    """Files that scripts/bench.sh should have written, but did not."""
    names = ["table.txt", "results.csv", "samples.csv", "results.json", "env.json", "journal.jsonl", "peak.csv"]
    if all(map(importlib.util.find_spec, ("numpy", "matplotlib"))):
        names += ["figures/rate-seq.png", "figures/winners.svg", "report.html"]
    return [name for name in names if not (results / name).exists() or (results / name).stat().st_size == 0]


def check_tutorial(folder, compiler):
    if not shutil.which("pkg-config"):
        print("skipped: pkg-config is missing (Debian: apt-get install pkg-config)")
        return SKIPPED
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    copy_sources(folder)
    home = folder / "home"
    for leftover in (home, folder / "first"):
        shutil.rmtree(leftover, ignore_errors=True)
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "ATTN_NO_INSTALL": "1", "CC": compiler,
                   "CMAKE_C_COMPILER_LAUNCHER": str(ROOT / "tests/support/quick_compile.sh")}
    for number, language, text in steps_of(folder / "docs/tutorial.md"):
        print(f"---- docs/tutorial.md:{number}", flush=True)
        if not follow(folder, language, text, environment):
            print(f"WRONG: docs/tutorial.md:{number}:\n{text}")
            return 1
    missing = files_missing(folder / "first")
    print("WRONG: scripts/bench.sh left no " + ", ".join(missing) if missing else "scripts/bench.sh left all its files")
    return 1 if missing else 0


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    sys.exit(globals()[f"check_{what}"](*arguments))
