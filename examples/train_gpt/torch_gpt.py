# SPDX-License-Identifier: MIT
"""The model of train_gpt.c in PyTorch, with its weights, batches and steps."""

import numpy as np
import torch
import torch.nn.functional as F

SEED = 1
WARMUP, RATE = 20, 1e-3  # those of train_gpt.c
MASK = 2 ** 64 - 1


def rate_of(step):
    return RATE * min(step / WARMUP, (WARMUP / step) ** 0.5)


def read_weights(path):
    """Those of a checkpoint."""
    count = int(np.fromfile(path, np.int64, 1)[0])
    return np.fromfile(path, np.float32, count, offset=16)


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(made.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(torch.nn.Module):
    """With the parameters in the order of train_gpt.c, from one array."""

    def __init__(self, options, classes, weights):
        super().__init__()
        self.table = torch.nn.Embedding(classes, options.width)
        self.positions = torch.nn.Parameter(torch.empty(options.seq, options.width))
        self.blocks = torch.nn.ModuleList(Block(options.width, options.heads) for _ in range(options.layers))
        self.norm = torch.nn.LayerNorm(options.width)
        with torch.no_grad():
            for parameter, transposed in self.parameters_in_order():
                values, weights = weights[:parameter.numel()], weights[parameter.numel():]
                shape = parameter.shape[::-1] if transposed else parameter.shape
                values = torch.from_numpy(values).reshape(shape)
                parameter.copy_(values.T if transposed else values)
        assert not len(weights)

    def parameters_in_order(self):
        """(parameter, whether it lies transposed there)"""
        yield from ((self.table.weight, False), (self.positions, False))
        for block in self.blocks:
            for norm in (block.norm1, block.norm2):
                yield from ((norm.weight, False), (norm.bias, False))
            for linear in (block.qkv, block.projection, block.up, block.down):
                yield from ((linear.weight, True), (linear.bias, False))
        yield from ((self.norm.weight, False), (self.norm.bias, False))

    def forward(self, tokens, targets):
        x = self.table(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.table.weight).flatten(0, 1), targets.flatten())


class Text:
    """The batches of train_gpt.c."""

    def __init__(self, options):
        text = np.frombuffer(b"".join(path.read_bytes() for path in options.text), np.uint8)
        self.characters, tokens = np.unique(text, return_inverse=True)
        self.tokens, self.options = torch.from_numpy(tokens.astype(np.int64)), options

    def batch(self, step):
        firsts = [draw(SEED, step * self.options.batch + b) % (len(self.tokens) - self.options.seq)
                  for b in range(self.options.batch)]
        return tuple(torch.stack([self.tokens[first + shift:][:self.options.seq] for first in firsts]) for shift in (0, 1))


def draw(seed, place):
    z = (seed * 0xBF58476D1CE4E5B9 + place * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Trainer:
    """Steps as train_gpt takes them."""

    def __init__(self, model, text, compiled):
        self.model, self.text, self.done = model, text, 0
        self.loss = torch.compile(model) if compiled else model
        self.optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)

    def step(self, batch):
        self.done += 1
        for group in self.optimiser.param_groups:
            group["lr"] = rate_of(self.done)
        self.optimiser.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1)
        self.optimiser.step()
        return loss
