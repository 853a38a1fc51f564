#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/mha: results of PyTorch's MultiheadAttention in float64, and its small float32 inputs and weights.

    pip install torch==2.13.0 numpy
    scripts/make/mha_fixture.py -o tests/data/mha

Files, per layer (`self`: memory is x; `cross`: another width and length):

    <layer>_x.npy, <layer>_memory.npy         float32 [batch, seq, width]
    <layer>_w_*.npy, <layer>_b_*.npy          float32, as the module holds them: [out, in], packed q, k, v too
    <layer>_<case>_y.npy                      float64 [batch, seq_q, width]
    <layer>_<case>_p.npy                      float64 [batch, heads, seq_q, seq_k]: weights, not averaged over heads
    kv_len.npy                                int32 [batch]: keys of each batch entry in the `padded` cases
"""

import argparse
import json
import pathlib

import numpy as np
import torch

BATCH, HEADS, WIDTH, SEQ = 2, 4, 16, 13  # head dimension 4: 1/sqrt(4) is exact in float32
MEMORY_WIDTH, MEMORY_SEQ = 20, 17
KV_LEN = [9, 4]


def make_module(seed, **memory):
    """A module with float64 weights that float32 holds exactly. Biases are random, too; PyTorch initialises them to 0."""
    torch.manual_seed(seed)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, bias=True, batch_first=True, **memory)
    with torch.no_grad():
        module.in_proj_bias.normal_(std=0.2)
        module.out_proj.bias.normal_(std=0.2)
    return module.double().eval()


def weights_of(module):
    arrays = {"w_o": module.out_proj.weight, "b_qkv": module.in_proj_bias, "b_o": module.out_proj.bias}
    if module.in_proj_weight is not None:
        arrays["w_qkv"] = module.in_proj_weight
    else:
        arrays |= {"w_q": module.q_proj_weight, "w_k": module.k_proj_weight, "w_v": module.v_proj_weight}
    return {name: array.detach().numpy().astype(np.float32) for name, array in arrays.items()}


def masks(case, seq_q, seq_k):
    """PyTorch's arguments for the keys that a case hides: True = hidden."""
    if case == "causal":
        return {"attn_mask": torch.ones(seq_q, seq_k, dtype=torch.bool).triu(1)}
    if case == "padded":
        return {"key_padding_mask": torch.arange(seq_k)[None, :] >= torch.tensor(KV_LEN)[:, None]}
    return {}


def write_layer(folder, name, module, memory_shape):
    x = torch.randn(BATCH, SEQ, WIDTH, dtype=torch.float32)
    memory = torch.randn(*memory_shape, dtype=torch.float32) if memory_shape else x
    np.save(folder / f"{name}_x.npy", x.numpy())
    if memory_shape:
        np.save(folder / f"{name}_memory.npy", memory.numpy())
    for weight, array in weights_of(module).items():
        np.save(folder / f"{name}_{weight}.npy", array)
    for case in ("plain", "causal", "padded"):
        with torch.no_grad():
            y, p = module(x.double(), memory.double(), memory.double(), need_weights=True, average_attn_weights=False,
                          **masks(case, SEQ, memory.shape[1]))
        np.save(folder / f"{name}_{case}_y.npy", y.numpy())
        np.save(folder / f"{name}_{case}_p.npy", p.numpy())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="folder for the files")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    write_layer(folder, "self", make_module(1), None)
    write_layer(folder, "cross", make_module(2, kdim=MEMORY_WIDTH, vdim=MEMORY_WIDTH), (BATCH, MEMORY_SEQ, MEMORY_WIDTH))
    np.save(folder / "kv_len.npy", np.array(KV_LEN, dtype=np.int32))
    about = {"made_by": "scripts/make/mha_fixture.py", "torch": torch.__version__, "numpy": np.__version__, "heads": HEADS}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")


if __name__ == "__main__":
    main()
