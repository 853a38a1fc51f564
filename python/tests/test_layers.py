# SPDX-License-Identifier: MIT
"""libattn.layers against NumPy."""

import functools
import inspect
import math
import re
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from libattn import layers  # noqa: E402
from reference import attention  # noqa: E402

R = np.random.default_rng(11)


def draw(*shape):
    return R.standard_normal(shape).astype(np.float32) / 4


def close(ours, right, limit=2e-5):
    assert np.shape(ours) == np.shape(right)
    assert np.abs(np.asarray(ours, float) - right).max() <= limit


def heads_of(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def mha(x, memory, w, heads, heads_kv=None, **masks):
    """Weights [out][in]."""
    q, k, v = (source @ w[f"w_{name}"].T.astype(float) + w.get(f"b_{name}", 0)
               for source, name in ((x, "q"), (memory, "k"), (memory, "v")))
    heads_kv = heads_kv or heads
    o, _ = attention(heads_of(q, heads), heads_of(k, heads_kv), heads_of(v, heads_kv), **masks)
    return o.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1) @ w["w_o"].T.astype(float) + w.get("b_o", 0)


def norm(x, gain=1, bias=0):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias


def weights_of(width, columns_q, columns_kv, memory=None):
    memory = memory or width
    return {"w_q": draw(columns_q, width), "w_k": draw(columns_kv, memory), "w_v": draw(columns_kv, memory),
            "w_o": draw(width, columns_q), "b_q": draw(columns_q), "b_o": draw(width)}


def test_self_attention():
    x, w = draw(2, 7, 32), weights_of(32, 32, 16)
    layer = layers.MultiHeadAttention(batch=2, heads=4, heads_kv=2, seq=7, width=32, causal=True, uses=("kv_len",), **w)
    close(layer(x, kv_len=[7, 4]), mha(x, x, w, 4, 2, causal=True, kv_len=[7, 4]))
    assert layer.kernel in layer.describe()
    w_qkv = np.concatenate([w["w_q"], w["w_k"], w["w_v"]])
    turned = layers.MultiHeadAttention(batch=2, heads=4, heads_kv=2, seq=7, width=32, layout="in_out",
                                       w_qkv=np.ascontiguousarray(w_qkv.T), w_o=np.ascontiguousarray(w["w_o"].T))
    close(turned(x), mha(x, x, {**w, "b_q": 0, "b_o": 0}, 4, 2))


def test_weights_as_files_have_them():
    """A matrix for each head, and fused matrices whose heads stand in the orders of BLOOM, GPT-NeoX and Falcon."""
    heads, groups, dim, width = 4, 2, 8, 24
    x, w = draw(2, 7, width), {**weights_of(width, heads * dim, groups * dim), "b_k": draw(groups * dim),
                               "b_v": draw(groups * dim)}
    sizes = {"heads": heads, "heads_kv": groups, "dim_qk": dim, "width": width}
    right = layers.MultiHeadAttention(**sizes, **w)(x)
    biases = {name: value for name, value in w.items() if name[0] == "b"}
    turned = {name: w[name].reshape(-1, dim, width).transpose(0, 2, 1) for name in ("w_q", "w_k", "w_v")}
    turned["w_o"] = w["w_o"].T.reshape(heads, dim, width)
    turned = {name: np.ascontiguousarray(matrix) for name, matrix in turned.items()}
    assert (layers.MultiHeadAttention(**sizes, layout="heads_in_out", **turned, **biases)(x) == right).all()
    order = [(part, head) for group in range(groups)  # Falcon: the queries of a group, its key, its value
             for part, head in (("q", 2 * group), ("q", 2 * group + 1), ("k", group), ("v", group))]
    columns = np.array([dim * order.index((part, head)) for part, count in (("q", heads), ("k", groups), ("v", groups))
                        for head in range(count)], np.int64)
    fused = {kind: np.concatenate([w[f"{kind}_{part}"][head * dim:(head + 1) * dim] for part, head in order])
             for kind in "wb"}
    given = {"head_columns": columns, "b_qkv": fused["b"], "b_o": w["b_o"]}
    assert (layers.MultiHeadAttention(**sizes, w_qkv=fused["w"], w_o=w["w_o"], **given)(x) == right).all()
    in_heads = np.ascontiguousarray(fused["w"].reshape(-1, dim, width).transpose(0, 2, 1))
    assert (layers.MultiHeadAttention(**sizes, layout="heads_in_out", w_qkv=in_heads, w_o=turned["w_o"], **given)(x)
            == right).all()
    with pytest.raises(ValueError, match="head_columns has 57 for head 1 of w_k; it must be in 0..56, w_qkv having 64"):
        layers.MultiHeadAttention(**sizes, w_qkv=fused["w"], w_o=w["w_o"], head_columns=columns + (np.arange(8) == 5) * 9)
    with pytest.raises(ValueError, match="w_q has shape"):
        layers.MultiHeadAttention(**sizes, layout="heads_in_out", **w)
    with pytest.raises(ValueError, match="layout is 'heads'; it must be one of 'out_in', "):
        layers.MultiHeadAttention(**sizes, layout="heads", **w)


def test_heads_of_16_bits():
    x, memory, w = draw(2, 7, 32), draw(2, 9, 32), weights_of(32, 32, 32)
    right = mha(x, x, w, 4, causal=True)
    with pytest.raises(TypeError, match="heads_dtype is 'int8'; it must be one of 'float32', "):
        layers.MultiHeadAttention(heads=4, width=32, heads_dtype="int8", **w)
    for dtype, off in (("float16", 2e-3), ("bfloat16", 2e-2)):
        layer = layers.MultiHeadAttention(heads=4, width=32, causal=True, heads_dtype=dtype, **w)
        close(layer(x), right, off)
        assert np.abs(layer(x) - right).max() > off / 100
        cache = layers.KVCache(batch=2, heads=4, dim_qk=8, capacity=20, dtype=dtype)
        cache.begin([7, 7])
        close(layer.step(x.reshape(14, 32), cache).reshape(x.shape), right, off)
        floats = layers.KVCache(batch=2, heads=4, dim_qk=8, capacity=20)
        floats.begin([7, 7])
        with pytest.raises(ValueError, match="dtype_q and dtype_kv are . and .; they must be 0, the type of tokens"):
            layer.step(x.reshape(14, 32), floats)
    block = layers.Block(heads=4, width=32, self_weights=w, cross_weights=w, memory=(None, 32), w1=draw(16, 32),
                         w2=draw(32, 16), heads_dtype="float16")
    with pytest.raises(TypeError, match="out is None; it must be two arrays of float16"):
        block.project_memory(memory)
    with pytest.raises(TypeError, match="out is 5; it must be two arrays of float16"):
        block.project_memory(memory, out=5)
    kept = block.project_memory(memory, out=(np.empty((2, 4, 9, 8), np.float16), np.empty((2, 4, 9, 8), np.float16)))
    assert (block(x, kept) == block(x, memory)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_16_bits(dtype):
    kind = np.float16 if dtype == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    off, w, gain = (4e-3 if dtype == "float16" else 4e-2), weights_of(32, 32, 32), draw(32)
    x, memory = draw(2, 7, 32), draw(2, 9, 32)
    half, half_memory = x.astype(kind), memory.astype(kind)

    def near(got, right):
        assert got.dtype == kind
        close(got.astype(np.float32), right, off * max(1, np.abs(right).max()))

    layer = layers.MultiHeadAttention(heads=4, width=32, causal=True, dtype=dtype, **w)
    near(layer(half), mha(x, x, w, 4, causal=True))
    with pytest.raises(TypeError, match=f"x is float32; it must be {dtype}"):
        layer(x)
    cache = layers.KVCache(batch=2, heads=4, dim_qk=8, capacity=20, dtype=dtype)
    cache.begin([7, 7])
    assert (layer.step(half.reshape(14, 32), cache).reshape(x.shape) == layer(half)).all()
    network = {"w1": draw(48, 32), "w2": draw(32, 48), "w_gate": draw(48, 32), "activation": "silu"}
    near(layers.FeedForward(**network, dtype=dtype)(half), layers.FeedForward(**network)(x))
    weights = {"self_weights": w, "cross_weights": w, "memory": (None, 32), "heads": 4, "width": 32, **network}
    for pre_norm in (False, True):
        block = layers.Block(**weights, pre_norm=pre_norm, dtype=dtype)
        y = block(half, half_memory)
        near(y, layers.Block(**weights, pre_norm=pre_norm)(x, memory))
        kept = block.project_memory(half_memory)
        assert kept[0].dtype == kind and (block(half, kept) == y).all()
    near(layers.add_layer_norm(half, half, gain=gain), layers.add_layer_norm(2 * x, gain=gain))
    near(layers.add_rms_norm(half, x, gain=gain), layers.add_rms_norm(2 * x, gain=gain))
    line = layers.Linear(network["w1"], dtype=dtype, out_dtype=dtype)
    near(line(half), x @ network["w1"].T)
    with pytest.raises(TypeError, match="dtype is 'int8'; it must be one of 'float32', "):
        layers.FeedForward(**network, dtype="int8")


def test_cross_attention_and_masks():
    x, memory, w = draw(2, 5, 24), draw(2, 9, 40), weights_of(24, 24, 24, 40)
    mask = R.random((2, 3, 5, 9)) > 0.3
    mask[..., 0] = True
    layer = layers.MultiHeadAttention(batch=2, heads=3, seq=5, seq_memory=9, width=24, width_memory=40, uses=("mask",), **w)
    close(layer(x, memory, mask=mask), mha(x, memory, w, 3, mask=mask))
    assert (layer(x, memory, mask=3 * mask.astype(np.uint8)) == layer(x, memory, mask=mask)).all()
    with pytest.raises(ValueError, match="mask"):
        layer(x, memory)
    with pytest.raises(TypeError, match="'colour'"):
        layer(x, memory, colour=1)
    with pytest.raises(TypeError, match="w_x is neither a setting nor a weight"):
        layers.MultiHeadAttention(batch=1, heads=3, seq=5, width=24, w_x=x)
    with pytest.raises(TypeError, match="dropout is no argument: the layers of libattn are for inference"):
        layers.MultiHeadAttention(batch=1, heads=3, seq=5, width=24, dropout=0.5)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_feed_forward(activation):
    x, w1, b1, w2 = draw(2, 6, 16), draw(48, 16), draw(48), draw(16, 48)
    layer = layers.FeedForward(w1, w2, b1=b1, activation=activation)
    hidden = x.astype(float) @ w1.T + b1
    close(layer(x), (np.maximum(hidden, 0) if activation == "relu" else gelu(hidden)) @ w2.T)
    with pytest.raises(ValueError, match="last dimension must be 16"):
        layer(x[..., :3].copy())


@pytest.mark.parametrize("pre_norm", [False, True])
def test_encoder_block(pre_norm):
    x, w, w1, w2 = draw(2, 6, 16), weights_of(16, 16, 16), draw(32, 16), draw(16, 32)
    norms = [(draw(16), draw(16)) for _ in range(3)]
    block = layers.Block(batch=2, heads=2, seq=6, width=16, self_weights=w, w1=w1, w2=w2, norms=norms, pre_norm=pre_norm,
                         uses=("kv_len",))

    def network(x):
        return np.maximum(x @ w1.T.astype(float), 0) @ w2.T

    def attend(x):
        return mha(x, x, w, 2, kv_len=[6, 3])

    if pre_norm:
        y = x + attend(norm(x, *norms[0]))
        right = y + network(norm(y, *norms[2]))
    else:
        y = norm(x + attend(x), *norms[0])
        right = norm(y + network(y), *norms[2])
    close(block(x, kv_len=np.array([6, 3], np.int64)), right)


def test_decoder_block():
    x, memory = draw(1, 5, 16), draw(1, 7, 24)
    own, cross, w1, w2 = weights_of(16, 16, 16), weights_of(16, 16, 16, 24), draw(32, 16), draw(16, 32)
    block = layers.Block(batch=1, heads=2, seq=5, width=16, memory=(7, 24), self_weights=own, cross_weights=cross, w1=w1,
                         w2=w2, activation="gelu")
    y = norm(x + mha(x, x, own, 2, causal=True))
    y = norm(y + mha(y, memory, cross, 2))
    close(block(x, memory), norm(y + gelu(y @ w1.T.astype(float)) @ w2.T))


def test_dense_layers_run_by_the_product_that_is_named():
    x, w, w1, w2 = draw(1, 6, 16), weights_of(16, 16, 16), draw(32, 16), draw(16, 32)
    makers = [lambda product: layers.MultiHeadAttention(batch=1, heads=2, seq=6, width=16, product=product, **w),
              lambda product: layers.FeedForward(w1, w2, product=product),
              lambda product: layers.Block(batch=1, heads=2, seq=6, width=16, self_weights=w, w1=w1, w2=w2, product=product)]
    for make in makers:
        close(make("product_c")(x), make(None)(x))
        with pytest.raises(ValueError, match="no product is called 'product_d'"):
            make("product_d")
    assert "product_c" in makers[0]("product_c").describe()


def test_linear():
    x, w, b = draw(2, 5, 16), draw(24, 16), draw(24)
    x64 = x.astype(float)
    layer = layers.Linear(w, b)
    close(layer(x), x64 @ w.T + b)
    close(layers.Linear(w, activation="relu", product="product_c")(x), np.maximum(x64 @ w.T, 0))
    assert layers.Linear(w, product="product_c").kernel == "product_c"
    half, out = layers.Linear(w, b, out_dtype="float16"), np.empty((2, 5, 24), np.float16)
    assert half(x, out) is out
    assert np.abs(out - layer(x)).max() <= 2.0**-11 * np.abs(layer(x)).max()
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        half(x, out)
    out.flags.writeable = True
    with pytest.raises(TypeError, match="out is None; it must be an array of float16"):
        half(x)
    with pytest.raises(ValueError, match=r"out has shape \(5, 24\); it must have \(2, 5, 24\)"):
        half(x, out[0])
    with pytest.raises(TypeError, match="dtype is 'int8'; it must be one of 'float32', "):
        layers.Linear(w, dtype="int8")
    with pytest.raises(ValueError, match="x has shape .*; its last dimension must be 16"):
        layer(x[..., :3].copy())


def test_linear_as_a_function_of_python():
    """layers.Linear calls _run first, and _call where that returns None."""
    w, out = draw(24, 16), np.empty((7, 24), np.float32)
    layer = layers.Linear(w)
    for shape in ((16,), (7, 16), (2, 3, 1, 16), (200, 16), (7, 16)):
        x = draw(*shape)
        quick = layer._run(x, None)
        assert quick.shape == (*shape[:-1], 24) and np.array_equal(quick, layer._call(x, None))
    assert layer._run(x, out) is out and np.array_equal(out, layer._call(x, None))
    x.flags.writeable = False
    assert layer._run(x, out) is out
    x.flags.writeable = True
    others = (x[:, ::-1], draw(7, 32)[:, :16], draw(7, 32)[:, ::2], x.astype(np.float64), draw(0, 16), draw(15), "x", None)
    for other in others:
        assert layer._run(other, None) is None
    for other in (out[:5], out[None], out[:, ::-1], np.empty((7, 48), np.float32)[:, :24], out.astype(np.float64), x, "out"):
        assert layer._run(x, other) is None
    assert layers.Linear(w, out_dtype="float16")._run(x, None) is None
    assert layer(draw(0, 16)).shape == (0, 24)
    run = layer._run
    del layer  # the function holds the weights
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda i: run(x, None), range(64)))
    assert all(np.array_equal(y, results[0]) for y in results)


def test_rows_rounded_to_bfloat16():
    torch = pytest.importorskip("torch")
    x, w1, w2 = (torch.from_numpy(draw(*shape)) for shape in ((5, 16), (32, 16), (16, 32)))
    w1, w2 = w1.bfloat16(), w2.bfloat16()
    layer, plain = layers.FeedForward(w1, w2, bf16_rows=True), layers.FeedForward(w1, w2)
    assert torch.equal(layer(x), layer(x.bfloat16().float()))
    assert not torch.equal(plain(x), plain(x.bfloat16().float()))
    for make in (lambda: layers.FeedForward(w1.float(), w2.float(), bf16_rows=True),
                 lambda: layers.MultiHeadAttention(heads=2, width=16, bf16_rows=True, **weights_of(16, 16, 16))):
        with pytest.raises(ValueError, match="bf16_rows is true with dtype 0"):
            make()


def test_weights_of_int8():
    x, w, b = draw(5, 16), draw(24, 16), draw(24)
    scale = np.abs(w).max(axis=1) / np.float32(127)
    rounded = np.rint(w / scale[:, None]).astype(np.int8)
    y = layers.Linear(rounded, b, scale=scale)(x)
    close(y, x.astype(float) @ (rounded * scale[:, None].astype(float)).T + b)
    assert np.array_equal(layers.Linear(w, b, int8_weights=True)(x), y)
    with pytest.raises(ValueError, match="scale is .* with dtype 5"):
        layers.Linear(rounded)

    def back(weights):
        scales = {name: np.abs(m).max(axis=-1, keepdims=True) / np.float32(127) for name, m in weights.items()}
        return {name: m if m.ndim == 1 else np.rint(m / scales[name]) * scales[name] for name, m in weights.items()}

    attention, network, x = weights_of(16, 16, 16), {"w1": draw(32, 16), "w2": draw(16, 32)}, draw(1, 3, 16)
    close(layers.MultiHeadAttention(heads=2, width=16, int8_weights=True, **attention)(x),
          layers.MultiHeadAttention(heads=2, width=16, **back(attention))(x), 1e-4)
    close(layers.FeedForward(**network, int8_weights=True)(x), layers.FeedForward(**back(network))(x), 1e-4)
    close(layers.Block(heads=2, width=16, self_weights=attention, **network, int8_weights=True)(x),
          layers.Block(heads=2, width=16, self_weights=back(attention), **back(network))(x), 1e-4)


def test_rows_of_int8():
    x, w, b = draw(5, 16), draw(24, 16), draw(24)

    def rounded(m):
        scale = np.abs(m).max(axis=-1, keepdims=True) / np.float32(127)
        return np.rint(m / scale) * scale.astype(float)

    y = layers.Linear(w, b, int8_weights=True, int8_rows=True)(x)
    close(y, rounded(x) @ rounded(w).T + b)
    with pytest.raises(ValueError, match="int8_rows is true with dtype 0"):
        layers.Linear(w, int8_rows=True)
    attention, network, x = weights_of(16, 16, 16), {"w1": draw(32, 16), "w2": draw(16, 32)}, draw(1, 3, 16)
    for make in (lambda **o: layers.MultiHeadAttention(heads=2, width=16, **attention, **o),
                 lambda **o: layers.FeedForward(**network, **o),
                 lambda **o: layers.Block(heads=2, width=16, self_weights=attention, **network, **o)):
        coarse, fine = make(int8_weights=True, int8_rows=True)(x), make(int8_weights=True)(x)
        assert not np.array_equal(coarse, fine)
        close(coarse, fine, 0.1)
        with pytest.raises(ValueError, match="int8_rows is true and .int8_weights false"):
            make(int8_rows=True)


def test_additive():
    q, k, v = draw(2, 4, 12), draw(2, 6, 10), draw(2, 6, 5)
    w_q, w_k, w = draw(8, 12), draw(8, 10), draw(8)
    layer = layers.Additive(w_q, w_k, w, batch=2, seq_q=4, seq_k=6, dim_v=5, kv_len=True)
    o, p = layer(q, k, v, kv_len=[6, 2], return_weights=True)
    right, _ = attention((q @ w_q.T)[:, None], (k @ w_k.T)[:, None], v[:, None], score="additive", score_weight=w,
                         kv_len=[6, 2])
    close(o, right[:, 0])
    close(p.sum(-1), np.ones((2, 4)))
    assert not p[1, :, 2:].any()


def test_synthesizer():
    x, scores, w_v, w_o = draw(2, 5, 12), draw(3, 8, 8), draw(12, 12), draw(12, 12)
    value = heads_of(x @ w_v.T, 3)

    def right(scores):
        o, _ = attention(None, None, value, score="precomputed", scores=scores, causal=True)
        return o.transpose(0, 2, 1, 3).reshape(2, 5, 12) @ w_o.T

    learnt = layers.Synthesizer(w_v, w_o, batch=2, seq=5, heads=3, scores=scores, causal=True)
    close(learnt(x), right(scores[None, :, :5, :5]))
    first, second = [(draw(6, 12), draw(6)) for _ in range(3)], [(draw(8, 6), None) for _ in range(3)]
    dense = layers.Synthesizer(w_v, w_o, batch=2, seq=5, heads=3, first=first, second=second, causal=True)
    given = np.stack([np.maximum(x @ w1.T + b1, 0) @ w2.T for (w1, b1), (w2, _) in zip(first, second)], 1)[..., :5]
    close(dense(x), right(given))
    with pytest.raises(ValueError, match="must have 3 pairs"):
        layers.Synthesizer(w_v, w_o, batch=2, seq=5, heads=3)


def test_kernel_regression():
    x, y, query = draw(20, 3), draw(20, 2), draw(5, 3)
    width = np.array([1, 2, 0.5], np.float32)
    prediction, weights = layers.kernel_regression(x, y, query, inverse_width=width, return_weights=True)
    p = np.exp(-0.5 * (((query[:, None] - x[None]) * width) ** 2).sum(-1))
    p /= p.sum(-1, keepdims=True)
    close(weights, p)
    close(prediction, p @ y)


def test_kv_cache():
    q, k, v = draw(2, 4, 9, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 8)
    right, _ = attention(q, k, v, causal=True)
    cache = layers.KVCache(batch=2, heads=4, heads_kv=2, dim_qk=16, dim_v=8, capacity=9)

    def step(tokens):
        return cache.step(*(np.ascontiguousarray(x[:, :, tokens]) for x in (q, k, v)))

    close(step(slice(0, 6)), right[:, :, :6])
    close(step(slice(6, 7)), right[:, :, 6:7])
    assert cache.lengths == [7, 7]
    for wrong in ([1, 2, 0], 2.5, "5"):
        with pytest.raises(TypeError, match="length is .*; it must be one integer"):
            cache.truncate(wrong)
    cache.truncate(5)
    close(step(slice(5, 9)), right[:, :, 5:])
    with pytest.raises(ValueError, match="1 more do not fit"):
        step(slice(0, 1))
    table = draw(4, 3)
    distance = np.arange(9)[:, None] - np.arange(9)
    biased, _ = attention(q, k, v, causal=True, bias=table[:, np.clip(distance, 0, 2)])
    cache = layers.KVCache(batch=2, heads=4, heads_kv=2, dim_qk=16, dim_v=8, capacity=9, bias_by_distance=table)
    close(step(slice(0, 6)), biased[:, :, :6])
    close(step(slice(6, 9)), biased[:, :, 6:])
    with pytest.raises(ValueError, match=r"bias_by_distance has shape \(3, 4\); it must have \(4, distances\)"):
        layers.KVCache(batch=2, heads=4, dim_qk=16, capacity=9, bias_by_distance=draw(3, 4))
    with pytest.raises(TypeError, match="dtype is 'int16'"):
        layers.KVCache(batch=1, heads=1, dim_qk=1, capacity=1, dtype="int16")


SIZES = {"MultiHeadAttention": (lambda **o: layers.MultiHeadAttention(w_q=draw(8, 8), **o),
                                {"batch": 1, "heads": 2, "seq": 3, "width": 8, "seq_memory": 3, "width_memory": 8,
                                 "width_out": 8, "heads_kv": 2, "dim_qk": 4, "dim_v": 4, "threads": 1}),
         "Block": (lambda **o: layers.Block(self_weights={}, w1=draw(8, 8), w2=draw(8, 8), **o),
                   {"batch": 1, "heads": 2, "seq": 3, "width": 8}),
         "Additive": (lambda **o: layers.Additive(draw(8, 8), draw(8, 8), draw(8), **o),
                      {"batch": 1, "seq_q": 3, "seq_k": 3, "dim_v": 4}),
         "Synthesizer": (lambda **o: layers.Synthesizer(draw(8, 8), draw(8, 8), scores=draw(2, 3, 3), **o),
                         {"batch": 1, "seq": 3, "heads": 2}),
         "KVCache": (layers.KVCache, {"batch": 1, "heads": 2, "dim_qk": 4, "capacity": 5, "heads_kv": 2, "dim_v": 4}),
         "KVPool": (layers.KVPool, {"pages": 2, "heads_kv": 1, "dim_qk": 4}),
         "truncate": (lambda **o: layers.KVCache(batch=1, heads=1, dim_qk=4, capacity=5).truncate(**o), {"length": 1}),
         "generation": (layers.Generation, {"vocabulary": 3, "most_tokens": 4, "beams": 2, "first_sequence": 0}),
         "positions": (lambda **o: layers.sinusoidal_positions(like=draw(1), **o), {"rows": 3, "width": 4, "first": 0})}
REQUIRED = {"heads", "width", "capacity", "rows", "pages", "length"}  # and a cache's batch


def steps_of(step, cache, x, counts):
    """y of x [batch, seq, width] by steps of counts [batch] new tokens each."""
    y = np.zeros_like(x)
    for new in counts:
        first = cache.lengths
        cache.begin(new)
        places = [(b, first[b] + i) for b in range(len(new)) for i in range(new[b])]
        for place, row in zip(places, step(np.stack([x[place] for place in places]))):
            y[place] = row
    return y


ANY_SHAPE = [(1, 1), (2, 7), (1, 128), (3, 20), (0, 4), (2, 7)]


def test_layers_take_calls_of_any_shape():
    """One layer has the bits of layers that were made for each shape."""
    w, w1, w2 = weights_of(32, 32, 32), draw(48, 32), draw(32, 48)
    of_cross = {"memory": (None, 24), "cross_weights": weights_of(32, 32, 32, 24), "self_weights": w, "w1": w1, "w2": w2}
    w_q, w_k, score = draw(16, 32), draw(16, 24), draw(16)
    heads, scores = {"heads": 4, "width": 32}, draw(4, 130, 130)
    mha = layers.MultiHeadAttention(**heads, causal=True, **w)
    w_cross = weights_of(32, 32, 32, 24)
    cross = layers.MultiHeadAttention(**heads, width_memory=24, **w_cross)
    decoder = layers.Block(**heads, **of_cross)
    additive, synthesizer = layers.Additive(w_q, w_k, score, dim_v=24), layers.Synthesizer(w["w_v"], w["w_o"], heads=4,
                                                                                           scores=scores)
    for batch, seq in ANY_SHAPE:
        x, memory, sizes = draw(batch, seq, 32), draw(batch, 5 + seq, 24), {"batch": batch, "seq": seq}
        made = layers.MultiHeadAttention(**heads, **sizes, causal=True, **w)
        assert np.array_equal(mha(x), made(x))
        assert mha.describe() == made.describe()
        assert mha.kernel == made.kernel
        made = layers.MultiHeadAttention(**heads, **sizes, seq_memory=5 + seq, width_memory=24, **w_cross)
        assert np.array_equal(cross(x, memory), made(x, memory))
        made = layers.Block(**heads, **sizes, **{**of_cross, "memory": (5 + seq, 24)})
        assert np.array_equal(decoder(x, memory), made(x, memory))
        assert np.array_equal(decoder(x, decoder.project_memory(memory)), made(x, memory))
        made = layers.Additive(w_q, w_k, score, dim_v=24, batch=batch, seq_q=seq, seq_k=5 + seq)
        assert np.array_equal(additive(x, memory, memory), made(x, memory, memory))
        made = layers.Synthesizer(w["w_v"], w["w_o"], heads=4, scores=scores, batch=batch, seq=seq)
        assert np.array_equal(synthesizer(x), made(x))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 31\); it must have \(batch, seq, 32\)"):
        mha(draw(2, 3, 31))
    with pytest.raises(ValueError, match=r"memory has shape \(1, 3, 24\); it must have \(2, keys, 24\)"):
        cross(draw(2, 3, 32), draw(1, 3, 24))
    with pytest.raises(ValueError, match="memory is None; a decoder block attends to it"):
        decoder(draw(2, 3, 32))
    with pytest.raises(ValueError, match=r"x has shape \(2, 3, 32\); it must have \(2, 4, 32\)"):
        layers.MultiHeadAttention(**heads, batch=2, seq=4, **w)(draw(2, 3, 32))


def test_masks_of_calls_broadcast():
    x, w = draw(2, 6, 32), weights_of(32, 32, 32)
    layer = layers.MultiHeadAttention(heads=4, width=32, **w)
    for shape in [(6, 6), (1, 6), (2, 1, 1, 6), (1, 4, 6, 6), (2, 4, 6, 6)]:
        mask, bias = R.random(shape) > 0.3, draw(*shape)
        mask[..., 0] = True
        whole = np.broadcast_to(mask, (2, 4, 6, 6))
        close(layer(x, mask=mask), mha(x, x, w, 4, mask=whole))
        full = np.ascontiguousarray(np.broadcast_to(bias, (2, 4, 6, 6)))
        assert np.array_equal(layer(x, bias=bias), layer(x, bias=full))
    close(layer(x, kv_len=[6, 2]), mha(x, x, w, 4, kv_len=[6, 2]))
    y, p = layer(x, kv_len=[6, 2], return_weights=True)
    assert np.array_equal(y, layer(x, kv_len=[6, 2], mask=None))
    close(p.sum(-1), np.ones((2, 4, 6)))
    assert p.shape == (2, 4, 6, 6) and (p[1, ..., 2:] == 0).all()
    with pytest.raises(ValueError, match=r"mask has shape \(5, 6\); it must broadcast to \(2, 4, 6, 6\)"):
        layer(x, mask=np.ones((5, 6), bool))


def test_threads_call_one_layer_with_more_shapes_than_it_keeps():
    w = weights_of(32, 32, 32)
    layer = layers.MultiHeadAttention(heads=4, width=32, **w)
    layer.MOST_SHAPES = 2
    inputs = [draw(1, seq, 32) for seq in range(1, 9)]
    right = [layers.MultiHeadAttention(heads=4, width=32, **w)(x) for x in inputs]

    def call(i):
        return np.array_equal(layer(inputs[i % 8]), right[i % 8]) and layer.kernel and layer.describe().startswith("layer ")

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(200)))
    assert len(layer._shapes) == 2


def test_a_shape_that_two_threads_make_at_once_is_kept_once():
    layer = layers.MultiHeadAttention(heads=4, width=32, **weights_of(32, 32, 32))
    layer.MOST_SHAPES = 2
    x = draw(1, 3, 32)
    layer(x[:, :2])
    reshape, made = layer._reshape, []

    def reshape_beside_another(key, what):
        made.append(reshape(key, what))
        return reshape(key, what)

    layer._reshape = reshape_beside_another
    layer(x)
    assert len(layer._shapes) == 2 and layer._newest is made[0]


def test_blocks_refuse_what_they_would_ignore():
    w = weights_of(16, 16, 16)
    network = {"self_weights": w, "w1": draw(24, 16), "w2": draw(16, 24)}
    pair = (draw(16), draw(16))
    two, three = (layers.Block(heads=2, width=16, norms=norms, **network) for norms in ([pair, pair], [pair, None, pair]))
    x = draw(1, 3, 16)
    assert np.array_equal(two(x), three(x))
    with pytest.raises(ValueError, match="norms has 1 pairs; it must have 3"):
        layers.Block(heads=2, width=16, norms=[pair], **network)
    with pytest.raises(ValueError, match="without memory they must not be"):
        layers.Block(heads=2, width=16, cross_uses=("mask",), **network)
    with pytest.raises(ValueError, match="cross is given; it must be None"):
        two(x, cross={"mask": np.ones((3, 3), bool)})
    for heads in ({"heads": 0}, {"heads": 2, "heads_kv": 0}):
        with pytest.raises(ValueError, match="heads"):
            layers.MultiHeadAttention(width=16, **heads, **w)
    decoder = layers.Block(heads=2, width=16, memory=(None, 16), cross_weights=w, **network)
    decoder(draw(0, 3, 16), draw(0, 2, 16))
    with pytest.raises(ValueError, match="memory is None"):
        decoder(x)
    freed = weakref.ref(two)
    del two
    assert freed() is None  # without the garbage collector


STEPS = [[4, 1], [0, 3], [1, 0], [2, 3]]  # 7 tokens of each sequence
CACHED = {"batch": 2, "heads": 4, "dim_qk": 8, "capacity": 7, "num_layers": 2, "kernel": "flash_c"}


def test_layers_in_steps_have_the_bits_of_one_call():
    x, w = draw(2, 7, 32), weights_of(32, 32, 32)
    layer = layers.MultiHeadAttention(batch=2, heads=4, seq=7, width=32, causal=True, kernel="flash_c", **w)
    cache = layers.KVCache(**CACHED)
    assert np.array_equal(steps_of(lambda new: layer.step(new, cache, layer=1), cache, x, STEPS), layer(x))
    cache.truncate(0)
    cache.begin([2, 0])
    with pytest.raises(ValueError, match=r"x has shape \(3, 32\); it must have \(2, 32\)"):
        layer.step(draw(3, 32), cache)
    with pytest.raises(ValueError, match="layer is 2; it must be in 0..1"):
        layer.step(draw(2, 32), cache, layer=2)


@pytest.mark.parametrize("pre_norm", [False, True])
def test_blocks_in_steps_have_the_bits_of_one_call(pre_norm):
    x, memory = draw(2, 7, 32), draw(2, 9, 24)
    shape = {"batch": 2, "heads": 4, "width": 32, "self_weights": weights_of(32, 32, 32), "w1": draw(48, 32),
             "w2": draw(32, 48), "pre_norm": pre_norm, "kernel": "flash_c"}
    block, cache = layers.Block(seq=7, causal=True, **shape), layers.KVCache(**CACHED)
    whole = block(x)
    assert np.array_equal(steps_of(lambda new: block.step(new, cache), cache, x, STEPS), whole)
    close(whole[:, :1], layers.Block(seq=1, **shape)(np.ascontiguousarray(x[:, :1])))  # causal: the first sees itself alone

    cross = {"memory": (9, 24), "cross_weights": weights_of(32, 32, 32, 24), "cross_uses": ("kv_len",)}
    lengths = {"kv_len": [9, 5]}
    decoder, one = (layers.Block(seq=seq, **shape, **cross) for seq in (7, 1))
    whole, projected = decoder(x, memory, cross=lengths), one.project_memory(memory, cross=lengths)
    for brought in (memory, projected):
        cache.truncate(0)
        y = steps_of(lambda new: one.step(new, cache, brought, cross=lengths), cache, x, [[1, 1]] * 7)  # noqa: B023
        assert np.array_equal(y, whole)
    assert np.array_equal(decoder(x, projected, cross=lengths), whole)
    for steps in ([[7, 7]], [[3, 3], [4, 4]]):  # a block that was made for no shape
        cache.truncate(0)
        free = layers.Block(**{**shape, "batch": None}, **{**cross, "memory": (None, 24)})
        y = steps_of(lambda new: free.step(new, cache, memory, cross=lengths), cache, x, steps)  # noqa: B023
        assert np.array_equal(y, whole)
    cache.truncate(0)
    cache.begin([1, 0])
    with pytest.raises(ValueError, match="sequence 1 has 0 new tokens in this step; it must have 1"):
        one.step(draw(1, 32), cache, memory, cross=lengths)
    with pytest.raises(ValueError, match="memory is given; it must be None"):
        block.project_memory(memory)


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in SIZES for size in SIZES[name][1]])
def test_sizes_that_are_no_integers(name, size):
    make, sizes = SIZES[name]
    for wrong in (2.5, "3", [1], 1 << 64, *([None] if size in REQUIRED or (size == "batch" and name == "KVCache") else [])):
        with pytest.raises(TypeError, match=rf"^{size} is .*; it must be one integer"):
            make(**{**sizes, size: wrong})


MADE = {layers.Linear: lambda **o: layers.Linear(draw(8, 8), **o),
        layers.FeedForward: lambda **o: layers.FeedForward(draw(8, 8), draw(8, 8), **o),
        layers.pool: lambda **o: layers.pool(draw(1, 2, 3), **o),
        layers.kernel_regression: lambda **o: layers.kernel_regression(draw(2, 3), draw(2, 1), draw(2, 3), **o),
        libattn.Rope: lambda **o: libattn.Rope("halves", 8, **o),
        **{getattr(layers, name): functools.partial(make, **sizes) for name, (make, sizes) in SIZES.items()
           if hasattr(layers, name)}}


@pytest.mark.parametrize("what", MADE, ids=lambda what: what.__name__)
def test_flags_that_are_no_truth_values(what):
    """Every flag that a signature has."""
    flags = [name for name, p in inspect.signature(what).parameters.items() if p.annotation in ("bool", "bool | None")]
    assert flags
    for flag in flags:
        for wrong in ("no", 1, [False]):
            with pytest.raises(TypeError, match=rf"^{flag} is {re.escape(repr(wrong))}; it must be True or False$"):
                MADE[what](**{flag: wrong})


def test_flags_may_be_numpys():
    x = draw(1, 2, 3)
    assert np.array_equal(layers.pool(x, unit=np.bool_(True)), layers.pool(x, unit=True))
    assert not np.array_equal(layers.pool(x, unit=np.bool_(False)), layers.pool(x, unit=True))


WITH_NUMBERS = {**MADE, layers.Sampler: layers.Sampler,
                layers.embedding: lambda **o: layers.embedding(draw(3, 2), [1], **o),
                layers.add_layer_norm: lambda **o: layers.add_layer_norm(draw(3, 2), **o),
                layers.add_rms_norm: lambda **o: layers.add_rms_norm(draw(3, 2), **o),
                libattn.Rope: lambda **o: libattn.Rope(**{"pairing": "halves", "dim": 8, **o})}


@pytest.mark.parametrize("what", WITH_NUMBERS, ids=lambda what: what.__name__)
def test_numbers_and_names_of_another_kind(what):
    """Every number and name that a signature has."""
    wrong = {"float": ("no", [1.0], 10**400, float("nan"), None), "float | None": ("no", [1.0], 10**400, float("inf")),
             "str": (3, ["c"], None), "str | None": (3, ["c"], b"c")}
    given = {name: p.annotation for name, p in inspect.signature(what).parameters.items() if p.annotation in wrong}
    assert given
    for name, kind in given.items():
        for value in wrong[kind]:
            with pytest.raises((TypeError, ValueError), match=rf"^{name} is {re.escape(repr(value))}; it must be "):
                WITH_NUMBERS[what](**{name: value})


def test_objects_of_another_kind():
    cache = layers.KVCache(batch=1, heads=2, dim_qk=4, capacity=5)
    block = layers.Block(heads=2, width=8, self_weights=weights_of(8, 8, 8), w1=draw(8, 8), w2=draw(8, 8), memory=(None, 8),
                         cross_weights=weights_of(8, 8, 8))
    layer, x, w = layers.MultiHeadAttention(heads=2, width=8, **weights_of(8, 8, 8)), draw(1, 8), draw(8, 8)
    for sentence, call in {
            "rotation is 3; it must be a Rope": lambda: layers.KVCache(batch=1, heads=1, dim_qk=4, capacity=5, rotation=3),
            "pool is []; it must be a KVPool": lambda: layers.KVCache(batch=1, heads=1, dim_qk=4, capacity=5, pool=[]),
            "cache is None; it must be a KVCache": lambda: layer.step(x, None),
            "cache is 4; it must be a KVCache": lambda: block.step(x, 4),
            "rotation is None; it must be a Rope": lambda: libattn.rope(draw(1, 1, 1, 4), None),
            "frequencies is 3; it must be a list of numbers": lambda: libattn.Rope("halves", 4, frequencies=3),
            "tokens is 3; it must be an array or a list": lambda: layers.embedding(x, 3),
            "cu_seqlens is {3: 4}; it must be an array or a list": lambda: layers.pool(x, cu_seqlens={3: 4}),
            "first is 3; it must be an array or a list": lambda: layers.Synthesizer(w, w, heads=2, first=3),
            "tokens is array(3); it must be an array or a list": lambda: layers.embedding(x, np.array(3)),
            "x is None; it must be an array": lambda: layer(None),
            "k is None; it must be an array": lambda: cache.step(draw(1, 2, 1, 4), None, None),
            "logits is None; it must be an array": lambda: layers.Sampler()(None),
            "sampler is 1; it must be a Sampler": lambda: layers.Generation(vocabulary=1, most_tokens=1, sampler=1),
            "stop_tokens is 2; it must be an array": lambda: layers.Generation(vocabulary=3, most_tokens=1, stop_tokens=2),
            "slots is [[1]]; it must be a list of numbers": lambda: libattn.kv_append(
                *(draw(1, 1, 1, 4) for _ in range(4)), slots=[[1]]),
            "v is None; it must be an array": lambda: libattn.kv_append(draw(1, 1, 1, 4), None, draw(1, 1, 1, 4), x),
            "cross is 3; it must be a dict of arrays: mask, ": lambda: block.step(x, cache, draw(1, 2, 8), cross=3),
    }.items():
        with pytest.raises(TypeError, match="^" + re.escape(sentence)):
            call()


def test_numbers_are_finite():
    """A number that does not fit is another error than what is none."""
    with pytest.raises(TypeError, match="epsilon is True; it must be one finite number"):
        layers.add_layer_norm(draw(1, 3), epsilon=True)
    for epsilon in (np.inf, np.nan, 1e39, 10**400):
        with pytest.raises(ValueError, match="epsilon is .*; it must be a finite number, below 3.4e[+]38 in magnitude"):
            layers.add_layer_norm(draw(1, 3), epsilon=epsilon)
    libattn.Rope("halves", 4, base=1e39)
    with pytest.raises(ValueError, match="base is inf; it must be a finite number"):
        libattn.Rope("halves", 4, base=np.inf)


@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"self_weights": None}, "self_weights is None; it must be a dict of weights: w_qkv, w_q, "),
    ({"self_weights": [1]}, "self_weights is [1]; it must be a dict of weights: w_qkv, w_q, "),
    ({"self_weights": {3: 4}}, "3 is neither a setting nor a weight; the weights are w_qkv, w_q, "),
    ({"self_weights": {"qk_norm_epsilon": "no"}}, "qk_norm_epsilon is 'no'; it must be one finite number"),
    ({"memory": (3, 8), "cross_weights": "w_q"}, "cross_weights is 'w_q'; it must be a dict of weights: w_qkv, w_q, "),
    ({"uses": "mask"}, "uses is 'mask'; it must be a tuple of names: 'mask', 'bias', "),
    ({"uses": None}, "uses is None; it must be a tuple of names: 'mask', 'bias', "),
    ({"uses": ("mask", 3)}, "a name of uses is 3; it must be one of 'mask', 'bias', "),
    ({"memory": (3, 8), "cross_uses": [["bias"]]}, "a name of cross_uses is ['bias']; it must be one of 'mask', 'bias', "),
])
def test_blocks_refuse_odd_weights_and_uses(wrong, sentence):
    sizes = {"heads": 2, "width": 8, "self_weights": weights_of(8, 8, 8), "w1": draw(8, 8), "w2": draw(8, 8)}
    with pytest.raises((TypeError, ValueError), match="^" + re.escape(sentence)):
        layers.Block(**{**sizes, **wrong})
    if "uses" in wrong:
        with pytest.raises((TypeError, ValueError), match="^" + re.escape(sentence)):
            layers.MultiHeadAttention(heads=2, width=8, w_q=draw(8, 8), **wrong)


@pytest.mark.parametrize(("wrong", "sentence"), [
    ({"memory": 8}, "memory is 8; it must be a pair (seq, width)"),
    ({"memory": (3, 8, 1)}, "memory is (3, 8, 1); it must be a pair"),
    ({"memory": (2.5, 8)}, "seq of memory is 2.5; it must be one integer"),
    ({"memory": (3, None)}, "width of memory is None; it must be one integer"),
    ({"window": 4}, "window is 4; it must be a pair (left, right)"),
    ({"window": (1, "a")}, "right of window is 'a'; it must be one integer"),
    ({"norms": 5}, "norms is 5; it must be a list of pairs (gain, bias)"),
    ({"norms": [None, 5, None]}, "a pair of norms is 5; it must be (gain, bias) or None"),
    ({"post_norms": "none"}, "post_norms is 'none'; it must be a list of pairs"),
])
def test_blocks_refuse_odd_pairs(wrong, sentence):
    make, sizes = SIZES["Block"]
    with pytest.raises(TypeError, match="^" + re.escape(sentence)):
        make(**{**sizes, **wrong})
    if "window" in wrong:
        with pytest.raises(TypeError, match="^" + re.escape(sentence)):
            layers.MultiHeadAttention(heads=2, width=8, w_q=draw(8, 8), **wrong)


def silu(x):
    return x / (1 + np.exp(-x))


def test_gates_and_activations():
    x, w1, w2, gate, b1, b_gate = draw(3, 5, 16), draw(40, 16), draw(16, 40), draw(40, 16), draw(40), draw(40)
    x64 = x.astype(float)
    formulas = {"relu": lambda v: np.maximum(v, 0), "silu": silu,
                "gelu": lambda v: v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))) / 2,
                "gelu_tanh": lambda v: v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) / 2}
    for name, formula in formulas.items():
        close(layers.FeedForward(w1, w2, b1=b1, activation=name)(x), formula(x64 @ w1.T + b1) @ w2.T)
        gated = layers.FeedForward(w1, w2, b1=b1, w_gate=gate, b_gate=b_gate, activation=name)(x)
        close(gated, (formula(x64 @ gate.T + b_gate) * (x64 @ w1.T + b1)) @ w2.T)
    half = [a.astype(np.float16) for a in (w1, w2, gate)]
    wide = [a.astype(np.float32) for a in half]
    assert np.array_equal(layers.FeedForward(half[0], half[1], w_gate=half[2], product="product_c")(x),
                          layers.FeedForward(wide[0], wide[1], w_gate=wide[2], product="product_c")(x))
    with pytest.raises(TypeError, match="w2 is float32; it must be float16"):
        layers.FeedForward(half[0], w2)
    with pytest.raises(ValueError, match="activation is 'mish'; it must be one of 'relu', 'gelu', 'silu', 'gelu_tanh'"):
        layers.FeedForward(w1, w2, activation="mish")
    with pytest.raises(ValueError, match="b_gate is given without w_gate"):
        layers.FeedForward(w1, w2, b_gate=b_gate)
    with pytest.raises(ValueError, match=r"w_gate has shape \(16, 40\); it must have \(40, 16\)"):
        layers.FeedForward(w1, w2, w_gate=w2)


def rms(x, gain=1.0):
    return x / np.sqrt((x.astype(float)**2).mean(-1, keepdims=True) + 1e-6) * gain


def test_blocks_of_the_llama_kind():
    """Root mean square norms before the sublayers, grouped heads, a gated network."""
    x, w, w1, w2, gate = draw(2, 7, 32), weights_of(32, 32, 16), draw(48, 32), draw(32, 48), draw(48, 32)
    gains = [draw(32) + 1, draw(32) + 1]
    block = layers.Block(heads=4, heads_kv=2, width=32, self_weights=w, w1=w1, w2=w2, w_gate=gate, activation="silu",
                         norms=[(gains[0], None), None, (gains[1], None)], epsilon=1e-6, pre_norm=True, rms_norm=True,
                         causal=True)
    normed = rms(x, gains[0])
    y = x + mha(normed, normed, w, 4, 2, causal=True)
    normed = rms(y, gains[1])
    close(block(x), y + (silu(normed @ gate.T) * (normed @ w1.T)) @ w2.T, 1e-4)
    close(layers.add_rms_norm(x, x, gain=gains[0]), rms(2 * x, gains[0]))


def test_normed_heads():
    """Each head of Q and K by its root mean square, as in Qwen 3."""
    x, w, gains = draw(2, 7, 32), weights_of(32, 32, 16), [draw(8) + 1, draw(8) + 1]
    q, k, v = (heads_of(x.astype(float) @ w[f"w_{n}"].T + w.get(f"b_{n}", 0), h) for n, h in (("q", 4), ("k", 2), ("v", 2)))
    for own in ({}, {"q_norm_gain": gains[0], "k_norm_gain": gains[1]}):
        scaled = gains if own else [1, 1]
        o, _ = attention(rms(q, scaled[0]), rms(k, scaled[1]), v)
        y = o.transpose(0, 2, 1, 3).reshape(2, 7, -1) @ w["w_o"].T + w["b_o"]
        close(layers.MultiHeadAttention(heads=4, heads_kv=2, width=32, qk_norm_epsilon=1e-6, **w, **own)(x), y)
    with pytest.raises(ValueError, match="k_norm_gain is given without qk_norm_epsilon"):
        layers.MultiHeadAttention(heads=4, heads_kv=2, width=32, k_norm_gain=gains[1], **w)
    with pytest.raises(ValueError, match=r"q_norm_gain has shape \(32,\); it must have \(8,\)"):
        layers.MultiHeadAttention(heads=4, heads_kv=2, width=32, q_norm_gain=draw(32), qk_norm_epsilon=0, **w)


def test_norms_after_sublayers():
    """x + post_norm(sublayer(norm(x))), as in Gemma 2."""
    x, w, w1, w2 = draw(2, 7, 32), weights_of(32, 32, 32), draw(48, 32), draw(32, 48)
    gains = [(draw(32) + 1, None) for _ in range(4)]
    options = {"heads": 4, "width": 32, "self_weights": w, "w1": w1, "w2": w2, "norms": gains[:2], "rms_norm": True,
               "epsilon": 1e-6}
    block = layers.Block(**options, post_norms=gains[2:], pre_norm=True)
    normed = rms(x, gains[0][0])
    y = x + rms(mha(normed, normed, w, 4, 4), gains[2][0])
    close(block(x), y + rms(np.maximum(rms(y, gains[1][0]) @ w1.T, 0) @ w2.T, gains[3][0]), 1e-4)
    with pytest.raises(ValueError, match="post_norms is true without pre_norm"):
        layers.Block(**options, post_norms=gains[2:])
    with pytest.raises(ValueError, match="post_norms has 0 pairs; it must have 3"):
        layers.Block(**options, post_norms=(), pre_norm=True)
    with pytest.raises(ValueError, match="dim_qk is 0; it must be at least 1"):
        layers.Block(**options, dim_qk=0)
    with pytest.raises(ValueError, match="post_norms has 1 pairs; it must have 3"):
        layers.Block(**options, post_norms=gains[:1], pre_norm=True)


def test_block_sizes_of_its_own():
    """Heads that are wider than width / heads, a scale, a softcap and a window."""
    x, w, w1, w2 = draw(2, 7, 30), weights_of(30, 4 * 12, 2 * 12), draw(48, 30), draw(30, 48)
    block = layers.Block(heads=4, heads_kv=2, width=30, dim_qk=12, scale=0.5, softcap=2.0, window=(2, 0), self_weights=w,
                         w1=w1, w2=w2, pre_norm=True)
    y = x + mha(norm(x), norm(x), w, 4, 2, causal=True, window=(2, 0), scale=0.5, softcap=2.0)
    close(block(x), y + np.maximum(norm(y) @ w1.T, 0) @ w2.T, 1e-4)


def test_small_pieces():
    x, residual, gain = draw(3, 4, 10), draw(3, 4, 10), draw(10)
    close(layers.add_layer_norm(x, residual, gain=gain), norm(x + residual, gain))
    positions = layers.sinusoidal_positions(4, 6, like=x.astype(np.float16), first=2)
    angles = np.arange(2, 6)[:, None] / 10000 ** (np.arange(0, 6, 2) / 6)
    close(positions, np.stack([np.sin(angles), np.cos(angles)], -1).reshape(4, 6))
    assert positions.dtype == np.float32


def test_embeddings_and_pooling():
    table, tokens = draw(9, 5), np.array([8, 0, 3, 3], np.int32)
    assert np.array_equal(layers.embedding(table, tokens), table[tokens])
    assert np.array_equal(layers.embedding(table.astype(np.float16), [2, 1], factor=2.0),
                          2 * table.astype(np.float16)[[2, 1]].astype(np.float32))
    half = layers.embedding(table.astype(np.float16), [2, 1], factor=2.0, dtype="float16")
    assert half.dtype == np.float16 and np.array_equal(half, 2 * table.astype(np.float16)[[2, 1]])
    with pytest.raises(TypeError, match="dtype is 'float16'; it must be 'float32' or that of the table, 'float32'"):
        layers.embedding(table, [0], dtype="float16")
    with pytest.raises(ValueError, match=r"tokens\[1\] is 9; it must lie in 0..8"):
        layers.embedding(table, [0, 9])
    x = draw(2, 4, 5)
    close(layers.pool(x), x.mean(1))
    assert np.array_equal(layers.pool(x.astype(np.float16)), layers.pool(x.astype(np.float16).astype(np.float32)))
    close(layers.pool(x, lengths=[4, 2])[1], x[1, :2].mean(0))
    packed = layers.pool(x[0], "first", cu_seqlens=[0, 1, 4], unit=True)
    close(packed, x[0, [0, 1]] / np.linalg.norm(x[0, [0, 1]], axis=1, keepdims=True))
    for starts, end in ([0, 3], "3"), (np.array([0, 3]), "3"), ([], "nothing"):
        with pytest.raises(ValueError, match=f"cu_seqlens ends with {end}; it must end with 4"):
            layers.pool(x[0], cu_seqlens=starts)
    with pytest.raises(ValueError, match="kind is 'max'; it must be one of 'mean', 'first'"):
        layers.pool(x, "max")


def test_sampling():
    logits = draw(50)
    greedy = layers.Sampler(temperature=0)
    assert greedy(logits) == logits.argmax() and greedy.state == 0
    one, two = (layers.Sampler(temperature=0.8, top_k=7, seed=5) for _ in range(2))
    drawn = [one(logits) for _ in range(200)]
    assert drawn[:9] == [two(logits) for _ in range(9)]
    assert set(drawn) == set(np.argsort(-logits)[:7])
    three = layers.Sampler(temperature=0.8, top_k=7, seed=two.state)
    assert drawn[9:] == [three(logits) for _ in range(191)]
    state, p = two.state, two.probabilities(logits)
    assert two.state == state
    right = np.where(logits >= np.sort(logits)[-7], np.exp(logits.astype(float) / 0.8), 0)
    close(p, right / right.sum())
    with pytest.raises(ValueError, match="seed is -1; it must be an integer in 0"):
        layers.Sampler(seed=-1)
    with pytest.raises(ValueError, match="top_p is 2; it must lie in 0..1"):
        layers.Sampler(top_p=2)(logits)


def test_generation():
    """Two beams by hand, and one that is greedy or drawn."""
    def logs(*rows):
        return np.log(np.array(rows, np.float32))

    texts = layers.Generation(vocabulary=3, most_tokens=3, beams=2, stop_tokens=[2], first_sequence=5)
    assert texts.running == 1 and texts.text() == []
    with pytest.raises(ValueError, match=r"logits has shape \(2, 3\); it must have \(1, 3\)"):
        texts.advance(logs([0.6, 0.3, 0.1], [0.6, 0.3, 0.1]))
    assert texts.advance(logs([0.6, 0.3, 0.1])) == ([0, 1], [5, 5])
    assert texts.running == 2 and texts.text() == [0]
    assert texts.advance(logs([0.1, 0.2, 0.7], [0.5, 0.45, 0.05])) == ([0, 1], [6, 6])
    assert texts.advance(logs([0.99, 0.005, 0.005], [0.5, 0.25, 0.25])) == ([-1, -1], [-1, -1])
    assert texts.running == 0 and texts.text() == [0, 2]
    with pytest.raises(ValueError, match="generation has ended after 3 tokens"):
        texts.advance(draw(0, 3))
    logits = [draw(1, 50) for _ in range(9)]
    for sampler, again in (None, layers.Sampler(temperature=0)), [layers.Sampler(temperature=0.8, seed=3) for _ in range(2)]:
        one = layers.Generation(vocabulary=50, most_tokens=9, sampler=sampler)
        expected = [again(row[0]) for row in logits]
        assert [one.advance(row)[0][0] for row in logits[:8]] == expected[:8]
        one.advance(logits[8])
        assert one.text() == expected and one.running == 0
    with pytest.raises(ValueError, match="sampling is given with beams 2"):
        layers.Generation(vocabulary=3, most_tokens=1, beams=2, sampler=layers.Sampler())
    with pytest.raises(ValueError, match="beams is 0; it must be at least 1"):
        layers.Generation(vocabulary=3, most_tokens=1, beams=0)
    with pytest.raises(ValueError, match="logits"):
        layers.Generation(vocabulary=3, most_tokens=1).advance(np.full((1, 3), np.nan, np.float32))
