# SPDX-License-Identifier: MIT
"""The cases: names, sizes and options, with the meaning of each in a sentence. build.py makes their arrays."""

import numpy as np
from build import Case

INF, NAN = np.inf, np.nan
SEMANTICS = "docs/semantics.md, "
VASWANI = "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, "


class Subject:
    """Adds cases of one subject: subject("name", "meaning", ...)."""
    every, sources = [], {}

    def __init__(self, name, source):
        self.name, self.source = name, source

    def __call__(self, name, meaning, *arguments, source=None, **options):
        case = Case(f"{self.name}/{name}", meaning, source, *arguments, **options)
        case.subject = self.name
        self.sources[self.name] = self.source
        self.every.append(case)


def sizes(queries, keys, batch=1, heads=2, kv_heads=None, dim=8, dim_v=None):
    return batch, heads, kv_heads or heads, queries, keys, dim, dim_v or dim


def boolean(*shape, share=0.6, first=True):
    """A drawn mask of this shape, or of the broadcast one; every row sees a key if first."""
    def draw(random, full):
        mask = random.random_sample(shape or full) < share
        if first:
            mask[..., 0] |= ~mask.any(-1)
        return mask
    return draw


def numbers(*shape, low=-3.0, high=3.0, masked=0.0):
    """A drawn bias of float32 with few bits; elements are -inf with probability `masked`, but for key 0."""
    def draw(random, full):
        bias = (np.round((low + (high - low) * random.random_sample(shape or full)) * 64) / 64).astype(np.float32)
        hidden = random.random_sample(bias.shape) < masked
        hidden[..., 0] = False
        bias[hidden] = -np.inf
        return bias
    return draw


def ints(*values):
    return np.array(values, np.int32)


def floats(*values):
    return np.array(values, np.float32)


def times(factor, which="q", at=...):
    """An edit that multiplies elements of q, k or v."""
    def edit(q, k, v):
        {"q": q, "k": k, "v": v}[which][at] *= np.float32(factor)
    return edit


def both(*edits):
    def edit(q, k, v):
        for one in edits:
            one(q, k, v)
    return edit


def every_case():
    Subject.every = []
    for add in (plain, scales, causal, alignment, masks, biases, finite_masks, empty, lengths, packed, windows, sinks,
        softcaps,
                alibi, groups, memory, masked_nan, seen_nan, long_rows, extreme, paged, quantised, lse, gradients):
        add()
    return Subject.every


# ---- Shapes and scores -------------------------------------------------------------------------------------------------

def plain():
    add = Subject("plain", VASWANI + "eq. 1")
    for queries, keys in ((1, 1), (1, 2), (1, 17), (2, 1), (7, 9), (16, 16), (17, 33), (33, 17), (5, 64), (64, 5)):
        add(f"{queries}x{keys}", f"{queries} queries over {keys} keys, no mask", sizes(queries, keys))
    for dim in (1, 3, 16, 31, 64):
        add(f"dim_{dim}", f"heads of {dim}", sizes(5, 7, heads=1, dim=dim))
    for dim, dim_v in ((8, 5), (4, 16), (16, 1)):
        add(f"dim_{dim}_and_{dim_v}", f"keys of {dim} and values of {dim_v} elements", sizes(5, 7, dim=dim, dim_v=dim_v))
    for batch, heads in ((3, 1), (2, 3), (1, 5)):
        add(f"batch_{batch}_heads_{heads}", "batch and heads are not mixed up", sizes(4, 6, batch=batch, heads=heads))
    for dtype in ("float16", "bfloat16"):
        for queries, keys in ((7, 9), (1, 33), (17, 17)):
            add(f"{dtype}_{queries}x{keys}", f"{dtype} in and out", sizes(queries, keys, dim=16), dtype=dtype)
        add(f"{dtype}_dim_64", f"{dtype}, heads of 64", sizes(5, 7, heads=1, dim=64), dtype=dtype)


def scales():
    add = Subject("scale", SEMANTICS + "Scores")
    for name, scale, meaning in (
            ("one", 1.0, "scores are q k"), ("small", 0.01, "a given scale replaces 1/sqrt(dim)"),
            ("zero", 0.0, "scale 0: every key has the same weight"),
            ("negative", -0.5, "a negative scale is one like others: no root is taken of it"),
            ("large", 8.0, "a given scale above 1")):
        add(name, meaning, sizes(7, 9, dim=8), scale=scale)
    add("default_dim_12", "the default is 1/sqrt(dim) of the keys where dim is no square", sizes(7, 9, dim=12, dim_v=5))
    add("causal", "a given scale beside a causal mask", sizes(9, 9), scale=0.25, causal=True)


# ---- Causal masks ------------------------------------------------------------------------------------------------------

def causal():
    add = Subject("causal", SEMANTICS + "Alignment; is_causal of PyTorch's scaled_dot_product_attention is top-left")
    for n in (1, 2, 5, 16, 17, 33):
        add(f"{n}x{n}", "query i sees keys 0 to i", sizes(n, n), causal=True)
    for queries, keys in ((3, 5), (1, 7), (16, 33), (5, 3), (33, 16), (2, 1)):
        add(f"{queries}x{keys}", "a causal flag alone, other numbers of queries than keys: query 0 stands at key 0",
            sizes(queries, keys), causal=True)
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"causal in {dtype}", sizes(9, 9, dim=16), causal=True, dtype=dtype)
    add("batch", "a causal mask for every sequence and head", sizes(6, 6, batch=2, heads=3), causal=True)
    add("marked_border", "the key behind the border has a value 1000 times as large", sizes(9, 9, heads=1), causal=True,
        edit=times(1000, "v", np.s_[:, :, 5:]))


def alignment():
    add = Subject("alignment", SEMANTICS + "Alignment; FlashAttention aligns bottom-right from version 2.1 on")
    for align in ("top_left", "bottom_right"):
        for queries, keys in ((3, 5), (1, 9), (16, 33), (6, 4), (7, 7)):
            add(f"{align}_{queries}x{keys}", f"causal, {align} asked for by name", sizes(queries, keys), causal=True,
                align=align)
    for offset in (0, 1, 4, 9, -2):
        add(f"offset_{offset}", f"causal, query 0 stands at key {offset}", sizes(4, 9), causal=True, align=offset)
    add("offsets", "causal, a position for each sequence", sizes(3, 9, batch=3), causal=True, align=ints(0, 5, 2))
    add("decode", "one query at the end of the keys", sizes(1, 33), causal=True, align="bottom_right")
    add("chunk", "a chunk of a prompt behind 12 keys of a cache", sizes(5, 17), causal=True, align=12)


# ---- Masks and biases --------------------------------------------------------------------------------------------------

def masks():
    add = Subject("mask", SEMANTICS + "Which keys: a key is allowed where the mask is true")
    q, k = 7, 9
    for name, shape in (("full", (2, 2, q, k)), ("of_heads", (1, 2, q, k)), ("of_batch", (2, 1, q, k)), ("shared", (1, 1,
        q, k)),
                        ("padding", (2, 1, 1, k)), ("of_rows", (1, 1, q, k)), ("two_dimensions", (q, k)),
                        ("of_keys", (1, 2, 1, k))):
        add(name, f"a boolean mask of shape {list(shape)}, which broadcasts", sizes(q, k, batch=2), mask=boolean(*shape))
    for name, meaning, pattern in (
            ("first_key", "every row sees key 0 alone: its value", lambda i, j: j == 0 * i),
            ("last_key", "every row sees the last key alone", lambda i, j: j == k - 1 + 0 * i),
            ("one_key", "every row sees one key, another one each", lambda i, j: j == i),
            ("all_true", "a mask that allows all keys", lambda i, j: j >= 0 * i),
            ("strict", "a lower triangle without the diagonal, but for row 0", lambda i, j: (j < i) | (i + j == 0)),
            ("anti_causal", "an upper triangle", lambda i, j: j >= i),
            ("comb", "every second key", lambda i, j: (j + i) % 2 == 0)):
        add(name, meaning, sizes(q, k), mask=pattern(np.arange(q)[:, None], np.arange(k))[None, None])
    add("square", "a square mask that is not symmetric: rows are queries", sizes(9, 9), mask=boolean(1, 1, 9, 9))
    add("with_causal", "a mask beside a causal flag: a key must be allowed by both", sizes(9, 9), causal=True,
        mask=(np.arange(9) % 3 != 1)[None, None, None] & np.ones((1, 1, 9, 1), bool))
    add("padding_with_causal", "a mask of keys beside a causal flag", sizes(9, 9, batch=2), causal=True,
        mask=(np.arange(9) < np.array([[9], [5]]))[:, None, None])
    add("tree", "a tree of speculative tokens behind a cache", sizes(4, 12),
        source="SpecInfer, https://arxiv.org/abs/2305.09781",
        mask=np.concatenate([np.ones((4, 8), bool), np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]],
        bool)],
                            1)[None, None])
    add("blocks", "packed texts: a block for each", sizes(9, 9), mask=np.kron(np.eye(3), np.ones((3, 3)))[None, None] > 0)
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"a boolean mask in {dtype}", sizes(q, k, dim=16), mask=boolean(1, 1, q, k), dtype=dtype)
    add("33_keys", "a mask of rows longer than a vector", sizes(5, 33), mask=boolean(1, 1, 5, 33, share=0.5))


def biases():
    add = Subject("bias", SEMANTICS + "Scores: added to the scaled score; -inf masks")
    q, k = 7, 9
    for name, shape in (("full", (2, 2, q, k)), ("of_heads", (1, 2, q, k)), ("of_batch", (2, 1, q, k)), ("shared", (1, 1,
        q, k)),
                        ("of_keys", (2, 1, 1, k)), ("two_dimensions", (q, k))):
        add(name, f"a bias of shape {list(shape)}, which broadcasts", sizes(q, k, batch=2), bias=numbers(*shape))
    add("square", "a square bias that is not symmetric: rows are queries", sizes(9, 9), bias=numbers(1, 2, 9, 9))
    add("infinite", "-inf in a bias masks", sizes(q, k), bias=numbers(1, 2, q, k, masked=0.4))
    add("zero_and_infinite", "a bias of 0 and -inf is a mask", sizes(q, k), bias=numbers(1, 1, q, k, low=0, high=0,
        masked=0.5))
    add("scaled_after", "the bias is not multiplied by the scale", sizes(q, k), bias=numbers(1, 2, q, k), scale=0.125)
    add("with_causal", "a bias beside a causal flag", sizes(9, 9), bias=numbers(1, 2, 9, 9), causal=True)
    add("with_mask", "a bias and a boolean mask", sizes(q, k), bias=numbers(1, 2, q, k), mask=boolean(1, 1, q, k))
    add("large", "a bias of up to 60: weights of very different size", sizes(q, k), bias=numbers(1, 2, q, k, low=-60,
        high=60))
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"a bias in {dtype}", sizes(q, k, dim=16), bias=numbers(1, 2, q, k, low=-2, high=2), dtype=dtype)


def finite_masks():
    add = Subject("finite_mask", SEMANTICS + "Scores; engines mask by a large negative number that is added")
    q, k = 7, 9
    hidden = np.arange(k)[None, None, None] >= np.array([[3], [7], [1], [9], [5], [8], [2]])[None, None]
    for name, value in (("1e4", -1e4), ("1e9", -1e9), ("float16_min", -65504.0), ("float32_min", np.finfo(np.float32).min)):
        add(name, f"a bias of 0 and {value:g}: as good as a mask where a key is left",
            sizes(q, k), bias=np.where(hidden, np.float32(value), np.float32(0)))
    add("sum", "two finite masks that are added to one another below float32's range stay a mask", sizes(q, k), causal=False,
        bias=np.where(hidden, np.float32(-3e38), np.float32(0)), edit=times(4, "k"))
    add("bfloat16", "a bias of 0 and the smallest bfloat16", sizes(q, k, dim=16), dtype="bfloat16",
        bias=np.where(hidden, np.float32(-3.3895313892515355e38), np.float32(0)))
    add("float16", "a bias of 0 and the smallest float16", sizes(q, k, dim=16), dtype="float16",
        bias=np.where(hidden, np.float32(-65504), np.float32(0)))


def empty():
    add = Subject("empty_rows", SEMANTICS + "Empty rows: a row without keys is 0; ONNX Attention says the same")
    q, k = 5, 6
    rows = np.ones((1, 1, q, k), bool)
    rows[0, 0, (1, 4)] = False
    add("mask", "a boolean mask hides all keys of rows 1 and 4", sizes(q, k), mask=rows)
    add("mask_all", "a boolean mask hides all keys of all rows", sizes(q, k), mask=np.zeros((1, 1, q, k), bool))
    add("mask_of_one_head", "all keys hidden in one head alone", sizes(q, k),
        mask=np.stack([np.ones((q, k), bool), np.zeros((q, k), bool)])[None])
    add("padding", "a sequence whose padding mask hides all keys", sizes(q, k, batch=2),
        mask=np.stack([np.arange(k) < 4, np.zeros(k, bool)])[:, None, None])
    add("bias", "a bias of -inf hides all keys of rows 1 and 4", sizes(q, k),
        bias=np.where(rows, np.float32(0.5), np.float32(-INF)))
    add("bias_all", "a bias of -inf everywhere", sizes(q, k), bias=np.full((1, 1, q, k), -INF, np.float32))
    add("bottom_right", "more queries than keys, bottom-right: the first rows see nothing", sizes(7, 4), causal=True,
        align="bottom_right")
    add("offset", "query 0 stands before key 0", sizes(5, 6), causal=True, align=-3)
    add("kv_len", "a sequence with 0 keys", sizes(q, k, batch=2), kv_len=ints(4, 0))
    add("window", "a window that has left the keys behind", sizes(9, 4), window=(1, 0), align="top_left")
    add("mask_and_causal", "the mask hides what the causal flag leaves", sizes(q, 5), causal=True,
        mask=(np.arange(5) >= 2)[None, None, None] & np.ones((1, 1, q, 1), bool))
    add("sinks", "a row without keys is 0 beside a sink, too", sizes(q, k), mask=rows, sinks=floats(0.5, -1))
    add("single", "one query that sees no key", sizes(1, k), mask=np.zeros((1, 1, 1, k), bool))
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"rows without keys in {dtype}", sizes(q, k, dim=16), mask=rows, dtype=dtype)


# ---- Lengths -----------------------------------------------------------------------------------------------------------

def lengths():
    add = Subject("lengths", SEMANTICS + "Lengths: keys behind a length are not read, rows behind one are 0")
    shape = sizes(6, 9, batch=3)
    add("kv_len", "a number of keys for each sequence", shape, kv_len=ints(9, 4, 1))
    add("kv_len_full", "lengths that are the sizes", shape, kv_len=ints(9, 9, 9))
    add("kv_len_decode", "one query, a number of keys for each sequence", sizes(1, 33, batch=3), kv_len=ints(33, 17, 2))
    add("kv_len_causal", "lengths beside a causal flag, top-left", shape, kv_len=ints(9, 4, 6), causal=True,
        align="top_left")
    add("kv_len_bottom_right", "the last query meets the last key of its sequence", shape, kv_len=ints(9, 6, 7), causal=True,
        align="bottom_right")
    add("q_len", "a number of queries for each sequence; rows behind it are 0", shape, q_len=ints(6, 2, 5))
    add("q_len_none", "a sequence without queries", shape, q_len=ints(6, 0, 3))
    add("both", "numbers of queries and keys", shape, q_len=ints(6, 3, 1), kv_len=ints(9, 4, 7))
    add("both_bottom_right", "both, causal, aligned by the lengths", shape, q_len=ints(6, 3, 1), kv_len=ints(9, 4, 7),
        causal=True, align="bottom_right")
    add("both_top_left", "both, causal, top-left", shape, q_len=ints(6, 3, 1), kv_len=ints(9, 4, 7), causal=True,
        align="top_left")
    add("row_len", "a number of keys for each query", sizes(6, 9, batch=2),
        row_len=np.array([[1, 2, 9, 4, 3, 8], [9, 9, 1, 1, 5, 6]], np.int32))
    add("kv_len_groups", "lengths with grouped heads", sizes(6, 9, batch=2, heads=4, kv_heads=2), kv_len=ints(5, 8))
    for dtype in ("float16", "bfloat16"):
        add(f"kv_len_{dtype}", f"lengths in {dtype}", sizes(6, 9, batch=2, dim=16), kv_len=ints(9, 4), dtype=dtype)


def packed():
    add = Subject("packed", "FlashAttention's varlen interface, https://arxiv.org/abs/2307.08691; " + SEMANTICS + "Lengths")
    shape = sizes(9, 9, batch=3)
    one = dict(q_len=ints(4, 9, 2), kv_len=ints(4, 9, 2), form="packed")
    add("self", "three texts packed: each sees its own tokens", shape, **one)
    add("causal", "three texts packed, causal", shape, causal=True, **one)
    add("cross", "other numbers of keys than queries", shape, q_len=ints(4, 9, 2), kv_len=ints(7, 3, 9), form="packed")
    add("bottom_right", "packed, causal, each aligned by its own end", shape, q_len=ints(4, 3, 2), kv_len=ints(7, 3, 9),
        form="packed", causal=True, align="bottom_right")
    add("flag", "packed, a causal flag alone, other numbers of keys than queries", shape, q_len=ints(4, 3, 2),
        kv_len=ints(7, 3, 9), form="packed", causal=True)
    add("empty", "one of the texts is empty", shape, q_len=ints(4, 0, 2), kv_len=ints(4, 0, 2), form="packed", causal=True)
    add("no_keys", "queries of a text without keys are 0", shape, q_len=ints(4, 3, 2), kv_len=ints(4, 0, 2), form="packed")
    add("groups", "packed, grouped heads", sizes(9, 9, batch=3, heads=4, kv_heads=2), causal=True, **one)
    add("window", "packed, a window", shape, window=(2, 0), **one)
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"packed in {dtype}", sizes(9, 9, batch=3, dim=16), dtype=dtype, causal=True, **one)


def windows():
    add = Subject("window", "Mistral 7B, https://arxiv.org/abs/2310.06825, section 2; " + SEMANTICS
                  + "Which keys: window (left, right) includes both ends")
    for left, right in ((0, 0), (1, 0), (3, 0), (8, 0), (2, 2), (0, 3), (None, 2), (3, None), (20, 20)):
        name = "_".join("all" if n is None else str(n) for n in (left, right))
        add(name, f"{'all' if left is None else left} keys to the left and {'all' if right is None else right} to the right",
            sizes(9, 9), window=(left, right), align="top_left")
    add("causal", "a window of 4 keys beside a causal flag", sizes(12, 12), window=(3, None), causal=True, align="top_left")
    add("33", "a window of 8 in a longer text", sizes(33, 33, heads=1), window=(7, 0), align="top_left")
    for align in ("top_left", "bottom_right"):
        for queries, keys in ((4, 9), (9, 6)):
            add(f"{align}_{queries}x{keys}", f"a window, {align}", sizes(queries, keys), window=(2, 0), align=align)
    add("decode", "one query and its last 5 keys", sizes(1, 17), window=(4, 0), align="bottom_right")
    add("offset", "a window by a given position", sizes(3, 12), window=(3, 1), align=6)
    add("flag", "a window alone, other numbers of queries than keys", sizes(4, 9), window=(2, 0))
    add("marked", "values outside the window are 1000 times as large", sizes(9, 9, heads=1), window=(2, 0), align="top_left",
        edit=times(1000, "v", np.s_[:, :, ::8]))
    add("groups", "a window with grouped heads", sizes(9, 9, heads=4, kv_heads=2), window=(3, 0), align="top_left")
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"a window in {dtype}", sizes(9, 9, dim=16), window=(2, 0), align="top_left", dtype=dtype)


# ---- Terms of a score --------------------------------------------------------------------------------------------------

def sinks():
    add = Subject("sinks", "gpt-oss, https://arxiv.org/abs/2508.10925; " + SEMANTICS + "Scores: a logit of each head that "
                  "joins the sum and has no value")
    add("plain", "a sink for each head", sizes(7, 9), sinks=floats(0.5, -1))
    add("large", "a sink that takes nearly everything", sizes(7, 9), sinks=floats(12, 9))
    add("small", "a sink of -20 changes next to nothing", sizes(7, 9), sinks=floats(-20, -20))
    add("zero", "a sink of 0 is not no sink", sizes(7, 9), sinks=floats(0, 0))
    add("different", "every head has its own", sizes(5, 7, heads=4), sinks=floats(3, -3, 1, 0))
    add("causal", "sinks beside a causal flag: row 0 sees key 0 and the sink", sizes(9, 9), sinks=floats(1, 2), causal=True)
    add("groups", "sinks belong to query heads", sizes(7, 9, heads=4, kv_heads=2), sinks=floats(2, -1, 0, 1))
    add("window", "sinks beside a window", sizes(9, 9), sinks=floats(1, 2), window=(2, 0), align="top_left")
    add("mask", "sinks beside a mask", sizes(7, 9), sinks=floats(1, 2), mask=boolean(1, 1, 7, 9))
    add("not_scaled", "sinks are not scaled", sizes(7, 9), sinks=floats(4, 2), scale=0.1)
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"sinks in {dtype}", sizes(7, 9, dim=16), sinks=floats(1, 2), dtype=dtype)


def softcaps():
    add = Subject("softcap", "Gemma 2, https://arxiv.org/abs/2408.00118, section 2; " + SEMANTICS
                  + "Scores: of the scaled score, before bias and masks")
    for cap in (0.5, 2.0, 30.0):
        add(f"cap_{cap:g}", f"scores become {cap:g} tanh(score / {cap:g})", sizes(7, 9), softcap=cap)
    add("scale", "the cap is one of the scaled score", sizes(7, 9), softcap=1.0, scale=0.1)
    add("bias", "the cap comes before the bias", sizes(7, 9), softcap=1.0, bias=numbers(1, 2, 7, 9))
    add("infinite_bias", "-inf in the bias masks, whatever the cap", sizes(7, 9), softcap=1.0,
        bias=numbers(1, 2, 7, 9, masked=0.5))
    add("mask", "the cap comes before the mask: masked keys are not capped scores", sizes(7, 9), softcap=1.0,
        mask=boolean(1, 1, 7, 9))
    add("causal", "softcap beside a causal flag", sizes(9, 9), softcap=1.0, causal=True)
    add("alibi", "the cap comes before ALiBi", sizes(7, 9), softcap=1.0, alibi=floats(0.5, 0.25), align="top_left")
    add("window", "softcap beside a window, as in Gemma 2", sizes(9, 9), softcap=2.0, window=(3, 0), align="top_left")
    add("groups", "softcap with grouped heads", sizes(7, 9, heads=4, kv_heads=2), softcap=1.0)
    add("saturated", "scores far beyond the cap", sizes(7, 9), softcap=1.0, edit=times(8))
    add("sinks", "the sink is not capped", sizes(7, 9), softcap=0.5, sinks=floats(2, 1))
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"softcap in {dtype}", sizes(7, 9, dim=16), softcap=1.0, dtype=dtype)


def alibi():
    add = Subject("alibi", "Press et al. 2022, https://arxiv.org/abs/2108.12409; " + SEMANTICS + "Scores")
    add("plain", "minus slope times distance, in both directions", sizes(9, 9), alibi=floats(0.5, 0.125), align="top_left")
    add("causal", "with a causal mask", sizes(9, 9), alibi=floats(0.5, 0.125), causal=True, align="top_left")
    add("bottom_right", "the distance counts from the aligned position", sizes(4, 9), alibi=floats(0.5, 0.125), causal=True,
        align="bottom_right")
    add("decode", "one query at the end", sizes(1, 33), alibi=floats(0.25, 1), causal=True, align="bottom_right")
    add("groups", "slopes belong to query heads", sizes(7, 7, heads=4, kv_heads=2), alibi=floats(1, 0.5, 0.25, 0.125),
        causal=True, align="top_left")
    add("not_scaled", "slopes are not scaled", sizes(9, 9), alibi=floats(0.5, 0.125), scale=0.01, causal=True,
        align="top_left")
    add("bfloat16", "ALiBi in bfloat16", sizes(9, 9, dim=16), alibi=floats(0.5, 0.125), causal=True, align="top_left",
        dtype="bfloat16")


def groups():
    add = Subject("groups", "Ainslie et al. 2023, https://arxiv.org/abs/2305.13245; " + SEMANTICS
                  + "head h reads KV head h / (heads / kv_heads)")
    for heads, kv_heads in ((4, 2), (6, 2), (6, 3), (8, 4), (4, 1), (3, 1), (9, 3)):
        add(f"{heads}_{kv_heads}", f"{heads} heads share {kv_heads} KV heads", sizes(5, 7, heads=heads, kv_heads=kv_heads))
    add("causal", "grouped heads, causal", sizes(7, 7, heads=4, kv_heads=2), causal=True)
    add("mask", "a mask for each query head", sizes(5, 7, heads=4, kv_heads=2), mask=boolean(1, 4, 5, 7))
    add("bias", "a bias for each query head", sizes(5, 7, heads=4, kv_heads=2), bias=numbers(1, 4, 5, 7))
    add("decode", "one query, 8 heads, 2 KV heads", sizes(1, 33, heads=8, kv_heads=2))
    add("batch", "two sequences", sizes(5, 7, batch=2, heads=4, kv_heads=2))
    for dtype in ("float16", "bfloat16"):
        add(dtype, f"grouped heads in {dtype}", sizes(5, 7, heads=4, kv_heads=2, dim=16), dtype=dtype)


# ---- Memory ------------------------------------------------------------------------------------------------------------

MEMORY = {
    "bshd": "views of [batch, tokens, heads, dim]",
    "qkv": "views of one array that holds q, k and v of each token side by side",
    "reversed": "tokens in reverse order in memory: negative strides",
    "every_second": "every second token of a longer array",
    "every_second_element": "every second element of longer rows",
    "dim_first": "views of [batch, heads, dim, tokens]: the last stride is not 1",
    "unaligned": "arrays that begin 4 bytes behind a multiple of 64",
    "sliced": "the last tokens of a longer array whose first ones are NaN",
}


def memory():
    add = Subject("strides", SEMANTICS + "Types and memory: values do not depend on where they lie")
    def repeat(first):
        def edit(q, k, v):
            k[...], v[...] = k[first].copy(), v[first].copy()
        return edit

    for name, meaning in MEMORY.items():
        add(name, meaning, sizes(7, 7, batch=2, dim=8), memory=name)
        if name in ("bshd", "qkv", "reversed", "sliced"):
            add(name + "_causal", meaning + ", causal", sizes(9, 9), memory=name, causal=True)
    add("one_batch", "k and v of one sequence for all, by a stride of 0", sizes(5, 7, batch=3), memory="one_batch",
        edit=repeat(np.s_[:1]))
    add("one_head", "k and v of one head for all, by a stride of 0", sizes(5, 7, heads=3), memory="one_head",
        edit=repeat(np.s_[:, :1]))
    add("bshd_bfloat16", MEMORY["bshd"], sizes(7, 7, batch=2, dim=16), memory="bshd", dtype="bfloat16")


# ---- NaN ---------------------------------------------------------------------------------------------------------------

def masked_nan():
    add = Subject("masked_nan", SEMANTICS + "Which keys: the value of a masked element does not matter, even if it is NaN")
    everything = slice(None)
    hidden = np.ones((1, 1, 5, 7), bool)
    hidden[..., 3] = False
    for which, value in (("k", NAN), ("v", NAN), ("k", INF), ("v", INF), ("v", -INF)):
        name = f"{which}_{'nan' if value != value else 'inf' if value > 0 else 'minus_inf'}"
        word = f"{'NaN' if value != value else f'{value:+g}'.replace('inf', 'infinity')} in the {which} of a key"
        poison = [(which, (0, everything, 3), value)]
        add(f"mask_{name}", f"{word} that a boolean mask hides from all rows", sizes(5, 7), mask=hidden, poison=poison)
        add(f"bias_{name}", f"{word} that a bias of -inf hides", sizes(5, 7), poison=poison,
            bias=np.where(hidden, np.float32(0), np.float32(-INF)))
        last = [(which, (0, everything, 6), value)]
        add(f"kv_len_{name}", f"{word} behind the sequence's length", sizes(5, 7), kv_len=ints(6), poison=last)
        if value != value:
            add(f"causal_{name}", f"{word} behind every query, causal", sizes(5, 7), causal=True, align="top_left",
                poison=last)
            add(f"window_{name}", f"{word} before every window", sizes(4, 9), window=(2, 0), align="bottom_right",
                poison=[(which, (0, everything, 0), value)])
            add(f"decode_{name}", f"{word} behind the length, one query", sizes(1, 33), kv_len=ints(20),
                poison=[(which, (0, everything, slice(20, None)), value)])
    add("pages", "NaN in a page, behind the length of its sequence", sizes(3, 40, batch=2, kv_heads=1, dim=32), form="pages",
        fill=NAN, q_len=ints(3, 2), kv_len=ints(40, 33), causal=True, align="bottom_right")
    add("bias_at_masked_key", "NaN in the bias of a key that a boolean mask hides", sizes(5, 7), mask=hidden,
        bias=numbers(1, 1, 5, 7), poison=[("bias", (0, 0, everything, 3), NAN)])
    add("bfloat16", "NaN in a masked value, bfloat16", sizes(5, 7, dim=16), mask=hidden, dtype="bfloat16",
        poison=[("v", (0, everything, 3), NAN)])


def seen_nan():
    add = Subject("seen_nan", SEMANTICS + "Which keys; docs/numerics.md: where the exact answer is NaN, the output must be")
    mask = np.ones((1, 1, 5, 7), bool)
    mask[..., :2, 3] = False
    for which, meaning in (("k", "NaN in a key: rows that see it are NaN, others right"),
                           ("v", "NaN in one element of a value: that element of rows that see it")):
        index = (0, 1, 3, 2) if which == "v" else (0, 1, 3)
        add(f"mask_{which}", meaning + ", by a mask", sizes(5, 7), mask=mask, poison=[(which, index, ("seen", NAN))])
        add(f"causal_{which}", meaning + ", causal", sizes(7, 7), causal=True, poison=[(which, index, ("seen", NAN))])


# ---- Numbers -----------------------------------------------------------------------------------------------------------

def long_rows():
    add = Subject("long_rows", "docs/numerics.md: errors grow with the number of keys, but within the limit")
    def rise(q, k, v):
        q[...], k[...] = 1, np.arange(1000, dtype=np.float32)[:, None] / 32

    def ones(q, k, v):
        k[...], v[...] = 0, 1

    for keys in (100, 1000, 2600):
        add(f"{keys}", f"{keys} keys", sizes(2, keys, heads=1, dim=2))
    add("causal_200", "causal over 200 keys", sizes(200, 200, heads=1, dim=4), causal=True)
    add("border_1000", "the key behind the length has a value 100 times as large", sizes(1, 1000, heads=1, dim=2),
        kv_len=ints(999), edit=times(100, "v", np.s_[:, :, 999:]))
    add("first_1000", "the first key alone tells a sum that misses it", sizes(1, 1000, heads=1, dim=2),
        edit=times(100, "v", np.s_[:, :, 0]))
    add("rising_1000", "the largest score grows from key to key: every block rescales", sizes(1, 1000, heads=1, dim=2),
        edit=rise)
    for dtype in ("float16", "bfloat16"):
        add(f"{dtype}_1000", f"1000 keys in {dtype}: sums wider than 16 bits", sizes(2, 1000, heads=1, dim=2), dtype=dtype)
    add("equal_float16_2600", "2600 equal weights in float16: a sum of 16 bits would stop at 2048", sizes(1, 2600, heads=1,
        dim=2),
        dtype="float16", edit=ones)


def extreme():
    add = Subject("extreme", "docs/numerics.md, What is presumed: scores fit float32")

    def decided(gap):
        """Key 2 has a score larger by `gap` than others."""
        def edit(q, k, v):
            q[...], k[...] = 1, 0
            k[:, :, 2] = gap / np.sqrt(np.float32(q.shape[-1]))
        return edit

    def shifted(by):
        """All scores are moved by the same number, exactly."""
        def edit(q, k, v):
            q[..., 0], k[..., 0] = 16, by
        return edit

    def cancel(q, k, v):
        v[:, :, 4:] = -v[:, :, :4]

    for factor in (10, 100, 1000):
        add(f"scores_{factor}", f"scores {factor} times as large as usual", sizes(7, 9), edit=times(factor))
    for gap in (80, 100, 1000, 10000):
        add(f"decided_{gap}", f"one key's score is larger by {gap}: its value", sizes(5, 7), edit=decided(gap))
        add(f"undecided_{gap}", f"one key's score is smaller by {gap}: the mean of the others", sizes(5, 7),
            edit=decided(-gap))
    for by in (64.0, 512.0, -512.0):
        add(f"shifted_{by:g}", "a number that is added to all scores of a row does not change it", sizes(5, 7),
            edit=shifted(by))
    add("equal", "equal scores: the mean", sizes(5, 7), edit=times(0, "k"))
    add("large_values", "values near 1e38: their mean is no infinity", sizes(5, 16), edit=times(3e37, "v"))
    add("small_values", "values near 1e-30", sizes(5, 7), edit=times(1e-30, "v"))
    add("denormal_values", "values near 1e-40, which float32 holds with fewer bits", sizes(5, 7), edit=times(1e-40, "v"))
    add("small_scores", "queries near 1e-20: equal weights", sizes(5, 7), edit=times(1e-20))
    add("large_queries", "queries near 1e18 and keys near 1e-18", sizes(5, 7),
        edit=both(times(2.0**60), times(2.0**-60, "k")))
    add("float16_overflow", "q k before the scale is beyond float16", sizes(5, 7, dim=64), dtype="float16", scale=1 / 4096,
        edit=both(times(32), times(32, "k")))
    add("cancelling", "values of both signs that cancel", sizes(5, 8), edit=both(times(0, "k"), cancel))


# ---- Caches ------------------------------------------------------------------------------------------------------------

def paged():
    add = Subject("pages", "Kwon et al. 2023, https://arxiv.org/abs/2309.06180; " + SEMANTICS + "Pages")
    shape = sizes(5, 40, batch=2, heads=2, kv_heads=1, dim=32)
    base = dict(form="pages", causal=True, align="bottom_right")
    add("prompt", "prompts with a past in pages", shape, q_len=ints(5, 3), kv_len=ints(40, 33), **base)
    add("decode", "one token each", sizes(1, 40, batch=2, kv_heads=1, dim=32), q_len=ints(1, 1), kv_len=ints(40, 33), **base)
    add("mixed", "a prompt beside a single token", shape, q_len=ints(5, 1), kv_len=ints(5, 39), **base)
    add("one_page", "a sequence that ends with its page", shape, q_len=ints(4, 2), kv_len=ints(32, 31), **base)
    add("first_token", "a sequence of one token", shape, q_len=ints(1, 5), kv_len=ints(1, 6), **base)
    add("groups", "grouped heads", sizes(5, 40, batch=2, heads=4, kv_heads=2, dim=32), q_len=ints(5, 2), kv_len=ints(40, 21),
        **base)
    add("window", "a window", shape, q_len=ints(5, 3), kv_len=ints(40, 33), window=(7, 0), form="pages",
        align="bottom_right")
    add("softcap", "a softcap", shape, q_len=ints(5, 3), kv_len=ints(40, 33), softcap=1.0, **base)
    add("sinks", "sinks", shape, q_len=ints(5, 3), kv_len=ints(40, 33), sinks=floats(1, 2), **base)
    add("alibi", "ALiBi", shape, q_len=ints(5, 3), kv_len=ints(40, 33), alibi=floats(0.5, 0.125), **base)
    add("all_keys", "without a causal mask", shape, q_len=ints(5, 3), kv_len=ints(40, 33), form="pages")
    add("idle", "a sequence without new tokens", shape, q_len=ints(5, 0), kv_len=ints(40, 33), **base)
    add("bfloat16", "bfloat16", shape, q_len=ints(5, 3), kv_len=ints(40, 33), dtype="bfloat16", **base)


def quantised():
    add = Subject("quantised", SEMANTICS + "Types and memory: a key is its stored elements times its factor; "
                  "https://github.com/ggml-org/ggml, https://arxiv.org/abs/2209.05433")
    for form in ("int8_tensor", "int8_head", "int8_token", "e4m3", "q8_0", "q4_0"):
        add(f"{form}", f"keys and values of {form}", sizes(5, 9, dim=32), form=form)
        add(f"{form}_decode", f"keys and values of {form}, one query, grouped heads", sizes(1, 20, heads=4, kv_heads=2,
            dim=64),
            form=form)
    add("q8_0_causal", "q8_0, causal", sizes(5, 9, dim=32), form="q8_0", causal=True, align="bottom_right")
    add("int8_token_causal", "int8 with a factor of each token, causal", sizes(5, 9, dim=32), form="int8_token", causal=True,
        align="bottom_right")


# ---- Other outputs -----------------------------------------------------------------------------------------------------

def lse():
    add = Subject("lse", SEMANTICS + "lse is the natural logarithm of the sum, without the sink")
    both = ("o", "lse")
    add("plain", "the logarithm of the sum of exponentials", sizes(7, 9), outputs=both)
    add("causal", "causal", sizes(9, 9), causal=True, outputs=both)
    add("mask", "masked keys are not in the sum", sizes(7, 9), mask=boolean(1, 1, 7, 9), outputs=both)
    add("empty", "-infinity in rows that see no key", sizes(5, 6), outputs=both,
        mask=(np.arange(5) % 2 == 0)[None, None, :, None] & np.ones((1, 1, 1, 6), bool))
    add("sinks", "the sink is not in the sum", sizes(7, 9), sinks=floats(1, 2), outputs=both)
    add("scale", "of scaled scores", sizes(7, 9), scale=0.1, outputs=both)
    add("large", "scores of some hundred", sizes(7, 9), outputs=both, edit=times(100))


def gradients():
    add = Subject("gradients", "Dao et al. 2022, https://arxiv.org/abs/2205.14135, section B.2; docs/numerics.md")
    out = ("dq", "dk", "dv")
    for queries, keys in ((1, 1), (7, 9), (9, 7), (1, 17), (33, 16)):
        add(f"{queries}x{keys}", "gradients by q, k and v", sizes(queries, keys), outputs=out)
    for n in (1, 9, 17):
        add(f"causal_{n}", "causal", sizes(n, n), causal=True, outputs=out)
    add("top_left", "causal, fewer queries than keys: keys that no query sees have zeros", sizes(4, 9), causal=True,
        align="top_left", outputs=out)
    add("dim_v", "values of another width", sizes(7, 9, dim=8, dim_v=5), outputs=out)
    add("groups", "grouped heads: dk and dv are sums over the group", sizes(5, 7, heads=4, kv_heads=2), outputs=out)
    add("mask", "a boolean mask", sizes(7, 9), mask=boolean(1, 1, 7, 9), outputs=out)
    add("padding", "keys of padding have zeros", sizes(7, 9, batch=2), outputs=out,
        mask=(np.arange(9) < np.array([[9], [4]]))[:, None, None])
    rows = np.ones((1, 1, 5, 6), bool)
    rows[0, 0, (1, 4)] = False
    add("empty_rows", "rows that see no key have zeros, and add nothing to dk and dv", sizes(5, 6), mask=rows, outputs=out)
    add("masked_nan", "NaN in a masked value reaches no gradient", sizes(5, 7), outputs=out, poison=[("v", (0, slice(None),
        3), NAN)],
        mask=(np.arange(7) != 3)[None, None, None] & np.ones((1, 1, 5, 1), bool))
    for dtype in ("float16", "bfloat16"):
        add(dtype, dtype, sizes(7, 9, dim=16), dtype=dtype, outputs=out)

