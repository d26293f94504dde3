"""A model written in two ways that mean the same trains to the same bits, or is refused before round 1."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.helpers.twins import CLASSES, FEATURES, METHODS, SAME, Twin, Two, counts, model, outcome


class InPlace(nn.Sequential):
    def __init__(self, *, inplace: bool) -> None:
        super().__init__(nn.Linear(FEATURES, CLASSES))
        self.inplace = inplace

    def forward(self, x: Tensor) -> Any:
        if self.inplace:
            x /= 16.0
        else:
            x = x / 16.0
        return self[0](x)


class Clamped(InPlace):
    def forward(self, x: Tensor) -> Any:
        return self[0](x.clamp_(-1, 1) if self.inplace else x.clamp(-1, 1))


class Filled(InPlace):
    """It changes few values, and none of the first samples."""

    def forward(self, x: Tensor) -> Any:
        large = x > 4.0
        return self[0](x.masked_fill_(large, 0.0) if self.inplace else x.masked_fill(large, 0.0))


class Functional(Two):
    def forward(self, x: Tensor) -> Any:
        hidden = nn.functional.linear(x, self.body.weight, self.body.bias).relu()
        return nn.functional.linear(hidden, self.head.weight, self.head.bias)


class Cached(Two):
    kept: Tensor | None = None

    def train(self, mode: bool = True) -> Cached:
        self.kept = None
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Any:
        if self.training:
            return super().forward(x)
        if self.kept is None:
            self.kept = self.body.weight.t().contiguous()
        return self.head(torch.relu(x @ self.kept + self.body.bias))


class CachedByVersion(Two):
    """It looks whether the weight was written to, which setting a parameter's data does not show."""

    seen: tuple[int, Tensor] | None = None

    def forward(self, x: Tensor) -> Any:
        version = self.body.weight._version
        if self.seen is None or self.seen[0] != version or self.training:
            self.seen = version, self.body.weight.detach().clone()
        return self.head(torch.relu(nn.functional.linear(x, self.seen[1], self.body.bias)))


class Adapter(nn.Module):
    """A low-rank change of a frozen layer, which may become part of its weight."""

    def __init__(self, *, merges: bool) -> None:
        super().__init__()
        self.merges, self.merged = merges, False
        self.base = nn.Linear(FEATURES, CLASSES).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, FEATURES)), nn.Parameter(torch.zeros(CLASSES, 2))

    def train(self, mode: bool = True) -> Adapter:
        super().train(mode)
        if self.merges and self.merged == mode:
            self.base.weight.data += (-1 if mode else 1) * (self.up @ self.down).data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Any:
        answer = self.base(x)
        return answer if self.merged else answer + x @ self.down.t() @ self.up.t()


class AdapterAndHead(nn.Module):
    """The same beside a layer that is trained in the ordinary way."""

    def __init__(self, *, merges: bool) -> None:
        super().__init__()
        self.adapter, self.side = Adapter(merges=merges), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.adapter(x) + self.side(x)


class Auxiliary(Two):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return {"out": logits, "aux": logits} if self.training else logits


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        two = Two()
        parameters = [two.body.weight, two.body.bias, two.head.weight, two.head.bias]
        self.values = nn.ParameterList(parameters)

    def forward(self, x: Tensor) -> Any:
        hidden = nn.functional.linear(x, self.values[0], self.values[1]).relu()
        return nn.functional.linear(hidden, self.values[2], self.values[3])


class Sentence(nn.Module):
    def __init__(self, *, sparse: bool = False, bag: bool = False) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(12, 4, sparse=sparse) if bag else nn.Embedding(12, 4, sparse=sparse)
        self.head, self.bag = nn.Linear(4, CLASSES), bag

    def forward(self, tokens: Tensor) -> Any:
        found = self.words(tokens)
        return self.head(found if self.bag else found.mean(1))


class Keeping(Two):
    """It has something else than tensors in its state."""

    def get_extra_state(self) -> dict[str, object]:
        return {"version": 3}

    def set_extra_state(self, state: Any) -> None:
        if state != {"version": 3}:
            raise ValueError(state)


class Offset(Two):
    """A constant that is no buffer, a buffer, or one that is not saved."""

    constant: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind == "attribute":
            self.constant = torch.full((FEATURES,), 0.25)
        else:
            self.register_buffer("constant", torch.full((FEATURES,), 0.25), persistent=kind == "saved")

    def forward(self, x: Tensor) -> Any:
        return super().forward(x + self.constant)


class Spectrum(nn.Module):
    """A layer with complex weights, or the same with pairs of real ones."""

    def __init__(self, *, pairs: bool) -> None:
        super().__init__()
        values = torch.randn(CLASSES, FEATURES, 2) / 4
        self.weight = nn.Parameter(values if pairs else torch.view_as_complex(values))

    def forward(self, x: Tensor) -> Any:
        weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
        answer = x.to(weight.dtype) @ weight.t()
        return answer.real + 0.5 * answer.imag


class Tied(nn.Module):
    def __init__(self, *, modules: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(FEATURES, FEATURES, bias=False), nn.Linear(FEATURES, CLASSES)
        self.second = nn.Linear(FEATURES, FEATURES, bias=False) if modules else None
        if self.second is not None:
            self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        again = self.first(hidden) if self.second is None else self.second(hidden)
        return self.head(torch.tanh(again))


def seeded_two(change: Any = None) -> nn.Module:
    module = Two()
    if change is not None:
        change(module)
    return module


def columns_last(module: Two) -> None:
    """The weight lies in memory by columns."""
    module.body.weight = nn.Parameter(module.body.weight.detach().t().contiguous().t())


def without_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, CLASSES))


def of(one: Any, other: Any, refused: str = SAME, **settings: Any) -> Twin:
    return Twin(model(one), model(other), refused, settings)


TWINS = {
    "input scaled in place": of(lambda: InPlace(inplace=False), lambda: InPlace(inplace=True)),
    "input clamped in place": of(lambda: Clamped(inplace=False), lambda: Clamped(inplace=True)),
    "input filled in place": of(lambda: Filled(inplace=False), lambda: Filled(inplace=True)),
    "first layer ReLU in place": of(
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(FEATURES, CLASSES)),
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, CLASSES)),
    ),
    "first layer dropout in place": of(
        lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(FEATURES, CLASSES)),
        lambda: nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(FEATURES, CLASSES)),
    ),
    "layers called as functions": of(Two, Functional),
    "layers in a chain": of(
        Two,
        lambda: nn.Sequential(OrderedDict(body=nn.Linear(FEATURES, 8), act=nn.ReLU(), head=nn.Linear(8, CLASSES))),
    ),
    "parameters in a list": of(Two, Listed),
    "a weight by columns": of(Two, lambda: seeded_two(columns_last)),
    "a model in double precision": of(Two, lambda: Two().double().float()),
    "cached in evaluation mode": of(Two, Cached, "built anew with them, from layer Cached on"),
    "cached by version": of(Two, CachedByVersion, "most for body.weight: the gradient is not its derivative"),
    "adapter merged in evaluation mode": of(
        lambda: Adapter(merges=False),
        lambda: Adapter(merges=True),
        "does not depend on any parameter .*Adapter changes",
    ),
    "adapter merged, beside a layer": of(
        lambda: AdapterAndHead(merges=False),
        lambda: AdapterAndHead(merges=True),
        "built anew with them, from layer Linear 'adapter.base' on",
    ),
    "batch statistics": of(
        lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)),
        without_statistics,
        "depend on that sample",
    ),
    "extra state": of(Two, Keeping),
    "a constant buffer that is not saved": of(lambda: Offset("attribute"), lambda: Offset("not saved")),
    "a weight under two names": of(lambda: Tied(modules=False), lambda: Tied(modules=True)),
    "complex weights": of(lambda: Spectrum(pairs=True), lambda: Spectrum(pairs=False)),
    "sparse gradients": Twin(model(Sentence, counts()), model(lambda: Sentence(sparse=True), counts())),
    "sparse gradients of bags": Twin(
        model(lambda: Sentence(bag=True), counts()), model(lambda: Sentence(sparse=True, bag=True), counts())
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_twins(twin: Twin, method: str) -> None:
    plain = outcome(twin.plain, method=method, **twin.settings)
    assert not isinstance(plain, str), plain
    other = outcome(twin.other, method=method, **twin.settings)
    if twin.refused:
        assert isinstance(other, str)
        assert re.search(twin.refused, other), other
        assert len(other.splitlines()) == 1
    else:
        assert not isinstance(other, str), other
        assert np.array_equal(plain, other)


@pytest.mark.parametrize("method", METHODS)
def test_two_kinds_of_outputs(method: str) -> None:
    """Local SGD trains in training mode; a gradient is taken in evaluation mode alone."""
    other = outcome(model(Auxiliary), method=method)
    if method == "fedavg":
        assert isinstance(other, str)
        assert "in evaluation mode and dict in training mode" in other
    else:
        plain = outcome(model(Two), method=method)
        assert isinstance(other, str) or np.array_equal(plain, other)


@pytest.mark.parametrize("method", METHODS)
def test_weight_norm_written_out(method: str) -> None:
    """A parametrisation computes what its formula says: the same to rounding."""

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.Linear(FEATURES, CLASSES)
            self.bias = layer.bias
            self.g = nn.Parameter(layer.weight.detach().norm(dim=1, keepdim=True))
            self.v = nn.Parameter(layer.weight.detach().clone())

        def forward(self, x: Tensor) -> Any:
            return nn.functional.linear(x, self.g * self.v / self.v.norm(dim=1, keepdim=True), self.bias)

    one = outcome(model(ByHand), method=method, dtype="float64")
    other = outcome(
        model(lambda: parametrizations.weight_norm(nn.Linear(FEATURES, CLASSES))), method=method, dtype="float64"
    )
    assert not isinstance(one, str), one
    assert not isinstance(other, str), other
    assert np.allclose(one, other, rtol=0, atol=1e-9)
