# SPDX-License-Identifier: MIT
"""Finds the small faults that a change of text can put into a C file, and reads the list of named ones.

This relies on clang-format instead of a parser: a binary operator has a space on both sides, the star of a pointer's
declaration has no space after it, and no statement starts in the first column.
"""
import re
from collections import namedtuple
from pathlib import Path

# number: index of the line; before, after: the line without and with the fault; kind: a key of SWAPS, "constant", ...
Mutation = namedtuple("Mutation", "file number before after kind")

SWAPS = {  # kind: text and its replacement
    "comparison": {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "},
    "arithmetic": {" + ": " - ", " - ": " + ", " * ": " / ", " / ": " * ", " % ": " * ", " << ": " >> ", " >> ": " << "},
    "logic": {" && ": " || ", " || ": " && ", " & ": " | ", " | ": " & ", "true": "false", "false": "true"},
    "assignment": {" += ": " -= ", " -= ": " += ", " *= ": " /= ", " |= ": " &= ", " &= ": " |= "},
}
SWAP = {old: (new, kind) for kind, pairs in SWAPS.items() for old, new in pairs.items()}
# Tries longer operators first ("<=" before "<"). Words match only as a whole.
SWAP_AT = re.compile("|".join(rf"\b{old}\b" if old.isalpha() else re.escape(old) for old in sorted(SWAP, key=len)[::-1]))

INTEGER = re.compile(r"(?<![\w.])(?<![pe][+-])\d+(?![\w.])")
FLOAT = re.compile(r"(?<![\w.])(?:0x[0-9a-f.]+p[+-]?\d+|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)f?(?![\w.])")
NOT = re.compile(r"(?<![\w)\]])!(?=[\w(])")
CONDITION = re.compile(r"\b(?:if|while) \(")
CHOICE = re.compile(r" \? ([^?:;,]+) : ([^?:;,()]+)(?=[;,)]|$)")
CALL = re.compile(r"\b(?!if|for|while|switch|return|sizeof)[A-Za-z_]\w*\(")
COMMUTES = re.compile(r"(?:(?:vec_|_mm512_|f|attn_saturating_)?(?:add|mul|max|min|memcmp|strcmp|max64|min64)"
                      r"(?:_ps|_epi32|_epi64)?|calloc|bench_view_allocate|allocate_poisoned|shift|times)\(")
STATEMENT = re.compile(r"^(?P<head>\s+(?:(?:if|for|while) \(.*?\) |else )?)"
                       r"(?P<body>(?:\(void\))?\w[\w.>\-]*\(.*\);|[\w.>\-\[\]()*+/ ]+ [-+*/|&]?= .*;"
                       r"|[\w.>\-\[\]]+(?:\+\+|--);|break;|continue;|return;)$")
DECLARES = re.compile(r"^(?!return|else|goto)[A-Za-z_]\w* (?:const )?(?:\*+|[A-Za-z_])")
BUFFER = re.compile(r"\s*(?!return|else|case)(?:[a-z_]\w* )+(?:(?:[^=;{]|= \0)*, )?\w+\[[^]]*")  # a declaration up to a size


def blanked(text):
    """The text with blanks in place of everything that gets no faults, line by line.

    Comments, strings, characters, preprocessor lines, assertions, and lines that only fetch ahead, which changes no value.
    """
    hide = lambda match: re.sub(r"[^\n]", "\0", match.group())  # not a space: operators contain spaces
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', hide, text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", hide, text, flags=re.M)
    text = re.sub(r"^ [^\n]*\b(?:__builtin_prefetch|_mm_prefetch|fetch_pairs)\([^\n]*", hide, text, flags=re.M)
    return re.sub(r"\b(?:assert|_Static_assert|static_assert)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\);?", hide, text)


def closing(code, begin):
    """Index of the bracket that closes the one at begin, or None if it is on another line."""
    depth = 0
    for at in range(begin, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at
    return None


def swapped_text(code, line):
    for match in SWAP_AT.finditer(code):
        new, kind = SWAP[match.group()]
        yield line[:match.start()] + new + line[match.end():], kind


def other_constants(code, line):
    for match in INTEGER.finditer(code):
        if BUFFER.fullmatch(code[:match.start()]):
            continue  # a longer buffer changes nothing
        new = {"0": "1", "1": "0"}.get(match.group(), str(int(match.group()) + 1))
        yield line[:match.start()] + new + line[match.end():], "constant"
    for match in FLOAT.finditer(code):
        zero = not re.search(r"[1-9a-d]", match.group().replace("0x", "").rstrip("f"))
        new = "1.0" + "f" * match.group().endswith("f") if zero else f"(2 * {match.group()})"
        yield line[:match.start()] + new + line[match.end():], "constant"


def negations(code, line):
    for match in NOT.finditer(code):
        yield line[:match.start()] + line[match.end():], "negation"
    for match in CONDITION.finditer(code):
        begin, end = match.end(), closing(code, match.end() - 1)
        if end and not (code[begin] == "!" and re.fullmatch(r"[\w.>\-]+", code[begin + 1:end])):  # NOT covers it
            yield f"{line[:begin]}!({line[begin:end]}){line[end:]}", "negation"
    for match in CHOICE.finditer(code):
        first, second = (line[slice(*match.span(n))] for n in (1, 2))
        yield f"{line[:match.start(1)]}{second} : {first}{line[match.end(2):]}", "negation"


def arguments_of(code, begin):
    """Spans of the arguments of the call with its bracket at begin; [] if the call ends on another line."""
    end = closing(code, begin)
    spans, start, depth = [], begin + 1, 0
    for at in range(begin + 1, end or 0):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if code[at] == "," and depth == 0:
            spans.append((start, at))
            start = at + 2
    return spans + [(start, end)] if spans else []


def swapped_arguments(code, line):
    for call in CALL.finditer(code):
        if COMMUTES.fullmatch(call.group()):
            continue
        spans = arguments_of(code, call.end() - 1)
        for (a, b), (c, d) in zip(spans, spans[1:]):
            if line[a:b] != line[c:d]:
                yield line[:a] + line[c:d] + line[b:c] + line[a:b] + line[d:], "arguments"


def dropped_statement(code, line, starts):
    match = STATEMENT.match(code)
    if match and starts and not DECLARES.match(match["body"]):
        yield line[:match.end("head")] + ";", "statement"


def mutations_of(file, text):
    """Every mutation of a file once, in the order of its lines."""
    lines, code = text.split("\n"), blanked(text).split("\n")
    found, previous = {}, ""
    for number, (line, seen) in enumerate(zip(lines, code)):
        bare = seen.replace("\0", "").rstrip()
        starts = bool(re.search(r"[;{})]$|\belse$|:$", previous))
        if re.match(r"\s", line) and bare:
            for make in (swapped_text, other_constants, negations, swapped_arguments):
                found.update({(number, after): kind for after, kind in make(seen, line)})
            found.update({(number, after): kind for after, kind in dropped_statement(seen.rstrip("\0 "), line, starts)})
        previous = bare or previous
    return [Mutation(file, number, lines[number], after, kind) for (number, after), kind in found.items()
            if after != lines[number]]


# ---- Faults with a name ---------------------------------------------------------------------------------------------------

def key_of(mutation):
    """Identifies a mutation even after its line has moved."""
    return mutation.file, mutation.before.strip(), mutation.after.strip()


def read_named(path):
    """{key: tests} of named_mutants.txt: a file, and for each fault `-` and `+` lines as in a diff, and `=`."""
    named, file, entry, signs = {}, "", [], ("- ", "+ ", "= ")
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not entry and not line.startswith(signs):
            file = line
            continue
        if not line.startswith(signs[len(entry)]):
            raise ValueError(f"{path}: '{line}' should begin with '{signs[len(entry)]}'")
        entry.append(line[2:].strip())
        if len(entry) == 3:
            named[(file, *entry[:2])] = entry[2]
            entry = []
    if entry:
        raise ValueError(f"{path}: the last entry lacks lines")
    return named
