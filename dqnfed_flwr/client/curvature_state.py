"""What a client remembers of its curvature from exchange to exchange."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Visit:
    """A model that the client was asked about, and its gradient there."""

    exchange: int
    theta: Tensor
    gradient: Tensor


@dataclass(frozen=True, slots=True)
class Record:
    """What one exchange brought: a pair, or for Hessian products a direction `s` alone, or nothing.

    Attributes
    ----------
    exchange : int
        Its number.
    loss : float
        f_k there. An exchange that is done again repeats it to the last bit; any other value tells that the server
        went another way since.
    rejected : int
        Pairs turned away.
    s, y : Tensor | None
        [D].
    """

    exchange: int
    loss: float
    rejected: int
    s: Tensor | None = None
    y: Tensor | None = None


class CurvatureState:
    """Records in the order of their exchanges, and the last visit where pairs are made from successive models.

    A server that is resumed repeats its last exchanges with the same models. The client then uses the pair that it
    recorded under that number, so that the reply has the same bits; later records are dropped.

    Parameters
    ----------
    dim : int
        D.
    dtype : torch.dtype
        Of the vectors.
    device : torch.device
        Where they lie.

    Attributes
    ----------
    records : list[Record]
        Rising exchanges.
    visit : Visit | None
        The last one.
    """

    def __init__(self, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.records: list[Record] = []
        self.visit: Visit | None = None
        self._dim, self._dtype, self._device = dim, dtype, device

    def return_to(self, exchange: int, loss: float) -> Record | None:
        """Drop what lies ahead of `exchange`; its own record if it is done again, else None.

        A record under this number with another loss is dropped too, and so is the visit behind it.
        """
        repeated = next((r for r in self.records if r.exchange == exchange and r.loss == loss), None)
        last = exchange if repeated else exchange - 1
        self.records = [record for record in self.records if record.exchange <= last]
        if self.visit is not None and self.visit.exchange > exchange - 1:
            self.visit = None
        return repeated

    def add(self, record: Record, memory: int) -> None:
        """Append a record; keep the newest `memory` + `REDO_DEPTH` that hold vectors, and the empty ones among them."""
        self.records.append(record)
        full = [position for position, r in enumerate(self.records) if r.s is not None]
        oldest = full[-memory - REDO_DEPTH] if len(full) > memory + REDO_DEPTH else 0
        empty_since = len(self.records) - memory - REDO_DEPTH
        self.records = [
            r for position, r in enumerate(self.records) if position >= (oldest if r.s is not None else empty_since)
        ]

    def before(self, exchange: int, count: int) -> list[Record]:
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

        Raises
        ------
        ShapeError
            If the arrays are no state, or one of a model of another size or dtype; this state is then as it was.
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
            Record(exchange, loss, rejected, vectors.get(("s", exchange)), vectors.get(("y", exchange)))
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
