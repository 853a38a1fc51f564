# SPDX-License-Identifier: MIT
"""Hypothesis draws shapes, strides, dtypes, layouts and masks; libattn.sdpa is compared with float64 NumPy (reference.py)
under the derived limit (limits.py). --long draws more."""

import pytest

np = pytest.importorskip("numpy")
hypothesis = pytest.importorskip("hypothesis")

import libattn  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from limits import proven_limit, worst_kernel  # noqa: E402
from reference import attention_and_weights  # noqa: E402

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

ARITHMETIC = worst_kernel(libattn.kernels())
DTYPES = {"float32": np.float32, "float16": np.float16, **({"bfloat16": ml_dtypes.bfloat16} if ml_dtypes else {})}
KERNELS = [kernel.name for kernel in libattn.kernels() if kernel.unusable is None]
REFUSED = []  # problems that no kernel took


def lay_out(values, order, gap, turned):
    """The same numbers [b, h, s, d] as a view of another array: dimensions in another order, with gaps, or backwards."""
    turned_around = values[:, :, ::-1] if turned else values
    stored = np.zeros([values.shape[axis] + gap * (axis == order[-2]) for axis in order], values.dtype)
    view = stored[tuple(slice(0, values.shape[axis]) for axis in order)].transpose(np.argsort(order))
    view[...] = turned_around
    return view[:, :, ::-1] if turned else view


@st.composite
def strided(draw, shape, dtype, generator):
    values = generator.standard_normal(shape).astype(dtype)
    order = draw(st.sampled_from([(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (1, 0, 2, 3)]))
    return lay_out(values, order, draw(st.integers(0, 2)), draw(st.booleans()))


@st.composite
def problems(draw):
    """(q, k, v, options): shapes up to a few blocks of every kernel."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    b, hkv, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3, 8]))
    sq = draw(st.one_of(st.integers(1, 9), st.integers(1, 150)))
    sk = draw(st.one_of(st.just(sq), st.integers(1, 300)))
    d, dv = draw(st.sampled_from([(64, 64), (32, 32), (40, 40), (128, 128), (7, 13), (1, 3), (80, 96)]))
    dtype = DTYPES[draw(st.sampled_from(list(DTYPES)))]
    q, k, v = (draw(strided(shape, dtype, generator))
               for shape in ((b, hkv * group, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv)))
    options = draw(st.fixed_dictionaries({}, optional={
        "causal": st.booleans(), "align": st.sampled_from(["top_left", "bottom_right"]),
        "window": st.tuples(*[st.one_of(st.none(), st.integers(0, 100))] * 2), "scale": st.floats(-2, 2, width=32),
        "softcap": st.floats(0.5, 50, width=32), "kv_len": st.lists(st.integers(0, sk), min_size=b, max_size=b),
        "q_len": st.lists(st.integers(0, sq), min_size=b, max_size=b), "kernel": st.sampled_from(KERNELS)}))
    heads = hkv * group
    if draw(st.booleans()):
        options["alibi"] = generator.random(heads).astype(np.float32)
    if draw(st.booleans()):
        options["sinks"] = generator.standard_normal(heads).astype(np.float32)
    for name, often in (("mask", draw(st.sampled_from([0, 0.1, 0.9]))), ("bias", draw(st.sampled_from([0, 0.2])))):
        if not draw(st.booleans()):
            continue
        shape = [size if draw(st.booleans()) else 1 for size in (b, heads, sq, sk)][draw(st.integers(0, 2)):]
        drawn = generator.random(shape) < often
        options[name] = ~drawn if name == "mask" else np.where(drawn, -np.inf, generator.random(shape)).astype(np.float32)
    return q, k, v, options


def check(q, k, v, options):
    kernel = options.pop("kernel", None)
    try:
        ours, lse = libattn.sdpa(q, k, v, return_lse=True, kernel=kernel, **options)
    except libattn.Unsupported as refusal:
        if not kernel:
            REFUSED.append(str(refusal))
        return
    assert ours.dtype == q.dtype
    o, right_lse, p = attention_and_weights(q, k, v, **options)
    wide = [x.astype(float) for x in (q, k, v)]
    limit = proven_limit(o, *wide, ARITHMETIC, dtype=str(q.dtype), p=p, **options)
    assert (abs(ours.astype(float) - o) <= limit).all()
    assert (np.isneginf(lse) == np.isneginf(right_lse)).all()


EXAMPLES = {False: 60, True: 3000}


def test_against_float64(long):
    @settings(max_examples=EXAMPLES[long], deadline=None, derandomize=not long, database=None)
    @given(problems())
    def run(problem):
        check(*problem)

    run()
    assert not REFUSED


def test_the_limit_finds_a_mask_that_is_off_by_one():
    generator = np.random.default_rng(3)
    q, k, v = (generator.standard_normal((1, 2, 40, 64)).astype(np.float32) for _ in range(3))
    o, _, p = attention_and_weights(q, k, v, causal=True)
    limit = proven_limit(o, *(x.astype(float) for x in (q, k, v)), ARITHMETIC, p=p, causal=True)
    wrong = libattn.sdpa(q, k, v, window=(None, 1))
    assert (abs(wrong - o) > limit).any(-1).mean() > 0.9
