# SPDX-License-Identifier: MIT
"""Many faults in one text: a function that has faults gets a copy of its body for each, behind a condition.

    if (ATTN_MEETS(7)) {
      the body with fault 7
    } else {
      the body
    }

So a file is compiled once for all of its faults, and the environment variable MUTANT chooses one. Faults outside of
functions, and those that do not compile, are left to a compilation of their own. Without a fault, programs mark in the file
MUTANTS_MET the byte of each fault whose function they enter: no other fault can change what they do.
"""
from mutating.mutations import blanked

MOST_TOGETHER = 1 << 16  # faults of one program
READER = """#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
int attn_mutant;
char *attn_mutants_met; /* NULL where nobody asks */
__attribute__((constructor)) static void read_mutant(void) {
  const char *number = getenv("MUTANT"), *met = getenv("MUTANTS_MET");
  attn_mutant = number ? atoi(number) : 0;
  const int file = met ? open(met, O_RDWR) : -1;
  void *bytes = file < 0 ? MAP_FAILED : mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  attn_mutants_met = bytes == MAP_FAILED ? NULL : bytes;
  if (file >= 0) close(file);
}
"""
DECLARED = ("extern int attn_mutant; extern char *attn_mutants_met;\n#define ATTN_MEETS(n) "
            "(attn_mutants_met ? (attn_mutants_met[n] = 1, 0) : attn_mutant == n)\n")


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
    starts, owners, out, at = [0], {}, [DECLARED], 0
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
            out.append(f"\nif (ATTN_MEETS({number})) {{{copy}\n}} else")
            copies += 1
            owners.update(dict.fromkeys(range(row, row + copy.count("\n") + 2), number))
        out.append(f" {{{text[begin:end]}}}" if copies else "")
        at = end if copies else begin
    return "".join([*out, text[at:]]), owners
