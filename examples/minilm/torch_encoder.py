# SPDX-License-Identifier: MIT
"""all-MiniLM-L6-v2 in PyTorch, as a framework user would write it: fused attention, fused linear layers and norms."""

import numpy as np
import torch
from torch.nn import functional


class Encoder:
    """encode(packed) returns the embeddings of all sentences. Padded: every sentence has the length of the longest, as
    tokenizers return it. Packed: everything except attention runs only on rows of tokens, which PyTorch does not do by
    itself."""

    def __init__(self, weights, config, ids, lengths):
        self.w = {name: torch.from_numpy(np.array(tensor)) for name, tensor in weights.items()}
        self.heads, self.epsilon = config["num_attention_heads"], config["layer_norm_eps"]
        self.layers = config["num_hidden_layers"]
        self.ids, self.lengths = torch.from_numpy(ids), torch.from_numpy(lengths)
        self.mask = torch.arange(ids.shape[1]) < self.lengths[:, None]
        self.tokens = torch.from_numpy(np.flatnonzero(np.arange(ids.shape[1]) < lengths[:, None]))

    def linear(self, x, name):
        return functional.linear(x, self.w[name + ".weight"], self.w[name + ".bias"])

    def norm(self, x, name):
        return functional.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], self.epsilon)

    def pack(self, x):
        """The rows of a padded batch that are tokens."""
        return x.reshape(-1, x.shape[-1])[self.tokens]

    def pad(self, rows):
        """Inverse of pack(): [batch, seq, width], with 0 as padding."""
        x = rows.new_zeros(self.ids.shape[0] * self.ids.shape[1], rows.shape[-1])
        x[self.tokens] = rows
        return x.view(*self.ids.shape, -1)

    def attention(self, x, layer, packed):
        def heads(name):
            rows = self.linear(x, f"{layer}attention.self.{name}")
            return (self.pad(rows) if packed else rows).view(*self.ids.shape, self.heads, -1).transpose(1, 2)

        o = functional.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"),
                                                    attn_mask=self.mask[:, None, None, :])
        o = o.transpose(1, 2).reshape(*self.ids.shape, -1)
        return self.linear(self.pack(o) if packed else o, layer + "attention.output.dense")

    @torch.inference_mode()
    def encode(self, packed):
        names = ("word", "position", "token_type")
        word, position, kind = (self.w[f"embeddings.{name}_embeddings.weight"] for name in names)
        x = word[self.ids] + position[:self.ids.shape[1]] + kind[0]
        x = self.norm(self.pack(x) if packed else x, "embeddings.LayerNorm")
        for n in range(self.layers):
            layer = f"encoder.layer.{n}."
            x = self.norm(x + self.attention(x, layer, packed), layer + "attention.output.LayerNorm")
            inner = functional.gelu(self.linear(x, layer + "intermediate.dense"))
            x = self.norm(x + self.linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
        x = self.pad(x) if packed else x
        mean = (x * self.mask[:, :, None]).sum(1) / self.lengths[:, None]
        return functional.normalize(mean).numpy()
