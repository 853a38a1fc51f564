#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/nn/gradients.safetensors: random weights and inputs of PyTorch's layers, and gradients and steps of
optimisers in float64. tests/layers/test_train_fixture.c compares attn/train.h with them.

    python3 -m pip install torch numpy
    scripts/make/train_fixture.py

Inputs are float32 values. Integers are stored as floats, because the writer supports only those.
"""

import torch
from nn_fixture import ROOT, writer
from torch import nn
from torch.nn import functional

BATCH, SEQ, MEMORY, WIDTH, HEADS, HIDDEN = 2, 5, 6, 12, 3, 7  # see the test
LENGTHS = [4, 6]
STEPS = 5


def draw(*shape, scale=1.0, shift=0.0):
    return (torch.randn(*shape) * scale + shift).double().requires_grad_()


def new_weights(layer):
    for parameter in layer.parameters():
        parameter.data = draw(*parameter.shape, scale=0.4).detach()
    return layer


def gradients(y, **leaves):
    """y, a random d_y, and the gradients of all leaves: d_x of x."""
    d_y = draw(*y.shape).detach()
    found = torch.autograd.grad(y, list(leaves.values()), d_y)
    return {"y": y, "d_y": d_y, **leaves} | {f"d_{name}": d for name, d in zip(leaves, found, strict=True)}


def dense():
    layer, x = new_weights(nn.Linear(13, 17).double()), draw(11, 13)
    return gradients(layer(x), x=x, weight=layer.weight, bias=layer.bias)


def norm(kind):
    layer, x = new_weights(kind(WIDTH, eps=1e-5).double()), draw(11, WIDTH, scale=3, shift=5)
    leaves = {"x": x, "gain": layer.weight}
    return gradients(layer(x), **leaves, **({"bias": layer.bias} if kind is nn.LayerNorm else {}))


def activation(function):
    x = draw(101, scale=3)
    return gradients(function(x), x=x)


def embedding():
    layer, tokens = nn.Embedding(9, WIDTH).double(), torch.randint(9, (20,))
    found = gradients(layer(tokens), table=layer.weight)
    return {"tokens": tokens, "d_y": found["d_y"], "d_table": found["d_table"]}


def entropy(smoothing, reduction):
    logits, targets = draw(7, 23, scale=4), torch.tensor([3, 22, -100, 0, 0, -100, 11])
    loss = functional.cross_entropy(logits, targets, label_smoothing=smoothing, reduction=reduction)
    return {"logits": logits, "targets": targets, "loss": loss[None], "d_logits": torch.autograd.grad(loss, logits)[0]}


def self_attention():
    layer, x = new_weights(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()), draw(BATCH, SEQ, WIDTH)
    causal = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    return gradients(layer(x, x, x, attn_mask=causal)[0], x=x, in_weight=layer.in_proj_weight, in_bias=layer.in_proj_bias,
                     out_weight=layer.out_proj.weight, out_bias=layer.out_proj.bias)


def padding():
    return torch.arange(MEMORY) >= torch.tensor(LENGTHS)[:, None]


def cross_attention():
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=10, vdim=10).double()
    in_weight, in_bias = draw(WIDTH, WIDTH, scale=0.4), draw(WIDTH, scale=0.4)
    memory_weight, memory_bias = draw(2 * WIDTH, 10, scale=0.4), draw(2 * WIDTH, scale=0.4)
    out_weight, out_bias = draw(WIDTH, WIDTH, scale=0.4), draw(WIDTH, scale=0.4)
    weights = {"q_proj_weight": in_weight, "k_proj_weight": memory_weight[:WIDTH], "v_proj_weight": memory_weight[WIDTH:],
               "in_proj_bias": torch.cat([in_bias, memory_bias]), "out_proj.weight": out_weight, "out_proj.bias": out_bias}
    x, memory = draw(BATCH, SEQ, WIDTH), draw(BATCH, MEMORY, 10)
    y = torch.func.functional_call(layer, weights, (x, memory, memory), {"key_padding_mask": padding()})[0]
    return gradients(y, x=x, memory=memory, in_weight=in_weight, in_bias=in_bias, memory_weight=memory_weight,
                     memory_bias=memory_bias, out_weight=out_weight, out_bias=out_bias)


def additive_attention():
    """softmax(w tanh(q + k)) m, maps without biases. Scores are about 1, so that their roundings are those of the limit."""
    x, memory, score = draw(BATCH, SEQ, WIDTH), draw(BATCH, MEMORY, 10), draw(HIDDEN, scale=0.4)
    in_weight, memory_weight = draw(HIDDEN, WIDTH, scale=0.4), draw(HIDDEN, 10, scale=0.4)
    scores = torch.tanh((x @ in_weight.T)[:, :, None] + (memory @ memory_weight.T)[:, None]) @ score
    weights = scores.masked_fill(padding()[:, None], -torch.inf).softmax(-1)
    return gradients(weights @ memory, x=x, memory=memory, in_weight=in_weight, memory_weight=memory_weight, score=score)


def synthesizer(scores_of, **leaves):
    """softmax(scores) v of HEADS heads; scores_of(x) -> [BATCH or 1][HEADS][SEQ][SEQ]."""
    x, values, out = draw(BATCH, SEQ, WIDTH), draw(WIDTH, WIDTH, scale=0.4), draw(WIDTH, WIDTH, scale=0.4)
    v = (x @ values.T).view(BATCH, SEQ, HEADS, -1).transpose(1, 2)
    y = (scores_of(x).softmax(-1) @ v).transpose(1, 2).reshape(BATCH, SEQ, WIDTH) @ out.T
    return gradients(y, x=x, in_weight=values, out_weight=out, **leaves)


def random_synthesizer():
    scores = draw(1, HEADS, SEQ, SEQ)
    return synthesizer(lambda _: scores, scores=scores)


def dense_synthesizer():
    """Each head's scores: a dense layer, ReLU and a dense layer."""
    first, second = draw(HEADS, HIDDEN, WIDTH, scale=0.4), draw(HEADS, SEQ, HIDDEN)
    return synthesizer(lambda x: (x[:, None] @ first.mT).relu() @ second.mT, first=first, second=second)


def optimiser(make):
    w, grads = nn.Parameter(draw(50).detach()), draw(STEPS, 50).detach()
    begin, taken = w.detach().clone(), make([w])
    for grad in grads:
        w.grad = grad.clone()
        taken.step()
    return {"begin": begin, "grads": grads, "end": w}


def clipping():
    w, grad = nn.Parameter(torch.zeros(50).double()), draw(50).detach()
    w.grad = grad.clone()
    norm = nn.utils.clip_grad_norm_([w], 2.0)
    return {"grads": grad, "norm": norm[None], "clipped": w.grad}


def main():
    torch.manual_seed(11)
    cases = {
        "dense": dense(), "layer_norm": norm(nn.LayerNorm), "rms_norm": norm(nn.RMSNorm),
        "relu": activation(torch.relu), "gelu": activation(functional.gelu), "silu": activation(functional.silu),
        "gelu_tanh": activation(lambda x: functional.gelu(x, approximate="tanh")),
        "embedding": embedding(), "entropy": entropy(0.0, "mean"), "entropy_smooth": entropy(0.125, "mean"),
        "entropy_sum": entropy(0.125, "sum"), "self": self_attention(), "cross": cross_attention(),
        "additive": additive_attention(), "random": random_synthesizer(), "dense_scores": dense_synthesizer(),
        "adamw": optimiser(lambda w: torch.optim.AdamW(w, lr=0.125, betas=(0.875, 0.9375), eps=1e-6, weight_decay=0.25)),
        "sgd": optimiser(lambda w: torch.optim.SGD(w, lr=0.125, momentum=0.875, weight_decay=0.25)), "clip": clipping(),
    }
    path = ROOT / "tests" / "data" / "nn" / "gradients.safetensors"
    tensors = {f"{case}.{name}": tensor for case, found in cases.items() for name, tensor in found.items()}
    writer()(path, tensors, f"scripts/make/train_fixture.py, PyTorch {torch.__version__}, float64 rounded to float32")
    print(path)


if __name__ == "__main__":
    main()
