# SPDX-License-Identifier: MIT
"""libattn for sentence-transformers, without padding:

    import libattn.sentence_transformers
    model = libattn.sentence_transformers.use(SentenceTransformer(name))

model_kwargs={"attn_implementation": "libattn"} with libattn.transformers imported is the same with padding.
"""

from __future__ import annotations

import functools
from typing import Any

from sentence_transformers.base.modules.transformer import Transformer

from . import transformers  # noqa: F401  registers "libattn"

__all__ = ["use"]


def _yes():
    return True


def _flattens(module, modality, processor_inputs, **options):
    """sentence-transformers' answer, but for a single text, which has no padding."""
    alone = len(next(iter(processor_inputs.values()), ())) == 1
    return not alone and Transformer._should_flatten_inputs(module, modality, processor_inputs, **options)


def use(model: Any, unpad: bool | None = None) -> Any:
    """The model (SentenceTransformer, SparseEncoder or CrossEncoder), whose attention is libattn's from now on.

    unpad: None = texts lie one behind the other, without padding, where the model can have it so; False = padded batches.
    sentence-transformers has a way to pack texts for flash attention (Transformer.unpad_inputs), which this takes.
    """
    for module in model.modules():
        if isinstance(module, Transformer):
            module.model.set_attn_implementation("libattn")
            module._is_flash_attention_requested = _yes  # asked for packed sequences alone
            module._should_flatten_inputs = functools.partial(_flattens, module)
            module.unpad_inputs = unpad
    return model
