# SPDX-License-Identifier: MIT
"""Every array argument of every function, spoilt in every way: a ValueError or TypeError that names it, and nothing written;
or, where the change is harmless, the same numbers. Arrays stand between guards."""

import contextlib
import gc
import re
import sys

import pytest

np = pytest.importorskip("numpy")

import libattn  # noqa: E402
from libattn import layers  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

B, H, HKV, SQ, SK, D, DV = 3, 6, 3, 5, 7, 8, 4
R = np.random.default_rng(17)
GUARD = 1 << 12
OUTPUTS = ("out", "lse", "state")
WINDOW = (1 << 20, 1 << 21)  # all keys; Python counts references to numbers as large as these


class Guarded:
    """Arrays between guards, which must stay as they are."""

    def __init__(self):
        self.all = []

    def copy(self, array):
        memory = np.full(array.nbytes + 2 * GUARD, 0xA5, np.uint8)
        inner = memory[GUARD:GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
        inner[...] = array
        self.all.append((memory, array.nbytes))
        return inner

    def check(self):
        for memory, size in self.all:
            assert (memory[:GUARD] == 0xA5).all()
            assert (memory[GUARD + size:] == 0xA5).all()


def floats(*shape):
    return R.standard_normal(shape).astype(np.float32) / 4


def integers(high, *shape):
    return R.integers(1, high + 1, shape).astype(np.int32)


# ---- The calls: name -> (function of a dictionary of arrays, the arrays) --------------------------------------------------

INPUTS = {"q": floats(B, H, SQ, D), "k": floats(B, HKV, SK, D), "v": floats(B, HKV, SK, DV)}
RESULTS = {"out": floats(B, H, SQ, DV), "lse": floats(B, H, SQ)}
LENGTHS = {"kv_len": integers(SK, B), "q_len": integers(SQ, B)}
OF_HEADS = {"alibi": abs(floats(H)), "sinks": floats(H)}
OF_SCORES = {"mask": R.random((B, H, SQ, SK)) > 0.2, "bias": floats(B, H, SQ, SK)}
OPTIONS = {**OF_SCORES, **OF_HEADS, **LENGTHS, "row_len": integers(SK, B, SQ), "offsets": integers(3, B)}
PACKED = {"q": floats(12, H, D), "k": floats(20, HKV, D), "v": floats(20, HKV, DV), "out": floats(12, H, DV),
          "lse": floats(H, 12), "cu_seqlens_q": np.int32([0, 5, 9, 12]), "cu_seqlens_k": np.int32([0, 7, 9, 20]), **OF_HEADS}
PAGED = {**INPUTS, "k": floats(6, HKV, 16, D), "v": floats(6, HKV, 16, DV), "kv_len": np.int32([7, 20, 32]),
         "page_table": np.int32([[5, 0], [3, 1], [2, 4]]), "out": RESULTS["out"], "k_scale": floats(6, HKV, 16),
         "v_scale": floats(6, HKV, 16)}
STARTED = libattn.new_state(INPUTS["q"], INPUTS["v"])
libattn.sdpa(**INPUTS, state=STARTED, kernel="flash_c", out=False)  # finite: NaN and -inf cannot be compared and cast
MHA = {"w_q": floats(24, 16), "w_k": floats(12, 16), "w_v": floats(12, 16), "w_o": floats(10, 24), "b_q": floats(24),
       "b_k": floats(12), "b_v": floats(12), "b_o": floats(10)}
BLOCK = {"w1": floats(9, 12), "b1": floats(9), "w2": floats(12, 9), "b2": floats(12), "gain": floats(12), "bias": floats(12)}
OWN = {name: floats(12, 12) for name in ("w_q", "w_k", "w_v", "w_o")}


def sdpa(a):
    # One kernel: some refuse some strides, and the choice among the others would have other bits.
    return libattn.sdpa(**a, window=WINDOW, return_lse="lse" in a, kernel="flash_c")


def run_plan(a):
    return libattn.Plan(**INPUTS, **OPTIONS, return_lse=True).run(**a)


def merge(a):
    return libattn.merge([(a["out"], a["lse"]), (RESULTS["out"], RESULTS["lse"])])


def pick(a, names):
    return {name: a[name] for name in names}


def multi_head(a):
    layer = layers.MultiHeadAttention(batch=B, heads=H, heads_kv=HKV, seq=SQ, seq_memory=SK, width=16, width_memory=16,
                                      width_out=10, dim_qk=4, dim_v=4, **pick(a, MHA),
                                      uses=("mask", "bias", "kv_len", "q_len", "alibi_slopes", "sinks"))
    return layer(a["x"], a["memory"], alibi_slopes=a["alibi"], sinks=a["sinks"], **pick(a, OF_SCORES), **pick(a, LENGTHS))


def block(a):
    layer = layers.Block(batch=B, heads=3, seq=SQ, width=12, self_weights=pick(a, OWN), uses=("kv_len",),
                         norms=[(a["gain"], a["bias"])] * 3, **pick(a, ("w1", "b1", "w2", "b2")))
    return layer(a["x"], kv_len=a["kv_len"])


def additive(a):
    layer = layers.Additive(a["w_q"], a["w_k"], a["score_weight"], batch=B, seq_q=SQ, seq_k=SK, dim_v=DV, kv_len=True)
    return layer(a["q"], a["k"], a["v"], kv_len=a["kv_len"])


def synthesizer(a):
    layer = layers.Synthesizer(a["w_v"], a["w_o"], batch=B, seq=SQ, heads=3, scores=a["scores"], kv_len=True)
    return layer(a["x"], kv_len=a["kv_len"])


def cache(a):
    kept = layers.KVCache(batch=B, heads=H, heads_kv=HKV, dim_qk=D, dim_v=DV, capacity=9)
    return kept.step(a["q"], a["k"], a["v"], counts=a["counts"])


CALLS = {
    "sdpa": (sdpa, {**INPUTS, **OPTIONS, **RESULTS}),
    "packed": (sdpa, PACKED),
    "paged": (sdpa, PAGED),
    "pieces": (sdpa, {**INPUTS, "state": STARTED, "out": RESULTS["out"]}),
    "precomputed": (lambda a: libattn.sdpa(None, None, **a, score="precomputed"),
                    {"v": INPUTS["v"], "scores": floats(B, H, SQ, SK), "out": RESULTS["out"]}),
    "score weight": (lambda a: libattn.sdpa(**a, score="additive"), {**INPUTS, "score_weight": floats(H, D), **RESULTS}),
    "Plan.run": (run_plan, {**INPUTS, **OPTIONS, **RESULTS}),
    "merge": (merge, RESULTS),
    "MultiHeadAttention": (multi_head, {**MHA, **OF_SCORES, **OF_HEADS, **LENGTHS, "x": floats(B, SQ, 16),
                                        "memory": floats(B, SK, 16)}),
    "FeedForward": (lambda a: layers.FeedForward(a["w1"], a["w2"], b1=a["b1"], b2=a["b2"])(a["x"]),
                    {**pick(BLOCK, ("w1", "b1", "w2", "b2")), "x": floats(4, 12)}),
    "Block": (block, {**BLOCK, **OWN, "x": floats(B, SQ, 12), "kv_len": integers(SQ, B)}),
    "Additive": (additive, {"w_q": floats(9, 8), "w_k": floats(9, 6), "score_weight": floats(9), "q": floats(B, SQ, 8),
                            "k": floats(B, SK, 6), "v": floats(B, SK, DV), "kv_len": integers(SK, B)}),
    "Synthesizer": (synthesizer, {"w_v": floats(12, 10), "w_o": floats(10, 12), "scores": floats(3, 8, 8),
                                  "x": floats(B, SQ, 10), "kv_len": integers(SQ, B)}),
    "kernel_regression": (lambda a: layers.kernel_regression(**a),
                          {"x": floats(9, 3), "y": floats(9, 2), "query": floats(4, 3), "inverse_width": floats(3)}),
    "KVCache": (cache, {**INPUTS, "k": floats(B, HKV, SQ, D), "v": floats(B, HKV, SQ, DV), "counts": integers(SQ, B)}),
    "add_layer_norm": (lambda a: layers.add_layer_norm(**a),
                       {"x": floats(4, 10), "residual": floats(4, 10), "gain": floats(10), "bias": floats(10)}),
}
# Sizes that the function takes from this array: another one is another problem.
FREE = {("FeedForward", "x", 0), ("kernel_regression", "query", 0), ("kernel_regression", "y", 1), ("precomputed", "v", 1),
        ("paged", "page_table", 1)}
VECTORS = {"alibi", "sinks", "kv_len", "q_len", "row_len", "offsets", "cu_seqlens_q", "cu_seqlens_k", "counts"}
STRIDED = {"sdpa", "packed", "paged", "pieces", "precomputed", "score weight"}  # these take any strides

# ---- The faults -----------------------------------------------------------------------------------------------------------


def spread(array):
    """The same numbers with gaps."""
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def read_only(array):
    array.flags.writeable = False
    return array


def with_number(number):
    def change(array):
        changed = array.astype(np.int64)
        changed.flat[-1] = number
        return changed

    return change


OTHER_KIND = {"f": np.int32, "i": np.float32, "b": np.float32}
REFUSED = {
    "complex": lambda x: x.astype(np.complex64),
    "other kind": lambda x: x.astype(OTHER_KIND[x.dtype.kind]),
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "more dimensions": lambda x: x[(None,) * (6 - x.ndim)],
    "masked": lambda x: np.ma.masked_array(x, np.zeros(x.shape, bool)),
    "Spec": lambda x: libattn.Spec(x.shape, x.dtype),
    "object": lambda x: object(),
    "a text": lambda x: "0123456789"[:len(x)],
}


def takes_strides(call, name):
    return name != "state" and (call in STRIDED or name in VECTORS)  # the floats of a row of state lie side by side


def spoilt(call, name, array):
    """(what, array) of the faults that must be refused."""
    for axis in range(array.ndim):
        if (call, name, axis) not in FREE:
            yield f"shorter on axis {axis}", np.delete(array, -1, axis)
            yield f"longer on axis {axis}", np.insert(array, 0, array.take(0, axis), axis)
    for what, change in REFUSED.items():
        if what != "byte order" or array.dtype.itemsize > 1:
            yield what, change(array)
    if array.dtype == np.int32 and name != "offsets":
        for number in (-1, 99, 1 << 31, 1 << 40):
            yield f"number {number}", with_number(number)(array)
    if name in OUTPUTS and call != "merge":
        yield "read-only", read_only(array.copy())
    if call == "Plan.run" and name not in VECTORS or not takes_strides(call, name):
        yield "strided", spread(array)


def harmless(call, name, array):
    if name not in OUTPUTS:
        yield "read-only", read_only(array.copy())
    if takes_strides(call, name):
        yield "strided", spread(array)
    if name in VECTORS:
        yield "wide", array.astype(np.int64 if array.dtype == np.int32 else np.float64)
        yield "list", array.ravel().tolist()


def as_arrays(result):
    return [np.asarray(x).copy() for x in (result if isinstance(result, tuple) else (result,))]


def outcome(call, arrays, guarded):
    """(exception, None) or (None, arrays)."""
    try:
        result = as_arrays(CALLS[call][0](arrays))
    except (ValueError, TypeError) as error:
        result = error
    guarded.check()
    return (result, None) if isinstance(result, Exception) else (None, result)


def attempt(call, name, value, convert=lambda x: x):
    """The call with one argument replaced, and the others guarded. A refusal must leave all of them as they are."""
    guarded = Guarded()
    arrays = {key: guarded.copy(array) for key, array in CALLS[call][1].items()}
    before = {key: array.copy() for key, array in arrays.items()}
    given = {key: convert(array) for key, array in arrays.items()}
    if isinstance(value, np.ndarray) and type(value) is np.ndarray and value.flags.c_contiguous and value.flags.writeable:
        value = convert(guarded.copy(value)) if value.dtype.isnative else value
    error, result = outcome(call, {**given, name: value}, guarded)
    for key, array in arrays.items():
        if error or key not in OUTPUTS or call == "merge":
            assert np.array_equal(array, before[key]), f"{key} was written"
    return error, result


ARGUMENTS = [(call, name) for call in CALLS for name in CALLS[call][1]]


def check_refusal(call, name, what, error):
    assert error is not None, f"{call}: {name} {what} was taken"
    # Where sizes disagree, the error may name either array; names of weights hold that of their layer.
    names = "|".join([*map(re.escape, CALLS[call][1]), "heads_q", "alibi_slopes"] if " on axis" in what else
                     [name, *{"alibi": ["alibi_slopes"], "cu_seqlens_q": ["max_seqlen_q", "seq_q"],
                              "cu_seqlens_k": ["max_seqlen_k", "seq_k"]}.get(name, ())])
    assert re.search(rf"(\b|_)({names})\b", str(error)), f"{call}: {name} {what}: {error}"
    if what == "more dimensions":
        assert "6 dim" in str(error)


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_wrong_arrays_are_refused(call, name):
    array = CALLS[call][1][name]
    for what, wrong in spoilt(call, name, array):
        check_refusal(call, name, what, attempt(call, name, wrong)[0])


@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_harmless_changes_give_the_same(call, name):
    array = CALLS[call][1][name]
    right = attempt(call, name, array)[1]
    assert right is not None
    for what, same in harmless(call, name, array):
        error, result = attempt(call, name, same)
        assert error is None, f"{name} {what}: {error}"
        for a, b in zip(result, right):
            assert np.array_equal(a, b), f"{name} {what}"


@pytest.mark.parametrize("call", CALLS)
def test_calls_keep_and_lose_nothing(call):
    arrays = {name: array.copy() for name, array in CALLS[call][1].items()}
    every = [arrays, *({**arrays, name: other} for name, array in arrays.items()
                       for change in (spoilt, harmless) for _, other in change(call, name, array))]
    watched = [x for given in every for array in given.values() for x in (array, type(array), getattr(array, "dtype", None))]
    watched += WINDOW

    def counts():
        for given in every:
            with contextlib.suppress(ValueError, TypeError):
                CALLS[call][0](given)
        gc.collect()
        return [sys.getallocatedblocks(), *map(sys.getrefcount, watched)]

    counts()
    rounds = np.zeros((16, 1 + len(watched)), int)  # Python's own caches grow in the first ones
    for n in range(len(rounds)):
        rounds[n] = counts()
    growth = np.diff(rounds, axis=0)
    assert growth.min(axis=0).max() <= 0, growth
    assert growth[:, 1:].max(axis=0).min() >= 0, growth  # blocks may fall: Python gives back what earlier tests used


# ---- PyTorch's tensors that are no plain memory ---------------------------------------------------------------------------


def negative(tensor):
    """The same numbers as a lazy view, whose memory has them with the other sign."""
    view = torch._neg_view(-tensor)
    assert view.is_neg()
    assert torch.equal(view.resolve_neg(), tensor)
    return view


NO_MEMORY = {"meta": lambda x: x.to("meta"), "sparse": lambda x: x.to_sparse(),
             "zeros": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
             "mapped": lambda x: torch._C._functorch._add_batch_dim(x[None], 0, 1),
             "fake": lambda x: torch._subclasses.FakeTensorMode().from_tensor(x)}


@pytest.mark.skipif(torch is None, reason="no PyTorch")
@pytest.mark.parametrize(("call", "name"), ARGUMENTS)
def test_tensors_without_plain_memory(call, name):
    array = CALLS[call][1][name]
    tensor = torch.from_numpy(array.copy())
    for what, change in NO_MEMORY.items():
        check_refusal(call, name, what, attempt(call, name, change(tensor), torch.from_numpy)[0])
    if tensor.dtype == torch.bool:
        return
    error, result = attempt(call, name, negative(tensor), torch.from_numpy)
    if name in OUTPUTS and call != "merge":
        check_refusal(call, name, "negative", error)
        return
    assert error is None, error
    for a, b in zip(result, attempt(call, name, array)[1]):
        assert np.array_equal(a, b)
