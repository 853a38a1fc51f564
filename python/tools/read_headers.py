#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what the package must know of libattn's headers, as C: structs, enumerators and functions.

    read_headers.py include/attn harness/shared/shared.h OUTPUT.h

OUTPUT.h has the declarations as a text in JSON, from which libattn/_native.py builds its ctypes classes, and beside it
what a C compiler says of them: sizes, offsets, values and addresses. So no layout is written by hand, and one that was
misread is noticed when the package is imported. Only what libattn's own headers contain is understood; anything else is an
error.
"""

import json
import re
import sys
from pathlib import Path

HEADERS = ("attn.h", "mha.h", "kv.h", "rows.h", "nn.h", "product.h")


def without_comments(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)


def declarator(text):
    """(type, name) of `const float *const x`; pointers count as part of the type."""
    text = " ".join(text.split())
    pointer = re.match(r"(.+?)\s*\(\s*\*\s*(\w+)\s*\)\s*\(", text)
    if pointer:
        return "function", pointer[2]
    match = re.fullmatch(r"(.+?[\s*])(\w+)((?:\[[^\]]*\])*)", text)
    if not match:
        raise SystemExit(f"read_headers.py cannot read '{text}'")
    kind = re.sub(r"\s*\*\s*", "*", match[1].strip())
    return kind + match[3], match[2]


def split_fields(body):
    for statement in filter(str.strip, body.split(";")):
        first, *others = statement.split(",")
        kind, name = declarator(first)
        yield kind, name
        for other in others:
            yield kind, other.strip(" *\n")


def read(text):
    structs = {m[2]: list(split_fields(m[1]))
               for m in re.finditer(r"typedef struct \w+ \{([^{}]*)\}\s*(\w+);", text)}
    enums = [name.split("=")[0].strip()
             for m in re.finditer(r"\benum(?: \w+)? \{([^{}]*)\}", text)
             for name in m[1].split(",") if name.strip()]
    types = [m[1] for m in re.finditer(r"typedef enum \w+ \{[^{}]*\}\s*(\w+);", text)]
    functions = {}
    for m in re.finditer(r"ATTN(?:BENCH)?_API\s+([^;{}()]*?)(\w+)\(([^;{}]*?)\);", text):
        arguments = [] if m[3].strip() == "void" else [re.sub(r"\[.*", "*", declarator(a)[0]) for a in m[3].split(",")]
        functions[m[2]] = [re.sub(r"\s*\*\s*", "*", m[1].strip()), arguments]
    callbacks = [m[1] for m in re.finditer(r"typedef \w+ \(\*(\w+)\)", text)]
    return structs, enums, types, functions, callbacks


def c_text(text):
    """String literals of 100 characters each."""
    parts = (text[at:at + 100].replace("\\", "\\\\").replace('"', '\\"') for at in range(0, len(text), 100))
    return "\n".join(f'    "{part}"' for part in parts)


def main(folder, bench_header, output):
    """The functions of bench_header are in another library: their addresses are not written."""
    paths = [Path(folder) / header for header in HEADERS]
    text = "\n".join(without_comments(path.read_text(encoding="utf-8")) for path in paths)
    structs, enums, types, functions, callbacks = read(text)
    bench_structs, _, _, bench_functions, _ = read(without_comments(Path(bench_header).read_text(encoding="utf-8")))
    structs.update(bench_structs)
    description = json.dumps({"structs": structs, "enumerators": enums, "enums": types, "functions": functions,
                              "bench_functions": bench_functions, "callbacks": callbacks}, separators=(",", ":"))
    numbers = [f"(int64_t)sizeof({struct}), " + ", ".join(f"(int64_t)offsetof({struct}, {name})" for _, name in fields)
               for struct, fields in structs.items()]
    Path(output).write_text(f"""/* Written by python/tools/read_headers.py. */
static const char header_text[] =
{c_text(description)};

/* The size of each struct and the offsets of its fields, in their order. */
static const int64_t header_layouts[] = {{
    {(","+chr(10)+"    ").join(numbers)}}};

static const int64_t header_values[] = {{
    {(","+chr(10)+"    ").join(enums)}}};

static void (*const header_functions[])(void) = {{
    {(","+chr(10)+"    ").join(f"(void (*)(void)){name}" for name in functions)}}};
""", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
