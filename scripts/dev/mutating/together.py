# SPDX-License-Identifier: MIT
"""Many faults in one text: each waits behind a condition until the environment variable MUTANT has its number.

So a file is compiled once for all of its faults. A fault changes an expression, which becomes
`(attn_mutant == 7 ? (x <= y) : (x < y))`, or a statement, which becomes `{ if (attn_mutant == 7) ...; else ...; }`. What is
around a fault is found by brackets and by clang-format's spaces, as faults are. Where the compiler wants a constant, or the
fault is an error, its line is an error, and the fault is left to a compilation of its own.
"""
import re
from collections import namedtuple

from mutating.mutations import DECLARES, blanked, closing

READER = """#include <stdlib.h>
int attn_mutant;
__attribute__((constructor)) static void read_mutant(void) {
  const char *number = getenv("MUTANT");
  attn_mutant = number ? atoi(number) : 0;
}
"""
HEAD = re.compile(r"\s*(?:(?:(?:if|for|while|switch) (?=\()|else\b|do\b|case [^:]*:|default:))")

# Where [begin, end) of the text is replaced, and what stands there with the fault.
Place = namedtuple("Place", "begin end text whole")  # whole: a statement, with its semicolon


def enclosing(code, at):
    """(begin, end) inside the innermost brackets around an index; None outside of all."""
    depth, begin = 0, at - 1
    while begin >= 0:
        if code[begin] in ")]}":
            depth += 1
        elif code[begin] in "([{":
            if depth == 0:
                return begin + 1, closing_or_end(code, begin)
            depth -= 1
        begin -= 1
    return None


def closing_or_end(code, begin):
    at = closing(code, begin)
    return len(code) if at is None else at


def is_block(code, begin):
    """Whether the brace before an index opens a block of statements; ` {` does, `){` begins the values of a struct."""
    before = code[:begin - 1]
    return code[begin - 1] == "{" and bool(re.search(r"(?:\)|\belse|\bdo|;|\})\s+$", before))


def element(code, inside, begin, end, separators):
    """The part between separators at the level of `inside` that contains [begin, end); None if one lies within.

    Of statements (separator ";"), a block ends one, too.
    """
    depth, first = 0, inside[0]
    for at in range(*inside):
        if depth == 0 and code[at] in separators:
            if at >= begin:
                return (first, at) if at >= end else None
            first = at + 1
        elif depth == 0 and separators == ";" and code[at - 1] == "}" and is_end(code, at):
            if at > begin:
                return first, at
            first = at
        depth += (code[at] in "([{") - (code[at] in ")]}")
    return first, inside[1]


def is_end(code, at):
    """Whether the closing brace before an index ends a statement."""
    return not re.match(r"\s*[;,.)\]]", code[at:at + 80])


def expression_in(code, begin, end, change):
    """[begin, end) without what stands before the value: spaces, `return`, a declaration or assignment up to ` = `."""
    text, depth, start = code[begin:end], 0, begin
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0 and re.match(r" [-+*/|&]?= ", text[at:at + 4]):
            start = begin + at + text[at + 1:].index("= ") + 3
    returns = re.match(r"\s*return ", code[start:end])
    start += returns.end() if returns else len(code[start:end]) - len(code[start:end].lstrip())
    return start if start <= change else None


def tail_of(code, begin, end):
    """The index where a statement begins, after the conditions and labels before it."""
    while True:
        head = HEAD.match(code[begin:end])
        if not head:
            return begin + len(code[begin:end]) - len(code[begin:end].lstrip())
        begin += head.end()
        if code[begin] == "(":
            begin = closing_or_end(code, begin) + 1


def count_alike(a, b):
    """How many letters two texts have in common from their beginnings on."""
    return next((n for n, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def change_of(text, mutation, line):
    """(begin, end, new text) of what a fault changes; line: where its line begins. At least one letter."""
    before, after = mutation.before, mutation.after
    common = count_alike(before, after)
    rest = min(count_alike(before[::-1], after[::-1]), min(len(before), len(after)) - common)
    begin, end = line + common, line + len(before) - rest
    return begin, max(end, begin + 1), after[common:len(after) - rest] + (text[begin] if end == begin else "")


def place_of(code, text, mutation, starts):
    """Where to choose between a fault and the text without it; None if that is not seen."""
    begin, end, new = change_of(text, mutation, starts[mutation.number])

    def with_fault(first, last):
        return text[first:begin] + new + text[end:last]

    inside = enclosing(code, begin)
    while inside:
        if inside[1] < end:
            inside = enclosing(code, inside[0] - 1)
            continue
        if is_block(code, inside[0]):
            found = element(code, inside, begin, end - 1 if code[end - 1] == ";" else end, ";")
            if not found:
                return None
            first, last = tail_of(code, *found), found[1]
            declares = DECLARES.match(code[first:last])
            if mutation.kind == "statement":
                return Place(first, last + 1, ";", True) if begin == first else None
            if begin < first:
                return None
            part = element(code, (first, last), begin, end, ",") if declares else (first, last)
            start = part and expression_in(code, *part, begin)
            if start is not None and (declares or start > first):
                return Place(start, part[1], with_fault(start, part[1]), False)
            return None if declares else Place(first, last + 1, with_fault(first, last + 1), True)
        found = element(code, inside, begin, end, ",;")
        if found:
            start = expression_in(code, *found, begin)
            if start is None and not DECLARES.match(code[slice(*found)].lstrip()):  # `x += y` with another operator
                start = found[0] + len(code[slice(*found)]) - len(code[slice(*found)].lstrip())
            if start is not None:
                return Place(start, found[1], with_fault(start, found[1]), False)
        inside = enclosing(code, inside[0] - 1)
    return None


def chosen_text(text, places, begin, end):
    """text[begin:end] with its faults. places: (Place, number), none of which overlaps another without containing it."""
    out, at = [], begin
    while places:
        outer = min(places, key=lambda each: (each[0].begin, -each[0].end))[0]
        within = [each for each in places if each[0].begin < outer.end]
        places = [each for each in places if each[0].begin >= outer.end]
        same = [each for each in within if (each[0].begin, each[0].end) == (outer.begin, outer.end)]
        inner = chosen_text(text, [each for each in within if each not in same], outer.begin, outer.end)
        out.append(text[at:outer.begin])
        if outer.whole:
            cases = "".join(f"if (attn_mutant == {number}) {{ {flat(place.text)} }}\nelse " for place, number in same)
            out.append(f"{{ {cases}{{ {inner} }} }}")
        else:
            cases = "".join(f"attn_mutant == {number} ? ({flat(place.text)}) :\n" for place, number in same)
            out.append(f"({cases}({inner}))")
        at = outer.end
    return "".join(out) + text[at:end]


def flat(text):
    """In one line, so that an error's line tells the fault."""
    return re.sub(r"\s*\n\s*", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def with_all(text, mutations):
    """The text with numbered faults {number: mutation}, and {line: number}; faults that find no place are left out."""
    code, starts = blanked(text).replace("\0", " "), [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    places = []
    for number, mutation in mutations.items():
        place = place_of(code, text, mutation, starts)
        if place and not any(crosses(place, other) for other, _ in places):
            places.append((place, number))
    changed = "extern int attn_mutant;\n" + chosen_text(text, places, 0, len(text))
    lines = {}
    for number, line in enumerate(changed.split("\n"), 1):
        for found in re.findall(r"attn_mutant == (\d+)", line):
            lines[number] = int(found)
    return changed, lines


def crosses(a, b):
    same = (a.begin, a.end) == (b.begin, b.end) and a.whole != b.whole
    return same or (a.begin < b.begin < a.end < b.end) or (b.begin < a.begin < b.end < a.end)
