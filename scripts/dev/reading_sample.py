#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints comments and sentences of documents, drawn at random, so that a reader can say which are not clear at once.

    scripts/dev/reading_sample.py --seed 2601                 60 comments and 40 sentences; another seed draws others
    scripts/dev/reading_sample.py --seed 2601 --comments 5

A comment comes with the line that it stands beside or above. The goal: at most 3 of 60 comments, and 2 of 40 sentences,
have to be read twice by somebody who is new here. Results stand in notebook/reading-samples.md.
"""
import argparse
import pathlib
import random
import re
import subprocess

from words import READERS

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_OTHERS = re.compile(r"(^|/)(data|corpus|results|notebook)/|CHANGELOG|LICENSE")
LEAST_WORDS = {"comment": 4, "sentence": 6}


def texts(suffixes):
    """(file, line, text, lines of the file) of what words.py reads."""
    names = subprocess.run(["git", "-C", ROOT, "ls-files"], check=True, text=True, capture_output=True).stdout.splitlines()
    for name in names:
        if pathlib.Path(name).suffix in suffixes and not OF_OTHERS.search(name):
            text = (ROOT / name).read_text(encoding="utf-8")
            for line, words, _ in READERS[pathlib.Path(name).suffix](text):
                yield name, line, words, text.split("\n")


def sentences_of(text):
    """Whole sentences, without headings and cells of numbers."""
    return [] if text.startswith("#") else re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(text.split()))


def has_words(text, kind):
    prose = "SPDX" not in text and not text.startswith("----")
    return prose and len(re.findall(r"[A-Za-z][a-z]+", text)) >= LEAST_WORDS[kind]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--comments", type=int, default=60)
    parser.add_argument("--sentences", type=int, default=40)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    comments = [each for each in texts(READERS.keys() - {".md"}) if has_words(each[2], "comment")]
    for name, line, words, lines in draw.sample(comments, asked.comments):
        end = line - 1 + words.count("\n")
        beside = lines[line - 1].strip()
        code = beside if not beside.startswith(("/*", "//", "#", '"""')) else "".join(lines[end + 1:end + 2]).strip()
        print(f"{name}:{line}: {' '.join(words.split())}\n    {code[:120]}")
    print()
    prose = [(name, line, one) for name, line, words, _ in texts({".md"}) for one in sentences_of(words)
             if has_words(one, "sentence")]
    for name, line, one in draw.sample(prose, asked.sentences):
        print(f"{name}:{line}: {one}")


if __name__ == "__main__":
    main()
