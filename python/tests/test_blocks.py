# SPDX-License-Identifier: MIT
"""Keys and values in blocks: the quantisers against ggml's bytes, and sdpa(kv_format=) against the values of the blocks."""

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from reference import attention  # noqa: E402

FORMATS = {"q8_0": libattn.q8_0, "q4_0": libattn.q4_0}
R = np.random.default_rng(3)


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


@pytest.mark.parametrize("name", FORMATS)
def test_quantisers_are_those_of_gguf(name):
    quants = pytest.importorskip("gguf.quants", reason="gguf is not installed: pip install gguf")
    import gguf

    x = (R.standard_normal((400, 96)) * 10.0 ** R.integers(-4, 4, (400, 1))).astype(np.float32)
    x[0] = 0
    right = quants.quantize(x, getattr(gguf.GGMLQuantizationType, name.upper()))
    assert (FORMATS[name](x).reshape(right.shape) == right).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (80, 80), (32, 128)])
def test_sdpa_reads_blocks(name, dim, dim_v):
    q = R.standard_normal((2, 4, 9, dim)).astype(np.float32)
    k, v = (FORMATS[name](R.standard_normal((2, 2, 13, d)).astype(np.float32)) for d in (dim, dim_v))
    right = attention(q, values_of(k, dim), values_of(v, dim_v))
    right = right[0] if isinstance(right, tuple) else right
    assert np.abs(libattn.sdpa(q, k, v, kv_format=name) - right).max() < 1e-5
    assert np.abs(libattn.sdpa(q, k[:, :, ::-1], v[:, :, ::-1], kv_format=name) - right).max() < 1e-5


def test_what_does_not_fit_is_refused():
    q = np.zeros((1, 1, 1, 64), np.float32)
    k = libattn.q8_0(q)
    with pytest.raises(ValueError, match="kv_format"):
        libattn.sdpa(q, k, k, kv_format="q5_0")
    with pytest.raises(ValueError, match=r"blocks, 18\]"):
        libattn.sdpa(q, k, k, kv_format="q4_0")
    with pytest.raises(TypeError, match="must be uint8"):
        libattn.sdpa(q, q, q, kv_format="q8_0")
    with pytest.raises(ValueError, match="head_dim"):
        libattn.sdpa(np.zeros((1, 1, 1, 96), np.float32), k, k, kv_format="q8_0")
