# SPDX-License-Identifier: MIT
"""libattn.sdpa(page_table=): the bits of the same keys without pages, and refusals."""

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402

B, H, HKV, SQ, D, DV, PAGES, TOKENS = 3, 4, 2, 5, 24, 16, 12, 16
LENGTHS = [64, 33, 5]
ALIGNED = {"causal": True, "align": "bottom_right"}
R = np.random.default_rng(3)
ORDER = R.permutation(PAGES).astype(np.int32)
TABLE = np.full((B, 4), -1, np.int32)  # entries behind a length name no page
for b, first in enumerate((0, 4, 7)):
    used = -(-LENGTHS[b] // TOKENS)
    TABLE[b, :used] = ORDER[first:first + used]


def draw(dtype=np.float32):
    shapes = (B, H, SQ, D), (PAGES, HKV, TOKENS, D), (PAGES, HKV, TOKENS, DV)
    return tuple(R.standard_normal(shape).astype(dtype) for shape in shapes)


def gather(pages, table=TABLE):
    """[batch, heads, keys, dim] of what lies in pages; NaN where the table has none."""
    found = np.where(table[:, :, None, None, None] >= 0, pages[np.maximum(table, 0)], pages.dtype.type(np.nan))
    return np.concatenate(list(found.transpose(1, 0, 2, 3, 4)), axis=2)


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("kernel", ["naive_c", "blocked_c", "flash_c", "decode_c"])
@pytest.mark.parametrize("options", [{}, ALIGNED, {"window": (20, 0), "align": "bottom_right"}], ids=str)
def test_pages_have_the_bits_of_dense_keys(kernel, options):
    q, k, v = draw()
    options = {**options, "kernel": kernel, "kv_len": LENGTHS, "return_lse": True}
    right = libattn.sdpa(q, gather(k), gather(v), **options)
    for ours, theirs in zip(libattn.sdpa(q, k, v, page_table=TABLE, **options), right):
        same(ours, theirs)


def test_half_precision():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        q, k, v = draw(dtype)
        for queries in (q, q.astype(np.float32)):
            options = {"kernel": "flash_c", "kv_len": LENGTHS, **ALIGNED}
            same(libattn.sdpa(queries, k, v, page_table=TABLE, **options),
                 libattn.sdpa(queries, gather(k), gather(v), **options))


def test_any_strides_of_pages_and_table():
    q, k, v = draw()
    options = {"kernel": "flash_c", "kv_len": LENGTHS, **ALIGNED}
    right = libattn.sdpa(q, k, v, page_table=TABLE, **options)
    by_token = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (k, v)]
    both = np.zeros((2, PAGES, HKV, TOKENS, D), np.float32)  # one memory for keys and values
    both[0], both[1, ..., :DV] = k, v
    wide = np.full((2 * B, 9), -7, np.int32)
    wide[::2, :4] = TABLE
    for pages in ((k, v), by_token, (both[0], both[1, ..., :DV])):
        for table in (TABLE, TABLE.astype(np.int64), wide[::2, :4], np.asfortranarray(TABLE), np.flip(TABLE, 0)[::-1]):
            same(libattn.sdpa(q, *pages, page_table=table, **options), right)
    shared = np.broadcast_to(TABLE[0], (B, 4))
    same(libattn.sdpa(q, k, v, page_table=shared, **options), libattn.sdpa(q, k, v, page_table=shared.copy(), **options))


@pytest.mark.parametrize("layout", ["thd", "htd"])
def test_packed_queries(layout):
    """A chunk with a past, no new token, and one new token, beside each sequence alone."""
    _, k, v = draw()
    q, borders = R.standard_normal((8, H, D)).astype(np.float32), [0, 7, 7, 8]
    turn = (lambda x: x) if layout == "thd" else (lambda x: np.ascontiguousarray(x.transpose(1, 0, 2)))
    options = {"kernel": "flash_c", **ALIGNED}
    out = turn(libattn.sdpa(turn(q), k, v, page_table=TABLE, kv_len=LENGTHS, cu_seqlens_q=borders, layout=layout, **options))
    for i in range(B):
        rows = slice(*borders[i:i + 2])
        keys, values = (gather(x, TABLE[i:i + 1]) for x in (k, v))
        alone = libattn.sdpa(q[rows].transpose(1, 0, 2)[None], keys, values, kv_len=LENGTHS[i:i + 1], **options)
        same(np.ascontiguousarray(out[rows]), np.ascontiguousarray(alone[0].transpose(1, 0, 2)))


def test_plans():
    q, k, v = draw()
    libattn.forget_plans()
    tables = [TABLE, np.where(TABLE < 0, TABLE, (TABLE + 1) % PAGES)]
    for table in tables:
        libattn.sdpa(q, k, v, page_table=table, kv_len=LENGTHS)
    assert libattn.plan_counts() == (1, 1)
    plan = libattn.Plan(*map(libattn.Spec, (q.shape, k.shape, v.shape)), page_table=libattn.Spec(TABLE.shape, "int32"),
                        kv_len=libattn.Spec((B,), "int32"))
    for table in tables:
        same(plan.run(q, k, v, page_table=table, kv_len=LENGTHS), libattn.sdpa(q, k, v, page_table=table, kv_len=LENGTHS))
    with pytest.raises(ValueError, match="the plan was made for pages = 12; this call has 11"):
        plan.run(q, k[:-1], v[:-1], page_table=TABLE, kv_len=LENGTHS)
    with pytest.raises(ValueError, match="page_table has other strides"):
        plan.run(q, k, v, page_table=np.zeros((B, 9), np.int32)[:, :4], kv_len=LENGTHS)
    packed = {"page_table": TABLE, "kv_len": LENGTHS, "cu_seqlens_q": [0, 2, 3, 5]}
    plan = libattn.Plan(q[0].transpose(1, 0, 2), k, v, **packed)
    same(plan.run(q[0].transpose(1, 0, 2), k, v, **packed), libattn.sdpa(q[0].transpose(1, 0, 2), k, v, **packed))
    assert libattn.why_not("flash_c", q, k, v, page_table=TABLE, kv_len=LENGTHS) is None


REFUSED = [
    (ValueError, "page_table is given without kv_len", {"kv_len": None}),
    (ValueError, "page_table has 1 dimensions; it must be", {"page_table": TABLE[0]}),
    (ValueError, "page_table has batch 2; q has 3", {"page_table": TABLE[:2]}),
    (TypeError, "page_table is float32; it must be int32", {"page_table": TABLE.astype(np.float32)}),
    (TypeError, "page_table", {"page_table": TABLE.tolist()}),
    (ValueError, r"page_table has 3 columns of 16 tokens; kv_len\[0\] is 64, for which it must have 4",
     {"page_table": TABLE[:, :3]}),
    (ValueError, r"page_table\[1\]\[2\] is 12; it must be in 0..11",
     {"page_table": np.where(TABLE[1, 2] == TABLE, 12, TABLE)}),
    (ValueError, r"page_table\[0\]\[3\] is -1; it must be in 0..11",
     {"page_table": np.where(TABLE[0, 3] == TABLE, -1, TABLE)}),
    (ValueError, r"kv_len\[2\] is -1", {"kv_len": [64, 33, -1]}),
    (ValueError, "k has 3 dimensions; with page_table it must be", {"k": np.zeros((PAGES, TOKENS, D), np.float32)}),
    (ValueError, "v has pages 11; k has 12", {"v": np.zeros((PAGES - 1, HKV, TOKENS, DV), np.float32)}),
    (ValueError, "v has heads 1; k has 2", {"v": np.zeros((PAGES, 1, TOKENS, DV), np.float32)}),
    (ValueError, "v has page_tokens 32; k has 16", {"v": np.zeros((PAGES, HKV, 32, DV), np.float32)}),
    (ValueError, "k has head_dim 23; q has 24", {"k": np.zeros((PAGES, HKV, TOKENS, D - 1), np.float32)}),
    (TypeError, "k is float64", {"k": np.zeros((PAGES, HKV, TOKENS, D))}),
    (ValueError, "page_tokens is 8; it must be a multiple of 16",
     {"k": np.zeros((PAGES, HKV, 8, D), np.float32), "v": np.zeros((PAGES, HKV, 8, DV), np.float32), "kv_len": [32, 32, 5]}),
    (ValueError, "cu_seqlens_k is given with page_table", {"cu_seqlens_q": [0, 5], "cu_seqlens_k": [0, 5]}),
    (ValueError, "max_seqlen_k is given with page_table", {"max_seqlen_k": 64}),
    (ValueError, "page_table has batch 3; cu_seqlens_q has 2",
     {"q": np.zeros((5, H, D), np.float32), "cu_seqlens_q": [0, 2, 5], "kv_len": [5, 5]}),
    (ValueError, "page_table is given with score 'precomputed'", {"score": "precomputed"}),
]


@pytest.mark.parametrize(("kind", "sentence", "wrong"), REFUSED, ids=[sentence for _, sentence, _ in REFUSED])
def test_refusal(kind, sentence, wrong):
    arguments = {**dict(zip("qkv", draw())), "page_table": TABLE, "kv_len": LENGTHS}
    libattn.sdpa(**arguments)
    with pytest.raises(kind, match=sentence):
        libattn.sdpa(**{**arguments, **wrong})


def test_arrays_of_jax():
    """Pages, tables and lengths of JAX: the bits of NumPy's."""
    jax = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "float16", "bfloat16"):
        arrays = [jax.asarray(x).astype(dtype) for x in draw()]
        packed = {"cu_seqlens_q": [0, 5, 5, 8], "layout": "thd"}
        for queries, given in ((arrays[0], {}), (arrays[0].reshape(B * SQ, H, D)[:8], packed)):
            options = {"kernel": "flash_c", **given, **ALIGNED}
            out = libattn.sdpa(queries, *arrays[1:], page_table=jax.asarray(TABLE), kv_len=jax.asarray(LENGTHS, "int32"),
                               **options)
            assert isinstance(out, np.ndarray)
            numbers = (np.asarray(x) for x in (queries, *arrays[1:]))
            right = libattn.sdpa(*numbers, page_table=TABLE, kv_len=LENGTHS, **options)
            same(out, right)
    with pytest.raises(ValueError, match=r"page_table\[1\]\[2\] is 12; it must be in 0..11"):
        libattn.sdpa(*arrays, page_table=jax.asarray(np.where(TABLE[1, 2] == TABLE, 12, TABLE)), kv_len=LENGTHS)
