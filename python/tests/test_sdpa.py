# SPDX-License-Identifier: MIT
"""libattn.sdpa with NumPy: every option against the reference, strides, dtypes, outputs, refusals."""

import inspect

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from libattn import _native, _sdpa  # noqa: E402
from limits import gradient_limits  # noqa: E402
from reference import attention, dropout_factors, gradients  # noqa: E402

B, H, HKV, SQ, SK, D, DV = 2, 4, 2, 9, 13, 24, 16


def draw(seed=0, sq=SQ, sk=SK, d=D, dv=DV, dtype=np.float32):
    r = np.random.default_rng(seed)
    return tuple(r.standard_normal(shape).astype(dtype) for shape in ((B, H, sq, d), (B, HKV, sk, d), (B, HKV, sk, dv)))


R = np.random.default_rng(7)
MASK = R.random((B, H, SQ, SK)) > 0.3
MASK[0, :, 0] = False  # rows that see no key
BIAS = np.where(R.random((B, 1, SQ, SK)) > 0.2, R.standard_normal((B, 1, SQ, SK)), -np.inf).astype(np.float32)
OPTIONS = {
    "plain": {},
    "mask": {"mask": MASK},
    "mask of keys": {"mask": MASK[0, 0, 1]},
    "mask of batches": {"mask": MASK[:, :1, :1]},
    "bias": {"bias": BIAS},
    "bias of heads": {"bias": BIAS[0]},
    "causal": {"causal": True},
    "causal bottom-right": {"causal": True, "align": "bottom_right"},
    "causal at 3": {"causal": True, "align": 3},
    "causal at offsets": {"causal": True, "align": np.array([-2, 5])},
    "window": {"window": (2, 1)},
    "window left": {"window": (3, None)},
    "window both": {"window": 2, "align": "bottom_right"},
    "causal window": {"window": (3, 7), "causal": True},
    "scale": {"scale": 0.7},
    "scale 0": {"scale": 0},
    "softcap": {"softcap": 1.5},
    "alibi": {"alibi": [0.5, 0.25, 0.125, 1]},
    "sinks": {"sinks": np.array([0, 1, -1, 2.0])},
    "lengths": {"kv_len": [SK, 4], "q_len": [5, SQ]},
    "lengths int64": {"kv_len": np.array([0, 7])},
    "lengths of rows": {"row_len": R.integers(0, SK + 1, (B, SQ))},
    "lengths bottom-right": {"kv_len": [SK, 11], "q_len": [5, SQ], "causal": True, "align": "bottom_right"},
    "additive": {"score": "additive", "score_weight": R.standard_normal(D).astype(np.float32)},
    "gaussian": {"score": "gaussian", "score_weight": R.standard_normal((H, D)).astype(np.float32)},
    "gaussian plain": {"score": "gaussian"},
    "dropout": {"dropout": 0.4, "seed": 5},
    "dropout by 64 bits": {"dropout": 0.7, "seed": 2**64 - 3, "offset": 2**40 + 1, "causal": True, "align": "bottom_right"},
    "dropout, negative seed": {"dropout": 0.1, "seed": -3, "offset": -1, "sinks": [0, 1, 2, 3], "softcap": 2.0},
    "all": {"mask": MASK, "bias": BIAS, "causal": True, "align": "bottom_right", "softcap": 2.0, "alibi": [1, 0.5, 0.2, 0],
            "sinks": [0, 1, 2, 3], "kv_len": [SK, 12], "window": (9, None)},
}


def plainly(options):
    """Those of the reference."""
    window = options.get("window")
    return options if window is None or isinstance(window, tuple) else {**options, "window": (window, window)}


def expected(q, k, v, options):
    return attention(q, k, v, **plainly(options))


def assert_close(ours, right, limit=3e-6):
    ours, right = np.asarray(ours, float), np.asarray(right, float)
    assert ours.shape == right.shape
    assert np.array_equal(np.isneginf(ours), np.isneginf(right))
    seen = ~np.isneginf(right)
    assert np.abs(ours[seen] - right[seen]).max(initial=0) <= limit * (1 + np.abs(right[seen]).max(initial=0))


@pytest.mark.parametrize("name", OPTIONS)
def test_option(name):
    q, k, v = draw()
    out, lse = libattn.sdpa(q, k, v, return_lse=True, **OPTIONS[name])
    o, right = expected(q, k, v, OPTIONS[name])
    assert_close(out, o)
    assert_close(lse, right)
    assert out.dtype == lse.dtype == np.float32


@pytest.mark.parametrize("name", OPTIONS)
def test_plan_gives_the_bits_of_sdpa(name):
    q, k, v = draw()
    arrays = {key: value for key, value in OPTIONS[name].items()
              if key in ("mask", "bias", "alibi", "sinks", "kv_len", "q_len", "row_len", "score_weight", "seed", "offset")}
    if isinstance(OPTIONS[name].get("align"), np.ndarray):
        arrays["offsets"] = OPTIONS[name]["align"]
    plan = libattn.Plan(q, k, v, **OPTIONS[name])
    assert np.array_equal(plan.run(q, k, v, **arrays), libattn.sdpa(q, k, v, **OPTIONS[name]))


def test_precomputed():
    _, _, v = draw()
    scores = np.random.default_rng(3).standard_normal((1, H, SQ, SK)).astype(np.float32)
    assert_close(libattn.sdpa(None, None, v, scores=scores, score="precomputed", causal=True),
                 attention(None, None, v, scores=scores, score="precomputed", causal=True)[0])


ASKED = {"bias": "dbias", "sinks": "dsinks", "alibi": "dalibi_slopes", "score_weight": "dscore_weight"}


def derive(do, q, k, v, options, **more):
    """(Gradients, of everything that the call has; the arguments of a further call)"""
    out, lse = libattn.sdpa(q, k, v, return_lse=True, **options)
    asked = {name: True for of, name in ASKED.items() if of in options}
    return libattn.sdpa_grad(do, q, k, v, out, lse, **asked, **more, **options), (do, q, k, v, out, lse)


def assert_gradients(found, right, shape=None, limit=1e-5):
    for name, ours in found._asdict().items():
        if ours is None:
            continue
        wanted = right[name]
        if name in ("dbias", "dscores"):  # summed over what broadcasts
            axes = tuple(i for i, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1)
            wanted = wanted.sum(axes, keepdims=True).reshape(shape)
        assert_close(ours, wanted, limit)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name):
    """Gradients of out, and of lse too: against the formulas in float64; written in other places, and added there."""
    options, (q, k, v) = OPTIONS[name], draw()
    r = np.random.default_rng(1)
    do, d_lse = (r.standard_normal(shape).astype(np.float32) for shape in ((B, H, SQ, DV), (B, H, SQ)))
    shape = options["bias"].shape if "bias" in options else None
    for more in ({}, {"d_lse": d_lse}):
        right = gradients(do, q, k, v, **plainly(options), **more)
        found, arguments = derive(do, q, k, v, options, **more)
        assert_gradients(found, right, shape)
        assert {key for key, x in found._asdict().items() if x is not None} == {
            "dq", "dk", "dv", *(asked for of, asked in ASKED.items() if of in options)}
    places = {key: np.zeros((*x.shape, 2), np.float32)[..., 0] if x.ndim == 4 else np.zeros_like(x)
              for key, x in found._asdict().items() if x is not None}
    for times in (1, 2):
        written = libattn.sdpa_grad(*arguments, d_lse=d_lse, accumulate=True, **places, **options)
        for key, place in places.items():
            assert getattr(written, key) is place
            assert_close(place, times * np.asarray(getattr(found, key)), 1e-6)
    named = {"d_lse": d_lse, "kernel": "flash_backward_c", **options}  # the choice may depend on what is asked for
    one, all_of = libattn.sdpa_grad(*arguments, dq=False, dk=False, **named), libattn.sdpa_grad(*arguments, **named)
    assert one[:2] == (None, None)
    assert np.array_equal(one.dv, all_of.dv)


def test_dropout_mask():
    """Which weights are dropped, against the rule; they are those of a call, also of packed sequences and of a plan."""
    for shape, how in (((2, 3, 5, 300), (0.3, 7, 9)), ((1, 2, 1, 17), (0.5, -1)), ((1, 1, 4, 4), (0, 3)),
                       ((0, 2, 3, 4), (0.1, 0))):
        kept = libattn.dropout_mask(shape, *how)
        assert kept.dtype == bool
        assert np.array_equal(kept, dropout_factors(shape, *how) > 0)
        assert np.array_equal(libattn.dropout_mask(shape, *how, out=np.full(shape, 7, np.uint8)), kept)
    assert 0.45 < libattn.dropout_mask((4, 4, 64, 64), 0.5, 1).mean() < 0.55
    q, k, _ = draw()
    weights = {"dropout": 0.5, "seed": 3, "offset": 4}
    values = np.broadcast_to(np.eye(SK, dtype=np.float32), (B, HKV, SK, SK)).copy()
    out = libattn.sdpa(q, k, values, **weights)
    assert np.array_equal(out != 0, libattn.dropout_mask((B, H, SQ, SK), 0.5, 3, 4))
    tokens = [x.swapaxes(1, 2).reshape(-1, *x.shape[1::2]) for x in (q, k, values)]
    borders = {"cu_seqlens_q": [0, SQ, 2 * SQ], "cu_seqlens_k": [0, SK, 2 * SK]}
    packed = libattn.sdpa(*tokens, **borders, **weights)
    assert np.array_equal(packed.reshape(B, SQ, H, SK).swapaxes(1, 2) != 0, out != 0)
    plan = libattn.Plan(q, k, values, dropout=0.5)
    for seed in 3, 4:
        assert np.array_equal(plan.run(q, k, values, seed=seed), libattn.sdpa(q, k, values, dropout=0.5, seed=seed))


def test_dropout_refuses_in_words():
    q, k, v = draw()
    for error, sentence, options in (
            (ValueError, "seed is missing; dropout needs an integer that says which", {"dropout": 0.5}),
            (ValueError, "dropout is 1; it must be at least 0", {"dropout": 1, "seed": 1}),
            (TypeError, "dropout is 'half'; it must be a number", {"dropout": "half", "seed": 1}),
            (TypeError, "seed is 1.5; it must be an integer of 64 bits", {"dropout": 0.5, "seed": 1.5}),
            (TypeError, f"seed is {2**64}; it must be an integer of 64 bits", {"dropout": 0.5, "seed": 2**64}),
            (TypeError, "offset is 'one'; it must be an integer", {"dropout": 0.5, "seed": 1, "offset": "one"}),
            (ValueError, "dropout is 0.5 with ATTN_USE_STATE",
             {"dropout": 0.5, "seed": 1, "state": libattn.new_state(q, v)})):
        with pytest.raises(error, match=sentence):
            libattn.sdpa(q, k, v, **options)
    with pytest.raises(ValueError, match="seed is missing"):
        libattn.Plan(q, k, v, dropout=0.5).run(q, k, v)
    for error, sentence, arguments, options in (
            (ValueError, r"shape is \(2, 3\); it must be \(batch, heads, queries, keys\)", ((2, 3), 0.5, 1), {}),
            (ValueError, "dropout is -1; it must be at least 0", ((1, 1, 2, 2), -1, 1), {}),
            (TypeError, "offset is -9223372036854775809; it must be", ((1, 1, 2, 2), 0.5, 1, -2**63 - 1), {}),
            (ValueError, r"out has shape \(3,\); it must have \(1, 1, 2, 2\)", ((1, 1, 2, 2), 0.5, 1),
             {"out": np.zeros(3, bool)}),
            (TypeError, "out is float32; it must be bool or uint8", ((1, 1, 2, 2), 0.5, 1), {"out": q})):
        with pytest.raises(error, match=sentence):
            libattn.dropout_mask(*arguments, **options)


def test_gradients_of_precomputed_scores():
    _, _, v = draw()
    r = np.random.default_rng(3)
    scores, do = (r.standard_normal(shape).astype(np.float32) for shape in ((1, H, SQ, SK), (B, H, SQ, DV)))
    options = {"scores": scores, "score": "precomputed", "causal": True, "softcap": 1.5}
    found, _ = derive(do, None, None, v, options)
    assert_gradients(found, gradients(do, None, None, v, **options), scores.shape)
    assert found.dq is found.dk is None
    assert found.dscores.shape == scores.shape


@pytest.mark.parametrize("name", ["plain", "causal", "softcap", "additive", "gaussian", "sinks", "dropout"])
def test_gradients_are_central_differences(name):
    """A second check, by libattn.sdpa itself, which knows no formula."""
    q, k, v = draw(d=8, dv=8)
    options = {key: x[..., :8] if key == "score_weight" else x for key, x in OPTIONS[name].items()}
    r = np.random.default_rng(2)
    do = r.standard_normal((B, H, SQ, 8)).astype(np.float32)
    found, _ = derive(do, q, k, v, options)

    def loss(*arrays):
        return (libattn.sdpa(*arrays, **options).astype(float) * do).sum()

    for i, gradient in enumerate(found[:3]):
        direction = r.standard_normal(gradient.shape).astype(np.float32)
        moved = [[x + h * direction if i == at else x for at, x in enumerate((q, k, v))] for h in np.float32([3e-3, -3e-3])]
        slope = (loss(*moved[0]) - loss(*moved[1])) / 6e-3
        assert abs(slope - (gradient * direction).sum()) <= 1e-3 * np.linalg.norm(gradient)


@pytest.mark.parametrize("layout", ["bshd", "thd", "htd"])
def test_gradients_of_layouts(layout):
    """Packed sequences too: each has the gradients that it has alone."""
    q, k, v = draw()
    do = np.random.default_rng(1).standard_normal((B, H, SQ, DV)).astype(np.float32)
    right, (_, _, _, _, out, lse) = derive(do, q, k, v, {"causal": True})
    options = {"layout": layout, "causal": True}
    if layout == "bshd":
        arrays = [x.swapaxes(1, 2) for x in (do, q, k, v, out)]
        found = libattn.sdpa_grad(*arrays, lse, **options)
        assert all(np.array_equal(x.swapaxes(1, 2), y) for x, y in zip(found[:3], right))
        return
    axes = (0, 2, 1, 3) if layout == "thd" else (1, 0, 2, 3)

    def pack(x):
        x = x.transpose(axes)
        return x.reshape(-1, *x.shape[2:]) if layout == "thd" else x.reshape(x.shape[0], -1, x.shape[3])

    options.update(cu_seqlens_q=[0, SQ, 2 * SQ], cu_seqlens_k=[0, SK, 2 * SK])
    found = libattn.sdpa_grad(*map(pack, (do, q, k, v, out)), lse.swapaxes(0, 1).reshape(H, -1), **options)
    assert all(np.array_equal(x, pack(y)) for x, y in zip(found[:3], right))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_are_within_the_limit(dtype):
    kind = np.dtype(dtype) if dtype != "bfloat16" else pytest.importorskip("ml_dtypes").bfloat16
    for causal in (False, True):
        q, k, v = draw(sq=70, sk=300, dtype=kind)
        k, v = (np.repeat(x, 2, 1) for x in (k, v))
        do = np.random.default_rng(1).standard_normal((B, H, 70, DV)).astype(kind)
        found, _ = derive(do, q, k, v, {"causal": causal})
        wide = [x.astype(float) for x in (do, q, k, v)]
        right = gradients(*wide, causal=causal)
        for x, name, limit in zip(found, ("dq", "dk", "dv"), gradient_limits(*wide, dtype=dtype, causal=causal)):
            assert x.dtype == kind
            assert (np.abs(x.astype(float) - right[name]) <= limit).all()
            assert not (np.abs(right[name] * 1.05) <= limit).all()


def test_gradients_refuse_in_words():
    q, k, v = draw()
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    do, given = np.ones_like(out), (q, k, v, out, lse)
    paged = {"page_table": np.zeros((B, 1), np.int32), "kv_len": [1, 1]}
    for error, sentence, arguments, options in (
            (libattn.Unsupported, r"sdpa_grad\(\) takes no page_table: there are no gradients of keys and values in pages",
             (do, *given), paged),
            (libattn.Unsupported, "takes no key_blocks", (do, *given), {"key_blocks": libattn.KeyBlocks(*4 * (None,))}),
            (libattn.Unsupported, "takes no k_scale: there are no gradients of scaled keys", (do, *given), {"k_scale": 2.0}),
            (libattn.Unsupported, "takes no shared_prefix", (do, *given), {"shared_prefix": 4}),
            (libattn.Unsupported, "takes no window_first", (do, *given), {"window_first": 4, "window": (2, 0)}),
            (TypeError, "takes no return_lse: it reads lse", (do, *given), {"return_lse": True}),
            (TypeError, "do is missing", (None, *given), {}),
            (TypeError, "lse is missing", (do, *given[:4], None), {}),
            (TypeError, "k is int8; it must be float32, float16 or bfloat16$", (do, q, k.astype(np.int8), v, out, lse), {}),
            (ValueError, r"do has shape \(2, 4, 9\); it must have \(2, 4, 9, 16\)", (lse, *given), {}),
            (TypeError, "do is float16; it must be as out, float32", (do.astype(np.float16), *given), {}),
            (ValueError, r"d_lse has shape \(2, 4, 9, 16\); it must have \(2, 4, 9\)", (do, *given), {"d_lse": out}),
            (TypeError, "dq is float16; it must be float32, as q", (do, *given), {"dq": q.astype(np.float16)}),
            (ValueError, "dbias is given; the call has no bias", (do, *given), {"dbias": True}),
            (ValueError, "dalibi_slopes is given; the call has no alibi", (do, *given), {"dalibi_slopes": True}),
            (ValueError, "dsinks must be dense", (do, *given), {"sinks": [0] * H, "dsinks": np.zeros(8, np.float32)[::2]}),
            (ValueError, "dq is missing with accumulate", (do, *given), {"accumulate": True}),
            (ValueError, "dv is read-only", (do, *given), {"dv": np.broadcast_to(np.float32(0), v.shape)}),
            (TypeError, "unexpected keyword argument 'dbais'", (do, *given), {"dbais": True}),
            (ValueError, "flash_avx9", (do, *given), {"kernel": "flash_avx9"})):
        with pytest.raises(error, match=sentence):
            libattn.sdpa_grad(*arguments, **options)


@pytest.mark.parametrize("dims", [2, 3])
def test_fewer_dimensions(dims):
    q, k, v = (x[(0,) * (4 - dims)] for x in draw())
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    pad = (None,) * (4 - dims)
    o, right = attention(q[pad], k[pad], v[pad])
    assert_close(out, o[(0,) * (4 - dims)])
    assert_close(lse, right[(0,) * (4 - dims)])


def test_layout_bshd_and_strides():
    q, k, v = draw()
    right = attention(q, k, v)[0]
    by_token = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
    assert_close(libattn.sdpa(*by_token, layout="bshd"), right.transpose(0, 2, 1, 3))
    views = [x.transpose(0, 2, 1, 3) for x in by_token]
    assert_close(libattn.sdpa(*views), right)
    backwards = [np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1] for x in (q, k, v)]
    assert_close(libattn.sdpa(*backwards), right)
    shared = np.broadcast_to(k[:, :1], k.shape)
    assert_close(libattn.sdpa(q, shared, v), attention(q, shared, v)[0])
    packed = np.empty((B, H, SQ, 3, DV), np.float32)
    libattn.sdpa(q, k, v, out=packed[:, :, :, 1])
    assert_close(packed[:, :, :, 1], right)


def test_packed_sequences():
    r = np.random.default_rng(5)
    borders_q, borders_k = [0, 5, 5, 12], np.array([0, 7, 9, 20])
    q, k, v = (r.standard_normal((n, h, D)).astype(np.float32) for n, h in ((12, H), (20, HKV), (20, HKV)))
    out, lse = libattn.sdpa(q, k, v, cu_seqlens_q=borders_q, cu_seqlens_k=borders_k, causal=True, align="bottom_right",
                            return_lse=True)
    turned = libattn.sdpa(*(np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (q, k, v)), cu_seqlens_q=borders_q,
                          cu_seqlens_k=borders_k, causal=True, align="bottom_right", layout="htd", max_seqlen_q=9,
                          max_seqlen_k=30)
    assert_close(turned.transpose(1, 0, 2), out)
    for layout, axis in (("thd", 0), ("htd", 1)):  # tokens of no sequence
        arrays = [np.ascontiguousarray(x.swapaxes(0, axis)) for x in (q, k, v)]
        padded, of_rows = libattn.sdpa(*arrays, cu_seqlens_q=[1, 5, 5, 11], cu_seqlens_k=borders_k, layout=layout,
                                       return_lse=True)
        assert not padded.take([0, 11], axis).any()
        assert np.isneginf(of_rows[:, [0, 11]]).all()
        assert padded.take(range(1, 11), axis).all()
    plan = libattn.Plan(q, k, v, cu_seqlens_q=borders_q, cu_seqlens_k=borders_k)
    for other_q, other_k in (([0, 4, 8, 12], [0, 6, 12, 20]), ([0, 7, 7, 12], [0, 11, 11, 20])):  # no longer ones
        borders = {"cu_seqlens_q": other_q, "cu_seqlens_k": other_k}
        same_plan = {"max_seqlen_q": 7, "max_seqlen_k": 11}  # so that the same kernel is chosen
        assert np.array_equal(plan.run(q, k, v, **borders), libattn.sdpa(q, k, v, **borders, **same_plan))
    for i in range(3):
        a, b = slice(*borders_q[i:i + 2]), slice(*borders_k[i:i + 2])
        o, right = attention(*(x.transpose(1, 0, 2)[None] for x in (q[a], k[b], v[b])), causal=True, align="bottom_right")
        assert_close(out[a].transpose(1, 0, 2), o[0])
        assert_close(lse[:, a], right[0])


def test_half_precision():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype, limit in ((np.float16, 4e-3), (ml_dtypes.bfloat16, 3e-2)):
        q, k, v = draw(dtype=dtype)
        right = attention(q, k, v)[0]
        out = libattn.sdpa(q, k, v)
        assert out.dtype == dtype
        assert_close(out, right, limit)
        wide = libattn.sdpa(q, k, v, out_dtype="float32")
        assert wide.dtype == np.float32
        assert_close(wide, right, limit)
        assert_close(libattn.sdpa(q.astype(np.float32), k, v), right, limit)


def test_keys_of_8_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8):
        q, k, v = draw()
        k, v = ((np.rint(2 * x) if dtype == np.int8 else x).astype(dtype) for x in (k, v))
        right = attention(q, k.astype(np.float32), v.astype(np.float32))[0]
        out = libattn.sdpa(q, k, v)
        assert out.dtype == np.float32
        assert_close(out, right)
        half = libattn.sdpa(q.astype(ml_dtypes.bfloat16), k, v)
        assert half.dtype == ml_dtypes.bfloat16
        assert_close(half, right, 3e-2)
        plan = libattn.Plan(*(libattn.Spec(x.shape, str(x.dtype)) for x in (q, k, v)))
        assert np.array_equal(plan.run(q, k, v), out)
        with pytest.raises(TypeError, match=f"q is {np.dtype(dtype)}; it must be float32, float16 or bfloat16$"):
            libattn.sdpa(q.astype(dtype), k, v)
    with pytest.raises(TypeError, match="it must be float32, float16 or bfloat16, or float8_e4m3fn, float8_e5m2 or int8"):
        libattn.sdpa(q, k.astype(np.float64), v)
    with pytest.raises(TypeError, match="they must have one dtype"):
        libattn.sdpa(q, k, v.astype(ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("heads", [1, 16, 128])
def test_values_that_are_columns_of_keys(heads):
    r = np.random.default_rng(heads)
    q, latent = (r.standard_normal(shape).astype(np.float32) for shape in ((2, heads, 1, 72), (2, 1, 65, 72)))
    values = latent[..., :64]
    out = libattn.sdpa(q, latent, values)
    assert np.array_equal(out, libattn.sdpa(q, latent, values.copy()))
    assert_close(out, attention(q, latent, values)[0])


def test_mask_of_the_newest_keys():
    """A tree of tokens behind a cache of another length for each sequence."""
    q, k, v = draw(sq=5, sk=200)
    lengths, batch = np.int32([200, 90, 3])[:len(q)], len(q)
    tree = np.random.default_rng(1).random((batch, 1, 5, 8)) > 0.5
    whole = np.ones((batch, 1, 5, 200), bool)
    for b, length in enumerate(lengths):
        columns = np.arange(length) - (length - 8)
        whole[b, :, :, :length] = (columns < 0) | tree[b][..., np.maximum(columns, 0)]
    out = libattn.sdpa(q, k, v, mask=tree, mask_keys=8, kv_len=lengths)
    assert np.array_equal(out, libattn.sdpa(q, k, v, mask=whole, kv_len=lengths))
    plan = libattn.Plan(q, k, v, mask=tree, mask_keys=8)
    assert np.array_equal(plan.run(q, k, v, mask=tree), libattn.sdpa(q, k, v, mask=tree, mask_keys=8))
    with pytest.raises(ValueError, match="mask .*8"):
        libattn.sdpa(q, k, v, mask=whole, mask_keys=8)
    with pytest.raises(ValueError, match="mask_keys is 8 without ATTN_USE_MASK"):
        libattn.sdpa(q, k, v, mask_keys=8)


@pytest.mark.parametrize("kernel", [k.name for k in libattn.kernels() if not k.unusable and not k.library])
def test_values_within_the_rows_of_keys(kernel):
    """Latent rows: v is the first columns of k, and gives the bits of a copy."""
    q, k, _ = draw(sq=3, sk=100, d=40)
    v = k[..., :24]
    if libattn.why_not(kernel, q, k, v):
        pytest.skip("it takes bf16 alone")
    out = libattn.sdpa(q, k, v, kernel=kernel)
    assert np.array_equal(out, libattn.sdpa(q, k, v.copy(), kernel=kernel))
    assert np.abs(out - attention(q, k, v)[0]).max() < 1e-4


class TestKeyBlocks:
    """Two blocks of 64 queries and three of 128 keys; entries behind a list's number hold anything."""

    counts = np.int32([[[1, 2], [2, 0]]])
    indices = np.int32([[[[2, -1, 9], [2, 0, -1]], [[1, 0, -1], [7, 7, 7]]]])
    full_counts = np.int32([[[1, 0], [1, 1]]])
    full_indices = np.int32([[[[1, -1, -1], [-1, -1, -1]], [[2, -1, -1], [0, -1, -1]]]])

    def blocks(self, **changes):
        fields = {"kv_num_blocks": self.counts, "kv_indices": self.indices, "full_kv_num_blocks": self.full_counts,
                  "full_kv_indices": self.full_indices, "BLOCK_SIZE": (64, 128), **changes}
        return libattn.KeyBlocks(**fields)

    def mask(self, given):
        """The mask that lists and the given mask are together, [1, HKV, queries, keys]."""
        said = np.zeros((1, HKV, 100, 300), bool)
        for h, n in np.ndindex(HKV, 2):
            rows = np.s_[0, h, 64 * n:64 * n + 64]
            for block in self.indices[0, h, n, :self.counts[0, h, n]]:
                said[rows][:, 128 * block:128 * block + 128] = given[64 * n:64 * n + 64, 128 * block:128 * block + 128]
            for block in self.full_indices[0, h, n, :self.full_counts[0, h, n]]:
                said[rows][:, 128 * block:128 * block + 128] = True
        return said.repeat(H // HKV, 1)

    def test_answers_are_those_of_a_mask(self):
        q, k, v = draw(sq=100, sk=300)
        given = np.random.default_rng(1).random((100, 300)) > 0.5
        out = libattn.sdpa(q, k, v, key_blocks=self.blocks(), mask=given)
        assert_close(out, attention(q, k, v, mask=self.mask(given))[0])
        wide = self.blocks(kv_indices=self.indices.astype(np.int64), kv_num_blocks=np.asfortranarray(self.counts))
        assert np.array_equal(out, libattn.sdpa(q, k, v, key_blocks=wide, mask=given))
        plain = libattn.KeyBlocks(self.counts, self.indices, BLOCK_SIZE=(64, 128))
        self_alone = type("Alone", (TestKeyBlocks,), {"full_counts": 0 * self.full_counts})()
        assert_close(libattn.sdpa(q, k, v, key_blocks=plain), attention(q, k, v, mask=self_alone.mask(given | True))[0])

    def test_plans_take_them(self):
        q, k, v = draw(sq=100, sk=300)
        plan = libattn.Plan(q, k, v, key_blocks=self.blocks())
        assert np.array_equal(plan.run(q, k, v, key_blocks=self.blocks()), libattn.sdpa(q, k, v, key_blocks=self.blocks()))
        with pytest.raises(ValueError, match="key_blocks"):
            plan.run(q, k, v)

    @pytest.mark.parametrize("changes, error, words", [
        ({"BLOCK_SIZE": (64, 100)}, ValueError, "block_keys is 100; .* multiple of 64"),
        ({"BLOCK_SIZE": 64}, ValueError, r"BLOCK_SIZE must be \(queries, keys\)"),
        ({"kv_num_blocks": None}, TypeError, "key_blocks.kv_num_blocks is None"),
        ({"kv_num_blocks": counts.astype(np.float32)}, TypeError, "key_blocks.kv_num_blocks is float32; it must be int32"),
        ({"kv_indices": indices[0]}, ValueError, "key_blocks.kv_indices has 3 dimensions"),
        ({"kv_indices": indices[:, :, :1]}, ValueError, "kv_indices has 1 blocks of queries; it must have 2"),
        ({"kv_indices": indices[..., :1]}, ValueError, "kv_num_blocks has a 2; its lists have room for 1 entries"),
        ({"kv_indices": indices.repeat(3, 1)}, ValueError, "kv_indices has 6 KV heads; it must have 2, or 1"),
        ({"kv_indices": indices + 3}, ValueError, r"kv_indices\[0\]\[0\]\[0\]\[0\] is 5; it must be in 0..2"),
        ({"full_kv_indices": None}, TypeError, "full_kv_indices is None"),
        ({"full_kv_indices": full_indices[:, :1]}, ValueError, "must have the shapes of"),
    ])
    def test_what_does_not_fit_is_refused(self, changes, error, words):
        with pytest.raises(error, match=words):
            libattn.sdpa(*draw(sq=100, sk=300), key_blocks=self.blocks(**changes))

    def test_what_is_no_block_mask_is_refused(self):
        with pytest.raises(TypeError, match="key_blocks has no BLOCK_SIZE; it must be a libattn.KeyBlocks"):
            libattn.sdpa(*draw(), key_blocks=self.counts)


def test_factors_of_keys_and_values():
    q, k, v = draw()
    batch, heads, keys = k.shape[:3]
    scale = np.random.default_rng(3).uniform(0.5, 1.5, (batch, heads, keys)).astype(np.float32)
    for k_scale, v_scale in ((0.25, 2), (scale[:1, :, :1], None), (None, scale), (scale, scale[:, :, ::-1])):
        times = [x if s is None else x * (s[..., None] if isinstance(s, np.ndarray) else s)
                 for x, s in ((k, k_scale), (v, v_scale))]
        options = {name: s for name, s in (("k_scale", k_scale), ("v_scale", v_scale)) if s is not None}
        assert_close(libattn.sdpa(q, k, v, **options), attention(q, *times)[0])
    plan = libattn.Plan(q, k, v, k_scale=libattn.Spec(scale.shape, "float32"), v_scale=0.5)
    assert np.array_equal(plan.run(q, k, v, k_scale=scale, v_scale=0.5), libattn.sdpa(q, k, v, k_scale=scale, v_scale=0.5))
    with pytest.raises(ValueError, match="k_scale has 3 kv_heads; it must have 2, or 1 to broadcast"):
        libattn.sdpa(q, k, v, k_scale=np.ones((batch, 3, keys), np.float32))
    with pytest.raises(TypeError, match="v_scale is float64; it must be float32"):
        libattn.sdpa(q, k, v, v_scale=np.ones(keys))
    with pytest.raises(ValueError, match="v_scale has 5 dimensions; it must be a number, or .batch, kv_heads, keys."):
        libattn.sdpa(q, k, v, v_scale=np.ones((1, 1, 1, 1, 1), np.float32))
    with pytest.raises(ValueError, match="ATTN_USE_KV_SCALES"):
        libattn.sdpa(q, k, v, k_scale=2.0, score="gaussian")


def test_factors_of_channels():
    q, k, v = draw()
    batch, heads, keys, dim = k.shape
    r = np.random.default_rng(3)
    of_k = r.uniform(0.5, 1.5, (batch, heads, 1, dim)).astype(np.float32)
    of_v = r.uniform(0.5, 1.5, (1, heads, 1, v.shape[-1])).astype(np.float32)
    token = r.uniform(0.5, 1.5, (batch, heads, keys)).astype(np.float32)
    for k_scale, v_scale in ((of_k, token[..., None]), (of_k[:1, :1], of_v), (token[..., None], of_v[..., ::-1])):
        assert_close(libattn.sdpa(q, k, v, k_scale=k_scale, v_scale=v_scale), attention(q, k * k_scale, v * v_scale)[0])
    plan = libattn.Plan(q, k, v, k_scale=libattn.Spec(of_k.shape, "float32"))
    assert np.array_equal(plan.run(q, k, v, k_scale=of_k), libattn.sdpa(q, k, v, k_scale=of_k))
    for name, wrong, words in (
            ("k_scale", np.ones((batch, heads, keys, dim), np.float32),
             rf"k_scale has factors of channels for {keys} keys; .* the same for all, \[batch, kv_heads, 1, dim\]"),
            ("v_scale", np.ones((1, heads, 1, v.shape[-1] + 1), np.float32), "v_scale has .* channels; it must have"),
            ("k_scale", np.ones((1, 1, 2, dim), np.float32), "k_scale has 2 keys; it must have")):
        with pytest.raises(ValueError, match=words):
            libattn.sdpa(q, k, v, **{name: wrong})


def test_given_outputs():
    q, k, v = draw()
    out, lse = np.empty((B, H, SQ, DV), np.float32), np.empty((B, H, SQ), np.float32)
    returned = libattn.sdpa(q, k, v, out=out, lse=lse)
    assert returned is out
    assert_close(lse, attention(q, k, v)[1])
    with pytest.raises(ValueError, match=r"out has shape \(2, 4, 9, 3\); it must have \(2, 4, 9, 16\)"):
        libattn.sdpa(q, k, v, out=out[..., :3])
    with pytest.raises(ValueError, match=r"o_stride|overlap"):
        libattn.sdpa(q, k, v, out=np.lib.stride_tricks.as_strided(out, strides=(0, 0, 0, 4)))


def test_empty():
    q, k, v = draw(sk=0)
    out, lse = libattn.sdpa(q, k, v, return_lse=True)
    assert not out.any()
    assert np.isneginf(lse).all()
    assert libattn.sdpa(q[:, :, :0], k, v).shape == (B, H, 0, DV)
    assert libattn.sdpa(q[:0], k[:0], v[:0]).shape == (0, H, SQ, DV)


REFUSED = [
    (ValueError, "q has 5 dimensions", lambda q, k, v: libattn.sdpa(q[None], k, v)),
    (ValueError, "k has head_dim 23; q has 24", lambda q, k, v: libattn.sdpa(q, k[..., :23], v)),
    (ValueError, "k has batch 1; q has 2", lambda q, k, v: libattn.sdpa(q, k[:1], v)),
    (ValueError, "v has tokens 12; k has 13", lambda q, k, v: libattn.sdpa(q, k, v[:, :, 1:])),
    (ValueError, "heads_q must be a multiple of heads_kv", lambda q, k, v: libattn.sdpa(q[:, :3], k, v)),
    (ValueError, "mask has 12 keys; it must have 13", lambda q, k, v: libattn.sdpa(q, k, v, mask=MASK[..., :12])),
    (TypeError, "mask is float32; it must be bool", lambda q, k, v: libattn.sdpa(q, k, v, mask=BIAS)),
    (TypeError, "bias is bool; it must be float32", lambda q, k, v: libattn.sdpa(q, k, v, bias=MASK)),
    (TypeError, "q is float64", lambda q, k, v: libattn.sdpa(q.astype(float), k, v)),
    (TypeError, "k is float32 and v is float16", lambda q, k, v: libattn.sdpa(q, k, v.astype("f2"))),
    (TypeError, "q is float16 and k is float32", lambda q, k, v: libattn.sdpa(q.astype("f2"), k, v)),
    (TypeError, "v is missing", lambda q, k, v: libattn.sdpa(q, k, None)),
    (TypeError, "unexpected keyword argument 'colour'", lambda q, k, v: libattn.sdpa(q, k, v, colour=1)),
    (TypeError, "multiple values for argument 'q'", lambda q, k, v: libattn.sdpa(q, k, v, q=q)),
    (TypeError, "4 were given", lambda q, k, v: libattn.sdpa(q, k, v, MASK)),
    (ValueError, "kernel is 'mine', which is not here", lambda q, k, v: libattn.sdpa(q, k, v, kernel="mine")),
    (libattn.Unsupported, "decode_c", lambda q, k, v: libattn.sdpa(np.repeat(q, 9, 2), k, v, kernel="decode_c")),
    (ValueError, "kv_len has 3 elements; it must have 2", lambda q, k, v: libattn.sdpa(q, k, v, kv_len=[1, 2, 3])),
    (ValueError, r"kv_len\[1\] is 99", lambda q, k, v: libattn.sdpa(q, k, v, kv_len=[1, 99])),
    (ValueError, "kv_len is 4294967296", lambda q, k, v: libattn.sdpa(q, k, v, kv_len=[1, 1 << 32])),
    (ValueError, "beyond 32 bits", lambda q, k, v: libattn.sdpa(q, k, v, kv_len=np.array([1, 1 << 32]))),
    (ValueError, r"kv_len has 2 elements; it must have 1; q has 3 dimensions.*q\[:, None\]",
     lambda q, k, v: libattn.sdpa(q[:, 0], k[:, 0], v[:, 0], kv_len=[1, 2])),
    (ValueError, r"mask has 2 batches; it must have 1, or 1 to broadcast; q has 3 dimensions",
     lambda q, k, v: libattn.sdpa(q[:, 0], k[:, 0], v[:, 0], mask=MASK)),
    (ValueError, "scale is nan", lambda q, k, v: libattn.sdpa(q, k, v, scale=float("nan"))),
    (TypeError, "scale is '1'; it must be a number", lambda q, k, v: libattn.sdpa(q, k, v, scale="1")),
    (ValueError, "layout is 'sbhd'", lambda q, k, v: libattn.sdpa(q, k, v, layout="sbhd")),
    (ValueError, "layout 'thd' needs cu_seqlens_q", lambda q, k, v: libattn.sdpa(q, k, v, layout="thd")),
    (ValueError, "align is 'left'", lambda q, k, v: libattn.sdpa(q, k, v, align="left")),
    (ValueError, "window must be", lambda q, k, v: libattn.sdpa(q, k, v, window=(1, 2, 3))),
    (TypeError, r"kv_len is 2\.5; it must be an integer", lambda q, k, v: libattn.sdpa(q, k, v, kv_len=[2.5, 1])),
    (ValueError, "threads is 5000", lambda q, k, v: libattn.sdpa(q, k, v, threads=5000)),
    (ValueError, "max_isa", lambda q, k, v: libattn.sdpa(q, k, v, max_isa="sse")),
    (ValueError, "q, k, v|scores", lambda q, k, v: libattn.sdpa(q, k, v, scores=BIAS)),
]


@pytest.mark.parametrize(("kind", "sentence", "call"), REFUSED, ids=[sentence for _, sentence, _ in REFUSED])
def test_refusal(kind, sentence, call):
    with pytest.raises(kind, match=sentence):
        call(*draw())


def test_masks_of_bytes():
    q, k, v = draw()
    right = libattn.sdpa(q, k, v, mask=MASK)
    for mask in (5 * MASK.astype(np.uint8), -MASK.astype(np.int8), memoryview(MASK), memoryview(MASK.astype(np.uint8))):
        assert (libattn.sdpa(q, k, v, mask=mask) == right).all()


def test_stride_that_is_no_element():
    raw = np.zeros((1, 1, 4, 10), np.uint8)
    odd = np.ndarray((1, 1, 4, 2), np.float32, raw.data, 0, (40, 40, 10, 4))
    with pytest.raises(ValueError, match="stride of 10 bytes"):
        libattn.sdpa(odd, odd, odd)


def test_signature_is_that_of_the_built_in_function():
    documented = list(_sdpa.SIGNATURE.parameters)
    assert documented[:3] == ["q", "k", "v"]
    assert sorted(documented[3:]) == sorted(_native.keywords())
    assert list(inspect.signature(libattn.sdpa).parameters) == documented
    assert "softmax" in libattn.sdpa.__doc__


def test_kernels_and_tiers():
    kernels = {kernel.name: kernel for kernel in libattn.kernels()}
    assert "naive_c" in kernels
    assert kernels["naive_c"].unusable is None
    assert libattn.tiers()[0] == "c"
    q, k, v = draw()
    assert libattn.why_not("naive_c", q, k, v) is None
    assert "at most 32 query rows" in libattn.why_not("decode_c", np.repeat(q, 9, 2), k, v)
    assert libattn.why_not("mine", q, k, v) == "there is no kernel of that name"
    for name in ("naive_c", "flash_c"):
        plan = libattn.Plan(q, k, v, kernel=name)
        assert plan.kernel == name
        assert name in plan.describe()
        assert_close(plan.run(q, k, v), attention(q, k, v)[0])


def test_spec_in_place_of_arrays():
    q, k, v = draw()
    specs = [libattn.Spec(x.shape, x.dtype) for x in (q, k, v)]
    assert np.array_equal(libattn.Plan(*specs, causal=True).run(q, k, v), libattn.sdpa(q, k, v, causal=True))
    with pytest.raises(TypeError, match="dtype is complex64"):
        libattn.Spec((1, 2), "complex64")


def test_plan_refuses_other_arrays():
    q, k, v = draw()
    plan = libattn.Plan(q, k, v)
    for sentence, call in {"queries = 9; this call has 8": lambda: plan.run(q[:, :, 1:], k, v),
                           "optional arrays = none; this call has mask": lambda: plan.run(q, k, v, mask=MASK),
                           "dtype of out": lambda: plan.run(q, k, v, out=np.empty((B, H, SQ, DV), np.float16)),
                           "other strides": lambda: plan.run(np.asfortranarray(q), k, v)}.items():
        with pytest.raises((ValueError, TypeError), match=sentence if "dtype" not in sentence else "out is float16"):
            call()
    with pytest.raises(TypeError, match="takes no 'scale': the plan has it"):
        plan.run(q, k, v, scale=1.0)


def test_plans_are_kept():
    q, k, v = draw()
    libattn.forget_plans()
    for _ in range(5):
        libattn.sdpa(q, k, v)
        libattn.sdpa(q, k, v, scale=0.5)
    assert libattn.plan_counts() == (2, 8)


def test_packed_lengths_share_plans():
    """One plan for 97 to 102 tokens and 49 to 52 of the longest sequence; each call is checked against its own sizes."""
    q, k, v = (np.random.default_rng(3).standard_normal((104, heads, 16)).astype(np.float32) for heads in (4, 2, 2))
    libattn.forget_plans()
    for tokens in range(97, 103):
        borders, arrays = [0, tokens // 2, tokens], [x[:tokens] for x in (q, k, v)]
        out = libattn.sdpa(*arrays, cu_seqlens_q=borders, cu_seqlens_k=borders, causal=True)
        for rows in (slice(*borders[:2]), slice(*borders[1:])):
            alone = [x[rows].swapaxes(0, 1)[None] for x in arrays]
            np.testing.assert_allclose(out[rows].swapaxes(0, 1)[None], attention(*alone, causal=True)[0], atol=1e-5)
        with pytest.raises(ValueError, match=rf"is {tokens + 1}; the tensors hold {tokens} tokens"):
            libattn.sdpa(*arrays, cu_seqlens_q=[0, tokens // 2, tokens + 1], cu_seqlens_k=borders, causal=True)
    assert libattn.plan_counts() == (1, 11)


def test_vectors_of_many_sequences():
    """Copies of vectors are as long as they must be: of lists, of 64 bits, and of one offset for all."""
    batch = 1 << 14
    q, k = (np.random.default_rng(9).standard_normal((batch, 1, n, 2)).astype(np.float32) for n in (1, 3))
    lengths = np.arange(batch, dtype=np.int32) % 4
    right = libattn.sdpa(q, k, k, kv_len=lengths, align=np.full(batch, 1, np.int32), causal=True)
    for same in (lengths.tolist(), lengths.astype(np.int64), np.repeat(lengths, 2)[::2]):
        assert np.array_equal(libattn.sdpa(q, k, k, kv_len=same, align=1, causal=True), right)


def test_equal_names_are_one_plan():
    """A plan is found by the registry's names of kernel and tier, wherever the caller's text stands."""
    q, k, v = draw()
    with pytest.raises(ValueError, match=r"max_isa is 'sse'; it must be one of c, ") as refusal:
        libattn.sdpa(q, k, v, max_isa="sse")
    tiers = str(refusal.value).partition("one of ")[2].split(", ")
    for setting, names in (("max_isa", tiers), ("kernel", ["naive_c", "flash_c"])):
        for name in names:
            texts = [name.encode().decode() for _ in range(2)]
            libattn.forget_plans()
            for text in texts:
                libattn.sdpa(q, k, v, **{setting: text})
            assert libattn.plan_counts() == (1, 1), name


def test_default_scale_is_not_scale_0():
    q, k, v = draw()
    libattn.sdpa(q, k, v, scale=0)
    assert_close(libattn.sdpa(q, k, v), attention(q, k, v)[0])
    assert_close(libattn.sdpa(q, k, v, scale=0), attention(q, k, v, scale=0)[0])


def test_merge():
    q, k, v = draw()
    ranges = (slice(0, 5), slice(5, 6), slice(6, 13))
    parts = [libattn.sdpa(q, k[:, :, keys], v[:, :, keys], return_lse=True) for keys in ranges]
    for merged, right in zip(libattn.merge(parts), attention(q, k, v)):
        assert_close(merged, right)
    (o, lse), (other, short) = parts[:2]
    for kind, sentence, wrong in ((ValueError, "parts is empty", []), (ValueError, "not dense", [(o[..., ::2], lse)]),
                                  (ValueError, r"out of parts\[1\] has shape", [(o, lse), (other[:1], short[:1])]),
                                  (ValueError, r"lse of parts\[1\] has shape", [(o, lse), (other, short[:1])]),
                                  (TypeError, r"parts\[0\] is no pair", [o]),
                                  (TypeError, "lse is float64", [(o, lse.astype(float))])):
        with pytest.raises(kind, match=sentence):
            libattn.merge(wrong)


def test_tune():
    q, k, v = draw()
    tuning = libattn.tune(q, k, v, causal=True, seconds=0.05, max_isa="c")
    assert {entry.kernel for entry in tuning.entries} <= {"naive_c", "flash_c", "blocked_c", "decode_c"}
    assert tuning.automatic in {entry.kernel for entry in tuning.entries}
    times = [entry.time_ns for entry in tuning.entries]
    assert times == sorted(times)
    assert all(kernel and threads > 0 and reason for kernel, threads, reason in tuning.not_timed)
    short = libattn.tune(*[np.zeros((1, 1, 1000, 64), np.float32)] * 3, seconds=0.001, max_isa="c")
    assert "no time was left for its first call" in {reason for _, _, reason in short.not_timed}
    assert libattn.Plan(q, k, v, causal=True, **tuning.best).kernel == tuning.entries[0].kernel
    with pytest.raises(ValueError, match="k has head_dim"):
        libattn.tune(q, k[..., 1:], v)


# ---- Keys and values in blocks: the quantisers against bytes of ggml, and sdpa(kv_format=) against their values ----

FORMATS = {"q8_0": libattn.q8_0, "q4_0": libattn.q4_0}
RB = np.random.default_rng(3)


def values_of(blocks, dim):
    """The values of blocks, in float64."""
    factor = np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float64)
    integers = np.ascontiguousarray(blocks[..., 2:])
    if blocks.shape[-1] == 34:
        n = integers.view(np.int8).astype(np.float64)
    else:
        n = np.concatenate([integers & 15, integers >> 4], axis=-1).astype(np.float64) - 8
    return (factor * n).reshape(*blocks.shape[:-2], -1)[..., :dim]


def test_known_bytes():
    x = np.array([((i * 37 + 11) % 64 - 31) / 8 for i in range(32)], np.float32)
    assert libattn.q8_0(x).tobytes().hex() == "d027ae46d76f009129ba52e37b0c9e35c75ef08119aa42d36bfc8d25b64edf77089a"
    assert libattn.q4_0(x).tobytes().hex() == "c037730ca53fc851fb841da63fd962fb942e"


def test_of_two_farthest_values_the_first_becomes_the_lowest_number():
    for first in (-8, 8):
        x = np.zeros(32, np.float32)
        x[3], x[9] = first, -first
        block = libattn.q4_0(x)[0]
        assert block[:2].view(np.float16)[0] == first / -8 and (block[5] & 15, block[11] & 15) == (0, 15)


@pytest.mark.parametrize("name", FORMATS)
def test_quantisers_are_those_of_gguf(name):
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed: pip install gguf")
    import gguf

    x = (RB.standard_normal((400, 96)) * 10.0 ** RB.integers(-4, 4, (400, 1))).astype(np.float32)
    x[0] = 0
    right = quants.quantize(x, getattr(gguf.GGMLQuantizationType, name.upper()))
    assert (FORMATS[name](x).reshape(right.shape) == right).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (80, 80), (32, 128)])
def test_sdpa_reads_blocks(name, dim, dim_v):
    q = RB.standard_normal((2, 4, 9, dim)).astype(np.float32)
    k, v = (FORMATS[name](RB.standard_normal((2, 2, 13, d)).astype(np.float32)) for d in (dim, dim_v))
    right = attention(q, values_of(k, dim), values_of(v, dim_v))
    right = right[0] if isinstance(right, tuple) else right
    assert np.abs(libattn.sdpa(q, k, v, kv_format=name) - right).max() < 1e-5
    assert np.abs(libattn.sdpa(q, k[:, :, ::-1], v[:, :, ::-1], kv_format=name) - right).max() < 1e-5


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dim", "dim_v"), [(80, 80), (64, 32)])
def test_plans_and_states_take_blocks(name, dim, dim_v):
    q = RB.standard_normal((1, 4, 3, dim)).astype(np.float32)
    k, v = (FORMATS[name](RB.standard_normal((1, 2, 16, d)).astype(np.float32)) for d in (dim, dim_v))
    right = libattn.sdpa(q, k, v, kv_format=name)
    specs = [libattn.Spec(q.shape), libattn.Spec(k.shape, "uint8"), libattn.Spec(v.shape, "uint8")]
    for plan in (libattn.Plan(q, k, v, kv_format=name), libattn.Plan(*specs, kv_format=name)):
        assert (plan.run(q, memoryview(k), v) == right).all()
        with pytest.raises(TypeError, match="k is bool"):
            plan.run(q, k.view(bool), v)
    state = libattn.new_state(q, v, kv_format=name)
    assert state.shape == (1, 4, 3, dim_v + 18)
    assert np.abs(libattn.sdpa(q, k, v, kv_format=name, state=state) - right).max() < 1e-5
    assert libattn.why_not("naive_c", *specs, kv_format=name) is None


def test_scores_with_values_of_few_bits():
    scores = RB.standard_normal((1, 4, 3, 16)).astype(np.float32)
    for v, options in ((RB.integers(-9, 9, (1, 2, 16, 64)).astype(np.int8), {}),
                       (libattn.q4_0(RB.standard_normal((1, 2, 16, 64))), {"kv_format": "q4_0"})):
        out = libattn.sdpa(None, None, v, score="precomputed", scores=scores, **options)
        values = values_of(v, 64) if options else v.astype(float)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        right = (p / p.sum(-1, keepdims=True)) @ np.repeat(values, 2, 1)
        assert out.dtype == np.float32 and np.abs(out - right).max() < 1e-5


def test_what_does_not_fit_is_refused():
    q = np.zeros((1, 1, 1, 64), np.float32)
    k = libattn.q8_0(q)
    with pytest.raises(ValueError, match="kv_format"):
        libattn.sdpa(q, k, k, kv_format="q5_0")
    with pytest.raises(ValueError, match=r"blocks, 18\]"):
        libattn.sdpa(q, k, k, kv_format="q4_0")
    with pytest.raises(TypeError, match="must be uint8"):
        libattn.sdpa(q, q, q, kv_format="q8_0")
    for array in (k.view(bool), memoryview(k.view(bool)), k.view(np.int8), libattn.Spec(k.shape, "bool")):
        with pytest.raises(TypeError, match=r"^v is (bool|int8); with kv_format 'q8_0' it must be uint8"):
            libattn.Plan(q, k, array, kv_format="q8_0")
    with pytest.raises(TypeError, match=r"k is uint8; it must be float32, .*; bytes of blocks need kv_format"):
        libattn.sdpa(q, k, k)
    with pytest.raises(ValueError, match="kv_format is 'q5_0'; it must be one of 'q8_0', 'q4_0'"):
        libattn.new_state(q, k, kv_format="q5_0")
    with pytest.raises(ValueError, match=r"v has shape .*; with kv_format 'q4_0' it must be \[..., blocks, 18\]"):
        libattn.new_state(q, k, kv_format="q4_0")
    with pytest.raises(ValueError, match="head_dim"):
        libattn.sdpa(np.zeros((1, 1, 1, 96), np.float32), k, k, kv_format="q8_0")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_steady_chunks_have_the_bits_of_one_call(dtype):
    """Rows of a prompt, in one call and in calls of any number of queries."""
    r = np.random.default_rng(3)
    q = r.standard_normal((1, 4, 200, 64)).astype(dtype)
    k, v = (r.standard_normal((1, 2, 200, 64)).astype(dtype) for _ in range(2))
    whole = libattn.sdpa(q, k, v, causal=True, steady=True)
    for chunk in (1, 7, 64):
        for first in range(0, 200, chunk):
            end = min(first + chunk, 200)
            part = libattn.sdpa(q[:, :, first:end], k[:, :, :end], v[:, :, :end], causal=True, align="bottom_right",
                                steady=True)
            assert np.array_equal(part, whole[:, :, first:end]), (chunk, first)


def test_kernels_that_are_not_steady_are_refused():
    q = np.ones((1, 1, 1, 64), dtype=np.float32)
    with pytest.raises(libattn.Unsupported, match="steady"):
        libattn.sdpa(q, q, q, kernel="decode_c", steady=True)
    libattn.sdpa(q, q, q, kernel="flash_c", steady=True)
