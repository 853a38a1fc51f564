#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains the weights that seq2seq_attention.c reads: a recurrent encoder and decoder with additive attention (Bahdanau et
al. 2015, https://arxiv.org/abs/1409.0473) learn to write a word backwards.

    python3 -m pip install torch numpy
    examples/seq2seq_attention/train.py            # a few minutes on one CPU core; writes weights.safetensors beside itself

Reversing is a good first task for attention. The right alignment is known: the anti-diagonal of the heatmap. A word that is
longer than the hidden state can hold cannot be reversed without attention.
"""

import argparse
import json
import pathlib

import numpy as np
import torch

PAD, BEGIN, END, FIRST_LETTER, LETTERS = 0, 1, 2, 3, 26
SYMBOLS = FIRST_LETTER + LETTERS
EMBED, HIDDEN, ATTENTION, LONGEST = 16, 48, 32, 16


class Seq2Seq(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(SYMBOLS, EMBED)
        self.encoder = torch.nn.GRU(EMBED, HIDDEN, batch_first=True)
        self.decoder = torch.nn.GRUCell(EMBED + HIDDEN, HIDDEN)
        self.query = torch.nn.Linear(HIDDEN, ATTENTION, bias=False)
        self.key = torch.nn.Linear(HIDDEN, ATTENTION, bias=False)
        self.score = torch.nn.Linear(ATTENTION, 1, bias=False)
        self.output = torch.nn.Linear(2 * HIDDEN, SYMBOLS)

    def forward(self, words, lengths, inputs):
        """Logits of every step. The decoder is given the right letters so far."""
        packed = torch.nn.utils.rnn.pack_padded_sequence(self.embed(words), lengths, True, enforce_sorted=False)
        states, last = self.encoder(packed)
        states, _ = torch.nn.utils.rnn.pad_packed_sequence(states, True, total_length=words.shape[1])
        hidden, keys = last[0], self.key(states)
        allowed = torch.arange(words.shape[1]) < lengths[:, None]
        logits = []
        for step in range(inputs.shape[1]):
            scores = self.score(torch.tanh(self.query(hidden)[:, None] + keys))[..., 0]
            weights = torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1)
            context = (weights[:, None] @ states)[:, 0]
            hidden = self.decoder(torch.cat([self.embed(inputs[:, step]), context], -1), hidden)
            logits.append(self.output(torch.cat([hidden, context], -1)))
        return torch.stack(logits, 1)


def make_batch(generator, batch):
    """Random words, padded, with input and target of the decoder: the word backwards, then END."""
    lengths = torch.from_numpy(generator.integers(1, LONGEST + 1, batch))
    letters = torch.from_numpy(generator.integers(FIRST_LETTER, SYMBOLS, (batch, LONGEST)))
    place = torch.arange(LONGEST)
    words = torch.where(place < lengths[:, None], letters, PAD)
    backwards = torch.gather(words, 1, (lengths[:, None] - 1 - place).clamp(min=0))
    wanted = torch.zeros(batch, LONGEST + 1, dtype=torch.long)
    wanted[:, :LONGEST] = torch.where(place < lengths[:, None], backwards, PAD)
    wanted[torch.arange(batch), lengths] = END
    inputs = torch.cat([torch.full((batch, 1), BEGIN), wanted[:, :-1]], 1)
    return words, lengths, inputs, wanted


def write_safetensors(path, tensors, note):
    """8 bytes of header length, a JSON header padded to 8, the data."""
    header, blobs, at = {"__metadata__": {"note": note}}, [], 0
    for name, tensor in tensors.items():
        blob = tensor.detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / "weights.safetensors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    generator = np.random.default_rng(1)
    model = Seq2Seq()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=options.steps)
    for step in range(1, options.steps + 1):
        words, lengths, inputs, wanted = make_batch(generator, 128)
        logits = model(words, lengths, inputs)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            right = ((logits.argmax(-1) == wanted) | (wanted == PAD)).all(1).float().mean()
            print(f"step {step}: loss {loss.item():.4f}, whole words right {100 * right.item():.1f} %", flush=True)
    note = f"train.py, {options.steps} steps, seed 1, PyTorch {torch.__version__}"
    write_safetensors(options.output, model.state_dict(), note)


if __name__ == "__main__":
    main()
