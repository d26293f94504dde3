"""Models with parameters of unusual kinds, most of them beside a twin of usual kinds that computes the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, PLACES = 7, 5


def complex_of(pairs: Tensor) -> Tensor:
    """The complex numbers [...] of pairs of reals [..., 2]."""
    return torch.view_as_complex(pairs)


class Spectral(nn.Module):
    """A filter of the spectrum, complex or in pairs of reals, a real offset of odd size, and a linear head."""

    def __init__(self, width: int, outputs: int, *, pairs: bool) -> None:
        super().__init__()
        weight = torch.randn(width // 2 + 1, dtype=torch.cfloat)
        self.width, self.pairs = width, pairs
        if pairs:
            self.weight = nn.Parameter(torch.view_as_real(weight).clone())
        self.offset = nn.Parameter(torch.zeros(1))
        if not pairs:
            self.weight = nn.Parameter(weight)
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, outputs]."""
        weight = complex_of(self.weight) if self.pairs else self.weight
        spectrum = torch.fft.rfft(inputs.flatten(1)) * weight
        logits: Tensor = self.head(torch.fft.irfft(spectrum, n=self.width) + self.offset)
        return logits


def spectral(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """With complex weights."""
    return Spectral(math.prod(input_shape), num_classes, pairs=False)


def spectral_pairs(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """With pairs of reals."""
    return Spectral(math.prod(input_shape), num_classes, pairs=True)


class Phases(nn.Linear):
    """A linear layer with a complex buffer that passes of training turn."""

    phase: Tensor

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.register_buffer("phase", torch.ones((), dtype=torch.cfloat))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [n, outputs], scaled by a real number that the phase decides."""
        if self.training:
            self.phase.mul_(0.8 + 0.6j)
        return super().forward(inputs.flatten(1)) * (2 + self.phase.imag)


def phases(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A complex buffer that travels."""
    return Phases(math.prod(input_shape), num_classes)


class Tokens(nn.Module):
    """Logits of tokens, through torch's embedding, a bag, or its function; `sparse` is about gradients alone."""

    def __init__(self, outputs: int, kind: str, *, sparse: bool) -> None:
        super().__init__()
        self.kind, self.sparse = kind, sparse
        layer: type[nn.Embedding | nn.EmbeddingBag] = nn.EmbeddingBag if kind == "bag" else nn.Embedding
        self.items = layer(TOKENS, 4, sparse=sparse and kind != "function")
        self.head = nn.Linear(4, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits [n, outputs] of tokens [n, L]."""
        if self.kind == "function":
            found = F.embedding(tokens, self.items.weight, sparse=self.sparse)
        else:
            found = self.items(tokens)
        logits: Tensor = self.head(torch.tanh(found if self.kind == "bag" else found.mean(1)))
        return logits


class Stateful(nn.Linear):
    """A layer with an extra state: words, or a tensor that follows from its weights."""

    as_tensor = False

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__(width, outputs)
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Counts its passes of training, and computes with the count."""
        self.seen += self.training
        return super().forward(inputs.flatten(1)) * (1 + self.seen / 8)

    def get_extra_state(self) -> Any:
        """Passes seen."""
        return (
            torch.tensor([float(self.weight.detach().abs().max()), self.seen]) if self.as_tensor else {"n": self.seen}
        )

    def set_extra_state(self, state: Any) -> None:
        """Take passes up."""
        self.seen = int(state[1]) if self.as_tensor else state["n"]


class TensorState(Stateful):
    """The same, as a tensor."""

    as_tensor = True


def stateful(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """An extra state that is no tensor."""
    return Stateful(math.prod(input_shape), num_classes)


def tensor_state(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """An extra state that is a tensor."""
    return TensorState(math.prod(input_shape), num_classes)


class Stored(nn.Module):
    """A frozen layer with weights of one byte, as quantised layers store them."""

    scale: Tensor

    def __init__(self, width: int, outputs: int, dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.randn(outputs, width)
        scale = weight.abs().max() / 100
        self.weight = nn.Parameter((weight / scale).to(dtype), requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer at the weights that the bytes stand for."""
        return F.linear(inputs.flatten(1), self.weight.to(inputs.dtype) * self.scale)


def stored(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Frozen weights in int8 and float8."""
    width = math.prod(input_shape)
    return nn.Sequential(
        Stored(width, 12, torch.int8), nn.Tanh(), Stored(12, 8, torch.float8_e4m3fn), nn.Linear(8, num_classes)
    )


class Merging(nn.Module):
    """An adapter that merges into its frozen weight in a pass, subtracts itself again, and leaves a new parameter."""

    weight: Tensor

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, width) / 3, requires_grad=False)
        self.down = nn.Parameter(torch.randn(2, width) / 3)
        self.up = nn.Parameter(torch.zeros(outputs, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        """The adapted layer."""
        base, more = self.weight.detach(), self.up @ self.down
        del self.weight
        self.weight = base + more
        outputs = F.linear(inputs.flatten(1), self.weight)
        del self.weight
        self.weight = nn.Parameter((base + more.detach()) - more.detach(), requires_grad=False)
        return outputs


def merging(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Such an adapter, and a head."""
    return nn.Sequential(Merging(math.prod(input_shape), 8), nn.Tanh(), nn.Linear(8, num_classes))


class Renewing(nn.Linear):
    """Puts another parameter, or only other memory, in the place of its weight as it computes."""

    whole = True

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer."""
        values = self.weight.detach() * 1.0
        if self.whole:
            self.weight = nn.Parameter(values)
        else:
            self.weight.data = values
        return super().forward(inputs.flatten(1))


def renewing(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Another parameter."""
    return Renewing(math.prod(input_shape), num_classes)


def renewing_memory(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Other memory."""
    layer = Renewing(math.prod(input_shape), num_classes)
    layer.whole = False
    return layer


def halves(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A frozen layer in bfloat16 below a head in float32."""
    base = nn.Linear(math.prod(input_shape), 8, dtype=torch.bfloat16).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), base, nn.Linear(8, num_classes))
