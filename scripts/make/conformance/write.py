#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the cases of libattn.conformance: python/libattn/conformance/cases, the same bytes every time.

    scripts/make/conformance/write.py [-o FOLDER]

Needs NumPy, and libattn installed or built (LIBATTN_PYTHON). oracle.py has the expected values, table.py the cases.
"""

import argparse
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
if "LIBATTN_PYTHON" in os.environ:
    sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import oracle  # noqa: E402
from table import Subject, every_case  # noqa: E402

CASES = ROOT / "python" / "libattn" / "conformance" / "cases"
MOST_BYTES = 190_000
VERSION = 1

FILES = {"row_len": "kv_len", "align": "offset", "o": "expect", "lse": "expect_lse"}  # eval's names of options with files
DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def eval_options(settings, arrays, outputs):
    """The options of `attnbench eval`, with arrays of the case in place of files; None if it does not take the case."""
    align = settings.get("align", "top_left")
    if "page_table" in arrays or "o" not in outputs:
        return None
    if align == "bottom_right" and not settings.get("causal"):  # a window alone
        align = arrays["k"].shape[2] - arrays["q"].shape[2]
    said = [f"--{FILES.get(name, name).replace('_', '-')} {name}" for name in (*arrays, *outputs)]
    if "dtype" in settings:
        said.append(f"--dtype {DTYPES[settings['dtype']]}")
    if settings.get("kv_format", "int8") != "int8":
        said.append(f"--kv-format {settings['kv_format']}")
    said += [f"--{name} {settings[name]!r}" for name in ("scale", "softcap") if name in settings]
    if "align" in arrays or not isinstance(align, str):
        said += ["--causal offset"] if settings.get("causal") else []
        said += [] if "align" in arrays else [f"--offset {align}"]
    elif settings.get("causal"):
        said.append("--causal " + align.replace("_", "-"))
    left, right = settings.get("window", (None, None))
    said += [f"--window-left {left}"] if left is not None else []
    said += [f"--window-right {right}"] if right is not None and not settings.get("causal") else []
    return " ".join(said)


def describe(case, file):
    arrays = {name: array for name, array in case.arrays.items() if name.split(".")[0] not in case.outputs}
    return {"name": case.name, "subject": case.subject, "meaning": case.meaning,
            **({"source": case.source} if case.source else {}), "file": file,
            "eval": eval_options(case.settings, arrays, case.outputs), "options": case.settings, "arrays": list(arrays),
            "outputs": list(case.outputs), "conventions": case.conventions}


def array_bytes(array):
    memory = io.BytesIO()
    np.lib.format.write_array(memory, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
    return memory.getvalue()


def write(folder):
    """Writes index.json and as few archives as hold all cases, none larger than MOST_BYTES. Returns the number of cases."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, files, used = [], [], 0
    for case in every_case():
        content = {f"{case.name}/{name}.npy": array_bytes(array) for name, array in case.arrays.items()}
        size = sum(len(data) + 2 * len(name) + 100 for name, data in content.items())
        if not files or used + size > MOST_BYTES:
            used = 0
            files.append({})
        used += size
        files[-1].update(content)
        lines.append(json.dumps(describe(case, f"cases-{len(files):02}.npz"), ensure_ascii=False))
    for number, members in enumerate(files, 1):
        with zipfile.ZipFile(folder / f"cases-{number:02}.npz", "w") as archive:
            for name, data in members.items():
                entry = zipfile.ZipInfo(name)
                entry.create_system, entry.external_attr = 3, 0o644 << 16
                archive.writestr(entry, data)
    head = {"version": VERSION, "conventions": oracle.CONVENTIONS, "partial": oracle.PARTIAL, "sources": Subject.sources}
    (folder / "index.json").write_text(json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "cases": [\n'
                                       + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    return len(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("-o", dest="folder", type=Path, default=CASES, help="where they go (default: into the package)")
    options = parser.parse_args()
    print(write(options.folder), "cases")


if __name__ == "__main__":
    main()
