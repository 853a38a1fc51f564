# SPDX-License-Identifier: MIT
"""A pytest plugin in which FlashAttention's own tests run against libattn.torch, on the CPU.

`flash_attn` becomes a package whose functions are libattn's; its helpers without CUDA (padding, rotary embeddings in
PyTorch's operations) come from the checkout that ATTN_FLASH_ATTENTION names. Whatever asks for the device "cuda" gets the
CPU.
"""

import inspect
import os
import sys
import types
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

import libattn
import libattn.torch as ours


class OnCpu(TorchFunctionMode):
    """device="cuda" means the CPU."""

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def in_its_words(function):
    """FlashAttention's refusals are RuntimeError, libattn's ValueError; what libattn lacks is a skip with its sentence."""
    def call(*args, **options):
        try:
            return function(*args, **options)
        except (libattn.Unsupported, NotImplementedError) as error:
            pytest.skip(f"libattn: {error}")
        except ValueError as error:
            raise RuntimeError(str(error)) from error
    return call


def with_weights(function):
    """With dropout FlashAttention gives weights without their denominators, negative where they are dropped."""
    names = inspect.signature(function)

    def call(*args, **options):
        given = names.bind(*args, **options)
        given.apply_defaults()
        given = given.arguments
        state = torch.get_rng_state()
        seed = torch.randint(2**63 - 1, ())
        torch.set_rng_state(state)
        result = function(*args, **options)
        weighted = given["return_attn_probs"] and given["dropout_p"]
        return (*result[:2], weights(seed, **given)) if weighted else result
    return call


def weights(seed, q, k, v, dropout_p, causal, window_size, alibi_slopes, softmax_scale, softcap, cu_seqlens_q=None,
            cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None, **_):
    batch = len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1
    sizes = [n or x.shape[1] for n, x in ((max_seqlen_q, q), (max_seqlen_k, k))]
    found = torch.zeros(batch, q.shape[-2], *(-(-n // 128) * 128 for n in sizes))
    kept = torch.ops.libattn.dropout_mask(seed, 0, dropout_p, (batch, q.shape[-2], *sizes))
    each = alibi_slopes is not None and alibi_slopes.ndim == 2 and not (alibi_slopes == alibi_slopes[:1]).all()
    for b in range(batch):
        rows = [x[b:b + 1] if cu is None else x[None, cu[b]:cu[b + 1]] for x, cu in ((q, cu_seqlens_q), (k, cu_seqlens_k))]
        o = {**ours._USUAL, **ours._flash_options(0.0, softmax_scale, causal, window_size, softcap)}
        if alibi_slopes is not None:
            o["alibi"] = alibi_slopes[b] if alibi_slopes.ndim == 2 else alibi_slopes
        queries, keys = (x.detach().float().transpose(1, 2) for x in rows)
        scores = ours._scores(queries, keys.repeat_interleave(q.shape[-2] // k.shape[-2], 1), o)[0]
        scores = (scores - scores.amax(-1, keepdim=True).nan_to_num(neginf=0)).exp()
        mask = torch.ops.libattn.dropout_mask(seed, b, dropout_p, (1, *kept.shape[1:]))[0] if each else kept[b]
        signs = mask[:, :scores.shape[1], :scores.shape[2]] * 2.0 - 1
        found[b, :, :scores.shape[1], :scores.shape[2]] = scores * signs
    return found


def varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                   window_size_left=-1, window_size_right=-1, block_table=None, seqused_k=None, num_splits=0):
    """The binding below flash_attn_varlen_func: (out, lse). seqused_k says the lengths."""
    if num_splits > 1:
        raise RuntimeError(f"num_splits is {num_splits}; num_splits > 1 is not supported")
    lengths = torch.nn.functional.pad(seqused_k.cumsum(0), (1, 0)).to(torch.int32)
    return ours.flash_attn_varlen_func(q, k, v, cu_seqlens_q, lengths, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale,
                                       causal, (window_size_left, window_size_right), return_attn_probs=True,
                                       block_table=block_table)[:2]


def apply_rotary(x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False,
                 conjugate=False):
    """FlashAttention's kernel in Triton, by its own reference in PyTorch's operations, sequence by sequence."""
    from flash_attn.layers.rotary import apply_rotary_emb_torch

    assert cu_seqlens is None
    assert not conjugate
    offsets = seqlen_offsets.tolist() if isinstance(seqlen_offsets, torch.Tensor) else [seqlen_offsets] * len(x)
    turned = [apply_rotary_emb_torch(x[b:b + 1].float(), cos[at:at + x.shape[1]].float(), sin[at:at + x.shape[1]].float(),
                                     interleaved) for b, at in enumerate(offsets)]
    turned = torch.cat(turned).to(x.dtype)
    return x.copy_(turned) if inplace else turned


def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    sys.modules[name] = made
    return made


def pytest_configure(config):
    package = Path(os.environ["ATTN_FLASH_ATTENTION"]) / "flash_attn"
    for name in ("flash_attn_func", "flash_attn_varlen_func"):  # the packed kinds call them
        setattr(ours, name, with_weights(getattr(ours, name)))
    module("flash_attn", __path__=[str(package)],
           **{name: in_its_words(getattr(ours, name)) for name in ours.__all__ if name.startswith("flash_attn")})
    module("flash_attn.flash_attn_interface", _get_block_size_n=lambda *_: 1 << 20, USE_TRITON_ROCM=True,
           _flash_attn_varlen_forward=in_its_words(varlen_forward), flash_attn_gpu=None)
    module("flash_attn.ops", __path__=[])
    module("flash_attn.ops.triton", __path__=[])
    module("flash_attn.ops.triton.rotary", apply_rotary=apply_rotary)
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(total_memory=1 << 30)  # leaves the largest out
    OnCpu().__enter__()
