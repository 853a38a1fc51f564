# SPDX-License-Identifier: MIT
"""sdpa(): its signature and documentation. The function itself is built in (python/native). sdpa_grad(): its gradients."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from . import _native
from ._key_blocks import KeyBlocks

if TYPE_CHECKING:
    Array = Any  # anything with DLPack, __array_struct__ or the buffer protocol
    Numbers = Array | Sequence[float]
    Integers = Array | Sequence[int]


def sdpa(q: Array | None, k: Array | None, v: Array, *, mask: Array | None = None, bias: Array | None = None,
         causal: bool = False, align: str | int | Array = "top_left",
         window: int | tuple[int | None, int | None] | None = None, window_first: int | None = None,
         keys: tuple[int | None, int | None] | None = None, mask_keys: int | None = None,
         shared_prefix: int | None = None,
         scale: float | None = None, softcap: float = 0, dropout: float = 0, seed: int | None = None, offset: int = 0,
         alibi: Numbers | None = None, sinks: Numbers | None = None, kv_len: Integers | None = None,
         q_len: Integers | None = None, row_len: Integers | None = None, cu_seqlens_q: Integers | None = None,
         cu_seqlens_k: Integers | None = None, page_table: Array | None = None, max_seqlen_q: int | None = None,
         max_seqlen_k: int | None = None, offsets: Integers | None = None, scores: Array | None = None,
         score_weight: Array | None = None, k_scale: float | Array | None = None, v_scale: float | Array | None = None,
         key_blocks: KeyBlocks | None = None, score: str = "dot", layout: str | None = None, kernel: str | None = None,
         max_isa: str | None = None, threads: int | None = None, steady: bool = False, out_dtype: str = "same",
         kv_format: str | None = None,
         return_lse: bool = False, state: Array | None = None, out: Array | bool | None = None,
         lse: Array | None = None) -> Any:
    """Scaled dot-product attention: softmax(scale q k^T + ...) v for each head, without a copy of any input.

    Arrays may be of NumPy, PyTorch (CPU), JAX, or anything else with DLPack or the buffer protocol, with any strides. The
    result is a new tensor of PyTorch where q is one, else a NumPy array.

    q: [batch, heads, queries, dim], k and v: [batch, kv_heads, keys, dim]; batch may be missing, or batch and heads.
        float32, float16 or bfloat16 (of PyTorch or ml_dtypes). k and v have one dtype; q has the same or float32. k and v
        may also be float8_e4m3fn, float8_e5m2 or int8, beside any q. heads is a multiple of kv_heads (grouped queries). The
        dim of v may differ.
    kv_format: "q8_0" or "q4_0": k and v are blocks as ggml lays them out, uint8 [batch, kv_heads, keys, blocks, 34 or 18],
        as libattn.q8_0() and q4_0() make them and llama.cpp keeps them. 32 values are a block; dim is that of q, also where
        it is no multiple of 32, and the dim of v is that of q if v has as many blocks as k, else 32 times its blocks.
    k_scale, v_scale: factors of keys and values as they are stored: a float, or float32 that broadcasts to [batch, kv_heads,
        keys], with page_table to [pages, kv_heads, page_tokens]; or one of each channel, [batch, kv_heads, 1, dim], the same
        for all keys (1 in place of batch with page_table or cu_seqlens_k).
    mask: bool; a key is allowed where it is true. bias: float32, added to the scores; -inf masks. Both broadcast to
        [batch, heads, queries, keys] as NumPy broadcasts.
    mask_keys: n, with a mask of the newest n keys of each sequence alone, [batch, heads, queries, n]: that of a tree of
        speculative tokens. Earlier keys are allowed.
    key_blocks: the blocks of keys that each block of queries visits: a KeyBlocks, or PyTorch's BlockMask. Other keys are
        masked, and no time is spent on them. mask does not count in full blocks. A BlockMask's mask_mod is not called:
        what it says in partial blocks has to be said by mask, causal or window.
    causal: each query sees the keys up to its own position. align: where query 0 stands among the keys: "top_left" at key 0;
        "bottom_right" so that the last query meets the last key; a number or one per sequence (also as `offsets`): at that
        key, as with a KV cache.
    window: (left, right), the keys that a query sees on each side of its position, None = all; a number means both sides.
    window_first: first keys that a query sees beside its window (attention sinks, Xiao et al. 2024). keys: (begin, end), a
        piece of the keys; the others are masked. shared_prefix: first keys and values that are the same for all sequences,
        with page_table the same pages; every query sees them all, and they are read once for the queries of all.
    scale: of the dot products, default 1/sqrt(dim). softcap: c > 0 turns a score s into c tanh(s / c).
    alibi: a slope for each head: minus slope times distance (Press et al. 2022). sinks: a logit for each head that joins
        the denominator (Xiao et al. 2024).
    dropout: the probability, below 1, with which a weight is dropped, as in training (Vaswani et al. 2017, section 5.4); the
        others are divided by 1 - dropout. seed says which, offset too: integers of 64 bits. dropout_mask() shows them.
    kv_len, q_len: keys and queries that each sequence really has, [batch]. row_len: keys of each query, [batch, queries].
    cu_seqlens_q, cu_seqlens_k: packed sequences: q is [tokens, heads, dim], and sequence i has the tokens from cu_seqlens[i]
        to cu_seqlens[i + 1] - 1. Tokens of none have 0, or what `out` holds. max_seqlen_q and max_seqlen_k spare the search
        for the longest one.
    page_table: keys and values in pages: k and v are [pages, kv_heads, page_tokens, dim] whatever the layout, page_tokens a
        multiple of 16 up to 1024, and key j of sequence b is token j % page_tokens of page page_table[b, j // page_tokens].
        int32 or int64 [batch, columns]; columns behind a length may hold anything. Needs kv_len; packed queries have
        cu_seqlens_q alone.
    score: "dot", "additive" (sum of score_weight tanh(q + k), Bahdanau et al. 2015), "gaussian" (-1/2 |score_weight (q -
        k)|^2, Nadaraya-Watson regression), or "precomputed" (`scores` [batch, heads, queries, keys] in place of q and k,
        which are None: Synthesizer, Tay et al. 2021).
    layout: "bhsd" (the default), "bshd", or with cu_seqlens "thd" (the default there) or "htd"; of q, k, v and out.
    kernel: a name of kernels(); None = the environment variable ATTN_KERNEL, else the library's choice. max_isa: the highest
        tier to use, such as "avx2". threads: None = as many as the process uses otherwise, or as few as pay for so small a
        call. steady: a row has the same bits however a prompt is cut into calls; single rows take longer.
    out_dtype: "same" as q, or "float32". out: where the result goes. return_lse: return (out, lse), the logarithm of the sum
        of exp(scores) of each row, float32 [batch, heads, queries]. lse: where it goes.
    state: keys come in pieces, in their order, and rows go on from what they have seen: read and written, float32 as
        new_state() makes it. The result is attention over all keys so far; with out=False it is not computed, and None is
        returned. Positions, as in align, count from the piece's first key. Pieces that begin at multiples of
        Plan.piece_keys give the bits of one call with the same kernel.

    A row that sees no key is 0, and its lse is -inf. Calls of one shape share a plan that is made at the first one and kept;
    Plan holds one of your own. The GIL is released while the kernel runs.

    Raises ValueError or TypeError for arguments that do not fit, Unsupported where no kernel takes the problem, MemoryError.
    The sentence names the argument, its value and what would be right.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, eq. 1; every option is defined in docs/semantics.md.
    """
    raise NotImplementedError  # replaced by the built-in function


def _documentation():
    """The text from which Python shows signature and documentation of a built-in function."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(sdpa).parameters.values()]
    return f"sdpa{inspect.Signature(parameters)}\n--\n\n{inspect.getdoc(sdpa)}"


SIGNATURE = inspect.signature(sdpa)
FUNCTIONS = _native.load_functions(_documentation())
sdpa = FUNCTIONS["sdpa"]


class Gradients(NamedTuple):
    """The result of sdpa_grad(); None where a gradient is not wanted."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any
    dsinks: Any
    dalibi_slopes: Any
    dscores: Any
    dscore_weight: Any


def sdpa_grad(do: Array, q: Array | None, k: Array | None, v: Array, out: Array, lse: Array, *, d_lse: Array | None = None,
              dq: Array | bool | None = None, dk: Array | bool | None = None, dv: Array | bool | None = None,
              dbias: Array | bool | None = None, dsinks: Array | bool | None = None,
              dalibi_slopes: Array | bool | None = None, dscores: Array | bool | None = None,
              dscore_weight: Array | bool | None = None, accumulate: bool = False, **options: Any) -> Gradients:
    """The gradients of a loss by the arguments of sdpa(), from its gradient `do` by out.

        out, lse = libattn.sdpa(q, k, v, causal=True, return_lse=True)
        dq, dk, dv, *_ = libattn.sdpa_grad(do, q, k, v, out, lse, causal=True)

    options: those of sdpa() that out and lse were computed with, but for page_table, state, k_scale, v_scale, kv_format,
        key_blocks, shared_prefix and window_first, which have no gradients; nor have k and v of 8 bits. kernel names one of
        gradients.
    do: as out, in shape and dtype, with any strides. d_lse: the gradient by lse, where the loss depends on it.
    dq, dk, dv: None = a new array of the argument's shape and dtype, False = not wanted, or the array to write to. dscores:
        likewise, in place of dq and dk where score is "precomputed".
    dbias, dsinks, dalibi_slopes, dscore_weight: True = a new float32 array, or the array to write to; None = not wanted. Of
        the shape of bias, summed over what broadcasts, [heads], [heads], and the shape of score_weight.
    accumulate: add to what stands in the arrays, which all have to be given.

    Sums are float32 and rounded once. Rows without keys, and keys that no query sees, have zeros. The scores are computed
    again: memory beside the results grows by the number of tokens, not its square.

    Raises ValueError or TypeError for arguments that do not fit, Unsupported for options without gradients, MemoryError.

    Source: Dao et al. 2022, https://arxiv.org/abs/2205.14135, section B.2; docs/semantics.md.
    """
    return Gradients(*FUNCTIONS["sdpa_grad"](do, q, k, v, out, lse, d_lse=d_lse, dq=dq, dk=dk, dv=dv, dbias=dbias,
                                             dsinks=dsinks, dalibi_slopes=dalibi_slopes, dscores=dscores,
                                             dscore_weight=dscore_weight, accumulate=accumulate, **options))
