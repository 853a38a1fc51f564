# SPDX-License-Identifier: MIT
"""libattn.kv_append, rope, KVPool and KVCache, against NumPy, transformers and libattn.sdpa."""

import ctypes
import math
import re

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from libattn import layers  # noqa: E402
from libattn._native import C, S  # noqa: E402
from libattn._sdpa import FUNCTIONS  # noqa: E402

R = np.random.default_rng(5)


def draw(*shape, dtype=np.float32):
    return R.standard_normal(shape, dtype=np.float32).astype(dtype)


def rotated(x, positions, rotation, pairing):
    """x [.., tokens, dim] in float64."""
    angles = np.asarray(positions, np.float64)[:, None] * np.asarray(rotation.frequencies)
    c, s, n = np.cos(angles), np.sin(angles), rotation.dim
    y = x.astype(np.float64).copy()
    first, second = (slice(0, n, 2), slice(1, n, 2)) if pairing == "interleaved" else (slice(0, n // 2), slice(n // 2, n))
    y[..., first], y[..., second] = (x[..., first] * c - x[..., second] * s, x[..., second] * c + x[..., first] * s)
    return y


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_rope(pairing, layout):
    x = draw(2, 3, 5, 24)
    rotation = libattn.Rope(pairing, 16, base=500000.0)
    positions = [7, 0, 1, 2, 100000] * 2
    right = rotated(x, positions[:5], rotation, pairing)
    given = x if layout == "bhsd" else np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    out = libattn.rope(given, rotation, positions=positions, layout=layout)
    ours = out if layout == "bhsd" else out.transpose(0, 2, 1, 3)
    assert np.abs(ours - right).max() < 1e-5
    assert np.abs(ours - x)[..., :16].max() > 0.1
    assert (ours[..., 16:] == x[..., 16:]).all()
    assert libattn.rope(given, rotation, positions=positions, layout=layout, out=given) is given
    assert (given == out).all()


@pytest.mark.parametrize(("scaling", "numbers"), [
    ("linear", {"factor": 4.0}),
    ("yarn", {"factor": 16.0, "original_max_position_embeddings": 4096}),
    ("yarn", {"factor": 8.0, "original_max_position_embeddings": 4096, "beta_fast": 20.0, "beta_slow": 2.0,
              "truncate": False}),
    ("llama3", {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0})])
def test_frequencies_are_those_of_transformers(scaling, numbers):
    pytest.importorskip("torch")
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=512, num_attention_heads=4, max_position_embeddings=131072)
    config.rope_parameters = {"rope_type": scaling, "rope_theta": 500000.0, **numbers}
    theirs, factor = rope_utils.ROPE_INIT_FUNCTIONS[scaling](config, "cpu")
    ours = {"original_length" if name.startswith("original") else name: value for name, value in numbers.items()}
    rotation = libattn.Rope("halves", 128, base=500000.0, scaling=scaling, **ours)
    assert np.allclose(rotation.frequencies, theirs.numpy(), rtol=2e-6, atol=0)
    if scaling == "yarn":
        assert math.isclose(factor, 0.1 * math.log(numbers["factor"]) + 1)


def test_rope_refuses():
    with pytest.raises(ValueError, match="pairing is 'neox'; it must be one of 'interleaved', 'halves'"):
        libattn.Rope("neox", 64)
    with pytest.raises(ValueError, match="scaling is 'dynamic'"):
        libattn.Rope("halves", 64, scaling="dynamic")
    with pytest.raises(ValueError, match="dim is 63"):
        libattn.Rope("halves", 63)
    with pytest.raises(ValueError, match="frequencies has 3 numbers"):
        libattn.Rope("halves", 8, frequencies=[1, 2, 3])
    with pytest.raises(ValueError, match="rope rotates 64"):
        libattn.rope(draw(1, 1, 1, 8), libattn.Rope("halves", 64))


def test_arrays_that_are_read_only_are_not_written_to():
    def frozen(array):
        array.flags.writeable = False
        return array

    k, rotation = draw(1, 2, 3, 8), libattn.Rope("halves", 8)
    cache, factors = np.zeros((1, 2, 16, 8), np.float32), np.zeros((1, 2, 16), np.float32)
    integers, blocks = np.zeros((1, 2, 16, 8), np.int8), np.zeros((1, 2, 16, 1, 34), np.uint8)
    for name, call in {
            "out": lambda: libattn.rope(k, rotation, out=frozen(k.copy())),
            "k_cache": lambda: libattn.kv_append(k, k, frozen(cache.copy()), cache),
            "v_cache": lambda: libattn.kv_append(k, k, blocks, frozen(blocks.copy()), kv_format="q8_0"),
            "q_out": lambda: libattn.kv_append(k, k, cache, cache, q=k, q_out=frozen(k.copy()), rotation=rotation),
            "k_scale_cache": lambda: libattn.kv_append(k, k, integers, integers, k_scale_cache=frozen(factors.copy()),
                                                       v_scale=1.0)}.items():
        with pytest.raises(ValueError, match=f"{name} is read-only"):
            call()
    assert (libattn.rope(frozen(k), rotation, past=[0])[:, :, 0] == k[:, :, 0]).all()  # an input may be


def half_types():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8


@pytest.mark.parametrize("cache_layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("which", range(6))
def test_append_to_pages(cache_layout, which):
    dtype = half_types()[which]
    k, v = 2 * draw(2, 3, 5, 8), 2 * draw(2, 3, 5, 4)
    shape = (6, 3, 16) if cache_layout == "bhsd" else (6, 16, 3)
    k_cache, v_cache = np.zeros((*shape, 8), dtype), np.zeros((*shape, 4), dtype)
    table, past = np.int32([[4, 0], [2, 5]]), [14, 3]
    libattn.kv_append(k, v, k_cache, v_cache, past=past, counts=[5, 4], page_table=table, cache_layout=cache_layout)
    right_k, right_v = np.zeros_like(k_cache), np.zeros_like(v_cache)
    if dtype == np.int8:
        k, v = np.rint(k), np.rint(v)
    for b, count in enumerate((5, 4)):
        for i in range(count):
            page, at = table[b, (past[b] + i) // 16], (past[b] + i) % 16
            for right, new in ((right_k, k), (right_v, v)):
                right[(page, slice(None), at) if cache_layout == "bhsd" else (page, at)] = new[b, :, i].astype(dtype)
    assert (k_cache == right_k).all()
    assert (v_cache == right_v).all()


def test_append_with_factors():
    k, v = draw(2, 3, 5, 8), draw(2, 3, 5, 4)
    k_cache, v_cache = np.zeros((2, 3, 16, 8), np.int8), np.zeros((2, 3, 16, 4), np.int8)
    made, given = np.full((2, 3, 16), 7, np.float32), np.random.default_rng(1).uniform(0.01, 0.1, (3, 1)).astype(np.float32)
    libattn.kv_append(k, v, k_cache, v_cache, past=[4, 0], k_scale_cache=made, v_scale=given)
    right = np.full_like(made, 7)
    for b, first in enumerate((4, 0)):
        right[b, :, first:first + 5] = np.abs(k[b]).max(-1) / np.float32(127)
        scale = made[b, :, first:first + 5, None]
        assert np.abs(k_cache[b, :, first:first + 5] * scale - k[b]).max() <= 0.5001 * scale.max()
        assert (v_cache[b, :, first:first + 5] == np.rint(v[b] * (1 / given[:, :, None])).clip(-128, 127)).all()
    assert (made == right).all()
    out = libattn.sdpa(draw(2, 6, 1, 8), k_cache, v_cache, k_scale=made, v_scale=given, kv_len=[9, 5])
    assert np.isfinite(out).all()
    pages = np.zeros((4, 3, 16, 8), np.float16), np.zeros((4, 3, 16, 4), np.float16)
    libattn.kv_append(k, v, *pages, page_table=np.int32([[2], [1]]), k_scale=0.5, v_scale=np.float32([[[2]]]))
    assert (pages[0][[2, 1], :, :5] == (2 * k).astype(np.float16)).all()
    assert (pages[1][[2, 1], :, :5] == (v / 2).astype(np.float16)).all()
    with pytest.raises(ValueError, match=r"k_scale has shape \(2,\); it must broadcast to \(2, 3, 16\)"):
        libattn.kv_append(k, v, k_cache, v_cache, k_scale=np.ones(2, np.float32))
    with pytest.raises(ValueError, match=r"v_scale_cache has shape \(3, 16\); it must have \(2, 3, 16\)"):
        libattn.kv_append(k, v, k_cache, v_cache, v_scale_cache=made[0])
    with pytest.raises(TypeError, match="k_scale is float64; it must be float32"):
        libattn.kv_append(k, v, k_cache, v_cache, k_scale=np.ones(1))
    with pytest.raises(ValueError, match="k_scale and k_scale_cache are both given"):
        libattn.kv_append(k, v, k_cache, v_cache, k_scale=1.0, k_scale_cache=made)
    with pytest.raises(ValueError, match="v_scale is 0 where new token 0 goes in head 0"):
        libattn.kv_append(k, v, k_cache, v_cache, v_scale=0.0)


FORMATS = {"q8_0": (libattn.q8_0, 34), "q4_0": (libattn.q4_0, 18)}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("cache_layout", ["bhsd", "bshd"])
def test_append_blocks(name, which, cache_layout):
    """Into pages, over a border: to the byte what libattn.q8_0() and q4_0(), and gguf if there, make of the same rows."""
    quantise, size = FORMATS[name]
    spread = 10.0 ** R.integers(-3, 3, (2, 3, 40, 1))
    k, v = ((draw(2, 3, 40, dim) * spread).astype(half_types()[which]) for dim in (80, 32))
    shape = (8, 3, 16) if cache_layout == "bhsd" else (8, 16, 3)
    k_cache, v_cache = (np.full((*shape, blocks, size), 7, np.uint8) for blocks in (3, 1))
    table, past, counts = np.int32([[4, 0, 7, 1], [2, 5, 3, 6]]), [14, 3], [40, 37]
    options = {"past": past, "counts": counts, "page_table": table, "cache_layout": cache_layout, "kv_format": name}
    libattn.kv_append(k, v, k_cache, v_cache, **options)
    for cache, new in ((k_cache, k), (v_cache, v)):
        right = np.full_like(cache, 7)
        rows = quantise(new.astype(np.float32))
        for b, count in enumerate(counts):
            for i in range(count):
                page, at = table[b, (past[b] + i) // 16], (past[b] + i) % 16
                right[(page, slice(None), at) if cache_layout == "bhsd" else (page, at)] = rows[b, :, i]
        assert (cache == right).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tier", libattn.tiers())
def test_appended_blocks_are_those_of_gguf(name, tier, monkeypatch):
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed: pip install gguf")
    import gguf

    monkeypatch.setenv("ATTN_MAX_ISA", tier)
    x = (draw(1, 4, 3000, 96) * 10.0 ** R.integers(-4, 4, (1, 4, 3000, 1))).astype(np.float32)
    x[0, 0, 0] = 0
    x[0, 1] = np.round(x[0, 1] * 8) / 8  # ties, and two values that are farthest from 0
    cache = np.zeros((1, 4, 3000, 3, FORMATS[name][1]), np.uint8)
    libattn.kv_append(x, x[..., :1], cache, np.zeros((1, 4, 3000, 1, FORMATS[name][1]), np.uint8), kv_format=name)
    right = quants.quantize(x, getattr(gguf.GGMLQuantizationType, name.upper()))
    assert (cache.reshape(right.shape) == right).all()


def test_append_blocks_refuses():
    k = draw(1, 2, 3, 80)
    good = np.zeros((1, 2, 16, 3, 34), np.uint8)
    for caches, error, match in (
            ((good, good), None, None),
            ((good[..., :2, :], good), ValueError, "k_cache has 2 heads of 64 elements; new tokens have 2 of 80"),
            ((good[..., 0], good), ValueError, "of 5 dimensions"),
            ((good, good[..., ::-1]), ValueError, r"v_cache has shape .* blocks, 34\] of 5 dimensions"),
            ((good.view(np.int8), good), TypeError, "k_cache is int8; with kv_format 'q8_0' it must be uint8"),
            ((good.view(bool), good), TypeError, "k_cache is bool; with kv_format 'q8_0' it must be uint8"),
            ((good, memoryview(good.view(bool))), TypeError, "v_cache is bool; with kv_format 'q8_0' it must be uint8")):
        if error is None:
            libattn.kv_append(k, k, *caches, kv_format="q8_0")
            continue
        with pytest.raises(error, match=match):
            libattn.kv_append(k, k, *caches, kv_format="q8_0")
    odd = np.zeros(2 * 16 * 3 * 34 + 200, np.uint8)
    odd = np.lib.stride_tricks.as_strided(odd, (1, 2, 16, 3, 34), (0, 16 * 3 * 34 + 1, 3 * 34, 34, 1))
    with pytest.raises(ValueError, match="k_cache has strides of .* they must be multiples of 34"):
        libattn.kv_append(k, k, odd, good, kv_format="q8_0")
    for kind in "q5_0", ["q8_0"]:
        with pytest.raises(ValueError, match=re.escape(f"kv_format is {kind!r}; it must be one of 'q8_0', 'q4_0'")):
            libattn.kv_append(k, k, good, good, kv_format=kind)
    with pytest.raises(ValueError, match="k_scale_cache is given with cache_dtype 6; factors are made for types of 8 bits"):
        libattn.kv_append(k, k, good, good, kv_format="q8_0", k_scale_cache=np.zeros((1, 2, 16), np.float32))


def test_append_packed_slots_and_dense():
    k, v = draw(7, 2, 8), draw(7, 2, 8)
    pages = np.zeros((4, 2, 16, 8), np.float32), np.zeros((4, 2, 16, 8), np.float32)
    slots = [3, -1, 63, 17, 16, 0, 40]
    libattn.kv_append(k, v, *pages, cu_seqlens=[0, 7], slots=slots)
    for t, slot in enumerate(slots):
        if slot >= 0:
            assert (pages[0][slot // 16, :, slot % 16] == k[t]).all()
    assert (pages[1] != 0).any(axis=(1, 3)).sum() == 6
    dense = np.zeros((2, 2, 10, 8), np.float32), np.zeros((2, 2, 10, 8), np.float32)
    libattn.kv_append(k, v, *dense, cu_seqlens=[0, 3, 7], past=[7, 0])
    assert (dense[0][0, :, 7:].transpose(1, 0, 2) == k[:3]).all()
    assert (dense[1][1, :, :4].transpose(1, 0, 2) == v[3:]).all()


def test_append_rotates_queries_too():
    q, k, v = draw(1, 4, 3, 16), draw(1, 2, 3, 16), draw(1, 2, 3, 16)
    cache = np.zeros((1, 2, 10, 16), np.float32), np.zeros((1, 2, 10, 16), np.float32)
    rotation = libattn.Rope("halves", 16)
    turned = libattn.kv_append(k, v, *cache, past=[5], rotation=rotation, q=q)
    assert (turned == libattn.rope(q, rotation, past=[5])).all()
    assert (cache[0][:, :, 5:8] == libattn.rope(k, rotation, past=[5])).all()
    assert (cache[1][:, :, 5:8] == v).all()


def test_append_mixes_keys_and_queries():
    q, k, v = draw(1, 4, 3, 96), draw(1, 2, 3, 96), draw(1, 2, 3, 96)
    cache = np.zeros((1, 2, 3, 96), np.float32), np.zeros((1, 2, 3, 96), np.float32)
    mixed = libattn.kv_append(k, v, *cache, q=q, hadamard=True)
    h = np.float64([[(-1) ** (i & j).bit_count() for i in range(32)] for j in range(32)]) / np.sqrt(32)  # 96 is 3 times 32
    for x, y in ((q, mixed), (k, cache[0])):
        assert np.abs((x.reshape(-1, 32) @ h).reshape(x.shape) - y).max() < 1e-5
    assert (cache[1] == v).all()
    with pytest.raises(ValueError, match="dim_qk is 7 with hadamard; it must be even"):
        libattn.kv_append(k[..., :7], v, np.zeros((1, 2, 3, 7), np.float32), cache[1], hadamard=True)
    with pytest.raises(TypeError, match="hadamard is 'yes'"):
        libattn.kv_append(k, v, *cache, hadamard="yes")


def test_append_refuses():
    k, v = draw(1, 2, 3, 8), draw(1, 2, 3, 8)
    cache = np.zeros((1, 2, 4, 8), np.float32), np.zeros((1, 2, 4, 8), np.float32)
    for error, match, change in [
            (ValueError, "sequence 0 holds 2 of 4 tokens; 3 more do not fit", {"past": [2]}),
            (ValueError, "v has tokens 2; the others have 3", {"v": v[:, :, :2]}),
            (ValueError, "k_cache has 2 heads of 7", {"k_cache": np.zeros((1, 2, 4, 7), np.float32)}),
            (ValueError, "layout is 'thd'", {"layout": "thd"}),
            (ValueError, "slots has 2 numbers; it must have 3", {"slots": [1, 2]}),
            (ValueError, "page_table has shape", {"page_table": np.int32([[0], [1]])}),
            (TypeError, "k is int32", {"k": k.astype(np.int32)}),
            (TypeError, "v has another dtype", {"v": v.astype(np.float16)})]:
        given = {"k": k, "v": v, "k_cache": cache[0], "v_cache": cache[1], **change}
        with pytest.raises(error, match=match):
            libattn.kv_append(**given)
    assert (cache[0] == 0).all()


def test_pool_and_cache():
    pool = libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=16, num_layers=2)
    cache = layers.KVCache(batch=3, heads=4, heads_kv=2, dim_qk=16, capacity=64, pool=pool, kernel="flash_c")
    text = [(draw(50, 4, 16), draw(50, 2, 16), draw(50, 2, 16)) for _ in range(2)]
    cache.begin([40, 0, 0])
    for layer, (q, k, v) in enumerate(text):
        cache.attend(q[:40], k[:40], v[:40], layer=layer)
    cache.fork(0, 1)
    cache.fork(0, 2, 32)
    assert cache.lengths == [40, 40, 32]
    assert pool.free_pages == cache.free_pages == 6
    cache.reorder([2, 0, -1])
    assert cache.lengths == [32, 40, 0]
    cache.begin([1, 2, 0])
    for layer, (q, k, v) in enumerate(text):
        rows = [32, 40, 41]
        out = cache.attend(q[rows], k[rows], v[rows], layer=layer)
        for first, end, ours in ((32, 33, out[:1]), (40, 42, out[1:])):
            right = libattn.sdpa(q[first:end].transpose(1, 0, 2), k[:end].transpose(1, 0, 2), v[:end].transpose(1, 0, 2),
                                 causal=True, align="bottom_right", kernel="flash_c")
            assert (ours.transpose(1, 0, 2) == right).all()
    with pytest.raises(MemoryError, match="out of pages: the step needs"):
        cache.begin([30, 20, 60])
    assert cache.lengths == [33, 42, 0]
    cache.truncate(0, sequence=1)
    assert cache.lengths == [33, 0, 0]
    with pytest.raises(ValueError, match="q has 1 tokens; the step has begun with 3"):
        cache.attend(text[0][0][:1], text[0][1][:1], text[0][2][:1])
    with pytest.raises(ValueError, match="from is 7"):
        cache.fork(7, 0, 1)
    with pytest.raises(ValueError, match="page_tokens is 5"):
        libattn.KVPool(pages=1, page_tokens=5, heads_kv=1, dim_qk=8)


def test_pool_and_cache_of_integers():
    pool = libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=16, dtype="int8")
    shape = {"batch": 2, "heads": 4, "heads_kv": 2, "dim_qk": 16, "capacity": 64, "float_tokens": True}
    cache, exact = layers.KVCache(pool=pool, dtype="int8", **shape), layers.KVCache(**shape)
    text = draw(30, 4, 16), draw(30, 2, 16), draw(30, 2, 16)
    for part in (slice(0, 20), slice(20, 21), slice(21, 30)):
        outs = []
        for of in (cache, exact):
            of.begin([part.stop - part.start, 0])
            outs.append(of.attend(*(x[part] for x in text)))
        assert np.abs(outs[0] - outs[1]).max() < 0.05 and (outs[0] != outs[1]).any()
    with pytest.raises(ValueError, match="attn_kv_cache_shape.scales is 1; it must be 0, as in its pool"):
        layers.KVCache(pool=libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=16, dtype="int8", scales=False),
                       dtype="int8", **shape)
    with pytest.raises(ValueError, match="attn_kv_cache_shape.scales is false with dtype 5; integers need factors"):
        layers.KVCache(dtype="int8", scales=False, **shape)


@pytest.mark.parametrize("dtype", ["int8", "q4_0"])
def test_hadamard_saves_keys_with_a_large_channel(dtype):
    shape = {"batch": 1, "heads": 4, "heads_kv": 2, "dim_qk": 64, "capacity": 64, "float_tokens": True}
    q, k, v = draw(1, 4, 40, 64), draw(1, 2, 40, 64), draw(1, 2, 40, 64)
    k[..., 5] *= 40
    q[..., 5] /= 40
    exact = layers.KVCache(**shape).step(q, k, v)
    loss = [np.square(layers.KVCache(dtype=dtype, hadamard=mixed, **shape).step(q, k, v) - exact).mean()
            for mixed in (False, True)]
    assert loss[1] < 0.8 * loss[0]


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_keys_with_factors_of_channels(dtype):
    pool = libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=16, dtype=dtype, key_channels=True)
    shape = {"batch": 1, "heads": 4, "heads_kv": 2, "dim_qk": 16, "capacity": 64, "float_tokens": True}
    cache, exact = layers.KVCache(pool=pool, dtype=dtype, key_channels=True, **shape), layers.KVCache(**shape)
    q, k, v = draw(1, 4, 40, 16), draw(1, 2, 40, 16), draw(1, 2, 40, 16)
    outs = [of.step(q, k, v) for of in (cache, exact)]
    assert np.abs(outs[0] - outs[1])[:, :, :16].max() < 1e-5           # a query's own page is float32
    assert 1e-5 < np.abs(outs[0] - outs[1])[:, :, 16:].max() < 0.2
    assert pool.free_pages == 7
    if dtype == "int8":
        def rounded(x, axis):
            factor = np.abs(x).max(axis, keepdims=True) / np.float32(127)
            return np.rint(x / factor) * factor
        kept = [np.concatenate([*(rounded(x[:, :, page:page + 16], axis) for page in (0, 16)), x[:, :, 32:]], 2)
                for x, axis in ((k, 2), (v, 3))]
        right = libattn.sdpa(q[:, :, 32:], *kept, causal=True, align="bottom_right")
        assert np.abs(outs[0][:, :, 32:] - right).max() < 1e-4
    with pytest.raises(ValueError, match="key_channels is 0; it must be 1, as in its pool"):
        layers.KVCache(pool=pool, dtype=dtype, scales=True, **shape)
    with pytest.raises(ValueError, match="key_channels is true without scales"):
        libattn.KVPool(pages=9, heads_kv=2, dim_qk=16, dtype=dtype, scales=False, key_channels=True)


@pytest.mark.parametrize(("name", "most"), [("q8_0", 0.05), ("q4_0", 0.5)])
def test_pool_and_cache_of_blocks(name, most):
    pool = libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=40, dim_v=16, dtype=name)
    shape = {"batch": 2, "heads": 4, "heads_kv": 2, "dim_qk": 40, "dim_v": 16, "capacity": 64, "float_tokens": True}
    cache, exact = layers.KVCache(pool=pool, dtype=name, **shape), layers.KVCache(**shape)
    text = draw(30, 4, 40), draw(30, 2, 40), draw(30, 2, 16)
    kept = [FORMATS[name][0](x.transpose(1, 0, 2)[None]) for x in text[1:]]
    for part in (slice(0, 20), slice(20, 21), slice(21, 30)):
        outs = []
        for of in (cache, exact):
            of.begin([part.stop - part.start, 0])
            outs.append(of.attend(*(x[part] for x in text)))
        assert 0 < np.abs(outs[0] - outs[1]).max() < most
        if part.start == 20:
            row = libattn.sdpa(text[0][20][None, :, None], *(x[:, :, :21] for x in kept), kv_format=name)
            assert np.abs(outs[0][0] - row[0, :, 0, :16]).max() < 1e-5
    with pytest.raises(ValueError, match="float_tokens is false with a cache of 8 bits or of blocks; it must be true"):
        layers.KVCache(dtype=name, **{**shape, "float_tokens": False})
    with pytest.raises(ValueError, match="scales is true with dtype"):
        libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=40, dtype=name, scales=True)
    with pytest.raises(TypeError, match="dtype is 'q5_0'; it must be one of .*'q8_0', 'q4_0'"):
        libattn.KVPool(pages=9, page_tokens=16, heads_kv=2, dim_qk=40, dtype="q5_0")


def test_torch_operators():
    torch = pytest.importorskip("torch")
    import libattn.torch

    k, v = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    pages = torch.zeros(3, 2, 16, 8), torch.zeros(3, 2, 16, 8)
    table, past = torch.tensor([[2, 1]], dtype=torch.int32), torch.tensor([14], dtype=torch.int32)
    torch.ops.libattn.kv_append(k, v, *pages, past=past, page_table=table)
    assert (pages[0][2, :, 14:] == k[0, :, :2]).all()
    assert (pages[0][1, :, 0] == k[0, :, 2]).all()
    turned = torch.ops.libattn.rope(k, "halves", 8, past=past)
    assert np.array_equal(turned.numpy(), libattn.rope(k.numpy(), libattn.Rope("halves", 8), past=[14]))
    torch.library.opcheck(torch.ops.libattn.rope, (k, "halves", 8), {"past": past})
    torch.library.opcheck(torch.ops.libattn.kv_append, (k, v, *pages), {"past": past, "page_table": table})
    torch.ops.libattn.kv_append(k, v, *pages, past=past, page_table=table, hadamard=True)
    assert torch.allclose(pages[0][1, :, 0].norm(dim=-1), k[0, :, 2].norm(dim=-1))
    kept, factors = [torch.zeros(3, 2, 16, 8, dtype=torch.int8) for _ in "kv"], [torch.ones(3, 2, 16) for _ in "kv"]
    made = {"k_scale_cache": factors[0], "v_scale_cache": factors[1], "past": past, "page_table": table}
    torch.ops.libattn.kv_append(k, v, *kept, **made)
    assert torch.equal(factors[0][2, :, 14:], k[0, :, :2].abs().amax(-1) / 127)
    torch.library.opcheck(torch.ops.libattn.kv_append, (k, v, *kept), made)
    q, ones = torch.randn(1, 4, 3, 8), torch.ones(1, 2, 3)
    scales = {"k_scale": 0.5 * ones, "v_scale": torch.tensor(2.0)}
    out = torch.ops.libattn.sdpa(q, (4 * k).round().to(torch.int8), (4 * v).round().to(torch.int8), **scales)
    right = torch.nn.functional.scaled_dot_product_attention(q, (4 * k).round() / 2, 2 * (4 * v).round(), enable_gqa=True)
    assert torch.allclose(out, right, atol=1e-5)
    q.requires_grad_()
    torch.ops.libattn.sdpa(q, k, v, **scales).sum().backward()
    other = q.detach().clone().requires_grad_()
    torch.nn.functional.scaled_dot_product_attention(other, k / 2, 2 * v, enable_gqa=True).sum().backward()
    assert torch.allclose(q.grad, other.grad, atol=1e-5)
    blocks = [torch.zeros(3, 2, 16, 1, 34, dtype=torch.uint8) for _ in "kv"]
    inside = {"past": past, "page_table": table, "kv_format": "q8_0"}
    torch.ops.libattn.kv_append(k, v, *blocks, **inside)
    assert np.array_equal(blocks[0][2, :, 14:].numpy(), libattn.q8_0(k[0, :, :2].numpy()))
    torch.library.opcheck(torch.ops.libattn.kv_append, (k, v, *blocks), inside)
    compiled = torch.compile(lambda x: torch.ops.libattn.rope(x, "halves", 8) * 2, backend="eager", fullgraph=True)
    assert torch.equal(compiled(k), torch.ops.libattn.rope(k, "halves", 8) * 2)


def test_bound_append():
    """write() of libattn.vllm: pages in float16, factors, slots of -1, strides, and what it refuses."""
    keys, values = np.zeros((2, 3, 2, 16, 8), np.float16)
    k, v = draw(2, 2, 5, 8).transpose(0, 2, 1, 3)
    scales = np.array([0.5, 2], np.float32)
    args = S.attn_kv_append_args(batch=1, heads_kv=2, dim_qk=8, dim_v=8, page_tokens=16, pages=3, cache_dtype=C.ATTN_F16,
                                 k_cache=keys.ctypes.data, v_cache=values.ctypes.data, k_scale=scales.ctypes.data,
                                 v_scale=scales.ctypes.data + 4)
    args.k_cache_stride = args.v_cache_stride = S.attn_strides(b=256, h=128, s=8, d=1)
    write = FUNCTIONS["append"](ctypes.addressof(args))
    scales[:] = 7  # not read again
    assert write(k, v, np.array([35, -1, 0, 17])) is None
    for row, (page, token) in {0: (2, 3), 2: (0, 0), 3: (1, 1)}.items():
        assert (keys[page, :, token] == (k[row] * 2).astype(np.float16)).all()
        assert (values[page, :, token] == (v[row] / 2).astype(np.float16)).all()
    assert (keys != 0).any(-1).sum() == 3 * 2  # rows of two heads
    for sentence, wrong in {"k is float64 of 3 dimensions; it must be float32": (k.astype(float), v, [0]),
                            "v has 4 tokens; it must have as many as k, 5": (k, v[:4], [0]),
                            r"slots\[1\] is 48": (k, v, [1, 48])}.items():
        with pytest.raises(ValueError, match=sentence):
            write(*wrong[:2], np.array(wrong[2]))
    with pytest.raises(ValueError, match="slots must be dense int64"):
        write(k, v, np.zeros(5, np.int32))
