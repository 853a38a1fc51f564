# SPDX-License-Identifier: MIT
"""libattn.torch against PyTorch's own function: eager, compiled, exported, with gradients, under autocast."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import libattn  # noqa: E402
import libattn.torch as lt  # noqa: E402

F = torch.nn.functional
ORIGINAL = F.scaled_dot_product_attention


def draw(*shapes, dtype=torch.float32, seed=0, grad=False):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g).to(dtype).requires_grad_(grad) for shape in shapes]


def qkv(h=4, hkv=4, sq=9, sk=13, d=32, **options):
    return draw((2, h, sq, d), (2, hkv, sk, d), (2, hkv, sk, d), **options)


def close(a, b, limit=2e-5):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert (a.float() - b.float()).abs().max() <= limit


CASES = {"plain": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.3},
         "mask": {"attn_mask": torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(3)) > 0.2},
         "bias": {"attn_mask": torch.randn(9, 13, generator=torch.Generator().manual_seed(4))}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_same_as_pytorch(name, dtype):
    q, k, v = qkv(dtype=dtype)
    options = dict(CASES[name])
    if name == "bias":
        options["attn_mask"] = options["attn_mask"].to(dtype)
    limit = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    right = ORIGINAL(*(x.double() for x in (q, k, v)), **{key: x.double() if key == "attn_mask" and name == "bias" else x
                                                         for key, x in options.items()}).to(dtype)
    close(lt.sdpa(q, k, v, **options), right, limit)


def test_grouped_queries_and_dimensions():
    q, k, v = qkv(hkv=2)
    close(lt.sdpa(q, k, v, enable_gqa=True), ORIGINAL(q, k, v, enable_gqa=True))
    with pytest.raises(ValueError, match="enable_gqa"):
        lt.sdpa(q, k, v)
    for shape in ((9, 32), (3, 9, 32), (2, 3, 4, 9, 32)):
        x = draw(shape)[0]
        close(lt.sdpa(x, x, x), ORIGINAL(x, x, x))
    one, many = draw((4, 9, 32), (3, 4, 9, 32))
    for q, k in ((one, many), (many, one), (many[:1], many), (many, many[:, :1])):  # broadcasting
        close(lt.sdpa(q, k, k), ORIGINAL(q, k, k))
    x, mask = draw((2, 3, 4, 9, 32))[0], torch.rand(3, 1, 9, 9) > 0.3
    close(lt.sdpa(x, x, x, mask), ORIGINAL(x, x, x, mask))


def test_refusals():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="no dropout"):
        lt.sdpa(q, k, v, dropout_p=0.1)
    with pytest.raises(ValueError, match="only one of them"):
        lt.sdpa(q, k, v, torch.ones(9, 13, dtype=torch.bool), is_causal=True)
    with pytest.raises(TypeError, match="q is float64"):
        lt.sdpa(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="requires gradients"):
        libattn.sdpa(q.requires_grad_(), k, v)
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(lt.sdpa)(*qkv())
    q = q.detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        for function in (lt.sdpa, torch.ops.libattn.sdpa):
            with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
                function(dual, k, v)
        assert lt.sdpa(q, k, v).shape == q.shape


@pytest.mark.parametrize("function", [lt.sdpa, torch.ops.libattn.sdpa, torch.ops.libattn.sdpa_lse], ids=str)
def test_transforms_of_torch_func_are_refused(function):
    q, k, v = qkv()

    def first(q, bias=None):
        options = {} if bias is None else {"attn_mask" if function is lt.sdpa else "bias": bias}
        out = function(q, k, v, **options)
        return out[0] if isinstance(out, tuple) else out

    for f, x in ((first, q), (lambda bias: first(q, bias), torch.zeros(9, 13))):
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            torch.func.jvp(f, (x,), (x,))
    for transform in (torch.func.jacfwd, lambda f: torch.func.linearize(f, q)):
        with pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
            transform(first)(q)
    for transform in (torch.func.grad, torch.func.jacrev, torch.func.hessian, lambda f: lambda x: torch.func.vjp(f, x)):
        with pytest.raises(NotImplementedError, match="no gradients by torch.func"):
            transform(lambda x: first(x).sum())(q)
    other = torch.func.jvp(lambda x: x * first(q), (q,), (q,))[1]  # no derivative of ours is wanted
    close(other, q * first(q))


def test_opcheck(long):
    if not long:
        pytest.skip("takes half a minute: --long")
    q, k, v = qkv(hkv=2, grad=True)
    mask = torch.rand(2, 1, 9, 13) > 0.2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(torch.ops.libattn.sdpa.default, (q, k, v), {"mask": mask, "causal": True})
        torch.library.opcheck(torch.ops.libattn.sdpa_lse.default, (q, k, v), {"softcap": 2.0})
        torch.library.opcheck(torch.ops.libattn.sdpa_lse.default,
                              tuple(x.detach().transpose(1, 2).contiguous() for x in (q, k, v)), {"layout": "bshd"})


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": "bias"}], ids=str)
def test_gradients(options):
    q, k, v = qkv(grad=True)
    bias = torch.randn(2, 1, 9, 13).requires_grad_()
    options = {key: bias if value == "bias" else value for key, value in options.items()}
    inputs = [q, k, v] + ([bias] if "attn_mask" in options else [])
    weight = torch.randn(2, 4, 9, 32)

    def gradients(function, autocast=False):
        loss = (function(q, k, v, **options) * weight).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.autograd.grad(loss, inputs)

    lt._warn_once.done = False
    with pytest.warns(UserWarning, match="no backward pass"):
        gradients(lt.sdpa)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        ours = gradients(lt.sdpa, autocast=True)
    for a, b in zip(ours, gradients(ORIGINAL)):
        close(a, b)


def test_gradients_of_gradients():
    x = draw((1, 2, 5, 8), grad=True)[0]

    def textbook(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 8 ** 0.5, -1) @ v

    def twice(function):
        first, = torch.autograd.grad(function(x, x, x).square().sum(), x, create_graph=True)
        return torch.autograd.grad((first * x.detach()).square().sum(), x)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right, ours = twice(textbook), twice(lt.sdpa)
    close(ours / right.abs().max(), right / right.abs().max())


def test_gradcheck_is_refused_in_words():
    wide = [x.double().requires_grad_() for x in draw((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8))]
    with pytest.raises(TypeError, match="q is float64; it must be float32, float16 or bfloat16"):
        torch.autograd.gradcheck(lt.sdpa, wide)
    with lt.replace_sdpa():  # PyTorch's own takes it
        assert torch.autograd.gradcheck(F.scaled_dot_product_attention, wide)


def test_the_reference_of_gradients_is_the_operator():
    q, k, v = qkv(hkv=2)
    slopes, sinks = draw((4,), (4,), seed=5)
    options = dict.fromkeys(lt._NAMES)
    options.update(causal=True, align="bottom_right", window_left=5, window_right=-1, softcap=3.0, alibi=slopes.abs(),
                   sinks=sinks, kv_len=torch.tensor([13, 11], dtype=torch.int32), scale=0.4)
    given = {key: value for key, value in options.items() if value is not None}
    close(torch.ops.libattn.sdpa(q, k, v, **given), lt._reference(q, k, v, options))


def test_autocast():
    q, k, v = qkv()
    with torch.autocast("cpu", torch.bfloat16):
        assert lt.sdpa(q, k, v).dtype == torch.bfloat16
        assert torch.ops.libattn.sdpa(q, k, v).dtype == torch.bfloat16


def test_replace_sdpa():
    q, k, v = qkv()
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).train()
    calls = []
    with lt.replace_sdpa():
        assert F.scaled_dot_product_attention is not ORIGINAL
        close(F.scaled_dot_product_attention(q, k, v), ORIGINAL(q, k, v))
        wide = [x.double() for x in (q, k, v)]
        close(F.scaled_dot_product_attention(*wide), ORIGINAL(*wide))
        assert F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).shape == q.shape
        calls.append(layer(torch.randn(2, 5, 32)).sum())
    assert F.scaled_dot_product_attention is ORIGINAL
    assert len(calls) == 1


def flash_reference(q, k, v, **options):
    return torch.from_numpy(__import__("reference").attention(
        *(x.float().transpose(1, 2).numpy() for x in (q, k, v)), **options)[0]).float().transpose(1, 2)


def test_flash_attn_names():
    pytest.importorskip("numpy")
    q, k, v = draw((2, 7, 4, 32), (2, 11, 2, 32), (2, 11, 2, 32))
    close(lt.flash_attn_func(q, k, v, causal=True), flash_reference(q, k, v, causal=True, align="bottom_right"))
    close(lt.flash_attn_func(q, k, v, window_size=(3, 1)), flash_reference(q, k, v, window=(3, 1), align="bottom_right"))
    _, lse, nothing = lt.flash_attn_func(q, k, v, return_attn_probs=True)
    assert lse.shape == (2, 4, 7)
    assert nothing is None
    borders = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 11, 22], dtype=torch.int32)
    packed = lt.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *borders, 7, 11, causal=True)
    close(packed.view(2, 7, 4, 32), lt.flash_attn_func(q, k, v, causal=True), 1e-6)
    with pytest.raises(NotImplementedError, match="paged"):
        lt.flash_attn_varlen_func(q, k, v, *borders, 7, 11, block_table=q)


def test_flash_attn_with_kvcache():
    pytest.importorskip("numpy")
    q, new_k, new_v, k_cache, v_cache = draw((2, 2, 4, 32), (2, 2, 2, 32), (2, 2, 2, 32), (2, 16, 2, 32), (2, 16, 2, 32))
    before = k_cache.clone()
    lengths = torch.tensor([5, 9], dtype=torch.int32)
    out = lt.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, cache_seqlens=lengths, causal=True)
    assert torch.equal(k_cache[0, 5:7], new_k[0])
    assert torch.equal(v_cache[1, 9:11], new_v[1])
    assert torch.equal(k_cache[0, 7:], before[0, 7:])
    close(out, flash_reference(q, k_cache, v_cache, causal=True, align="bottom_right", kv_len=[7, 11]))
    picked = lt.flash_attn_with_kvcache(q, k_cache.flip(0), v_cache.flip(0), cache_seqlens=7,
                                        cache_batch_idx=torch.tensor([1, 0], dtype=torch.int32), causal=True)
    close(picked, flash_reference(q, k_cache, v_cache, causal=True, align="bottom_right", kv_len=[7, 7]))
    with pytest.raises(NotImplementedError, match="rotary_cos"):
        lt.flash_attn_with_kvcache(q, k_cache, v_cache, rotary_cos=q)


def test_compile_and_export(long):
    if not long:
        pytest.skip("takes half a minute: --long")
    q, k, v = qkv()

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return lt.sdpa(q * 2, k, v, is_causal=True) + 1

    model = Model()
    close(torch.compile(model, fullgraph=True)(q, k, v), model(q, k, v), 1e-6)
    dynamic = torch.compile(model, fullgraph=True, dynamic=True)
    for tokens in (5, 8):
        x = draw((2, 4, tokens, 32))[0]
        close(dynamic(x, x, x), model(x, x, x), 1e-6)
    close(torch.export.export(model, (q, k, v)).module()(q, k, v), model(q, k, v), 1e-6)


def test_compiled_gradients(long):
    if not long:
        pytest.skip("takes half a minute: --long")
    inputs = qkv(hkv=2, grad=True)

    def loss(q, k, v):
        return lt.sdpa(q * 2, k, v, is_causal=True, enable_gqa=True).square().sum()

    compiled = torch.compile(loss, fullgraph=True)
    lt._warn_once.done = False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ours, again = (torch.autograd.grad(compiled(*inputs), inputs) for _ in range(2))
    # A graph from PyTorch's cache on disk is not traced, and says nothing.
    assert sum("no backward pass" in str(warning.message) for warning in said) <= 1
    for a, b, c in zip(ours, again, torch.autograd.grad(loss(*inputs), inputs)):
        assert torch.equal(a, b)
        close(a, c)
