#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Describes the ABI of shared libraries in a few lines, and compares it with the baseline, abi.txt.

    abi.py [--update | --break] LIBRARY.xml...     descriptions by abidw (Debian: abigail-tools)

A line of the baseline is an exported function and its library, a type of the public headers, or a member (offset and
type) or value of the type above it. Programs that were compiled for the baseline have to run: structs that begin with
struct_size, and attn_kernel_info with its last member, which the library owns, may grow at their end; the members
behind a struct that has grown inside another move by as much. Functions, types and values of enums may be added, and
the baseline has to learn of them at once, so that they are kept from then on. --update adds them; --break writes the
baseline anew: when a version that breaks programs is wanted, with a new major number.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

BASELINE = pathlib.Path(__file__).with_name("abi.txt")


class Library:
    """A library as abidw describes it."""

    def __init__(self, path):
        self.own_name = pathlib.Path(path).stem
        self.root = ElementTree.parse(path).getroot()
        self.types = {t.get("id"): t for t in self.root.iter() if t.get("id")}
        self.named = {}  # types that name() has met: each once, in that order

    def name(self, type_id):
        """A type in C's words, but read from left to right: the pointed-to type, then *."""
        t = self.types[type_id]
        if t.tag == "pointer-type-def":
            return self.name(t.get("type-id")) + " *"
        if t.tag == "qualified-type-def":
            return f"{self.name(t.get('type-id'))} {'const' if t.get('const') else 'volatile'}"
        if t.tag == "array-type-def":
            return self.name(t.get("type-id")) + "".join(f"[{s.get('length')}]" for s in t.findall("subrange"))
        if t.tag == "function-type":
            return self.signature("", t)
        if t.get("is-anonymous") == "yes" and not t.get("naming-typedef-id"):
            return t.tag[:-5] + " {" + "; ".join(self.members(t)) + "}"
        self.named[type_id] = t
        return t.get("name")

    def signature(self, name, function):
        result = self.name(function.find("return").get("type-id"))
        return f"{result} {name}({', '.join(self.parameter(p) for p in function.findall('parameter'))})"

    def parameter(self, p):
        return "..." if p.get("is-variadic") else self.name(p.get("type-id"))

    def members(self, struct):
        """'offset type name' of each."""
        lines = []
        for member in struct.findall("data-member"):
            of = member.find("var-decl")
            offset = int(member.get("layout-offset-in-bits", 0)) // 8
            lines.append(f"{offset} {self.name(of.get('type-id'))} {of.get('name')}")
        return lines

    def entries(self):
        """{line: lines below it} of exported functions, and of the types that they use."""
        exported = {symbol.get("name") for symbol in self.root.iter("elf-symbol")}
        found = {f"function {self.signature(f.get('name'), f)} of {self.own_name}": []
                 for f in self.root.iter("function-decl") if f.get("name") in exported}
        done = 0
        while done < len(self.named):
            done, new = len(self.named), list(self.named.values())[done:]
            for t in new:
                self.describe(t, found)
        return found

    def describe(self, t, found):
        name = t.get("name")
        if t.tag in ("class-decl", "union-decl") and t.get("size-in-bits"):
            found[f"struct {name} {int(t.get('size-in-bits')) // 8}"] = self.members(t)
        elif t.tag == "enum-decl":
            found[f"enum {name}"] = [f"{v.get('name')} = {v.get('value')}" for v in t.findall("enumerator")]
        elif t.tag == "typedef-decl" and name != self.name(t.get("type-id")) and name.startswith("attn_"):
            found[f"typedef {name}: {self.name(t.get('type-id'))}"] = []


def by_key(entries):
    """{function, struct, ... and its name: (line, lines below it)}"""
    return {key_of(line): (line, below) for line, below in entries.items()}


def key_of(line):
    kind, rest = line.split(" ", 1)
    return f"{kind} {rest[:rest.index('(')].split()[-1]}" if kind == "function" else f"{kind} {rest.split()[0]}"


def parse(text):
    entries = {}
    for line in text.splitlines():
        if line.startswith("  "):
            entries[list(entries)[-1]].append(line.strip())
        else:
            entries[line] = []
    return entries


def render(entries):
    return "".join(line + "\n" + "".join(f"  {one}\n" for one in entries[line]) for line in sorted(entries, key=key_of))


def size_of(entry):
    return int(entry[0].split()[-1])


def shifted(members, growth):
    """The members as they would be if no struct inside had grown."""
    shift, lines = 0, []
    for member in members:
        offset, rest = member.split(" ", 1)
        lines.append(f"{int(offset) - shift} {rest}")
        shift += growth.get(rest.rsplit(" ", 1)[0], 0)
    return lines


def may_grow(entry):
    owned = entry[0].startswith(("struct attn_kernel_info ", "struct attn_numerics "))
    return owned or entry[1][:1] == ["0 size_t struct_size"]


def broken(old, new):
    """Lines of the baseline that programs rely on and that are no longer so."""
    growth = {key.split()[1]: size_of(new[key]) - size_of(entry)
              for key, entry in old.items() if key.startswith("struct ") and may_grow(entry) and key in new}
    lines = []
    for key, (line, below) in old.items():
        now, below_now = new.get(key, ("missing", []))
        if key.startswith("enum ") and key in new:
            lines += [f"{line}: {value}" for value in below if value not in below_now]
        elif key.startswith("struct ") and key in new and may_grow((line, below)):
            kept = shifted(below_now, growth)[:len(below)]
            lines += [f"{line}: {was}" for i, was in enumerate(below) if kept[i:i + 1] != [was]]
            lines += [f"{line}, now {size_of(new[key])} bytes"] if growth[key.split()[1]] < 0 else []
        elif (line, below) != (now, below_now):
            lines.append(f"{line}; now {now}" + "".join(f"; {one}" for one in below_now if one not in below))
    return lines


def main():
    mode = sys.argv[1] if sys.argv[1].startswith("--") else ""
    current = {}
    for path in sys.argv[2 if mode else 1:]:
        current |= Library(path).entries()
    text = render(current)
    wrong = broken(by_key(parse(BASELINE.read_text())), by_key(current)) if mode != "--break" else []
    if wrong:
        print("WRONG: programs that were compiled for an earlier library would not run with this one:", *wrong, sep="\n  ")
    elif mode:
        BASELINE.write_text(text)
    elif text != BASELINE.read_text():
        print("WRONG: the baseline lacks what was added:", *sorted(set(text.splitlines()) -
              set(BASELINE.read_text().splitlines())), "check_abi.sh with --update adds it", sep="\n  ")
        wrong = [text]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
