# SPDX-License-Identifier: MIT
"""A conformance case from its line of the table: arrays from a seed, expected values, and the forms of memory."""

import zlib

import numpy as np
import oracle

from libattn import q4_0, q8_0

SIZES = (1, 2, 2, 7, 9, 8, 8)  # batch, heads, kv_heads, queries, keys, dim, dim of v
PAGE = 32                      # tokens of a page


class Case:
    """name, subject, meaning, source, options: what index.json says; arrays: what the files hold."""

    def __init__(self, name, meaning, source, sizes=SIZES, *, dtype="float32", memory=None, form=None, poison=(), edit=None,
                 fill=100.0, outputs=("o",), **options):
        self.name, self.meaning, self.source, self.outputs, self.fill = name, meaning, source, outputs, fill
        self.random = np.random.RandomState(zlib.crc32(name.encode()))
        batch, heads, kv_heads, queries, keys, dim, dim_v = sizes
        self.shape = (batch, heads, queries, keys)
        q, k, v = (self.draw(shape, dtype != "float32" or form) for shape in
                   ((batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim_v)))
        options = {key: value(self.random, self.shape) if callable(value) else value for key, value in options.items()}
        if edit:
            edit(q, k, v)
        self.options = {**({"dtype": dtype} if dtype != "float32" else {}), **options}
        self.arrays, stored = {}, dict(self.options)
        solved = dict(self.options)
        if form in QUANTISED:
            q, k, v, given, solved = QUANTISED[form](q, k, v, solved)
            stored.update(given)
        self.expected = oracle.solve(q, k, v, solved)
        others = list(oracle.alternatives(q, k, v, solved, bool(poison) or fill != fill))
        if form in QUANTISED:
            others.append(("quantised_query", oracle.solve(rounded_rows(q), k, v, solved)))
        if "dq" in outputs:
            do = self.draw((batch, heads, queries, dim_v), dtype != "float32")
            self.expected.update(oracle.with_gradients(q, k, v, solved, do))
            self.arrays["do"] = do
            others += oracle.empty_gradients(q, k, v, solved, do)
        stored_q, stored_k, stored_v = q, stored.pop("stored_k", k), stored.pop("stored_v", v)
        self.spoil(poison, stored_k, stored_v, stored)
        pack = FORMS.get(form)
        self.arrays.update(zip("qkv", (stored_q, stored_k, stored_v)))
        if pack:
            others = [(other, {"o": found["o"]}) for other, found in others if "o" in found]
            pack(self, stored, others)
        if memory:
            stored["memory"] = memory
        self.arrays.update({key: stored.pop(key) for key in list(stored) if isinstance(stored[key], np.ndarray)})
        self.settings = stored
        self.keep(others)

    def draw(self, shape, coarse):
        """Sums of four uniform numbers: mean 0, deviation 1.15; exact in every type if coarse, else in float32."""
        most = 16 if coarse else 2**19
        return ((self.random.randint(0, most, (4, *shape)).sum(0) - 2 * (most - 1)) * (8 / most / 4)).astype(np.float32)

    def spoil(self, poison, k, v, options):
        """poison: (array, index, value): what masked places hold, or allowed ones if the value is ("seen", value)."""
        for which, index, value in poison:
            array = {"k": k, "v": v}.get(which, options.get(which))
            seen = isinstance(value, tuple)
            array[index] = value[1] if seen else value
            if seen:
                self.poison_rows(which, index)

    def poison_rows(self, which, index):
        """Rows that see the key become NaN; the case has one KV head for each head."""
        o = self.expected["o"][0]
        names = ("mask", "bias", "causal", "align", "window", "kv_len", "row_len")
        allowed, _ = oracle.reference.allowed_keys(self.shape, **{n: self.options[n] for n in names if n in self.options})
        rows = np.where(allowed[(*index[:2], slice(None), index[2])])[0]
        o[(*index[:2], rows, *(index[3:] if which == "v" else ()))] = np.nan

    def keep(self, others):
        """Expected values; and those of other conventions, where these can be told from the expected ones and each other."""
        self.conventions = {}
        for output in self.outputs:
            known = [("", *oracle.stored(*self.expected[output]))]
            for name, found in others:
                if output in found:
                    value, limit = oracle.stored(*found[output])
                    if not any(oracle.fits(value, *one) for _, *one in known):
                        known.append((name, value, limit))
            self.arrays[output], self.arrays[output + ".limit"] = known[0][1:]
            if known[1:]:
                names, values, limits = zip(*known[1:])
                self.arrays[output + ".others"], self.arrays[output + ".others.limit"] = np.stack(values), np.stack(limits)
                self.conventions[output] = list(names)


# ---- Forms -------------------------------------------------------------------------------------------------------------

def pack_queries(case, options, others):
    """Rows that exist, one after the other: [tokens, heads, dim]; q_len becomes cu_seqlens_q."""
    q_len = options.pop("q_len")

    def join(x):
        return join_tokens(x, q_len)

    case.arrays["q"] = join(case.arrays["q"])
    options["cu_seqlens_q"] = np.cumsum([0, *q_len]).astype(np.int32)
    case.expected["o"] = tuple(map(join, case.expected["o"]))
    others[:] = [(name, {"o": tuple(map(join, found["o"]))}) for name, found in others if "padding" not in name]


def join_tokens(x, lengths):
    return np.concatenate([x[b, :, :n].transpose(1, 0, 2) for b, n in enumerate(lengths)])


def packed(case, options, others):
    """kv_len and q_len become cu_seqlens."""
    kv_len = options.pop("kv_len")
    pack_queries(case, options, others)
    case.arrays.update(k=join_tokens(case.arrays["k"], kv_len), v=join_tokens(case.arrays["v"], kv_len))
    options["cu_seqlens_k"] = np.cumsum([0, *kv_len]).astype(np.int32)


def pages(case, options, others):
    """Keys and values in pages in random order, packed queries; tokens that no sequence has are case.fill."""
    kv_len = options["kv_len"]
    batch, kv_heads, keys, _ = case.arrays["k"].shape
    columns = -(-keys // PAGE)
    table = case.random.permutation(batch * columns + 1)[:batch * columns].reshape(batch, columns).astype(np.int32)
    for name in "kv":
        x = case.arrays[name]
        cache = np.full((batch * columns + 1, kv_heads, PAGE, x.shape[3]), case.fill, x.dtype)
        for b in range(batch):
            for j in range(kv_len[b]):
                cache[table[b, j // PAGE], :, j % PAGE] = x[b, :, j]
        case.arrays[name] = cache
    for b in range(batch):
        table[b, -(-int(kv_len[b]) // PAGE):] = 0
    options["page_table"] = table
    if "q_len" in options:
        pack_queries(case, options, others)


FORMS = {"packed": packed, "pages": pages}


def rounded_rows(x):
    """Rows as blocks of q8_0 hold them: 32 integers and a float16."""
    return from_blocks(q8_0(x.astype(np.float32)), x.shape[-1])


def from_blocks(blocks, dim):
    factor = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    if blocks.shape[-1] == 34:
        numbers = blocks[..., 2:].view(np.int8)
    else:
        halves = blocks[..., 2:]
        numbers = np.concatenate([halves & 15, halves >> 4], -1).astype(np.int64) - 8
    return (factor * numbers).reshape(*blocks.shape[:-2], -1)[..., :dim]


def blocks_of(kv_format, quantise):
    def form(q, k, v, options):
        kept = quantise(k), quantise(v)
        k, v = from_blocks(kept[0], k.shape[3]), from_blocks(kept[1], v.shape[3])
        return q, k, v, {"kv_format": kv_format, "stored_k": kept[0], "stored_v": kept[1]}, options
    return form


def integers(per):
    """int8 with a factor of the tensor, of each head or of each token."""
    def form(q, k, v, options):
        given = {"kv_format": "int8"}
        for name, x in (("k", k), ("v", v)):
            axes = {"tensor": None, "head": (0, 2, 3), "token": (3,)}[per]
            top = abs(x).max(axis=axes, keepdims=True)
            factor = np.exp2(np.ceil(np.log2(np.where(top > 0, top, 1) / 96))).astype(np.float32) * np.float32(0.78125)
            given["stored_" + name] = np.clip(np.round(x / factor), -127, 127).astype(np.int8)
            given[name + "_scale"] = np.atleast_1d(factor)[..., 0]
        dense = [given["stored_" + name].astype(float) * given[name + "_scale"].astype(float)[..., None] for name in "kv"]
        return (q, *dense, given, {**options, "input_rounding": 2.0**-23})
    return form


def e4m3(q, k, v, options):
    """Values with a sign, 4 bits of exponent (bias 7) and 3 of fraction: rounded to nearest here."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    size = np.where(exponent, (8 + fraction) * np.exp2(exponent - 10.0), fraction * 2.0**-9)
    finite = np.flatnonzero(codes < 127)
    given = {"kv_format": "e4m3"}
    dense = []
    for name, x in (("k", k), ("v", v)):
        nearest = finite[abs(abs(x)[..., None] - size[finite]).argmin(-1)]
        given["stored_" + name] = (nearest + 128 * (x < 0)).astype(np.uint8)
        dense.append(np.where(x < 0, -size[nearest], size[nearest]))
    return (q, *dense, given, options)


QUANTISED = {"q8_0": blocks_of("q8_0", q8_0), "q4_0": blocks_of("q4_0", q4_0), "e4m3": e4m3,
             **{f"int8_{per}": integers(per) for per in ("tensor", "head", "token")}}
