# SPDX-License-Identifier: MIT
"""libattn.jax against the reference and JAX's own derivatives: compiled, mapped, with gradients."""

import functools

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import libattn  # noqa: E402
import libattn.jax as lj  # noqa: E402
from reference import attention, gradients  # noqa: E402

B, H, HKV, SQ, SK, D, DV = 2, 4, 2, 9, 13, 24, 16


def draw(*shapes, seed=0, dtype="float32"):
    r = np.random.default_rng(seed)
    return [jnp.asarray(r.standard_normal(shape).astype(np.float32), dtype) for shape in shapes]


def qkv(**options):
    return draw((B, H, SQ, D), (B, HKV, SK, D), (B, HKV, SK, DV), **options)


def close(ours, right, limit=1e-5):
    ours, right = np.asarray(ours, float), np.asarray(right, float)
    assert ours.shape == right.shape
    assert np.array_equal(np.isneginf(ours), np.isneginf(right))
    seen = ~np.isneginf(right)
    assert np.abs(ours[seen] - right[seen]).max(initial=0) <= limit * (1 + np.abs(right[seen]).max(initial=0))


R = np.random.default_rng(7)
MASK = R.random((B, 1, SQ, SK)) > 0.3
MASK[0, :, 0] = False
OPTIONS = {
    "plain": {},
    "mask": {"mask": MASK},
    "bias": {"bias": R.standard_normal((1, H, SQ, SK)).astype(np.float32), "causal": True},
    "window": {"window": [2, 1], "scale": 0.4},
    "softcap": {"softcap": 1.5, "alibi": [0.5, 0.25, 0.125, 1], "align": "bottom_right", "causal": True},
    "sinks": {"sinks": [0, 1, -1, 2.0], "kv_len": [SK, 4], "q_len": [5, SQ]},
    "offsets": {"align": np.int32([-2, 5]), "causal": True},
    "additive": {"score": "additive", "score_weight": R.standard_normal(D).astype(np.float32)},
    "dropout": {"dropout": 0.4, "seed": jnp.uint32(2**32 - 7), "offset": 3},
    "dropout by 64 bits": {"dropout": 0.4, "seed": 2**63 + 9, "causal": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_outputs_and_gradients(name):
    """Gradients of out, of lse and of both, by everything that has some; compiled, too."""
    options, arrays = OPTIONS[name], qkv()
    do, d_lse = draw((B, H, SQ, DV), (B, H, SQ), seed=1)
    plain = {key: {"seed": int, "offset": int, "window": tuple}.get(key, lambda x: x)(x) for key, x in options.items()}
    by = [key for key in ("bias", "sinks", "alibi", "score_weight") if key in options]
    out, lse = lj.sdpa(*arrays, return_lse=True, **options)
    right, right_lse = attention(*arrays, **plain)
    close(out, right)
    close(lse, right_lse)

    def loss(parts, q, k, v, others):
        out, lse = lj.sdpa(q, k, v, return_lse=True, **{**options, **others})
        return (out * do).sum() * (0 in parts) + (jnp.where(jnp.isneginf(lse), 0, lse) * d_lse).sum() * (1 in parts)

    seen = np.where(np.isneginf(right_lse), 0, d_lse)
    names = {"bias": "dbias", "sinks": "dsinks", "alibi": "dalibi_slopes", "score_weight": "dscore_weight"}
    for parts in ((0,), (0, 1), (1,)):
        found = jax.grad(functools.partial(loss, parts), argnums=(0, 1, 2, 3))
        others = {key: jnp.asarray(options[key], jnp.float32) for key in by}
        wanted = gradients(do if 0 in parts else 0 * do, *arrays, d_lse=seen if 1 in parts else None, **plain)
        for function in (found, jax.jit(found)):
            *rows, beside = function(*arrays, others)
            for x, key in zip(rows, ("dq", "dk", "dv")):
                close(x, wanted[key], 2e-5)
            for key in by:
                total = wanted[names[key]]
                close(beside[key], total.sum(0, keepdims=True) if key == "bias" else total, 2e-5)


def test_only_wanted_gradients_are_computed(monkeypatch):
    asked = []
    monkeypatch.setattr(lj, "sdpa_grad", lambda *arrays, **options: asked.append(
        {name for name, x in options.items() if x is True}) or libattn.sdpa_grad(*arrays, **options))
    q, k, v = qkv()
    jax.grad(lambda v: lj.sdpa(q, k, v, bias=jnp.zeros((SQ, SK))).sum())(v)
    assert asked == [{"dv"}]


def test_dtypes_and_layouts():
    q, k, v = (x.swapaxes(1, 2) for x in qkv())
    right = attention(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=True)[0].swapaxes(1, 2)
    for dtype, limit in (("float32", 1e-5), ("float16", 4e-3), ("bfloat16", 3e-2)):
        inputs = [x.astype(dtype) for x in (q, k, v)]
        out, lse = lj.sdpa(*inputs, layout="bshd", causal=True, return_lse=True)
        assert (out.dtype, out.shape, lse.shape) == (dtype, (B, SQ, H, DV), (B, H, SQ))
        close(out, right, limit)
        assert lj.sdpa(*inputs, layout="bshd", out_dtype="float32").dtype == "float32"
        found = jax.grad(lambda *arrays: lj.sdpa(*arrays, layout="bshd").sum(), argnums=(0, 1, 2))(*inputs)
        assert [(x.dtype, x.shape) for x in found] == [(x.dtype, x.shape) for x in inputs]
    packed = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
    borders = {"cu_seqlens_q": [0, SQ, 2 * SQ], "cu_seqlens_k": [0, SK, 2 * SK]}
    out, lse = lj.sdpa(*packed, causal=True, return_lse=True, **borders)
    close(out.reshape(B, SQ, H, DV), right)
    assert lse.shape == (H, B * SQ)
    whole = jax.grad(lambda v: lj.sdpa(q, k, v, layout="bshd")[:, :, 0].sum())(v)
    close(jax.grad(lambda v: lj.sdpa(*packed[:2], v, **borders)[:, 0].sum())(packed[2]).reshape(v.shape), whole, 1e-6)
    close(lj.sdpa(q[0], k[0], v[0], layout="bshd", causal=True), right[0])


def test_dropout_by_a_key():
    """A seed that is traced: another one gives other weights without another trace, and backward drops the same."""
    q, k, v = qkv()
    call = jax.jit(lambda seed, v: lj.sdpa(q, k, v, dropout=0.5, seed=seed))
    outs = []
    for n in range(2):
        seed = jax.random.bits(jax.random.key(n))
        close(call(seed, v), attention(q, k, v, dropout=0.5, seed=int(seed))[0])
        outs.append(call(seed, v))
        out, pull = jax.vjp(lambda v, seed=seed: call(seed, v), v)
        close((pull(out)[0] * v).sum(), (out * out).sum())
    assert not np.array_equal(*outs)


def test_vmap():
    q, k, v = draw((3, B, H, SQ, D), (B, HKV, SK, D), (3, B, HKV, SK, DV))
    mapped = jax.vmap(lambda q, v: lj.sdpa(q, k, v, causal=True))
    for i in range(3):
        close(mapped(q, v)[i], attention(q[i], k, v[i], causal=True)[0])
    each = jax.vmap(jax.grad(lambda q, v: lj.sdpa(q, k, v).sum()))(q, v)
    for i in range(3):
        close(each[i], gradients(np.ones((B, H, SQ, DV)), q[i], k, v[i])["dq"])


def test_dot_product_attention():
    """The answers of jax.nn's function; and its gradients."""
    q, k, v = draw((B, SQ, H, D), (B, SK, HKV, D), (B, SK, HKV, D))
    bias = draw((1, H, SQ, SK))[0]
    for options in ({}, {"is_causal": True}, {"scale": 0.3, "bias": bias}, {"local_window_size": (3, 2)},
                    {"mask": jnp.asarray(MASK | (np.arange(SK) == 0))}, {"local_window_size": 4},
                    {"key_value_seq_lengths": jnp.array([SK, 5]), "query_seq_lengths": jnp.array([4, SQ])}):
        ours, right = (jax.jit(functools.partial(f, **options)) for f in (lj.dot_product_attention,
                                                                         jax.nn.dot_product_attention))
        close(ours(q, k, v), right(q, k, v))
        for a, b in zip(*(jax.grad(lambda *x, f=f: (f(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v) for f in (ours, right))):
            close(a, b, 2e-5)
    close(lj.dot_product_attention(q[0], k[0], v[0]), jax.nn.dot_product_attention(q[0], k[0], v[0]))


def test_large_calls_under_jit():
    """Calls that XLA runs side by side; they would hang if the callback waited for a device."""
    q, k, v = draw((1, 4, 512, 64), (1, 4, 512, 64), (1, 4, 512, 64))

    @jax.jit
    def step(q, k, v):
        return sum(lj.sdpa(x, y, v, causal=True).sum() for x in (q, k) for y in (q, k))

    for _ in range(5):
        found = jax.grad(step)(q, k, v)
    assert np.isfinite(np.asarray(found)).all()


def test_training_is_that_of_jax():
    """20 steps of a layer by SGD: JAX's losses."""
    r = np.random.default_rng(0)
    x, y = (jnp.asarray(r.standard_normal((4, 16, 32)), jnp.float32) for _ in range(2))
    start = [jnp.asarray(r.standard_normal((32, 4, 8)) / 6, jnp.float32) for _ in range(3)]

    def losses(attention):
        @jax.jit
        def step(weights):
            loss, slopes = jax.value_and_grad(lambda w: jnp.square(attention(
                *(jnp.einsum("btd,dhe->bthe", x, each) for each in w), is_causal=True).reshape(y.shape) - y).mean())(weights)
            return loss, [w - 0.5 * slope for w, slope in zip(weights, slopes)]

        weights, found = start, []
        for _ in range(20):
            loss, weights = step(weights)
            found.append(float(loss))
        return found

    ours, right = losses(lj.dot_product_attention), losses(jax.nn.dot_product_attention)
    assert right[-1] < 0.99 * right[0]
    close(ours, right, 1e-6)


def test_refusals():
    q, k, v = qkv()
    for error, sentence, options in (
            (ValueError, "k has head_dim 23; q has 24", {"k": k[..., :23]}),
            (ValueError, r"mask has 5 keys; it must have 13", {"mask": np.ones((SQ, 5), bool)}),
            (TypeError, r"libattn.jax.sdpa\(\) takes no state", {"state": 1}),
            (ValueError, "dropout is 2; it must be at least 0", {"dropout": 2, "seed": 1}),
            (libattn.Unsupported, "decode_c", {"kernel": "decode_c", "q": jnp.repeat(q, 9, 2)}),
            (jax.errors.JaxRuntimeError, r"kv_len\[1\] is 99; it must be in 0..13", {"kv_len": [4, 99]}),
            (jax.errors.JaxRuntimeError, "seed is missing; dropout needs an integer", {"dropout": 0.5})):
        with pytest.raises(error, match=sentence):
            jax.block_until_ready(lj.sdpa(**{"q": q, "k": k, "v": v, **options}))
    with pytest.raises(NotImplementedError, match=r"no gradient by k_scale: jax.lax.stop_gradient\(k_scale\)"):
        jax.grad(lambda x: lj.sdpa(q, k, v, k_scale=x).sum())(jnp.ones((B, HKV, SK)))
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        jax.hessian(lambda q: lj.sdpa(q, k, v).sum())(q)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sdpa_grad\(\) takes no k_scale"):
        jax.block_until_ready(jax.grad(lambda q: lj.sdpa(q, k, v, k_scale=2.0).sum())(q))
