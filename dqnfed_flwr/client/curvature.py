"""The rate d~_k = g_k . B_k g_k (18) of a client, B_k its limited-memory approximation of the inverse Hessian.

| `curvature.kind` | pairs (s, y) |
|---|---|
| `none` | none: d~_k = lr |g_k|^2 |
| `secant`, `cached` | s = theta - theta', y = g - g' with the last model theta' this client was asked about |
| `secant`, `recomputed` | the same with theta' = theta^{t-1} as the message names it, its gradient taken anew |
| `hvp` | s = g / |g|, y = H s at theta; with memory m > 1 also the last m - 1 such s, with H at theta |

With mini-batches a cached pair compares gradients of two different batches, which is noise where batches are small;
`recomputed` and `hvp` take one batch for the whole pair.

The rate is a function of the inner products of the pairs and g. They are taken once, in the dtype of the model; filter,
damping and recursion then run in float64 on the coordinates of these few vectors in a basis of their span.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dqnfed_flwr.client.memory import CurvatureState, ExchangeRecord, Visit
from dqnfed_flwr.config import CurvatureSettings
from dqnfed_flwr.linalg.lbfgs import LBFGSHistory, tells_curvature

Pair = tuple[Tensor, Tensor]


class Differentiable(Protocol):
    """A loss as `LocalLoss` offers it."""

    def loss_and_gradient(self, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        """Loss and gradient [D] at `theta` [D]."""

    def hessian_product(self, theta: Tensor, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        """Hessian at `theta` times `vector`, [D]."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where curvature is asked for.

    Attributes
    ----------
    exchange : int
        Number of the exchange.
    theta, gradient : Tensor
        [D]. The state keeps them without a copy: neither may change afterwards.
    loss : float
        f_k at `theta`.
    previous : Tensor | None
        theta^{t-1} [D], where the message gives it and it is another model.
    rows : Tensor | None
        The mini-batch behind `gradient`; None for all samples.
    """

    exchange: int
    theta: Tensor
    gradient: Tensor
    loss: float
    previous: Tensor | None = None
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """d~_k, the pairs behind it, and those turned away in this exchange."""

    value: float
    pairs_kept: int = 0
    pairs_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """Curvature at a point: the pairs behind it, oldest first, with damping one more to measure by, and the rate."""

    pairs: list[Pair]
    rate: Rate


class Curvature:
    """Curvature pairs of one client.

    `lr` scales the rate where no curvature is known. `state` is the client's memory, changed in place; nothing is kept
    for `none`, nor for memory 1 without cached gradients.
    """

    def __init__(self, settings: CurvatureSettings, lr: float, loss: Differentiable, state: CurvatureState) -> None:
        self.state = state
        self._settings = settings
        self._lr = lr
        self._loss = loss
        self._cached = settings.kind == "secant" and settings.previous == "cached"
        self._remembers = settings.kind != "none" and (self._cached or settings.memory > 1)

    def observe(self, point: Point) -> Observation:
        """Form the pair of this exchange, or take it up again if the exchange is repeated, and give the rate.

        Where the new pair is too short or turned away, the newest earlier ones serve.
        """
        if self._settings.kind == "none":
            return Observation([], self.rate(point.gradient, math.nan, 0, 0))
        repeated = self.state.return_to(point.exchange, point.loss)
        if repeated is not None:
            newest = self._pair(repeated, point)
        else:
            newest = self._hessian_pair(point) if self._settings.kind == "hvp" else self._secant_pair(point)
        rejected = 0 if repeated is None else repeated.rejected
        pairs = self._serving(point, newest)
        fit = _Fit(pairs, point.gradient, self._settings)
        if newest is not None and not fit.newest_kept:
            newest, rejected = None, 1
            pairs = self._serving(point)
            fit = _Fit(pairs, point.gradient, self._settings)
        if repeated is None:
            self._remember(point, newest, rejected)
        if self._cached:
            self.state.visit = Visit(point.exchange, point.theta, point.gradient)
        kept = len(fit.history)
        return Observation(pairs, self.rate(point.gradient, fit.rate(), kept, rejected))

    def history(self, pairs: Sequence[Pair]) -> LBFGSHistory:
        """An L-BFGS history that took in `pairs`, of which it keeps the last m."""
        history = _empty_history(self._settings)
        for s, y in pairs:
            history.push(s, y)
        return history

    def rate(self, gradient: Tensor, value: float, kept: int, rejected: int) -> Rate:
        """`value` where it is a rate of `kept` pairs; else lr |g|^2, and the pairs count as turned away."""
        if kept and 0 < value < math.inf:
            return Rate(value, kept, rejected)
        square = float(torch.dot(gradient, gradient))
        if not 0 < square < math.inf:  # in the dtype of the model
            square = float(gradient.cpu().double().square().sum())
        return Rate(self._lr * square, 0, rejected + kept)

    def _secant_pair(self, point: Point) -> Pair | None:
        if self._cached:
            if self.state.visit is None:
                return None
            before, gradient = self.state.visit.theta, self.state.visit.gradient
        elif point.previous is not None:
            before, gradient = point.previous, self._loss.loss_and_gradient(point.previous, point.rows)[1]
        else:
            return None
        s = point.theta - before
        long_enough = tells_curvature(s, float(torch.linalg.vector_norm(point.theta)))
        return (s, point.gradient - gradient) if long_enough else None

    def _hessian_pair(self, point: Point) -> Pair | None:
        norm = float(torch.linalg.vector_norm(point.gradient))
        if not 0 < norm < math.inf:
            return None
        s = point.gradient / norm
        return s, self._loss.hessian_product(point.theta, s, point.rows)

    def _serving(self, point: Point, newest: Pair | None = None) -> list[Pair]:
        """The pairs that serve: the last m, or the last m - 1 and the `newest`.

        Damping measures a pair by the one before it, and so sees one more.
        """
        places = self._settings.memory - (newest is not None and not self._settings.damping)
        earlier = (self._pair(record, point) for record in self.state.before(point.exchange, places))
        return [pair for pair in (*earlier, newest) if pair is not None]

    def _pair(self, record: ExchangeRecord, point: Point) -> Pair | None:
        if record.s is None:
            return None
        if record.y is not None:
            return record.s, record.y
        return record.s, self._loss.hessian_product(point.theta, record.s, point.rows)

    def _remember(self, point: Point, pair: Pair | None, rejected: int) -> None:
        if self._remembers:
            s, y = pair or (None, None)
            y = None if self._settings.kind == "hvp" else y
            self.state.add(ExchangeRecord(point.exchange, point.loss, rejected, s, y), self._settings.memory)


class _Fit:
    """An L-BFGS history over the coordinates of `pairs` and `gradient` in a basis of their span."""

    def __init__(self, pairs: Sequence[Pair], gradient: Tensor, settings: CurvatureSettings) -> None:
        self.history = _empty_history(settings)
        self.newest_kept = False
        self._gradient: Tensor | None = None
        if not pairs:
            return
        products = inner_products([*(vector for pair in pairs for vector in pair), gradient])
        if not products.isfinite().all():
            return
        *vectors, self._gradient = coordinates(products)
        for s, y in zip(vectors[::2], vectors[1::2], strict=True):
            self.newest_kept = self.history.push(s, y)

    def rate(self) -> float:
        """g . B g; NaN without pairs."""
        if self._gradient is None or not len(self.history):
            return math.nan
        return float(torch.dot(self._gradient, self.history.inverse_product(self._gradient)))


def inner_products(vectors: Sequence[Tensor]) -> Tensor:
    """All inner products of n vectors [D] as a float64 matrix [n, n] on the CPU."""
    n = len(vectors)
    upper = torch.stack([torch.dot(vectors[i], vectors[j]) for i in range(n) for j in range(i, n)])
    products = torch.zeros(n, n, dtype=torch.float64)
    rows, columns = torch.triu_indices(n, n)
    products[rows, columns] = upper.cpu().double()
    products[columns, rows] = products[rows, columns]
    return products


def coordinates(products: Tensor) -> Tensor:
    """Vectors [n, n] in float64, one a row, with the inner products given (those of linearly dependent ones too)."""
    lengths = products.diagonal().clamp(min=0).sqrt()
    scale = torch.where(lengths > 0, lengths, 1.0)
    values, basis = torch.linalg.eigh(products / scale / scale[:, None])
    rows: Tensor = lengths[:, None] * basis * values.clamp(min=0).sqrt()
    return rows


def _empty_history(settings: CurvatureSettings) -> LBFGSHistory:
    return LBFGSHistory(settings.memory, damping=settings.damping)
