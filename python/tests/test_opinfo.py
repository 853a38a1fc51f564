#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's own samples of scaled_dot_product_attention (torch.testing's OpInfo, from the installed wheel) on
libattn.torch.sdpa: contiguous, non-contiguous, and gradients, in every dtype that the OpInfo has. Right is PyTorch's result
in float64; the error may be what torch.testing.assert_close allows, or 8 times that of PyTorch's own function in the same
dtype (scores of up to 300 lose more digits in float32 than assert_close allows). Gradients may also have the error of
limits.py: out is rounded before they are computed. With dropout both drop what libattn drops. Run as a program it prints
the counts."""

import collections
import math
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

import libattn.torch  # noqa: E402
from limits import gradient_limits  # noqa: E402

ORIGINAL = torch.nn.functional.scaled_dot_product_attention
REFUSALS = {"it must be float32, float16 or bfloat16": "float64"}


def ours(*args, **options):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return libattn.torch.sdpa(*args, **options)


def kept_by_ours(query, key, value, dropout_p):
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value)))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        kept = torch.ops.libattn.dropout_mask(torch.randint(2**63 - 1, ()), 0, dropout_p, (
            math.prod(batch[:-1]), batch[-1], query.shape[-2], key.shape[-2]))
    return kept.view(*batch, *kept.shape[2:])


def theirs(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False):
    if not dropout_p:
        return ORIGINAL(query, key, value, attn_mask, is_causal=is_causal)
    kept = kept_by_ours(query, key, value, dropout_p)
    return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, kept)[0]


def tensors(x, change):
    return change(x) if isinstance(x, torch.Tensor) else x


def arguments(sample, change=lambda x: x):
    return ([tensors(x, change) for x in (sample.input, *sample.args)],
            {name: tensors(x, change) for name, x in sample.kwargs.items()})


def wide(x):
    return x.detach().double() if x.is_floating_point() else x


def check_near(found, own, right):
    error, of_pytorch = ((x.double() - right).abs().max().item() for x in (found, own))
    if error > 8 * of_pytorch:
        torch.testing.assert_close(found, right.to(found.dtype))


def check_forward(sample):
    given = arguments(sample, torch.Tensor.detach)
    results = [function(*args, **options) for function, (args, options) in (
        (ours, given), (theirs, given), (theirs, arguments(sample, wide)))]
    check_near(*results)


def gradients(function, args, options):
    leaves = [x.requires_grad_() for x in args]
    return torch.autograd.grad(function(*leaves, **options).sum(), leaves)


def limits(sample):
    """The largest errors of gradients by query, key and value; None with a mask."""
    options, name = sample.kwargs, str(sample.input.dtype).removeprefix("torch.")
    if options.get("attn_mask") is not None:
        return None
    inputs = [x.detach().double().numpy() for x in (sample.input, *sample.args)]
    do = [1.0 + 0 * (inputs[0] @ inputs[1].swapaxes(-1, -2) @ inputs[2])]
    p = options["dropout_p"]
    factors = kept_by_ours(sample.input, *sample.args, p).double().numpy() / (1 - p) if p else 1.0
    found = gradient_limits(*do, *inputs, dtype=name, causal=options.get("is_causal", False), factors=factors)
    return [torch.from_numpy(x).sum_to_size(y.shape) for x, y in zip(found, inputs)]


def check_gradients(sample):
    found = [gradients(function, *arguments(sample, lambda x: x.detach().clone())) for function in (ours, theirs)]
    allowed = limits(sample) if sample.input.dtype != torch.float64 else None
    for i, (x, own, right) in enumerate(zip(*found, gradients(theirs, *arguments(sample, wide)))):
        if allowed is None or not ((x.double() - right).abs() <= allowed[i]).all():
            check_near(x, own, right)


CHECKS = {"contiguous": check_forward, "non-contiguous": lambda sample: check_forward(sample.noncontiguous()),
          "gradients": check_gradients}


def outcome(check, sample):
    """(passed, refused or failed; why)"""
    try:
        check(sample)
    except AssertionError as error:
        return "failed", str(error)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = next((short for sentence, short in REFUSALS.items() if sentence in str(error)), None)
        return ("refused", reason) if reason else ("failed", str(error))
    return "passed", ""


def run():
    """{(outcome, why, check, dtype): count}"""
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    counts = collections.Counter()
    torch.manual_seed(0)
    for dtype in sorted(op.dtypes, key=str):
        for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
            for name, check in CHECKS.items():
                counts[(*outcome(check, sample), name, str(dtype).removeprefix("torch."))] += 1
    return counts


def totals(counts, *places):
    found = collections.Counter()
    for key, count in counts.items():
        found[tuple(key[place] for place in places)] += count
    return found


def test_samples(long):
    if not long:
        pytest.skip("loads PyTorch's tests: --long")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = run()
    failed = {key: count for key, count in counts.items() if key[0] == "failed"}
    assert not failed
    assert totals(counts, 0)["passed",] >= 200
    assert {why for kind, why, *_ in counts if kind == "refused"} <= {"float64"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = run()
    for (kind, why, dtype), count in sorted(totals(found, 0, 1, 3).items()):
        print(f"{count:4} {kind:8} {dtype:9} {why.splitlines()[0] if why else ''}")
    print(", ".join(f"{count} {kind}" for (kind,), count in sorted(totals(found, 0).items())))
    sys.exit(any(kind == "failed" for kind, *_ in found))
