#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Takes from a description of the ABI what may have been added since the baseline, so that abidiff sees all else.

    ungrow.py BASELINE.abi NEW.abi     prints NEW without the additions

Structs that begin with struct_size, and attn_kernel_info, which the library owns, may have grown at their end; the members
behind a struct that has grown inside another move by as much. Enums may have new values. abidiff's own suppressions cannot
tell an end from a middle (2.2).
"""

import sys
import xml.etree.ElementTree as ElementTree


def members(struct):
    return struct.findall("data-member")


def may_grow(struct):
    names = [member.find("var-decl").get("name") for member in members(struct)]
    return struct.get("name") == "attn_kernel_info" or names[:1] == ["struct_size"]


def ungrow_structs(old, new):
    """The structs of `new` with the members and the size that they have in `old`, a map of both by name."""
    kinds = {t.get("id"): t for t in new.iter() if t.tag in ("class-decl", "typedef-decl")}

    def growth_of(type_id):
        kind = kinds.get(type_id)
        if kind is not None and kind.tag == "typedef-decl":
            return growth_of(kind.get("type-id"))
        return grown.get(kind.get("name"), 0) if kind is not None else 0

    before = {s.get("name"): s for s in old.iter("class-decl") if s.get("size-in-bits") and may_grow(s)}
    structs = [s for s in new.iter("class-decl") if s.get("name") in before]
    grown = {s.get("name"): int(s.get("size-in-bits")) - int(before[s.get("name")].get("size-in-bits")) for s in structs}
    for struct in structs:
        count = len(members(before[struct.get("name")]))
        shift = 0
        for member in members(struct)[:count]:
            member.set("layout-offset-in-bits", str(int(member.get("layout-offset-in-bits")) - shift))
            shift += growth_of(member.find("var-decl").get("type-id"))
        for member in members(struct)[count:]:
            struct.remove(member)
        struct.set("size-in-bits", before[struct.get("name")].get("size-in-bits"))


def ungrow_enums(old, new):
    before = {e.get("name"): {v.get("name") for v in e.findall("enumerator")} for e in old.iter("enum-decl")}
    for enum in new.iter("enum-decl"):
        for value in enum.findall("enumerator"):
            if value.get("name") not in before.get(enum.get("name"), {value.get("name")}):
                enum.remove(value)


if __name__ == "__main__":
    baseline, current = (ElementTree.parse(path) for path in sys.argv[1:3])
    ungrow_structs(baseline.getroot(), current.getroot())
    ungrow_enums(baseline.getroot(), current.getroot())
    current.write(sys.stdout.buffer)
