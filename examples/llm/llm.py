#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Text for examples/llm: encodes prompts with the folder's tokenizer.json, and decodes what the program prints.

    llm.py PROGRAM FOLDER [options of llm.c] TEXT...

Needs the package tokenizers. A model that was trained to chat expects its own marks around a text; they are not added.
"""

import subprocess
import sys
from pathlib import Path


def main(program, folder, *words):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    options, texts, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            options += [word, *rest[:1]]
            del rest[:1]
        else:
            texts.append(word)
    prompts = "".join(" ".join(map(str, tokenizer.encode(text).ids)) + "\n" for text in texts)
    result = subprocess.run([program, folder, *options, "--prompts", "/dev/stdin"], input=prompts, stdout=subprocess.PIPE,
                            text=True, check=False)
    for text, line in zip(texts, result.stdout.splitlines()):
        print(text + tokenizer.decode([int(token) for token in line.split(",")]))
    return result.returncode


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
