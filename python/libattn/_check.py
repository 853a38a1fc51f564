# SPDX-License-Identifier: MIT
"""The self-check: every kernel that this CPU can run against attnbench's float64 oracle, within the derived error limits.

It needs no array library. harness/check computes the expected rows; docs/numerics.md derives the limits.
"""

from __future__ import annotations

import array
import ctypes
import random
import struct
import time

from ._native import C, F, S, bench_library, check
from ._plan import kernels

# batch, heads_q, heads_kv, seq_q, seq_k, head_dim; dtype of K and V, and if it is no integer of Q and O, else float32;
# alignment of a causal mask, or None
CASES = [((1, 2, 1, 37, 45, 64), "ATTN_F32", "ATTN_ALIGN_BOTTOM_RIGHT"), ((1, 1, 1, 70, 70, 40), "ATTN_F32", None),
         ((1, 2, 1, 33, 64, 64), "ATTN_BF16", "ATTN_ALIGN_TOP_LEFT"), ((1, 1, 1, 20, 33, 32), "ATTN_F16", None),
         ((2, 4, 2, 1, 130, 64), "ATTN_F32", None), ((1, 4, 2, 2, 90, 64), "ATTN_BF16", "ATTN_ALIGN_BOTTOM_RIGHT"),
         ((1, 8, 2, 1, 130, 64), "ATTN_I8", None)]


def _draw_case(generator):
    """A small case of any shape."""
    heads_kv, seq_q = generator.randint(1, 2), generator.choice([generator.randint(1, 4), generator.randint(5, 80)])
    sizes = (generator.randint(1, 2), heads_kv * generator.randint(1, 4), heads_kv, seq_q, generator.randint(1, 150),
             generator.choice([32, 64, 128, generator.randint(1, 128)]))
    return (sizes, generator.choice(["ATTN_F32", "ATTN_F16", "ATTN_BF16", "ATTN_I8"]),
            generator.choice([None, "ATTN_ALIGN_TOP_LEFT", "ATTN_ALIGN_BOTTOM_RIGHT"]))


def _cases(seconds):
    """CASES, then others until the time is up."""
    yield from CASES
    end, generator = time.monotonic() + seconds, random.Random(0)
    while time.monotonic() < end:
        yield _draw_case(generator)


def _draw(generator, count, dtype):
    """Dense numbers as the memory of an array of the dtype."""
    if dtype == "ATTN_I8":
        integers = (round(generator.gauss(0, 3)) for _ in range(count))
        return bytearray(array.array("b", (max(-127, min(127, x)) for x in integers)).tobytes())
    values = array.array("f", [generator.gauss(0, 1) for _ in range(count)])
    if dtype == "ATTN_F16":
        return bytearray(struct.pack(f"{count}e", *values))
    raw = bytearray(values.tobytes())
    if dtype == "ATTN_BF16":  # the upper half of each float32, little-endian
        halves = bytearray(2 * count)
        halves[0::2], halves[1::2] = raw[2::4], raw[3::4]
        return halves
    return raw


def _address(memory):
    return ctypes.addressof((ctypes.c_char * len(memory)).from_buffer(memory)) if memory else None


class _Case:
    def __init__(self, number, sizes, dtype, align):
        self.name = f"{'x'.join(map(str, sizes))} {dtype}{', ' + align if align else ''}"
        self.sizes, self.dtype_kv = sizes, dtype
        self.dtype = "ATTN_F32" if dtype == "ATTN_I8" else dtype
        self.align = getattr(C, align) if align else -1
        b, hq, hkv, sq, sk, d = self.sizes
        generator = random.Random(number)
        counts = (b * hq * sq * d, b * hkv * sk * d, b * hkv * sk * d)
        types = (self.dtype, self.dtype_kv, self.dtype_kv)
        self.inputs = [_draw(generator, count, which) for count, which in zip(counts, types)]
        self.o = bytearray(len(self.inputs[0]))
        self.lse = bytearray(4 * b * hq * sq)
        self.expected = bench_library().attnbench_expected_create(ctypes.byref(S.attnbench_problem(
            sizes=(*self.sizes, d), dtype=getattr(C, self.dtype), dtype_kv=getattr(C, self.dtype_kv), align=self.align,
            with_lse=1, seed=1, **dict(zip("qkv", map(_address, self.inputs))))))

    def problem(self):
        problem = S.attn_problem()
        b, hq, hkv, sq, sk, d = self.sizes
        F.attn_problem_init(ctypes.byref(problem), b, hq, hkv, sq, sk, d, d)
        problem.dtype_q = problem.dtype_o = getattr(C, self.dtype)
        problem.dtype_kv = getattr(C, self.dtype_kv)
        problem.uses |= C.ATTN_USE_LSE
        if self.align >= 0:
            F.attn_problem_set_causal(ctypes.byref(problem), self.align)
        return problem

    def run(self, plan):
        bytes_needed = F.attn_plan_workspace(plan)
        memory = bytearray(bytes_needed + 64)
        aligned = -(-_address(memory) // 64) * 64
        args = S.attn_args(o=_address(self.o), lse=_address(self.lse), **dict(zip("qkv", map(_address, self.inputs))))
        check(F.attn_plan_run(plan, ctypes.byref(args), aligned, bytes_needed))

    def error(self, kernel):
        """Largest error over its limit: 1 and less passes."""
        narrowing = 0.0 if self.dtype_kv == "ATTN_F32" else kernel.p_rounding
        arithmetic = (ctypes.c_double * 6)(kernel.exp_error, narrowing, kernel.input_flush, kernel.input_rounding,
                                           kernel.query_rounding, 0)
        absolute, where = ctypes.c_double(), (ctypes.c_int64 * 5)()
        return bench_library().attnbench_compare(self.expected, _address(self.o), _address(self.lse), arithmetic,
                                                 ctypes.byref(absolute), where)


def _check_kernel(case, kernel):
    """None if the kernel does not take the case."""
    plan = ctypes.c_void_p()
    problem, options = case.problem(), S.attn_options(kernel=kernel.name.encode(), threads=1)
    if F.attn_kernel_rejects(F.attn_kernel_find(kernel.name.encode()), ctypes.byref(problem)):
        return None
    check(F.attn_plan_create(ctypes.byref(problem), ctypes.byref(options), ctypes.byref(plan)))
    try:
        case.run(plan)
    finally:
        F.attn_plan_destroy(plan)
    return case.error(kernel)


def self_check(seconds=5.0):
    """{kernel: (cases checked, largest error over limit, the case that has it)} of the kernels that this CPU can run."""
    usable = [kernel for kernel in kernels() if kernel.unusable is None]
    results = {kernel.name: [] for kernel in usable}
    for number, wanted in enumerate(_cases(seconds)):
        case = _Case(number, *wanted)
        for kernel in usable:
            error = _check_kernel(case, kernel)
            if error is not None:
                results[kernel.name].append((error, case.name))
        bench_library().attnbench_expected_destroy(case.expected)
    return {name: (len(errors), *max(errors, default=(0.0, ""))) for name, errors in results.items()}
