# SPDX-License-Identifier: MIT
"""A pytest plugin in which vLLM's own tests of CPU attention run against libattn: vllm's operators of the paged cache, by
libattn.vllm.pages, and the few names that the tests import beside them. No part of vLLM is needed."""

import enum
import importlib.abc
import importlib.machinery
import platform
import random
import sys

import pytest
import torch

import libattn
from libattn.vllm.pages import Writer, layer_options, step_calls, typed


def cpu_attn_get_scheduler_metadata(**_options):
    """libattn plans by itself."""


def cpu_attn_reshape_and_cache(key, value, key_cache, value_cache, slot_mapping, isa, k_scale=1.0, v_scale=1.0,
                               kv_cache_dtype="auto"):
    """Token i of key and value [tokens, kv_heads, dim] goes to slot slot_mapping[i] of the caches [pages, kv_heads,
    page_tokens, dim]. The layout is plain: libattn writes and reads pages where they lie, with any strides."""
    caches = (typed(cache, kv_cache_dtype) for cache in (key_cache, value_cache))
    Writer(*caches, key.dtype, k_scale, v_scale).write(key, value, slot_mapping)


def cpu_attention_with_kv_cache(query, key_cache, value_cache, output, query_start_loc, seq_lens, scale, causal,
                                alibi_slopes, sliding_window, block_table, softcap, scheduler_metadata, s_aux,
                                dynamic_causal=None, k_scale=1.0, v_scale=1.0, kv_cache_dtype="auto"):
    """Writes `output` [tokens, heads, dim]."""
    keys, values = typed(key_cache, kv_cache_dtype), typed(value_cache, kv_cache_dtype)
    if sliding_window not in (-1, (-1, -1)):
        keys, values, block_table = give_pages(keys, values, block_table)
    layer = layer_options(scale=scale, alibi_slopes=alibi_slopes, sliding_window=sliding_window, softcap=softcap,
                          sinks=s_aux, k_scale=k_scale, v_scale=v_scale)
    for call in step_calls(query_start_loc, seq_lens, block_table, causal if dynamic_causal is None else dynamic_causal):
        libattn.sdpa(query, keys, values, out=output, **call, **layer)


def give_pages(key_cache, value_cache, block_table):
    """A page of its own for every entry, where a sequence names one twice. The tests draw tables so; libattn takes a page
    that comes again within a window for a ring, and refuses one that is shorter than the keys that are seen."""
    if all(len(set(row)) == len(row) for row in block_table.tolist()):
        return key_cache, value_cache, block_table
    pages = block_table.flatten().long().clamp(max=len(key_cache) - 1)  # entries behind a length may name no page
    return key_cache[pages], value_cache[pages], torch.arange(len(pages), dtype=torch.int32).view_as(block_table)


class CpuArchEnum(enum.Enum):
    X86, ARM, RISCV, OTHER = range(4)


class Platform:
    @staticmethod
    def is_cpu():
        return True

    @staticmethod
    def is_zen_cpu():
        return False  # asks for AMD's plug-in of PyTorch, which vLLM calls there

    @staticmethod
    def get_cpu_architecture():
        return {"x86_64": CpuArchEnum.X86, "aarch64": CpuArchEnum.ARM,
                "riscv64": CpuArchEnum.RISCV}.get(platform.machine(), CpuArchEnum.OTHER)


def set_random_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


class Absent:
    """A name of vLLM that libattn has no counterpart of: it can be named in marks and parameters, and skips where called."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *_args, **_options):
        pytest.skip(f"libattn has no {self.name}")


class Vllm(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of vllm: MEMBERS, and Absent for the rest."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "vllm" else None

    def exec_module(self, made):
        vars(made).update(MEMBERS.get(made.__name__, {}))
        made.__getattr__ = Absent(made.__name__).__getattr__


OPERATORS = cpu_attention_with_kv_cache, cpu_attn_get_scheduler_metadata, cpu_attn_reshape_and_cache
MEMBERS = {"vllm._custom_ops": {function.__name__: function for function in OPERATORS},
           "vllm.platforms": {"CpuArchEnum": CpuArchEnum, "current_platform": Platform()},
           "vllm.utils.torch_utils": {"set_random_seed": set_random_seed},
           "vllm.v1.attention.backends.cpu_attn": {"_get_attn_isa": lambda *_: "vec"}}  # unused: libattn chooses itself


def pytest_configure(config):
    sys.meta_path.insert(0, Vllm())
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("cpu_attn_has_isa(str isa) -> bool")
    library.impl("cpu_attn_has_isa", lambda isa: False, "CompositeExplicitAutograd")
    config.libattn_upstream = library  # lives as long as the tests


def pytest_runtest_teardown(item):
    """The tests keep the random tensors of every case, gigabytes in all."""
    getattr(item.module.tensor_cache, "cache_clear", lambda: None)()
