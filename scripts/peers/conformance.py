#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs attn-conformance by every installed peer, each in its environment: the published matrix (results/conformance).

    scripts/peers/setup.sh torch onnxruntime openvino vllm ggml      # and onednn, for another one than the build has
    cmake --build build --target attn_shared attn_python attn_onednn
    scripts/peers/conformance.py [-o FOLDER] [PEER...]

Writes PEER.json for each peer, and matrix.html and table.md of all that lie in the folder; without -o the table goes into
docs/conformance.md instead.
Exit code: 0 every peer ran, 1 one could not.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# peer of libattn.conformance -> environment of scripts/peers/setup.sh, in the order of the table
ENVIRONMENTS = {"libattn": "torch", "torch": "torch", "torch-math": "torch", "torch-flex": "torch", "transformers": "torch",
                "transformers-paged": "torch", "jax": "torch", "vllm": "vllm", "onnxruntime": "onnxruntime",
                "onnxruntime-gqa": "onnxruntime", "onnxruntime-mha": "onnxruntime", "openvino": "openvino",
                "openvino-paged": "openvino", "onednn": "torch", "ggml": "ggml"}

PUBLISHED, DOCUMENT, MARKS = ROOT / "results" / "conformance", ROOT / "docs" / "conformance.md", ("<!-- matrix", "<!-- end")


def publish(table):
    """Puts the table between the marks of docs/conformance.md."""
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = text.index("\n", text.index(MARKS[0])) + 1, text.index(MARKS[1])
    DOCUMENT.write_text(text[:begin] + table.read_text(encoding="utf-8") + text[end:], encoding="utf-8")
    table.unlink()


def settings():
    """The environment's variables: the package of this checkout with the library of its build."""
    peers = ROOT / ".venv-peers"
    onednn = next((file for file in (peers / "onednn" / "build" / "libattn_onednn.so", ROOT / "build" / "libattn_onednn.so")
                   if file.exists()), "")
    return {"LIBATTN_PYTHON": str(ROOT / "build" / "python" / "libattn_python.so"), "LIBATTN_ONEDNN": str(onednn),
            **os.environ, "PYTHONPATH": str(ROOT / "python")}


def run(peer, *arguments):
    interpreter = ROOT / ".venv-peers" / ENVIRONMENTS[peer] / "bin" / "python"
    python = interpreter if interpreter.exists() else sys.executable
    command = list(map(str, (python, "-m", "libattn.conformance", *arguments)))
    print(f"==== {peer}", flush=True)
    return subprocess.run(command, env=settings(), check=False).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"these only: {', '.join(ENVIRONMENTS)}")
    parser.add_argument("-o", dest="folder", type=Path, default=PUBLISHED)
    options = parser.parse_args()
    unknown = set(options.peers) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    codes = [run(peer, "--peer", peer, "--json", options.folder / f"{peer}.json") for peer in options.peers or ENVIRONMENTS]
    files = [file for file in (options.folder / f"{peer}.json" for peer in ENVIRONMENTS) if file.exists()]
    table = options.folder / "table.md"
    codes.append(run("libattn", "--from", *files, "--html", options.folder / "matrix.html", "--markdown", table))
    if options.folder == PUBLISHED:
        publish(table)
    return int(any(code not in (0, 1) for code in codes))  # 1: a case failed


if __name__ == "__main__":
    sys.exit(main())
