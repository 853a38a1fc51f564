# SPDX-License-Identifier: MIT
"""libattn.sdpa with window_first, keys and shared_prefix: against masks of the same meaning, and refusals."""

import unittest

import numpy as np

import libattn


def tensors(batch=2, heads=4, queries=9, keys=70, dim=32):
    r = np.random.default_rng(7)
    return [r.standard_normal((batch, h, n, dim), dtype=np.float32)
            for h, n in ((heads, queries), (heads // 2, keys), (heads // 2, keys))]


def near(got, right):
    np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-6)


class Pieces(unittest.TestCase):
    def test_first_keys_stay_beside_a_window(self):
        q, k, v = tensors()
        position, j = np.arange(9)[:, None] + 61, np.arange(70)
        mask = (j <= position) & ((j >= position - 12) | (j < 5))
        right = libattn.sdpa(q, k, v, mask=mask)
        near(libattn.sdpa(q, k, v, causal=True, align="bottom_right", window=(12, None), window_first=5), right)

    def test_pieces_merge(self):
        q, k, v = tensors()
        options = {"causal": True, "align": "bottom_right", "return_lse": True}
        right, lse = libattn.sdpa(q, k, v, **options)
        parts = [libattn.sdpa(q, k, v, keys=keys, **options) for keys in ((None, 20), (20, 33), (33, None))]
        total = np.logaddexp.reduce([part[1] for part in parts])
        near(sum(o * np.exp(part - total)[..., None] for o, part in parts), right)
        near(total, lse)

    def test_prefixes_are_shared(self):
        q, k, v = tensors(batch=5)
        k[:, :, :48], v[:, :, :48] = k[:1, :, :48], v[:1, :, :48]
        options = {"causal": True, "align": "bottom_right", "kv_len": [70, 57, 60, 66, 69]}
        near(libattn.sdpa(q, k, v, shared_prefix=48, **options), libattn.sdpa(q, k, v, **options))
        with self.assertRaisesRegex(ValueError, "every query must see all of the prefix"):
            libattn.sdpa(q, k, v, shared_prefix=52, **options)

    def test_refusals(self):
        q, k, v = tensors()
        with self.assertRaisesRegex(ValueError, r"keys must be \(begin, end\)"):
            libattn.sdpa(q, k, v, keys=3)
        with self.assertRaisesRegex(ValueError, "window_first"):
            libattn.sdpa(q, k, v, window_first=-1)
        with self.assertRaisesRegex(ValueError, "shared_prefix is 71"):
            libattn.sdpa(q, k, v, shared_prefix=71)


if __name__ == "__main__":
    unittest.main()
