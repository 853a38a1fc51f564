# SPDX-License-Identifier: MIT
"""Dense layers of vLLM whose rows have the same bits whatever rows stand beside them, for LIBATTN_VLLM=steady. Those of
vLLM add up in another order for one token than for a prompt."""

from __future__ import annotations

import torch
from vllm.model_executor.layers import utils

from ..layers import Linear

_products: list[Linear] = []
_vllms_own = utils.dispatch_cpu_unquantized_gemm


@torch.library.custom_op("libattn::vllm_dense", mutates_args=())
def _dense(x: torch.Tensor, product: int) -> torch.Tensor:
    x = x.contiguous()
    return _products[product](x, x.new_empty(*x.shape[:-1], _products[product].out))


@_dense.register_fake
def _(x, product):
    return x.new_empty(*x.shape[:-1], _products[product].out)


def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Gives a layer its function cpu_linear, and packs its weight; layers without a matrix are left to vLLM."""
    weight = layer.weight
    if weight.is_meta or weight.ndim != 2:
        _vllms_own(layer, remove_weight)
        return
    dtype, number = str(weight.dtype).removeprefix("torch."), len(_products)
    _products.append(Linear(weight.detach(), dtype=dtype, out_dtype=dtype))
    layer.cpu_linear = lambda x, _, bias: _dense(x, number) if bias is None else _dense(x, number) + bias
    if remove_weight:
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)


def install() -> None:
    """Makes vLLM use dispatch() for models that it loads from now on."""
    utils.dispatch_cpu_unquantized_gemm = dispatch
