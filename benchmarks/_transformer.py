"""A small transformer that reads characters, and low-rank adapters for its layers, in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention and a feed-forward part, each behind a LayerNorm and beside the identity."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [n, L, width] to the same."""
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        fed: Tensor = self.down(nn.functional.gelu(self.up(self.between(x))))
        return x + fed


class CharTransformer(nn.Module):
    """Tokens [n, L] to logits [n, L, vocabulary]."""

    def __init__(self, vocabulary: int, length: int, width: int = 96, layers: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


SCALE = 8.0
"""alpha / r of the adapters: what their part is multiplied by."""


class LoraLinear(nn.Module):
    """W x + b + `SCALE` B A x with W and b frozen (Hu et al., arXiv 2106.09685); B begins at 0."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, inner.in_features))
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """As the layer, with the adapter's part."""
        adapted = nn.functional.linear(nn.functional.linear(x, self.a), self.b)
        whole: Tensor = self.inner(x) + SCALE * adapted
        return whole

    def merged(self) -> nn.Linear:
        """The layer alone, with the adapter added to its weight."""
        with torch.no_grad():
            self.inner.weight += SCALE * self.b @ self.a
        return self.inner


def adapted(model: nn.Module, rank: int) -> nn.Module:
    """The model, frozen, with an adapter at each layer of its blocks."""
    model.requires_grad_(False)
    for block in model.modules():
        if isinstance(block, Block):
            for name in ("qkv", "mix", "up", "down"):
                setattr(block, name, LoraLinear(getattr(block, name), rank))
    return model


def merged(model: nn.Module) -> nn.Module:
    """The model without adapters, which are in its weights."""
    for part in list(model.modules()):
        for name, layer in list(part.named_children()):
            if isinstance(layer, LoraLinear):
                setattr(part, name, layer.merged())
    return model
