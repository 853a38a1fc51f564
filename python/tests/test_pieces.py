# SPDX-License-Identifier: MIT
"""libattn.sdpa with window_first, keys and shared_prefix: against masks of the same meaning, and refusals."""

import itertools
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


def pieces_of(kernel, q, k, v, borders, state=None):
    """Attention over the keys piece by piece; all but the last leave the state alone."""
    queries, keys = q.shape[2], k.shape[2]
    state = libattn.new_state(q, v) if state is None else state
    for first, end in itertools.pairwise([0, *borders, keys]):
        out = libattn.sdpa(q, k[:, :, first:end], v[:, :, first:end], causal=True, align=keys - queries - first,
                           kernel=kernel, state=state, out=None if end == keys else False, return_lse=True)
        assert (out is None) == (end != keys)
    return out


def kernels_of_pieces(q, k, v):
    return [kernel.name for kernel in libattn.kernels()
            if not libattn.why_not(kernel.name, q, k, v, state=libattn.new_state(q, v))]


class State(unittest.TestCase):
    def test_pieces_have_the_bits_of_one_call(self):
        q, k, v = tensors(keys=700)
        options = {"causal": True, "align": "bottom_right", "return_lse": True}
        names = kernels_of_pieces(q, k, v)
        self.assertIn("flash_c", names)
        self.assertIn("decode_c", names)
        for name in names:
            step = libattn.Plan(q, k, v, state=libattn.new_state(q, v), kernel=name).piece_keys
            self.assertGreater(step, 0)
            right = libattn.sdpa(q, k, v, kernel=name, **options)
            for borders in (range(step, 700, step), [700 // step * step]):
                for got, wanted in zip(pieces_of(name, q, k, v, borders), right):
                    np.testing.assert_array_equal(got, wanted, err_msg=name)
        self.assertEqual(libattn.Plan(q, k, v).piece_keys, 0)

    def test_states_start_anew_and_have_any_strides(self):
        q, k, v = tensors()
        right = pieces_of("flash_c", q, k, v, [64])
        wide = np.full((2, 9, 4, 64), np.nan, np.float32)
        state = wide.transpose(0, 2, 1, 3)[..., :50]  # the heads of a query side by side, with gaps
        for _ in range(2):
            state[..., -2] = -np.inf
            for got, wanted in zip(pieces_of("flash_c", q, k, v, [64], state), right):
                np.testing.assert_array_equal(got, wanted)
        self.assertTrue(np.isnan(wide[..., 50:]).all())

    def test_layouts(self):
        """The same rows of q in each layout: one state for each query and head."""
        q, k, v = tensors()
        options = {"kernel": "flash_c", "align": 61, "causal": True}
        right = libattn.sdpa(q, k, v, **options)
        by_token = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
        packed = [x.reshape(-1, *x.shape[2:]) for x in by_token]
        borders = {"cu_seqlens_q": [0, 9, 18], "cu_seqlens_k": [0, 70, 140]}
        for layout, arrays, more in (("bshd", by_token, {}), ("thd", packed, borders)):
            state = libattn.new_state(arrays[0], arrays[2], layout=layout)
            out = libattn.sdpa(*arrays, layout=layout, state=state, **options, **more)
            np.testing.assert_array_equal(out.reshape(2, 9, 4, 32).transpose(0, 2, 1, 3), right)
        for rows in (1, 2):  # without batch and heads
            one = [x[0] if rows == 2 else x[0, 0] for x in (q, k, v)]
            state = libattn.new_state(one[0], one[2])
            self.assertEqual(state.shape, (*one[0].shape[:-1], 50))
            out = libattn.sdpa(*one, state=state, **options)
            np.testing.assert_array_equal(out, right[0] if rows == 2 else right[0, 0])

    def test_plans_go_on(self):
        q, k, v = tensors()
        state = libattn.new_state(q, v)
        options = {"state": libattn.Spec(state.shape), "kernel": "flash_c"}
        half = libattn.Plan(q, k[:, :, :64], v[:, :, :64], kv_len=[64, 64], **options)
        self.assertIsNone(half.run(q, k[:, :, :64], v[:, :, :64], state=state, kv_len=[64, 64], out=False))
        rest = [np.zeros_like(x[:, :, :64]) for x in (k, v)]
        for x, whole in zip(rest, (k, v)):
            x[:, :, :6] = whole[:, :, 64:]
        with self.assertRaisesRegex(ValueError, "state has other strides"):
            half.run(q, k[:, :, :64], v[:, :, :64], state=np.zeros((2, 4, 9, 60), np.float32)[..., :50], kv_len=[6, 6])
        dense = libattn.Plan(q, *rest, kv_len=[6, 6], **options)
        whole = libattn.sdpa(q, k, v, kernel="flash_c")
        np.testing.assert_array_equal(dense.run(q, *rest, state=state, kv_len=[6, 6]), whole)

    def test_refusals(self):
        q, k, v = tensors()
        state = libattn.new_state(q, v)
        frozen = state.copy()
        frozen.flags.writeable = False
        unstarted = np.zeros_like(state)
        for kind, sentence, wrong in (
                (ValueError, r"state has shape \(2, 4, 9, 49\); it must have \(2, 4, 9, 50\)", {"state": state[..., 1:]}),
                (ValueError, r"state has shape \(4, 9, 50\)", {"state": state[0]}),
                (TypeError, "state is float64; it must be float32", {"state": state.astype(np.float64)}),
                (ValueError, "state has stride 2 in its last dimension; it must be 1",
                 {"state": np.zeros((2, 4, 9, 100), np.float32)[..., ::2]}),
                (ValueError, "state is read-only", {"state": frozen}),
                (ValueError, "state has reference 0 and sum 0", {"state": unstarted}),
                (ValueError, "BOTTOM_RIGHT; pieces of keys need ATTN_ALIGN_OFFSET", {"align": "bottom_right"}),
                (libattn.Unsupported, "state|pieces", {"kernel": "naive_c"}),
                (ValueError, "out is False without state", {"state": None, "out": False})):
            with self.assertRaisesRegex(kind, sentence):
                libattn.sdpa(q, k, v, **{"state": state, **wrong})
        with self.assertRaisesRegex(ValueError, "layout is 'sbhd'; it must be one of 'bhsd'"):
            libattn.new_state(q, v, layout="sbhd")
        np.testing.assert_array_equal(state[..., -2], -np.inf)


if __name__ == "__main__":
    unittest.main()
