#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/nn/*.safetensors: small random weights and inputs of PyTorch's transformer layers, and their float64
results. tests/layers/test_nn_block.c compares libattn_nn with them.

    python3 -m pip install torch numpy
    scripts/make/nn_fixture.py

Names are PyTorch's. Lengths of padded sequences are stored as floats, because the writer supports only those.
"""

import importlib.util
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, SEQ, MEMORY, WIDTH, HEADS, HIDDEN = 2, 7, 9, 24, 4, 40
LENGTHS, MEMORY_LENGTHS = [7, 4], [5, 9]


def writer():
    """write_safetensors() of examples/seq2seq_attention/train.py."""
    spec = importlib.util.spec_from_file_location("train", ROOT / "examples" / "seq2seq_attention" / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_safetensors


def randomise(layer):
    """Sets weights that float32 holds exactly. Gains and biases differ from 1 and 0: omitting one changes the result."""
    for name, parameter in layer.named_parameters():
        noise = torch.randn(parameter.shape) * (0.2 if parameter.dim() > 1 else 0.3)
        parameter.data = (noise + (1.0 if "norm" in name and "weight" in name else 0.0)).double()


def padding(lengths, seq):
    """PyTorch's mask: True where a key is padding."""
    return torch.arange(seq) >= torch.tensor(lengths)[:, None]


def make(kind, norm_first, activation):
    """Tensors of a layer in training mode without dropout, so that PyTorch does not use its fused inference path."""
    options = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "activation": activation,
               "batch_first": True, "norm_first": norm_first, "dtype": torch.float64}
    x = torch.randn(BATCH, SEQ, WIDTH).double()
    tensors = {"x": x, "lengths": torch.tensor(LENGTHS)}
    if kind == "encoder":
        layer = torch.nn.TransformerEncoderLayer(**options)
        randomise(layer)
        y = layer(x, src_key_padding_mask=padding(LENGTHS, SEQ))
    else:
        layer = torch.nn.TransformerDecoderLayer(**options)
        randomise(layer)
        memory = torch.randn(BATCH, MEMORY, WIDTH).double()
        causal = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
        y = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=padding(MEMORY_LENGTHS, MEMORY))
        tensors |= {"memory": memory, "lengths": torch.tensor(MEMORY_LENGTHS)}
    return tensors | {"y": y} | dict(layer.named_parameters())


def make_layer_norm():
    layer = torch.nn.LayerNorm(WIDTH, dtype=torch.float64)
    layer.weight.data, layer.bias.data = torch.randn(WIDTH).double(), torch.randn(WIDTH).double()
    x, residual = torch.randn(SEQ, WIDTH).double() * 3 + 5, torch.randn(SEQ, WIDTH).double()
    return {"x": x, "residual": residual, "y": layer(x + residual), "weight": layer.weight, "bias": layer.bias}


def main():
    torch.manual_seed(7)
    folder = ROOT / "tests" / "data" / "nn"
    folder.mkdir(parents=True, exist_ok=True)
    write = writer()
    note = f"scripts/make/nn_fixture.py, PyTorch {torch.__version__}, float64 rounded to float32"
    write(folder / "layer_norm.safetensors", make_layer_norm(), note)
    for kind in ("encoder", "decoder"):
        for norm_first, activation in ((False, "relu"), (True, "gelu")):
            name = f"{kind}_{'pre' if norm_first else 'post'}"
            write(folder / f"{name}.safetensors", make(kind, norm_first, activation), note)
            print(folder / f"{name}.safetensors")


if __name__ == "__main__":
    main()
