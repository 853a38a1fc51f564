# SPDX-License-Identifier: MIT
"""vLLM's CPU_ATTN with attention and cache writes by libattn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.cpu_attn import (CPUAttentionBackend, CPUAttentionBackendImpl, CPUAttentionMetadata,
                                                 CPUAttentionMetadataBuilder)

from .. import Unsupported, __version__
from .._sdpa import FUNCTIONS
from . import setting
from .pages import Writer, layer_options, packed_call, split, step_calls, typed

logger = init_logger("vllm.libattn")
sdpa = FUNCTIONS["sdpa_without_gradients"]


class LibattnBackend(CPUAttentionBackend):
    """Supports the problems of CPU_ATTN, under its name, by which vLLM knows it."""

    @staticmethod
    def get_impl_cls():
        return Layer

    @staticmethod
    def get_builder_cls():
        return Steps


@dataclass
class Step(CPUAttentionMetadata):
    """calls: the options of sdpa() that a step says to all its layers; one call, or one for each sequence."""

    calls: list[dict[str, Any]] = field(default_factory=list)


class Layer(CPUAttentionBackendImpl):
    """Attention of one layer, by vLLM until Steps says otherwise."""

    ours = False

    def prepare(self, layer, dtype):
        """Reads what the layer has once its weights are loaded."""
        self.ours, self.dtype, self.cache = True, dtype, None
        self.encoder = self.attn_type in (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
        self.scales = {"k_scale": layer._k_scale_float, "v_scale": layer._v_scale_float}
        self.options = layer_options(scale=self.scale, alibi_slopes=self.alibi_slopes, sliding_window=self.sliding_window,
                                     softcap=self.logits_soft_cap, sinks=self.sinks, **self.scales)
        if setting() == "steady":
            self.options["steady"] = True

    def bind(self, kv_cache):
        """Prepares calls on the pages of this cache, which is the same one in all steps."""
        if kv_cache is not self.cache:
            self.cache, (self.keys, self.values) = kv_cache, split(typed(kv_cache, self.kv_cache_dtype))
            self.writer = Writer(self.keys, self.values, self.dtype, **self.scales)

    def try_token(self, block_tokens):
        """A sentence that says why libattn cannot compute this layer, or None: one token, which no step sees."""
        query = torch.zeros(1, self.num_heads, self.head_size, dtype=self.dtype)
        new = query[:, :self.num_kv_heads]
        kept = torch.uint8 if self.is_fp8_kv_cache else self.dtype
        cache = torch.zeros(1, self.num_kv_heads, block_tokens, 2 * self.head_size, dtype=kept)
        borders, lengths, table = (torch.tensor(x, dtype=torch.int32) for x in ([0, 1], [1], [[0]]))
        calls = [packed_call(borders, True)] if self.encoder else step_calls(borders, lengths, table, True)
        try:
            self.do_kv_cache_update(None, new, new, cache, torch.zeros(1, dtype=torch.int64))
            self.attend(query, new, new, cache, query.clone(), calls)
        except (TypeError, ValueError, Unsupported) as refusal:
            return str(refusal)
        return None

    def attend(self, query, key, value, kv_cache, output, calls):
        if not self.encoder:
            self.bind(kv_cache)
            key, value = self.keys, self.values
        for call in calls:
            sdpa(query, key, value, out=output, **call, **self.options)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None):
        if not self.ours or attn_metadata is None or output_scale is not None or output_block_scale is not None:
            return super().forward(layer, query, key, value, kv_cache, attn_metadata, output, output_scale,
                                   output_block_scale)
        self.attend(query, key, value, kv_cache, output, attn_metadata.calls)
        return output

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        if not self.ours:
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        elif not self.encoder:
            self.bind(kv_cache)
            self.writer.write(key, value, slot_mapping)


class Steps(CPUAttentionMetadataBuilder):
    """Makes what all layers of a group share in a step. The group has one layout of blocks, so that libattn computes all of
    its layers, or vLLM does."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names)
        for layer in layers.values():
            layer.impl.prepare(layer, self.dtype)
        refusals = ((name, layer.impl.try_token(self.block_size)) for name, layer in layers.items())
        self.ours = (refused := next((pair for pair in refusals if pair[1]), None)) is None
        for layer in layers.values():
            layer.impl.ours = self.ours
        if self.ours:
            logger.info_once("Attention by libattn %s (LIBATTN_VLLM=0: by vLLM).", __version__)
        else:
            logger.warning("Attention of %d layers is vLLM's own, because libattn refuses %s: %s", len(layers), *refused)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        if not self.ours:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        common = common_attn_metadata
        borders, lengths, causal = common.query_start_loc, common.seq_lens, common.causal
        table = common.block_table_tensor[:, :-(-common.max_seq_len // self.block_size)]
        if self.is_encoder_only_attention:
            calls = [packed_call(borders, causal)]
        else:
            calls = step_calls(borders, lengths, table, False if self.is_cross_attention else causal)
        return Step(num_actual_tokens=common.num_actual_tokens, max_query_len=common.max_query_len, query_start_loc=borders,
                    max_seq_len=common.max_seq_len, seq_lens=lengths, block_table=common.block_table_tensor,
                    slot_mapping=common.slot_mapping, scheduler_metadata=None, causal=causal, calls=calls)

