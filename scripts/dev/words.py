#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the English of comments, documents and commit subjects, for `scripts/dev/lint.sh words`.

    words.py FILE...            comments of C, CMake, shell and Python, text of Markdown; words also in names and strings
    words.py --subjects RANGE   subjects of commits, such as main~20..main

Prints what to write for the words of words.txt, comments that begin with a word that needs a noun before it, and sentences
of more than 40 words. The exit code is 1 if anything was printed."""
import argparse
import io
import pathlib
import re
import subprocess
import sys
import tokenize

MOST_WORDS = 40
OPENINGS = ("of", "that", "what", "by", "as", "between")
WORDS = pathlib.Path(__file__).with_name("words.txt")


def read_words():
    rows = [line.split("\t") for line in WORDS.read_text().splitlines() if line and not line.startswith("#")]
    return [(re.compile(rf"(?<![a-z]){pattern}(?![a-z])", re.I), better) for pattern, better in rows]


def block_comments(text):
    """(line, text, True) of C's comments, also those behind code."""
    for match in re.finditer(r'"(?:\\.|[^"\\\n])*"|/\*(.*?)\*/|//([^\n]*)', text, re.S):
        body = match[1] if match[1] is not None else match[2]
        if body is None:
            continue
        lines = [re.sub(r"^\s*\* ?", "", line) for line in body.lstrip("*!<").split("\n")]
        yield text.count("\n", 0, match.start()) + 1, "\n".join(lines), True


def line_comments(text):
    """(line, text) of runs of lines that begin with #."""
    start, run = 0, []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        match = re.match(r"\s*#(?!!| SPDX) ?(.*)", line)
        if match:
            start = start if run else number
            run.append(match[1])
        elif run:
            yield start, "\n".join(run), True
            run = []


def python_comments(text):
    yield from line_comments(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        starts_line = token.line.strip().startswith(('"', 'r"'))
        if token.type == tokenize.STRING and starts_line and token.string.startswith(('"""', 'r"""')):
            yield token.start[0], token.string.strip('r"'), True
        elif token.type == tokenize.COMMENT and not token.line.strip().startswith("#"):
            yield token.start[0], token.string.lstrip("# "), True


def paragraphs(text):
    """(line, text) of Markdown's paragraphs, items and cells, without code."""
    text = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    for match in re.finditer(r"(?:[^\n]+\n?)+", text):
        line = text.count("\n", 0, match.start()) + 1
        for part in re.split(r"\n(?=\s*(?:[-*|#>]|\d+\.) ?)", match[0]):
            for cell in part.split("|") if part.lstrip().startswith("|") else [part]:
                yield line, cell, False
            line += part.count("\n") + 1


READERS = {**dict.fromkeys((".c", ".h", ".cpp", ".hpp", ".def"), block_comments), ".py": python_comments, ".md": paragraphs}


def sentences(text):
    """Texts that end with a full stop, or at an empty line or an indented block; code in backticks counts as a word."""
    text = re.sub(r"`[^`\n]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] )|\n(?= {2})|:\n", text):
        yield from re.split(r"(?<=[.!?;:])\s+", paragraph)


def banned(text, words):
    for pattern, better in words:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()), f"'{match[0]}': write {better}"


def faults(text, is_comment):
    first = re.match(r"\s*([A-Za-z]+)\b(?! \*)", text)
    if is_comment and first and first[1].lower() in OPENINGS:
        yield 0, f"a comment begins with '{first[1]}'"
    for sentence in sentences(text):
        count = len(re.findall(r"[A-Za-z][\w'-]*", sentence))
        if count > MOST_WORDS:
            yield text.count("\n", 0, max(text.find(sentence[:20]), 0)), f"a sentence of {count} words: {sentence[:50]!r}"


def check_files(names, words):
    found = 0
    for name in names:
        path = pathlib.Path(name)
        reader = READERS.get(path.suffix, line_comments)
        whole = path.read_text(encoding="utf-8")
        rows = [(1 + offset, fault) for offset, fault in banned(whole, words)]
        for line, text, is_comment in reader(whole):
            rows += [(line + offset, fault) for offset, fault in faults(text, is_comment)]
        for line, fault in sorted(rows):
            print(f"{name}:{line}: {fault}")
        found += len(rows)
    return found


def check_subjects(revisions, words):
    subjects = subprocess.run(["git", "log", "--no-merges", "--format=%h %s", revisions], check=True, text=True,
                              capture_output=True).stdout.splitlines()
    found = 0
    for subject in subjects:
        for _, fault in [*banned(subject, words), *faults(subject, False)]:
            print(f"{subject}: {fault}")
            found += 1
    return found


def main():
    parser = argparse.ArgumentParser(description="Checks the English of comments, documents and commit subjects.")
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--subjects", metavar="RANGE", help="of commits, in place of files")
    asked = parser.parse_args()
    words = read_words()
    found = check_subjects(asked.subjects, words) if asked.subjects else check_files(asked.files, words)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
