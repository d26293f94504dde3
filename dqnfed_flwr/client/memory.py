"""What a client remembers: of its curvature from exchange to exchange, and for a method from round to round.

A server that is resumed repeats its last exchanges and rounds. The client then uses what it had before them, so that
the reply has the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ShapeError

StateArrays = dict[str, NDArray[Any]]
REDO_DEPTH = 2
"""Pairs kept beyond the memory, so that as many exchanges can be done again with the same bits.

A server that goes back further finds clients that have forgotten: their rates start from lr |g|^2 again.
"""
_PARTS = ("before", "after")
_SINCE = "before/since"
logger = logging.getLogger("flwr")


@dataclass(frozen=True, slots=True)
class Visit:
    """A model that the client was asked about, and its gradient there."""

    exchange: int
    theta: Tensor
    gradient: Tensor


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    """What one exchange brought: a pair s, y [D], or for Hessian products a direction s alone, or nothing.

    An exchange that is done again repeats its loss f_k to the last bit; any other value shows that the server went
    another way since. `rejected` counts the pairs turned away.
    """

    exchange: int
    loss: float
    rejected: int
    s: Tensor | None = None
    y: Tensor | None = None


class CurvatureState:
    """Records in the order of their exchanges, and the last visit where pairs are made from successive models.

    An exchange that comes again uses the pair that was recorded under its number; later records are dropped.
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.records: list[ExchangeRecord] = []
        self.visit: Visit | None = None
        self._dim, self._dtype, self._device = dim, dtype, device

    def return_to(self, exchange: int, loss: float) -> ExchangeRecord | None:
        """Drop what lies ahead of `exchange`; its own record if it is done again, else None.

        A record under this number with another loss is dropped too, and so is the visit behind it.
        """
        repeated = next((r for r in self.records if r.exchange == exchange and r.loss == loss), None)
        last = exchange if repeated else exchange - 1
        self.records = [record for record in self.records if record.exchange <= last]
        if self.visit is not None and self.visit.exchange > exchange - 1:
            self.visit = None
        return repeated

    def add(self, record: ExchangeRecord, memory: int) -> None:
        """Append a record; keep the newest `memory` + `REDO_DEPTH` that hold vectors, and the empty ones among them."""
        self.records.append(record)
        full = [position for position, r in enumerate(self.records) if r.s is not None]
        oldest = full[-memory - REDO_DEPTH] if len(full) > memory + REDO_DEPTH else 0
        empty_since = len(self.records) - memory - REDO_DEPTH
        self.records = [
            r for position, r in enumerate(self.records) if position >= (oldest if r.s is not None else empty_since)
        ]

    def before(self, exchange: int, count: int) -> list[ExchangeRecord]:
        """The newest `count` records below `exchange` that hold vectors, oldest first."""
        full = [record for record in self.records if record.s is not None and record.exchange < exchange]
        return full[len(full) - min(count, len(full)) :]

    def export(self) -> StateArrays:
        """Everything as named arrays; on the CPU the vectors are not copied."""
        arrays: StateArrays = {}
        for r in self.records:
            arrays[f"record.{r.exchange}"] = np.array([r.loss, r.rejected], dtype=np.float64)
            arrays |= {f"{name}.{r.exchange}": v.cpu().numpy() for name, v in (("s", r.s), ("y", r.y)) if v is not None}
        if self.visit is not None:
            arrays[f"theta.{self.visit.exchange}"] = self.visit.theta.cpu().numpy()
            arrays[f"gradient.{self.visit.exchange}"] = self.visit.gradient.cpu().numpy()
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; the arrays are copied.

        `ShapeError` if they are no state, or one of a model of another size or dtype; this state is then as it was.
        """
        vectors: dict[tuple[str, int], Tensor] = {}
        figures: dict[int, tuple[float, int]] = {}
        for key, values in arrays.items():
            name, _, number = key.partition(".")
            known = number.isdecimal() and name in ("record", "s", "y", "theta", "gradient")
            if not known or (name == "record" and values.shape != (2,)):
                raise ShapeError(f"curvature state: unknown entry {key!r}; restore what `export` gave")
            if name == "record":
                figures[int(number)] = (float(values[0]), int(values[1]))
            else:
                vectors[name, int(number)] = self._vector(key, values)
        visits = [{number for name, number in vectors if name == part} for part in ("theta", "gradient")]
        if visits[0] != visits[1]:
            raise ShapeError(
                f"curvature state: theta of {visits[0]} beside gradients of {visits[1]}; both belong together"
            )
        self.records = [
            ExchangeRecord(exchange, loss, rejected, vectors.get(("s", exchange)), vectors.get(("y", exchange)))
            for exchange, (loss, rejected) in sorted(figures.items())
        ]
        last = max(visits[0], default=None)
        self.visit = None if last is None else Visit(last, vectors["theta", last], vectors["gradient", last])

    def _vector(self, key: str, values: NDArray[Any]) -> Tensor:
        vector = torch.tensor(values)
        if tuple(vector.shape) != (self._dim,) or vector.dtype != self._dtype:
            raise ShapeError(
                f"curvature state: {key!r} is {vector.dtype} {tuple(vector.shape)}; this model needs {self._dtype} "
                f"({self._dim},); start the client with an empty state"
            )
        return vector.to(self._device)


class RoundMemory:
    """Named tensors that change once a round, as they were before and after the last round.

    A round can come twice: its candidate was not accepted, or the server was resumed. It then starts from the same
    tensors again, so the reply has the same bits. A server that goes back further, to a round before the last two that
    this client took part in, finds a client that begins anew: what is kept belongs to rounds that are yet to come, and
    a round that failed instead would cost the client its part in it.

    `dtype` is that of the model; the tensors may have others.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self._round = self._since = 0  # `_after` holds after the one, `_before` since the other
        self._before: dict[str, Tensor] = {}
        self._after: dict[str, Tensor] = {}

    def before(self, round_number: int) -> dict[str, Tensor]:
        """What held when `round_number` began; empty for a client that takes part for the first time, or forgot."""
        return self._held(round_number)[0]

    def keep(self, round_number: int, tensors: Mapping[str, Tensor]) -> None:
        """Leave what holds after `round_number`. The tensors are not copied: do not write to them later."""
        if round_number <= self._since:
            logger.warning(
                "Round %d comes again; this client can do again only what came after round %d, so what it keeps for "
                "the method begins anew. Set checkpoint-every to 1 to avoid this",
                round_number,
                self._since,
            )
        self._before, self._since = self._held(round_number)
        self._after = dict(tensors)
        self._round = round_number

    def export(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays; empty if nothing is kept. On the CPU nothing is copied."""
        if not self._round:
            return {}
        parts = zip(_PARTS, (self._before, self._after), strict=True)
        arrays = {f"{part}/{name}": t.cpu().numpy() for part, tensors in parts for name, t in tensors.items()}
        since = {_SINCE: np.array(self._since)} if self._before else {}
        return {"round": np.array(self._round), **since, **arrays}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; the arrays are copied. `ShapeError` if they are no such state."""
        read: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS}
        for key, values in arrays.items():
            if key == _SINCE:
                continue
            part, _, name = key.partition("/")
            if part in _PARTS and name:
                read[part][name] = torch.tensor(values, device=self.device)
            elif key != "round":
                raise ShapeError(f"client memory: unknown entry {key!r}; restore what `export` gave")
        if bool(arrays) != ("round" in arrays) or bool(read["before"]) != (_SINCE in arrays):
            raise ShapeError(f"client memory: {sorted(arrays)} lack a round; restore what `export` gave")
        self._round, self._since = (int(arrays[key]) if key in arrays else 0 for key in ("round", _SINCE))
        self._before, self._after = read["before"], read["after"]

    def _held(self, round_number: int) -> tuple[dict[str, Tensor], int]:
        """What held when `round_number` began, and the round after which it did first."""
        if round_number > self._round:
            return self._after, self._round
        return (self._before, self._since) if round_number > self._since else ({}, 0)
