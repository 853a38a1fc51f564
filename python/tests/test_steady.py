# SPDX-License-Identifier: MIT
"""steady=: rows of a prompt have the same bits in one call and in calls of any number of queries."""

import libattn
import numpy as np
import pytest


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_chunks_have_the_bits_of_one_call(dtype):
    r = np.random.default_rng(3)
    q = r.standard_normal((1, 4, 200, 64)).astype(dtype)
    k, v = (r.standard_normal((1, 2, 200, 64)).astype(dtype) for _ in range(2))
    whole = libattn.sdpa(q, k, v, causal=True, steady=True)
    for chunk in (1, 7, 64):
        for first in range(0, 200, chunk):
            end = min(first + chunk, 200)
            part = libattn.sdpa(q[:, :, first:end], k[:, :, :end], v[:, :, :end], causal=True, align="bottom_right",
                                steady=True)
            assert np.array_equal(part, whole[:, :, first:end]), (chunk, first)


def test_kernels_that_promise_nothing_are_refused():
    q = np.ones((1, 1, 1, 64), dtype=np.float32)
    with pytest.raises(libattn.Unsupported, match="steady"):
        libattn.sdpa(q, q, q, kernel="decode_c", steady=True)
    libattn.sdpa(q, q, q, kernel="flash_c", steady=True)
