# SPDX-License-Identifier: MIT
"""A pytest plugin in which FlashAttention's own tests run against libattn.torch, on the CPU.

`flash_attn` becomes a package whose functions are libattn's; its helpers without CUDA (padding, rotary embeddings in
PyTorch's operations) come from the checkout that ATTN_FLASH_ATTENTION names. Whatever asks for the device "cuda" gets the
CPU.
"""

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


def not_here(name):
    def call(*_args, **_options):
        pytest.skip(f"libattn has no {name}")
    return call


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
    lacking = {name: not_here(name) for name in ("flash_attn_kvpacked_func", "flash_attn_qkvpacked_func",
                                                 "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func")}
    module("flash_attn", __path__=[str(package)], **lacking,
           **{name: in_its_words(getattr(ours, name))
              for name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache")})
    module("flash_attn.flash_attn_interface", _get_block_size_n=not_here("block sizes"), USE_TRITON_ROCM=False,
           _flash_attn_varlen_forward=in_its_words(varlen_forward), flash_attn_gpu=None)
    module("flash_attn.ops", __path__=[])
    module("flash_attn.ops.triton", __path__=[])
    module("flash_attn.ops.triton.rotary", apply_rotary=apply_rotary)
    torch.cuda.get_device_capability = lambda *_: (8, 0)
    OnCpu().__enter__()
