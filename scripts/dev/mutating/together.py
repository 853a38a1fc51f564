# SPDX-License-Identifier: MIT
"""Many faults in one text: a function that has faults gets a copy of its body for each, behind a condition.

    if (attn_mutant == 7) {
      the body with fault 7
    } else {
      the body
    }

So a file is compiled once for all of its faults, and the environment variable MUTANT chooses one. Faults outside of
functions, and those that do not compile, are left to a compilation of their own.
"""
from mutating.mutations import blanked

READER = """#include <stdlib.h>
int attn_mutant;
__attribute__((constructor)) static void read_mutant(void) {
  const char *number = getenv("MUTANT");
  attn_mutant = number ? atoi(number) : 0;
}
"""


def bodies(text):
    """[begin, end) of each function's body, without its braces: a brace behind `)` outside of all others opens one."""
    code, depth, begin = blanked(text).replace("\0", " "), 0, None
    for at, letter in enumerate(code):
        if letter == "{" and depth == 0:
            begin = at + 1 if code[:at].rstrip().endswith(")") else None
        depth += (letter == "{") - (letter == "}")
        if letter == "}" and depth == 0 and begin is not None:
            yield begin, at


def with_all(text, mutations):
    """The text with numbered faults {number: mutation}, and {line: number} of the lines of each copy."""
    starts, owners, out, at = [0], {}, ["extern int attn_mutant;\n"], 0
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    for begin, end in bodies(text):
        out.append(text[at:begin])
        at, copies = begin, 0
        for number, mutation in mutations.items():
            line = starts[mutation.number]
            first = line + len(mutation.before) - len(mutation.before.lstrip())
            common = next((n for n, (a, b) in enumerate(zip(mutation.before, mutation.after)) if a != b), 0)
            if not begin <= max(line + common, first) < end:
                continue
            whole = text[:line] + mutation.after + text[line + len(mutation.before):]
            ending = dict(bodies(whole)).get(begin)
            if ending is None:
                continue
            copy = whole[begin:ending]
            row = sum(part.count("\n") for part in out) + 2
            out.append(f"\nif (attn_mutant == {number}) {{{copy}\n}} else")
            copies += 1
            owners.update(dict.fromkeys(range(row, row + copy.count("\n") + 2), number))
        out.append(f" {{{text[begin:end]}}}" if copies else "")
        at = end if copies else begin
    return "".join([*out, text[at:]]), owners
