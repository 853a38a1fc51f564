# SPDX-License-Identifier: MIT
"""libattn.torch against PyTorch's own function: eager, compiled, exported, with gradients, under autocast."""

import contextlib
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


def opchecks(long):
    """All of opcheck's tests, or the quick ones."""
    return {} if long else {"test_utils": ("test_schema", "test_faketensor")}


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


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
def test_keys_of_8_bits(dtype):
    q, k, v = qkv()
    k, v = ((2 * x).round().to(dtype) for x in (k, v))
    close(libattn.sdpa(q, k, v), ORIGINAL(q, k.float(), v.float()))


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
    for wrong in 1, -0.1:
        with pytest.raises(ValueError, match=f"dropout is {wrong}; it must be at least 0"):
            lt.sdpa(q, k, v, dropout_p=wrong)
    with pytest.raises(ValueError, match="only one of them"):
        lt.sdpa(q, k, v, torch.ones(9, 13, dtype=torch.bool), is_causal=True)
    with pytest.raises(TypeError, match="q is float64"):
        lt.sdpa(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="requires gradients"):
        libattn.sdpa(q.requires_grad_(), k, v)
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(lt.sdpa)(*qkv())
    q, state = q.detach(), libattn.new_state(q.detach(), v)
    out, lse = torch.ops.libattn.sdpa_lse(q, k, v)
    for call in (lambda q: torch.ops.libattn.sdpa_state(q, k, v, state),
                 lambda q: torch.ops.libattn.sdpa_grad(q, q, k, v, out, lse, None, [True] + 5 * [False])[0]):
        with pytest.raises(NotImplementedError, match="sdpa_state has no derivatives, and sdpa_grad none by torch.func"):
            torch.func.jvp(call, (q,), (q,))
    with pytest.raises(NotImplementedError, match="sdpa_state has no derivatives"):
        torch.ops.libattn.sdpa_state(q.clone().requires_grad_(), k, v, state)
    with pytest.raises(NotImplementedError, match=r"\(jvp\) of the function that vjp\(\) returned"):
        torch.func.jvp(lambda do: torch.func.vjp(lambda q: lt.sdpa(q, k, v), q)[1](do)[0], (out,), (out,))


def textbook(q, k, v, bias=0.0):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1) @ v


@pytest.mark.parametrize("function", [lt.sdpa, torch.ops.libattn.sdpa, torch.ops.libattn.sdpa_lse, lt.flash_attn_func],
                         ids=lambda function: getattr(function, "__name__", str(function)))
def test_transforms_of_torch_func(function):
    """Those of one gradient of sdpa() by libattn; the others by PyTorch's operations, which stats() counts."""
    q, k, v = draw((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))

    def ours(x, bias=None):
        options = {} if bias is None else {"attn_mask" if function is lt.sdpa else "bias": bias}
        flash = function is lt.flash_attn_func
        out = function(*((y.transpose(1, 2) for y in (x, k, v)) if flash else (x, k, v)), **options)
        out = out[0] if isinstance(out, tuple) else out
        return out.transpose(1, 2) if flash else out

    def right(x, bias=0.0):
        return textbook(x, k, v, bias)

    def turned(transform):
        return transform(ours)(q), transform(right)(q)

    def of_a_number(f):
        return lambda x: f(x).square().sum()

    F = torch.func
    for slow, transform in (
            (0, lambda f: F.grad(of_a_number(f))), (0, F.jacrev), (0, lambda f: lambda x: F.vjp(f, x)[1](x + 1)[0]),
            (1, F.jacfwd), (1, lambda f: lambda x: F.jvp(f, (x,), (x,))[1]),
            (1, lambda f: lambda x: F.linearize(f, x)[1](x)),
            (1, lambda f: F.hessian(of_a_number(f))), (1, lambda f: F.jacrev(F.grad(of_a_number(f)))),
            (1, lambda f: F.jacrev(F.jacfwd(f)))):
        counted, _, (a, b) = kinds(turned, transform)
        assert ("scores" in counted) == bool(slow or function not in (lt.sdpa, lt.flash_attn_func))
        close(a, b)
    if function is not lt.flash_attn_func:
        bias = draw((3, 5))[0]
        close(*(F.jvp(f, (q, bias), (torch.zeros_like(q), bias + 1))[1] for f in (ours, right)))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q + 1)
        close(*(torch.autograd.forward_ad.unpack_dual(f(dual)).tangent for f in (ours, right)))
    counted, _, other = kinds(F.jvp, lambda x: x * ours(q), (q,), (q,))  # no derivative of ours is wanted
    close(other[1], q * right(q))
    assert counted == {}


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
        dropped = {"dropout": P, "seed": torch.tensor(7), "offset": 2}
        torch.library.opcheck(torch.ops.libattn.sdpa_lse.default, (q, k, v), dropped)
        torch.library.opcheck(torch.ops.libattn.dropout_mask.default, (torch.tensor(7), 2, P, (2, 4, 9, 13)))
        sinks = torch.rand(4, requires_grad=True)
        out, lse = torch.ops.libattn.sdpa_lse(*(x.detach() for x in (q, k, v)), sinks=sinks.detach(), causal=True)
        for do, d_lse, wanted in ((out + 1, None, [True, True, True, False, True, False]),
                                  (out, lse, [True, False, True, False, False, False])):
            torch.library.opcheck(torch.ops.libattn.sdpa_grad.default,
                                  (do.clone().requires_grad_(), q, k, v, out, lse, d_lse, wanted),
                                  {"sinks": sinks, "causal": True, **dropped})


def kinds(function, *arguments, **options):
    """Returns what the call adds to stats(), the warnings that it gives, and its result."""
    lt.stats(reset=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = function(*arguments, **options)
    return lt.stats(reset=True), [str(warning.message) for warning in said if "libattn" in str(warning.message)], result


def by_operator(q, k, v, attn_mask=None, is_causal=False):
    return torch.ops.libattn.sdpa(q, k, v, bias=attn_mask, causal=is_causal)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": "bias"}], ids=str)
@pytest.mark.parametrize("function", [lt.sdpa, by_operator], ids=["sdpa", "operator"])
def test_gradients(function, options):
    q, k, v = qkv(grad=True)
    bias = torch.randn(2, 1, 9, 13).requires_grad_()
    options = {key: bias if value == "bias" else value for key, value in options.items()}
    inputs = [q, k, v] + ([bias] if "attn_mask" in options else [])
    weight = torch.randn(2, 4, 9, 32)

    def gradients(function, autocast=False):
        loss = (function(q, k, v, **options) * weight).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return torch.autograd.grad(loss, inputs)

    for autocast in (False, True):
        counted, said, ours = kinds(gradients, function, autocast=autocast)
        assert (counted, said) == ({}, [])
        for a, b in zip(ours, gradients(lambda *inputs, **options: ORIGINAL(
                *(x.double() for x in inputs), **{key: x.double() if x is bias else x for key, x in options.items()}))):
            close(a, b)


P = 0.3
DROPPED = round(P * 65536) / 65536


def seeded(function, *arguments, **options):
    torch.manual_seed(5)
    return function(*arguments, **options)


def factors(*shape, offset=0):
    """Weights are multiplied by these in the first call behind manual_seed(5)."""
    seed = seeded(torch.randint, 2**63 - 1, ())
    assert torch.equal(torch.ops.libattn.dropout_mask(seed, offset, P, shape),
                       torch.from_numpy(libattn.dropout_mask(shape, P, int(seed), offset)))
    return torch.ops.libattn.dropout_mask(seed, offset, P, shape) / (1 - DROPPED)


def dropped_flash(q, k, v, slopes=None, packed=False):
    options = {"dropout_p": P, "alibi_slopes": slopes}
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if not packed:
        return lt.flash_attn_func(q, k, v, **options).transpose(1, 2)
    borders = torch.tensor([0, 9, 18], dtype=torch.int32), torch.tensor([0, 13, 26], dtype=torch.int32)
    return lt.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *borders, 9, 13,
                                     **options).unflatten(0, (2, 9)).transpose(1, 2)


def test_dropout():
    """Outputs and gradients against the formula with the weights that the generator's state says, in float64."""
    inputs = qkv(hkv=2, grad=True)
    bias, do = draw((9, 13), (2, 4, 9, 32), seed=1)
    slopes, distance = draw((2, 4), seed=2)[0].abs(), (torch.arange(9)[:, None] - torch.arange(13) + 4).abs()
    kept = factors(2, 4, 9, 13)

    def right(q, k, v, bias=0.0, kept=kept):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, -1).mul(kept) @ v

    def replaced(q, k, v):
        with lt.replace_sdpa():
            return F.scaled_dot_product_attention(q, k, v, dropout_p=P, enable_gqa=True)

    def flattened(q, k, v):
        return lt.sdpa(q[None], k[None], v[None], dropout_p=P, enable_gqa=True)[0]

    of_each = {"bias": -slopes[:, :, None, None] * distance,
               "kept": torch.cat([factors(1, 4, 9, 13, offset=b) for b in range(2)])}
    for function, options in (
            (lambda *x: lt.sdpa(*x, dropout_p=P, enable_gqa=True), {}), (replaced, {}), (flattened, {}), (dropped_flash, {}),
            (lambda *x: lt.sdpa(*x, attn_mask=bias, dropout_p=P, enable_gqa=True), {"bias": bias}),
            (lambda *x: dropped_flash(*x, packed=True), {}), (lambda *x: dropped_flash(*x, slopes), of_each),
            (lambda *x: dropped_flash(*x, slopes, packed=True), of_each)):
        counted, _, out = kinds(seeded, function, *inputs)
        assert counted == {}
        wanted = right(*(x.double() for x in inputs), **options)
        close(out, wanted.float())
        for a, b in zip(*(torch.autograd.grad(x, inputs, do) for x in (out, wanted))):
            close(a, b)
        with torch.no_grad():
            assert torch.equal(seeded(function, *inputs), out)
            assert not torch.equal(function(*inputs), out)
    again = [torch.autograd.grad(f(*inputs).square().sum(), inputs, create_graph=True) for f in (
        lambda *x: seeded(lt.sdpa, *x, dropout_p=P, enable_gqa=True), right)]
    for a, b in zip(*(torch.autograd.grad(sum(x.square().sum() for x in first), inputs) for first in again)):
        close(a / b.abs().max(), b / b.abs().max())


def test_gradients_that_hold_scores_say_so_once():
    q, k, v = qkv(grad=True)
    factors = torch.ones(2, 4, 13)

    def gradients():
        return torch.autograd.grad(torch.ops.libattn.sdpa(q, k, v, k_scale=factors).sum(), (q, k, v))

    lt._warned.clear()
    for sentences in (1, 0):
        counted, said, _ = kinds(gradients)
        assert counted == {"scores": 1}
        assert len(said) == sentences
        assert all("hold all scores in memory" in sentence for sentence in said)


def test_factors_of_channels():
    q, k, v = qkv(grad=True)
    of_k, of_v = torch.rand(2, 4, 1, k.shape[-1]) + 0.5, torch.rand(1, 4, 1, v.shape[-1]) + 0.5
    out = torch.ops.libattn.sdpa(q, k, v, k_scale=of_k, v_scale=of_v)
    right = torch.nn.functional.scaled_dot_product_attention(q, k * of_k, v * of_v)
    close(out, right)
    for a, b in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (out, right))):
        close(a, b, 1e-4)


def test_gradients_of_options():
    """Gradients of out, of lse, and of both: by libattn, and by PyTorch's operations with window_first."""
    q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in qkv(hkv=2, sq=13))
    short, lengths = q[:, :5], torch.tensor([13, 6], dtype=torch.int32)
    sinks, slopes = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    for slow, query, options in (
            (0, q, {"causal": True}), (0, short, {"causal": True}), (0, q, {"window_left": 4}),
            (0, short, {"window_right": 2}), (0, q, {"kv_len": lengths}), (0, q, {"softcap": 2.0, "scale": 0.7}),
            (0, q, {"causal": True, "bias": torch.randn(1, 4, 1, 13)}), (0, q, {"causal": True, "sinks": sinks}),
            (0, q, {"mask": torch.rand(2, 1, 13, 13) > 0.2, "bias": torch.randn(13, 13)}),
            (0, q, {"alibi": slopes}), (0, q, {"bias": torch.randn(1, 4, 1, 13, requires_grad=True)}),
            (0, q, {"bias": torch.randn(13, requires_grad=True), "softcap": 2.0}),
            (1, q, {"causal": True, "window_left": 3, "window_first": 2})):
        o = {"align": "bottom_right", **options}
        inputs = [q, k, v] + [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
        full = {**lt._USUAL, **o}
        right = lt._reference(*(x.transpose(1, 2) for x in (query, k, v)), full, with_lse=True)
        ours = lt._attend(query, k, v, layout="bshd", lse=True, **o)
        weights = torch.randn(right[0].shape).transpose(1, 2), torch.randn(right[1].shape)
        right = right[0].transpose(1, 2), right[1].nan_to_num(neginf=0)
        ours = ours[0], ours[1].nan_to_num(neginf=0)
        for parts in ((0,), (1,), (0, 1)):
            found = []
            for results in (ours, right):
                lt.stats(reset=True)
                loss = sum((results[part] * weights[part]).sum() for part in parts)
                found.append(torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True))
                assert results is right or lt.stats() == ({"scores": 1} if slow else {}), options
            for a, b in zip(*found):
                close(a, b, 1e-5 * (1 + b.abs().max()))


def test_gradients_of_gradients():
    x = draw((1, 2, 5, 8), grad=True)[0]

    def twice(function):
        first, = torch.autograd.grad(function(x, x, x).square().sum(), x, create_graph=True)
        return torch.autograd.grad((first * x.detach()).square().sum(), x)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right, ours = twice(textbook), twice(torch.ops.libattn.sdpa)
    close(ours / right.abs().max(), right / right.abs().max())
    q, k, v, do = draw((1, 2, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8), (1, 2, 5, 8), grad=True)
    options = {"causal": True, "align": "bottom_right", "softcap": 3.0}
    loss = draw((1, 2, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8), (1, 2, 5), seed=1)
    found = []
    for again in (False, True):  # the operator by itself, and the gradient of PyTorch's operations
        if again:
            out, lse = lt._reference(q, k, v, {**lt._USUAL, **options}, with_lse=True)
            first = torch.autograd.grad((out, lse), (q, k, v), (do, loss[3]), create_graph=True)
        else:
            out, lse = torch.ops.libattn.sdpa_lse(q.detach(), k.detach(), v.detach(), **options)
            first = torch.ops.libattn.sdpa_grad(do, q, k, v, out, lse, loss[3], [True] * 3 + [False] * 3, **options)
        found.append((*first, *torch.autograd.grad(first, (q, k, v, do), loss[:3])))
    for a, b in zip(*found):
        close(a, b, 2e-5)


def test_gradcheck_is_refused_in_words():
    wide = [x.double().requires_grad_() for x in draw((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8))]
    with pytest.raises(TypeError, match="q is float64; it must be float32, float16 or bfloat16"):
        torch.autograd.gradcheck(lt.sdpa, wide)
    with lt.replace_sdpa():  # PyTorch's own takes it
        assert torch.autograd.gradcheck(F.scaled_dot_product_attention, wide)


def test_the_reference_of_gradients_is_the_operator():
    q, k, v = qkv(hkv=2)
    slopes, sinks = draw((4,), (4,), seed=5)
    options = dict(lt._USUAL)
    options.update(causal=True, align="bottom_right", window_left=5, window_right=-1, softcap=3.0, alibi=slopes.abs(),
                   sinks=sinks, kv_len=torch.tensor([13, 11], dtype=torch.int32), scale=0.4)
    given = {key: value for key, value in options.items() if value is not None}
    out, weights = lt._reference(q, k, v, options)
    close(torch.ops.libattn.sdpa(q, k, v, **given), out)
    assert torch.allclose(weights @ v.repeat_interleave(2, 1), out, atol=1e-5)


def test_autocast():
    q, k, v = qkv()
    with torch.autocast("cpu", torch.bfloat16):
        assert lt.sdpa(q, k, v).dtype == torch.bfloat16
        assert torch.ops.libattn.sdpa(q, k, v).dtype == torch.bfloat16


def replaced_calls():
    """(kind, or None = libattn computes it; arguments; keywords)"""
    q, k, v = qkv()
    grad, mask = q.clone().requires_grad_(), torch.ones(9, 13, dtype=torch.bool)
    subclass = q.as_subclass(type("Sub", (torch.Tensor,), {}))
    return [(None, (q, k, v), {}), (None, (q, k, v, mask), {}), (None, (q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
            (None, (torch.nn.Parameter(q, requires_grad=False), k, v), {}), (None, (grad, k, v), {}),
            (None, (grad, k, v, mask), {"scale": 0.3}), (None, (torch.nn.Parameter(q), k, v), {}),
            (None, (grad, k[:, :2], v[:, :2]), {"enable_gqa": True}), ("dropout", (q, k, v), {"dropout_p": 1.0}),
            ("dtypes", tuple(x.double() for x in (q, k, v)), {}), ("devices", tuple(x.to("meta") for x in (q, k, v)), {}),
            ("tensors", (subclass, k, v), {}), ("shapes", (q, k[:1], v[:1]), {}),
            ("tensors", (q.to_sparse(), k, v), {}), ("masks", (q, k, v, mask), {"is_causal": True})]


def test_replace_sdpa():
    """A call that is passed on has PyTorch's answer, is counted, and warns once for each kind."""
    with lt.replace_sdpa():
        assert F.scaled_dot_product_attention is not ORIGINAL
        lt._warned.clear()
        for kind, arguments, options in replaced_calls():
            torch.manual_seed(1)
            try:
                right = ORIGINAL(*arguments, **options)
            except RuntimeError as error:
                with pytest.raises(type(error)), warnings.catch_warnings(record=True):
                    F.scaled_dot_product_attention(*arguments, **options)
                continue
            new = kind and kind not in lt._warned
            torch.manual_seed(1)
            counted, said, ours = kinds(F.scaled_dot_product_attention, *arguments, **options)
            assert counted == ({kind: 1} if kind else {})
            assert len(said) == bool(new), said
            assert type(ours) is type(right)
            assert ours.requires_grad == right.requires_grad
            if kind != "devices":
                close(ours, right)
        close(torch.vmap(F.scaled_dot_product_attention)(*qkv()), ORIGINAL(*qkv()))
        layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True).train()
        layer(torch.randn(2, 5, 32)).sum().backward()
    assert F.scaled_dot_product_attention is ORIGINAL
    lt.stats(reset=True)
    assert lt.stats() == {}


def test_gradients_take_little_memory():
    """A training call holds no scores: 4 heads of 1,024 by 1,024 would be 16 MiB each time that they are kept."""
    q, k, v = qkv(sq=1024, sk=1024, grad=True)

    def largest(function):
        sizes = []

        class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                sizes.extend(x.numel() for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, torch.Tensor))
                return out

        with Sizes():
            function(q, k, v, is_causal=True).sum().backward()
        return max(sizes)

    with lt.replace_sdpa():
        assert largest(F.scaled_dot_product_attention) == q.numel()


class Copier(torch.nn.Module):
    """Two layers of a causal encoder that learn to say the token before the last one."""

    def __init__(self, dropout):
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=dropout, batch_first=True)
        self.embed, self.place = torch.nn.Embedding(16, 32), torch.nn.Embedding(24, 32)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.say = torch.nn.Linear(32, 16)

    def forward(self, tokens):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.say(self.encoder(x, mask=mask, is_causal=True))


def losses_of_training(steps, noise=0.0, autocast=False, checkpoint=False, dropout=0.0, wrap=lambda model: model):
    """noise: of the weights at the beginning, relative."""
    torch.manual_seed(0)
    model, generator, losses = Copier(dropout).train(), torch.Generator().manual_seed(1), []
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(1 + noise * torch.randn(x.shape))
    optimizer, model = torch.optim.AdamW(model.parameters(), lr=3e-3), wrap(model)
    for _ in range(steps):
        tokens = torch.randint(16, (8, 24), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            said = (torch.utils.checkpoint.checkpoint(model, tokens, use_reentrant=False) if checkpoint else model(tokens))
            loss = F.cross_entropy(said[:, 2:].flatten(0, 1).float(), tokens[:, 1:-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_is_that_of_pytorch(one_thread):
    """The losses of 200 steps differ from PyTorch's by no more than noise in the weights' last bits makes them differ."""
    right = losses_of_training(200)
    noise = (losses_of_training(200, noise=2.0**-24) - right).abs().max()
    with lt.replace_sdpa():
        lt.stats(reset=True)
        ours = losses_of_training(200)
        assert lt.stats() == {}
        checkpointed = losses_of_training(5, checkpoint=True)
        low = losses_of_training(20, autocast=True)
    assert (ours - right).abs().max() <= noise
    assert right[-1] < 0.02 * right[0]
    close(checkpointed, ours[:5], 0)
    close(low, losses_of_training(20, autocast=True), 0.02)


def by_operations(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """libattn.torch.sdpa in PyTorch's operations."""
    return lt._out_by_operations(q, k, v, **lt._draw_seed(dropout_p), bias=attn_mask, causal=is_causal)


def test_training_with_dropout(one_thread, monkeypatch):
    """The losses are those of PyTorch's operations that drop the same weights; checkpoints, DDP and compiled graphs, too."""
    with monkeypatch.context() as patched:
        patched.setattr(F, "scaled_dot_product_attention", by_operations)
        right, noisy = (losses_of_training(100, dropout=0.2, noise=noise) for noise in (0.0, 2.0**-24))
        limit = (noisy - right).abs().max() + 4 * torch.finfo(torch.float32).eps * right.max()  # a loss is a rounded mean
    with lt.replace_sdpa():
        lt.stats(reset=True)
        ours = losses_of_training(100, dropout=0.2)
        assert lt.stats() == {}
        assert (ours - right).abs().max() <= limit
        close(losses_of_training(5, dropout=0.2, checkpoint=True), ours[:5], 0)
        compiled = losses_of_training(5, dropout=0.2, wrap=lambda model: torch.compile(model, backend="aot_eager"))
        close(compiled, ours[:5], 1e-5)


def test_data_parallel(one_thread, tmp_path):
    """DDP of one process: gradients of two batches, the first without synchronising, are their sum."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = []
        with lt.replace_sdpa():
            for parallel in (False, True):
                torch.manual_seed(0)
                model = Copier(0.1)
                called = torch.nn.parallel.DistributedDataParallel(model) if parallel else model
                for step in range(2):
                    tokens = torch.randint(16, (4, 24), generator=torch.Generator().manual_seed(step))
                    with called.no_sync() if parallel and step == 0 else contextlib.nullcontext():
                        called(tokens).square().mean().backward()
                found.append([x.grad for x in model.parameters()])
        assert all(map(torch.equal, *found))
        assert sum(x.abs().sum() for x in found[0]) > 0
    finally:
        torch.distributed.destroy_process_group()


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


def turn(x, at, cos, sin, interleaved):
    """x [tokens, heads, dim] as complex numbers times e^(i angle), in float64, token i by row at + i of the tables."""
    pairs = cos.shape[1]
    head = x[..., :2 * pairs].double()
    a, b = (head[..., ::2], head[..., 1::2]) if interleaved else (head[..., :pairs], head[..., pairs:])
    turned = torch.complex(a, b) * torch.complex(cos, sin).to(torch.complex128)[at:at + len(x), None]
    out = x.double().clone()
    where = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    out[..., where[0]], out[..., where[1]] = turned.real, turned.imag
    return out.float()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_attn_rotary(interleaved, causal):
    """Against caches and queries that are turned beforehand: 24 of 32 columns."""
    q, new_k, new_v, k_cache, v_cache = draw((2, 3, 4, 32), (2, 3, 2, 32), (2, 3, 2, 32), (2, 16, 2, 32), (2, 16, 2, 32))
    angle = 6.28 * torch.rand(16, 12, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([5, 13], dtype=torch.int32)
    right_k, right_v, right_q = k_cache.clone(), v_cache.clone(), q.clone()
    for b, at in enumerate(lengths.tolist()):
        right_k[b, at:at + 3] = turn(new_k[b], at, angle.cos(), angle.sin(), interleaved)
        right_v[b, at:at + 3] = new_v[b]
        for i in range(3):
            right_q[b, i] = turn(q[b, i:i + 1], at + i * causal, angle.cos(), angle.sin(), interleaved)[0]
    out = lt.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, angle.cos(), angle.sin(), lengths, causal=causal,
                                     rotary_interleaved=interleaved)
    close(k_cache, right_k, 1e-6)
    assert torch.equal(v_cache, right_v)
    close(out, lt.flash_attn_with_kvcache(right_q, right_k, right_v, cache_seqlens=lengths + 3, causal=causal), 1e-5)
    with pytest.raises(ValueError, match="rotary_cos has 15 rows; the last token is at position 15"):
        lt.flash_attn_with_kvcache(q, k_cache, v_cache, new_k, new_v, angle.cos()[:15], angle.sin()[:15], lengths)


def test_flash_attn_left_padding():
    """A sequence without its first tokens."""
    q, k, v = draw((2, 3, 4, 32), (2, 16, 2, 32), (2, 16, 2, 32))
    lengths, padding = torch.tensor([12, 9], dtype=torch.int32), torch.tensor([4, 0], dtype=torch.int32)
    for options in {"causal": True}, {"window_size": (2, 1)}, {"alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4])}:
        out = lt.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, cache_leftpad=padding, **options)
        for b in range(2):
            keys = slice(padding[b], lengths[b])
            close(out[b:b + 1], lt.flash_attn_func(q[b:b + 1], k[b:b + 1, keys], v[b:b + 1, keys], **options), 1e-6)


def test_flash_attn_slopes_of_each_sequence():
    q, k, v = draw((2, 5, 4, 32), (2, 16, 2, 32), (2, 16, 2, 32))
    slopes, lengths = draw((2, 4))[0].abs(), torch.tensor([12, 16], dtype=torch.int32)
    alone = [lt.flash_attn_func(q[b:b + 1], k[b:b + 1, :n], v[b:b + 1, :n], alibi_slopes=slopes[b], return_attn_probs=True)
             for b, n in enumerate(lengths)]
    out, lse = lt.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, alibi_slopes=slopes, return_softmax_lse=True)
    close(out, torch.cat([one[0] for one in alone]), 1e-6)
    close(lse, torch.cat([one[1] for one in alone]), 1e-6)
    borders = torch.tensor([0, 5, 10], dtype=torch.int32), torch.tensor([0, 12, 28], dtype=torch.int32)
    packed = q.flatten(0, 1), torch.cat((k[0, :12], k[1])), torch.cat((v[0, :12], v[1]))
    out, lse, _ = lt.flash_attn_varlen_func(*packed, *borders, 5, 16, alibi_slopes=slopes, return_attn_probs=True)
    close(out.view(2, 5, 4, 32), torch.cat([one[0] for one in alone]), 1e-6)
    close(lse, torch.cat([one[1][0] for one in alone], 1), 1e-6)
    padded = torch.cat((packed[0], packed[0][:2]))  # tokens of no sequence
    assert lt.flash_attn_varlen_func(padded, *packed[1:], *borders, 5, 16, alibi_slopes=slopes).shape == padded.shape
    with pytest.raises(ValueError, match="alibi_slopes has batch 3; q has 2"):
        lt.flash_attn_func(q, k, v, alibi_slopes=slopes[[0, 1, 1]])


def test_gradients_of_flash_attn_names():
    """Packed sequences, slopes of each sequence, and the gradient of lse."""
    q, k, v = draw((2, 7, 4, 32), (2, 11, 2, 32), (2, 11, 2, 32), grad=True)
    borders = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 11, 22], dtype=torch.int32)
    right_options = {**lt._USUAL, "causal": True, "align": "bottom_right"}
    for slopes in (None, draw((2, 4), seed=3)[0].abs().requires_grad_()):
        options = {"causal": True, "alibi_slopes": slopes, "return_attn_probs": True}
        outs = [lt.flash_attn_func(q, k, v, **options)[:2],
                lt.flash_attn_varlen_func(*(x.flatten(0, 1) for x in (q, k, v)), *borders, 7, 11, **options)[:2]]
        rights = [lt._reference(*(x[b:b + 1].transpose(1, 2) for x in (q, k, v)), with_lse=True,
                                o={**right_options, "alibi": None if slopes is None else slopes[b]}) for b in range(2)]
        right = torch.cat([o.transpose(1, 2) for o, _ in rights]), torch.cat([lse for _, lse in rights])
        found = []
        for out, lse in (*outs, right):
            lse = lse if lse.ndim == 3 else lse.view(4, 2, 7).transpose(0, 1)
            loss = out.view(2, 7, 4, 32).square().sum() + lse.square().sum()
            lt.stats(reset=True)
            found.append(torch.autograd.grad(loss, (q, k, v) if slopes is None else (q, k, v, slopes)))
            assert lt.stats() == {}
        for gradients in found[:2]:
            for a, b in zip(gradients, found[2]):
                close(a, b, 5e-5)


@pytest.mark.parametrize("name", ["plain", "causal", "window", "softcap", "slopes", "slopes of each", "scale"])
def test_gradients_of_packed_sequences(name):
    """Sequences of several lengths, one of them empty, and tokens of none: each has its gradients, those tokens zeros."""
    q, k, v, do = draw((20, 4, 32), (26, 2, 32), (26, 2, 32), (20, 4, 32), grad=True)
    slopes = draw((3, 4), seed=3)[0].abs().requires_grad_()
    options = {"plain": {}, "causal": {"causal": True}, "window": {"window_size": (3, 1)}, "softcap": {"softcap": 2.0},
               "slopes": {"alibi_slopes": slopes[0]}, "slopes of each": {"alibi_slopes": slopes},
               "scale": {"softmax_scale": 0.7, "deterministic": True}}[name]
    by = (q, k, v, slopes) if "slopes" in name else (q, k, v)
    cu_q, cu_k = [1, 5, 5, 18], [0, 9, 13, 24]
    borders = [torch.tensor(x, dtype=torch.int32) for x in (cu_q, cu_k)]
    counted, _, out = kinds(lt.flash_attn_varlen_func, q, k, v, *borders, 13, 11, **options)
    kv = torch.stack((k, v), 1)
    assert torch.equal(lt.flash_attn_varlen_kvpacked_func(q, kv, *borders, 13, 11, **options), out)
    found, loss = torch.autograd.grad(out, by, do), 0
    for b in (0, 2):
        rows, keys = slice(*cu_q[b:b + 2]), slice(*cu_k[b:b + 2])
        each = {**options, "alibi_slopes": slopes[b]} if name == "slopes of each" else options
        alone = lt.flash_attn_func(q[None, rows], k[None, keys], v[None, keys], **each)[0]
        close(out[rows], alone, 1e-6)
        o = {**lt._USUAL, "causal": options.get("causal", False), "align": "bottom_right", "alibi": each.get("alibi_slopes"),
             "scale": options.get("softmax_scale"), "softcap": options.get("softcap", 0.0)}
        o["window_left"], o["window_right"] = options.get("window_size", (-1, -1))
        right, _ = lt._reference(*(x[None].transpose(1, 2) for x in (q[rows], k[keys], v[keys])), o)
        loss = loss + (right[0].transpose(0, 1) * do[rows]).sum()
    assert counted == {}
    for a, b in zip(found, torch.autograd.grad(loss, by)):
        close(a, b)
    for x in (out[:1], out[18:], found[0][:1], found[0][18:], found[1][9:13], found[1][24:], found[2][24:]):
        assert not x.any()


def test_packed_flash_attn_names():
    qkv = draw((2, 7, 3, 4, 32), grad=True)[0]
    borders = torch.tensor([0, 7, 14], dtype=torch.int32)
    q, k, v = qkv.unbind(2)
    right = lt.flash_attn_func(q, k, v, 0.0, None, True)
    outs = [lt.flash_attn_kvpacked_func(q, qkv[:, :, 1:], 0.0, None, True),
            lt.flash_attn_qkvpacked_func(qkv, 0.0, None, True),
            lt.flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), borders, 7, 0.0, None, True).view(2, 7, 4, 32)]
    slope, = torch.autograd.grad(right, qkv, right)
    for out in outs:
        close(out, right, 1e-6)
        close(torch.autograd.grad(out, qkv, right)[0], slope, 1e-5)


def in_pages():
    """(pages of keys, pages of values, the table, the same keys and values dense), 16 tokens a page."""
    k, v = draw((6, 16, 2, 32), (6, 16, 2, 32), seed=5)
    table = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32)
    return k, v, table, *(x[table.long()].flatten(1, 2) for x in (k, v))


def test_operator_in_pages():
    k, v, table, dense_k, dense_v = in_pages()
    q, lengths = draw((2, 7, 4, 32))[0].transpose(1, 2), torch.tensor([29, 17], dtype=torch.int32)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        queries, k_t, v_t, dense_k_t, dense_v_t = (
            x.to(dtype) for x in (q, *(x.transpose(1, 2) for x in (k, v, dense_k, dense_v))))
        out = torch.ops.libattn.sdpa(queries, k_t, v_t, kv_len=lengths, page_table=table)
        close(out, torch.ops.libattn.sdpa(queries, dense_k_t, dense_v_t, kv_len=lengths), 4 * torch.finfo(dtype).eps)
        assert torch.equal(out, libattn.sdpa(queries, k_t, v_t, kv_len=lengths, page_table=table.long()))
    torch.library.opcheck(torch.ops.libattn.sdpa, (q, k.transpose(1, 2), v.transpose(1, 2)),
                          {"kv_len": lengths, "page_table": table})
    grad = q.detach().requires_grad_()
    out = torch.ops.libattn.sdpa(grad, k.transpose(1, 2), v.transpose(1, 2), kv_len=lengths, page_table=table)
    with pytest.raises(NotImplementedError, match="in pages"):
        out.sum().backward()


@pytest.mark.parametrize(("name", "dim", "dim_v"), [("q8_0", 40, 40), ("q4_0", 32, 64)])
def test_operator_reads_blocks(name, dim, dim_v):
    """The same numbers as of libattn.sdpa, shapes without data too, and no gradients."""
    rows = torch.randn(1, 2, 7, dim), torch.randn(1, 2, 7, dim_v)
    keys, values = (torch.from_numpy(getattr(libattn, name)(x.numpy())) for x in rows)
    queries, form = torch.randn(1, 4, 3, dim), {"kv_format": name}
    out = torch.ops.libattn.sdpa(queries, keys, values, **form)
    assert out.shape == (1, 4, 3, dim_v)
    assert torch.equal(out, libattn.sdpa(queries, keys, values, kv_format=name))
    close(out, torch.ops.libattn.sdpa(queries, *rows), 0.05 if name == "q8_0" else 0.5)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.libattn.sdpa_lse, (queries, keys, values), form, test_utils=tests)
    state = libattn.new_state(queries, torch.empty(1, 2, 7, dim_v))
    torch.library.opcheck(torch.ops.libattn.sdpa_state, (queries, keys, values, state), form, test_utils=tests)
    with pytest.raises(NotImplementedError, match="in blocks"):
        torch.ops.libattn.sdpa(queries.requires_grad_(), keys, values, **form).sum().backward()


def test_operator_with_pieces_of_keys(long):
    """window_first, key_begin, key_end and shared_prefix: the numbers of masks of the same meaning, and their gradients."""
    operator = torch.ops.libattn.sdpa
    q, k, v = qkv(hkv=2, grad=True)
    position, j = torch.arange(9)[:, None] + 4, torch.arange(13)
    window = {"causal": True, "align": "bottom_right", "window_left": 3, "window_first": 2}
    piece = {"key_begin": 4, "key_end": 11}
    cases = [(window, (j <= position) & ((j >= position - 3) | (j < 2))), (piece, ((j >= 4) & (j < 11)).expand(9, 13)),
             ({"key_begin": 4}, j.expand(9, 13) >= 4),
             ({"causal": True, "offsets": torch.tensor([2, 3], dtype=torch.int32)},
              j <= torch.arange(9)[:, None] + torch.tensor([2, 3])[:, None, None, None])]
    for options, mask in cases:
        outs = [operator(q, k, v, **options), operator(q, k, v, mask=mask)]
        close(*outs)
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs)):
            close(a, b, 1e-4)
        assert torch.equal(outs[0], libattn.sdpa(*(x.detach() for x in (q, k, v)), **as_numpy_options(options)))
    with torch.no_grad():
        keys, values = (x[:1].expand(2, *x.shape[1:]) for x in (k, v))
        prefix = {"shared_prefix": 8, "kv_len": torch.tensor([13, 11], dtype=torch.int32)}
        close(operator(q, keys, values, **prefix), operator(q, keys, values, kv_len=prefix["kv_len"]))
        with pytest.raises(ValueError, match="shared_prefix is 14"):
            operator(q, keys, values, shared_prefix=14)
        with pytest.raises(ValueError, match="key_end is 3 with key_begin 5"):
            operator(q, k, v, key_begin=5, key_end=3)
        inputs = tuple(x.detach().contiguous() for x in (q, keys, values))
        for case in (window, piece, prefix):
            torch.library.opcheck(torch.ops.libattn.sdpa_lse.default, inputs, case,
                                  **opchecks(long))


def test_operator_with_lists_of_key_blocks(long):
    """The numbers of a mask that says the same, and their gradients."""
    operator, (queries, keys) = torch.ops.libattn.sdpa, (40, 150)
    q, k, v = (torch.randn(2, heads, rows, 8, requires_grad=True) for heads, rows in ((4, queries), (2, keys), (2, keys)))
    part, full = torch.rand(2, 2, 3, 3) < 0.4, torch.rand(2, 2, 3, 3) < 0.3
    given, options = torch.rand(queries, keys) < 0.5, {"block_queries": 16, "block_keys": 64}
    for name, named in (("", part), ("full_", full)):
        options[name + "kv_num_blocks"] = named.sum(-1, dtype=torch.int32)
        options[name + "kv_indices"] = named.int().argsort(dim=-1, descending=True, stable=True).int()
    part, full = (x.repeat_interleave(2, 1).repeat_interleave(16, 2).repeat_interleave(64, 3)[:, :, :queries, :keys]
                  for x in (part, full))
    for mask, dense in ((None, part | full), (given, full | (part & given))):
        outs = [operator(q, k, v, mask=mask, **options), operator(q, k, v, mask=dense)]
        close(*outs)
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs)):
            close(a, b, 1e-4)
    with torch.no_grad():
        first = {name: x[:1, :1] if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        close(operator(q, k, v, **first), operator(q, k, v, mask=(part | full)[:1, :1]))
        with pytest.raises(TypeError, match="key_blocks.kv_indices is None"):
            operator(q, k, v, kv_num_blocks=options["kv_num_blocks"])
        torch.library.opcheck(torch.ops.libattn.sdpa_lse.default, tuple(x.detach() for x in (q, k, v)), options,
                              **opchecks(long))


def test_operator_with_a_mask_of_the_newest_keys(long):
    """The numbers of a mask of all keys that says the same, and their gradients; with lengths, and with lists of blocks."""
    operator, (queries, keys, newest) = torch.ops.libattn.sdpa, (5, 150, 7)
    q, k, v = (torch.randn(2, heads, rows, 8, requires_grad=True) for heads, rows in ((4, queries), (2, keys), (2, keys)))
    lengths = torch.tensor([150, 90], dtype=torch.int32)
    lists = {"full_kv_num_blocks": torch.ones(1, 1, 1).int(), "full_kv_indices": torch.tensor([[[[0, 1, 2]]]]).int(),
             "kv_num_blocks": torch.ones(1, 1, 1).int(), "kv_indices": torch.tensor([[[[2, 1, 0]]]]).int(),
             "block_queries": 16, "block_keys": 64}
    listed = torch.tensor([True, False, True]).repeat_interleave(64)[:keys]
    for shape, kv_len, given in (((2, 4, queries, newest), lengths, {}), ((queries, newest), None, {}),
                                 ((queries, newest), lengths, {}), ((2, 1, queries, newest), None, lists)):
        tree, options = torch.rand(shape) < 0.5, {"mask_keys": newest, "kv_len": kv_len, **given}
        dense = torch.ones(2, *((1,) * (4 - tree.ndim) + shape)[1:3], keys, dtype=torch.bool)
        for b in range(2):
            end = keys if kv_len is None else int(lengths[b])
            dense[b, ..., end - newest:end] = tree[b] if tree.ndim == 4 else tree
        dense = dense & listed if given else dense
        outs = [operator(q, k, v, mask=tree, **options), operator(q, k, v, mask=dense, kv_len=kv_len)]
        close(*outs)
        for a, b in zip(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in outs)):
            close(a, b, 1e-4)
    with torch.no_grad():
        with pytest.raises(ValueError, match="mask"):
            operator(q, k, v, mask=torch.ones(queries, newest + 1, dtype=torch.bool), mask_keys=newest)
        torch.library.opcheck(torch.ops.libattn.sdpa_lse.default, tuple(x.detach() for x in (q, k, v)),
                              {"mask": torch.rand(queries, newest) < 0.5, "mask_keys": newest},
                              **opchecks(long))


def as_numpy_options(options):
    """The operator's options as libattn.sdpa has them."""
    given = dict(options)
    if "window_left" in given:
        given["window"] = (given.pop("window_left"), None)
    begin, end = given.pop("key_begin", None), given.pop("key_end", None)
    return {**given, **({"keys": (begin, end)} if begin or end else {})}


def test_state():
    """Pieces of keys from tensors: the bits of one call, and the state is written where it lies."""
    q, k, v = draw((2, 4, 9, 32), (2, 2, 200, 32), (2, 2, 200, 32))
    state = libattn.new_state(q, v)
    assert isinstance(state, torch.Tensor)
    assert state.dtype == torch.float32
    step = libattn.Plan(q, k, v, kernel="flash_c", state=state).piece_keys
    for first in range(0, 200, step):
        end = min(first + step, 200)
        out = libattn.sdpa(q, k[:, :, first:end], v[:, :, first:end], kernel="flash_c", state=state,
                           out=None if end == 200 else False)
    assert torch.equal(out, libattn.sdpa(q, k, v, kernel="flash_c"))
    with pytest.raises(ValueError, match="state is a lazy view"):
        libattn.sdpa(q, k, v, state=torch._neg_view(state))


def test_operator_with_state(long):
    """The same by torch.ops.libattn.sdpa_state, which torch.compile takes as one that writes its state."""
    q, k, v = draw((2, 4, 9, 32), (2, 2, 200, 32), (2, 2, 200, 32))
    states = [libattn.new_state(q, v) for _ in range(2)]
    for first in (0, 128):
        piece = [x[:, :, first:first + 128].contiguous() for x in (k, v)]
        at = torch.tensor([191 - first, 150 - first], dtype=torch.int32)
        out = torch.ops.libattn.sdpa_state(q, *piece, states[0], causal=True, offsets=at)
        right = libattn.sdpa(q, *piece, state=states[1], causal=True, offsets=at)
        assert torch.equal(out, right)
        assert torch.equal(*states)
    torch.library.opcheck(torch.ops.libattn.sdpa_state.default, (q, k, v, libattn.new_state(q, v)), {"causal": True},
                          **opchecks(long))


def test_flash_attn_in_pages():
    k, v, table, dense_k, dense_v = in_pages()
    q, lengths = draw((2, 7, 4, 32))[0], torch.tensor([29, 17], dtype=torch.int32)
    right = lt.flash_attn_with_kvcache(q, dense_k, dense_v, cache_seqlens=lengths, causal=True)
    close(lt.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, block_table=table, causal=True), right, 1e-6)
    close(lt.flash_attn_with_kvcache(q, k, v, block_table=table), lt.flash_attn_with_kvcache(q, dense_k, dense_v), 1e-6)
    borders = torch.tensor([0, 7, 14], dtype=torch.int32), torch.tensor([0, 29, 46], dtype=torch.int32)
    packed = lt.flash_attn_varlen_func(q.flatten(0, 1), k, v, *borders, 7, 29, block_table=table, causal=True)
    close(packed.view(2, 7, 4, 32), right, 1e-6)
    grad = q.flatten(0, 1).requires_grad_()
    close(lt.flash_attn_varlen_func(grad, k, v, *borders, 7, 29, block_table=table, causal=True).detach(), packed, 1e-6)


def test_flash_attn_appends_to_pages():
    k, v, table, dense_k, dense_v = in_pages()
    q, new_k, new_v = draw((2, 3, 4, 32), (2, 3, 2, 32), (2, 3, 2, 32))
    lengths = torch.tensor([15, 29], dtype=torch.int32)  # across a border of pages, and to the end
    right = lt.flash_attn_with_kvcache(q, dense_k, dense_v, new_k, new_v, cache_seqlens=lengths, causal=True)
    options = {"block_table": table, "causal": True}
    close(lt.flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=lengths, **options), right, 1e-6)
    for pages, dense in ((k, dense_k), (v, dense_v)):
        assert torch.equal(pages[table.long()].flatten(1, 2), dense)
    before = k.clone()
    for sentence, wrong, changed in (("has 2 columns of 16 tokens; with the new ones a sequence has 33", table, {}),
                                     (r"each must be in 0\.\.5", torch.full_like(table, -1), {"cache_seqlens": 3}),
                                     ("cache_leftpad is given", table, {"cache_leftpad": torch.tensor([0, 1])}),
                                     ("cache_batch_idx is given", table, {"cache_batch_idx": torch.tensor([0, 1])})):
        with pytest.raises(ValueError, match=sentence):
            lt.flash_attn_with_kvcache(q, k, v, new_k, new_v, **{"cache_seqlens": lengths + 1, "causal": True,
                                                                 "block_table": wrong, **changed})
    assert torch.equal(k, before)
    with pytest.raises(ValueError, match="block_table has 2 columns of 16 tokens; with the new ones a sequence has 33"):
        lt.flash_attn_with_kvcache(q, k, v, cache_seqlens=33, block_table=table)
    with pytest.raises(ValueError, match="k_cache has 32 tokens; with the new ones a sequence has 33"):
        lt.flash_attn_with_kvcache(q, dense_k, dense_v, new_k, new_v, cache_seqlens=30)


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
    model.forward = lambda q, k, v: lt.sdpa(q, k, v, dropout_p=P)
    exported = torch.export.export(model, (q, k, v)).module()
    assert torch.equal(seeded(exported, q, k, v), seeded(lt.sdpa, q, k, v, dropout_p=P))
    assert not torch.equal(exported(q, k, v), exported(q, k, v))


def test_compiled_gradients(long):
    if not long:
        pytest.skip("takes half a minute: --long")
    inputs = qkv(hkv=2, grad=True)

    def loss(q, k, v):
        return lt.sdpa(q * 2, k, v, is_causal=True, enable_gqa=True).square().sum()

    def of_lse(q, k, v):
        out, lse = torch.ops.libattn.sdpa_lse(q * 2, k, v, causal=True, softcap=3.0)
        return out.square().sum() + lse.square().sum()

    for a, b in zip(*(torch.autograd.grad(f(*inputs), inputs) for f in (of_lse, torch.compile(of_lse, fullgraph=True)))):
        close(a, b)
    compiled = torch.compile(lambda *x: lt.sdpa(*x, dropout_p=P, enable_gqa=True), fullgraph=True)
    outs = [compiled(*inputs) for _ in range(2)]
    assert not torch.equal(*outs)
    for out in outs:  # backward drops what forward has dropped: out is linear in v
        torch.testing.assert_close((torch.autograd.grad(out, inputs, out)[2] * inputs[2]).sum(), out.square().sum())
    compiled = torch.compile(loss, fullgraph=True)
    ours, again = (torch.autograd.grad(compiled(*inputs), inputs) for _ in range(2))
    for a, b, c in zip(ours, again, torch.autograd.grad(loss(*inputs), inputs)):
        assert torch.equal(a, b)
        close(a, c)
