# SPDX-License-Identifier: MIT
"""libattn.jax against the reference and JAX's own derivatives: compiled, mapped, with gradients."""

import functools
import inspect
import shutil
import subprocess
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import libattn  # noqa: E402
import libattn.jax as lj  # noqa: E402
from reference import attention, gradients  # noqa: E402

B, H, HKV, SQ, SK, D, DV = 2, 4, 2, 9, 13, 24, 16


FEW = ("plain", "sinks", "masks", "only_wanted", "programs", "refusals")  # those that use callbacks without --long


@pytest.fixture(autouse=True, params=["ffi", "callbacks"])
def way(request, monkeypatch, long):
    """How compiled programs call libattn: with --long every test runs both ways."""
    if request.param == "ffi" and not lj.uses_ffi:
        pytest.skip("this JAX has no foreign function interface that libattn knows")
    if request.param == "callbacks" and not long and not any(name in request.node.name for name in FEW):
        pytest.skip("only with --long")
    monkeypatch.setattr(lj, "uses_ffi", request.param == "ffi")
    return request.param


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
    asked, results = set(), lj._results
    jax.clear_caches()
    monkeypatch.setattr(lj, "_results", lambda call, arrays: asked.add(call.wanted) or results(call, arrays))
    q, k, v = qkv()
    jax.grad(lambda v: lj.sdpa(q, k, v, bias=jnp.zeros((SQ, SK))).sum())(v)
    assert asked == {None, ("v",)}


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


MAPPED = {  # options, and which of them are mapped
    "plain": ({}, ""), "causal": ({"causal": True, "align": "bottom_right"}, ""),
    "masks": ({"mask": np.stack([MASK, ~MASK, MASK]), "bias": R.standard_normal((H, 1, SK)).astype(np.float32)}, "mask"),
    "bias": ({"bias": R.standard_normal((3, H, SQ, SK)).astype(np.float32)}, "bias"),
    "lengths": ({"kv_len": np.int32([[SK, 4], [0, 1], [7, 5]]), "q_len": np.int32([5, SQ])}, "kv_len"),
    "rows": ({"row_len": R.integers(0, SK, (3, B, SQ)).astype(np.int32)}, "row_len"),
    "offsets": ({"align": np.int32([-1, 3]), "causal": True, "sinks": np.float32([0, 1, 2, 3])}, ""),
    "sinks": ({"sinks": R.standard_normal((3, H)).astype(np.float32)}, "sinks"),
    "scales": ({"k_scale": R.random((3, B, 1, SK)).astype(np.float32), "v_scale": np.float32([[0.5], [2]])}, "k_scale"),
    "dropout": ({"dropout": 0.5, "seed": 3}, "")}


SHORT = {("plain", "qkv"), ("causal", "q"), ("masks", "kv"), ("bias", "v"), ("lengths", "qkv"), ("rows", "q"),
         ("offsets", "kv"), ("sinks", "qkv"), ("scales", "qkv"), ("dropout", "v")}


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.parametrize("which", ["qkv", "q", "kv", "v"])
def test_vmap(name, which, long):
    """One call or a loop: the bits of calls one by one. Gradients, too."""
    if not long and (name, which) not in SHORT:
        pytest.skip("only with --long")
    options, own = MAPPED[name]
    arrays = dict(zip("qkv", draw((3, B, H, SQ, D), (3, B, HKV, SK, D), (3, B, HKV, SK, DV))))
    arrays = {key: x if key in which else x[0] for key, x in arrays.items()}
    fixed = {key: x for key, x in options.items() if key != own}
    moving = {key: x for key, x in arrays.items() if key in which} | ({own: options[own]} if own else {})
    still = {key: x for key, x in arrays.items() if key not in which}
    found = jax.vmap(lambda moving: lj.sdpa(**still, **moving, **fixed, return_lse=True))(moving)
    each = [lj.sdpa(**still, **{key: x[i] for key, x in moving.items()}, **fixed, return_lse=True) for i in range(3)]
    for ours, right in zip(found, zip(*each)):
        assert np.array_equal(ours, np.stack(right))
    if name == "scales":
        return

    def loss(still, moving):
        return jnp.sin(lj.sdpa(**still, **moving, **fixed)).sum()

    rows = {key: x for key, x in moving.items() if key in "qkv"}
    mapped = jax.grad(lambda still, rows: jax.vmap(loss, (None, 0))(still, {**moving, **rows}).sum(), (0, 1))(still, rows)
    singles = [jax.grad(lambda still, rows, i=i: loss(still, {**{key: x[i] for key, x in moving.items()}, **rows}), (0, 1))(
        still, {key: x[i] for key, x in rows.items()}) for i in range(3)]
    for key in still:
        close(mapped[0][key], sum(np.asarray(one[0][key], float) for one in singles), 1e-5)
    for key in rows:
        assert np.array_equal(mapped[1][key], np.stack([one[1][key] for one in singles]))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_vmap_without_batch(layout, dimensions):
    """The mapped axis becomes the batch; what all share is read where it lies. Maps within maps."""
    axis = 1 if layout == "bshd" else 0
    q, k, v = draw((3, 2, H, SQ, D), (2, HKV, SK, D), (HKV, SK, DV))
    if dimensions == 2:
        q, k, v = q[:, :, 0], k[:, 0], v[0]
    elif axis:
        q, k, v = (x.swapaxes(-2, -3) for x in (q, k, v))
    bias = draw((2, SQ, SK), seed=3)[0]
    one = lambda q, k, bias: lj.sdpa(q, k, v, bias=bias, layout=layout, return_lse=True)
    found = jax.jit(jax.vmap(jax.vmap(one), (0, None, None)))(q, k, bias)
    for i in range(3):
        for j in range(2):
            for ours, right in zip(found, one(q[i, j], k[j], bias[j])):
                assert np.array_equal(ours[i, j], right)


def test_programs_make_one_call(way):
    """vmap adds no loop where one call computes the batch, and compiled programs have no Python in them."""
    q, k, v = draw((3, B, H, SQ, D), (3, B, HKV, SK, D), (3, B, HKV, SK, DV))
    program = jax.jit(jax.vmap(lambda q, k, v: lj.sdpa(q, k, v, causal=True))).lower(q, k, v).as_text()
    assert program.count("custom_call") == 1 and "while" not in program
    assert ("libattn_attention" in program) == (way == "ffi") and ("callback" in program) == (way == "callbacks")


def test_threads_of_xla(way):
    """Bits do not depend on who lends the threads, and calls side by side end."""
    q, k, v = draw((1, 8, 700, 64), (1, 8, 700, 64), (1, 8, 700, 64))
    alone = lj.sdpa(q, k, v, threads=1)
    for threads in (None, 2, 5):
        assert np.array_equal(lj.sdpa(q, k, v, threads=threads), alone)


def test_packed_padding_is_cleared():
    """Tokens of no sequence are 0 in outputs and gradients, whatever XLA's memory held."""
    q, k, v = draw((30, H, D), (40, HKV, D), (40, HKV, DV))
    borders = {"cu_seqlens_q": jnp.array([2, 9, 25]), "cu_seqlens_k": jnp.array([1, 14, 33])}
    right, right_lse = libattn.sdpa(*(np.asarray(x) for x in (q, k, v)), return_lse=True,
                                    **{key: np.asarray(x, np.int32) for key, x in borders.items()})

    @jax.jit
    def both(q, k, v, borders):
        out, lse = lj.sdpa(q, k, v, return_lse=True, **borders)
        return out, lse, jax.grad(lambda *x: lj.sdpa(*x, **borders).sum(), (0, 1, 2))(q, k, v)

    for _ in range(3):
        out, lse, slopes = both(q, k, v, borders)
        assert np.array_equal(out, right) and np.array_equal(lse, right_lse)
        assert not np.asarray(slopes[0])[[0, 1, 25, 29]].any() and not np.asarray(slopes[1])[[0, 33, 39]].any()
        jnp.full((30, H, DV), jnp.nan).block_until_ready()


def test_layouts_are_those_of_xla(tmp_path, way):
    """The structs of xla.c beside jaxlib's header."""
    if way != "ffi" or not shutil.which("cc"):
        pytest.skip("needs a C compiler")
    same = {"xla_version": ("Api_Version", {"major_version": "major_version", "minor_version": "minor_version"}),
            "xla_error_create": ("Error_Create_Args", {"message": "message", "code": "errc"}),
            "xla_error_destroy": ("Error_Destroy_Args", {"error": "error"}),
            "xla_schedule": ("ThreadPool_Schedule_Args", {"context": "ctx", "task": "task", "data": "data"}),
            "xla_num_threads": ("ThreadPool_NumThreads_Args", {"context": "ctx", "threads": "num_threads"}),
            "xla_api": ("Api", {"version": "api_version", "error_create": "XLA_FFI_Error_Create",
                                "error_destroy": "XLA_FFI_Error_Destroy", "schedule": "XLA_FFI_ThreadPool_Schedule",
                                "num_threads": "XLA_FFI_ThreadPool_NumThreads"}),
            "xla_buffer": ("Buffer", {"type": "dtype", "data": "data", "rank": "rank", "dims": "dims"}),
            "xla_list": ("Args", {"size": "size", "types": "types", "buffers": "args"}),
            "xla_array": ("Array", {"type": "dtype", "size": "size", "data": "data"}),
            "xla_attributes": ("Attrs", {"size": "size", "types": "types", "names": "names", "values": "attrs"}),
            "struct xla_frame": ("CallFrame", {"api": "api", "context": "ctx", "stage": "stage", "args": "args",
                                               "results": "rets", "attributes": "attrs"}),
            "xla_metadata": ("Metadata", {"version": "api_version"}),
            "xla_metadata_extension": ("Metadata_Extension", {"base": "extension_base", "metadata": "metadata"})}
    constants = {"METADATA": "Extension_Metadata", "ARRAY": "AttrType_ARRAY", "S32": "DataType_S32", "S64": "DataType_S64",
                 "U32": "DataType_U32", "U64": "DataType_U64", "F32": "DataType_F32",
                 "INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT", "RESOURCE_EXHAUSTED": "Error_Code_RESOURCE_EXHAUSTED",
                 "UNIMPLEMENTED": "Error_Code_UNIMPLEMENTED", "INTERNAL": "Error_Code_INTERNAL"}
    lines = ['#include "xla.c"', '#include "xla/ffi/api/c_api.h"']
    for ours, (theirs, fields) in same.items():
        lines += [f'_Static_assert(offsetof({ours}, {a}) == offsetof(XLA_FFI_{theirs}, {b}), "{ours}.{a}");'
                  for a, b in fields.items()]
    lines += [f'_Static_assert((int){a} == (int)XLA_FFI_{b}, "{a}");' for a, b in constants.items()]
    source = tmp_path / "layouts.c"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    root = Path(__file__).parents[2]
    folders = (root / "python/native", root, root / "include", jax.ffi.include_dir())
    found = subprocess.run(["cc", "-std=c11", "-fsyntax-only", *(f"-I{folder}" for folder in folders), source],
                           capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


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
    if "return_residual" in inspect.signature(jax.nn.dot_product_attention).parameters:
        assert (inspect.signature(lj.dot_product_attention).parameters.keys()
                == inspect.signature(jax.nn.dot_product_attention).parameters.keys())
        for a, b in zip(*(f(q, k, v, is_causal=True, return_residual=True)
                          for f in (lj.dot_product_attention, jax.nn.dot_product_attention))):
            close(a, b)
    with pytest.raises(ValueError, match="implementation is 'cudnn'; it must be None or 'libattn'"):
        lj.dot_product_attention(q, k, v, implementation="cudnn")


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
            (ValueError, "seed is missing; dropout needs an integer", {"dropout": 0.5})):
        with pytest.raises(error, match=sentence):
            jax.block_until_ready(lj.sdpa(**{"q": q, "k": k, "v": v, **options}))
    with pytest.raises(NotImplementedError, match=r"no gradient by k_scale: jax.lax.stop_gradient\(k_scale\)"):
        jax.grad(lambda x: lj.sdpa(q, k, v, k_scale=x).sum())(jnp.ones((B, HKV, SK)))
    with pytest.raises(NotImplementedError, match="no gradients of gradients"):
        jax.hessian(lambda q: lj.sdpa(q, k, v).sum())(q)
    with pytest.raises((libattn.Unsupported, jax.errors.JaxRuntimeError), match=r"sdpa_grad\(\) takes no k_scale"):
        jax.block_until_ready(jax.grad(lambda q: lj.sdpa(q, k, v, k_scale=2.0).sum())(q))
