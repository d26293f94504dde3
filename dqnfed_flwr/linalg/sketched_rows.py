"""Rows that a server does not have: their sketches stand for them, and one weighted sum is asked of the clients.

It is a `RowSet` of K sketches [m], as long as the rows. A vector [D] that the server knows, such as the last step, has
a slot too: its products with the rows are what clients say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.errors import RunError, SumError
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.types import Float64Array, FloatArray

Ask = Callable[[Mapping[int, float], float], Tensor]
"""Gives the sum of the clients' rows [D] by coefficients, which are by slot, and sum |c_k| |g_k|."""


class SketchedRows(RowSet):
    """Sketches [B, m] with their inner products, and the door to one sum.

    Parameters
    ----------
    capacity : int
        B, slots for sketches and references.
    size : int
        m.
    references : int
        How many of the last slots are for known vectors.
    model : Tensor
        [D], whose shape and dtype a sum has.
    slack : float
        How far |sum|^2 may be from what the sketches say of it, in units of (sum |c_k| |g_k|)^2.
    """

    def __init__(self, capacity: int, size: int, references: int, *, model: Tensor, slack: float) -> None:
        super().__init__(capacity, size, torch.float64, references=references)
        self._like, self._slack = torch.empty_like(model, device="meta"), slack
        self._first = capacity - references
        self._factors = np.ones(capacity)
        self._known: dict[int, Tensor] = {}
        self._ask: Ask = _nobody

    def clear(self) -> None:
        """Forget all rows, vectors."""
        super().clear()
        self._factors[:] = 1
        self._known.clear()
        self._ask = _nobody

    def ask_by(self, ask: Ask) -> None:
        """The sum of this round is asked so."""
        self._ask = ask

    def scale(self, slot: int, factor: float) -> None:
        """Let the row in `slot` count as `factor` times itself."""
        super().scale(slot, factor)
        self._factors[slot] *= factor

    def know(self, slot: int, vector: Tensor, along: Mapping[int, float]) -> None:
        """Put a vector [D] into `slot`, whose products with the rows are `along`, by slot, before they were scaled."""
        filled = self.filled
        self.gram(filled)  # whatever is owed is computed before: products from here on are given, not computed
        self._known[slot] = vector
        square = float(torch.dot(vector.double(), vector.double()))
        self._fill(slot, {other: along.get(other, 0.0) * self._factors[other] for other in filled}, square)

    def combine(self, weights: Float64Array) -> Tensor:
        """weights @ rows [D]: the clients are asked for their part of it, where they have one.

        Raises
        ------
        SumError
            If they do not give it, or what came is not of the length that their sketches say.
        """
        total = torch.zeros(self._like.shape, dtype=self._like.dtype)
        slots = [slot for slot in self.filled if slot < self._first]
        if weights[slots].any():
            total += self._asked(slots, weights[slots])
        for slot, vector in self._known.items():
            if weights[slot]:
                total += float(weights[slot]) * vector
        return total

    def _asked(self, slots: list[int], weights: Float64Array) -> Tensor:
        longest = float(np.abs(weights) @ np.sqrt([self.squared_norm(slot) for slot in slots]))
        rows = dict(zip(slots, (weights * self._factors[slots]).tolist(), strict=True))
        total = self._ask(rows, longest)
        square, wanted = float(torch.dot(total.double(), total.double())), float(weights @ self.gram(slots) @ weights)
        if not abs(square - wanted) <= self._slack * longest**2:
            raise SumError(
                f"the sum of the rows has length {math.sqrt(square):.6g}, and their sketches say "
                f"{math.sqrt(max(wanted, 0.0)):.6g}: what one of the clients gave is not its row"
            )
        return total

    def along(self, weights: Float64Array, total: Tensor, slots: Sequence[int]) -> tuple[float, Float64Array]:
        """|total|^2, which is known, and the products of the sum with the rows in `slots` by their sketches."""
        _, found = super().along(weights, total, slots)
        return float(torch.dot(total.double(), total.double())), found

    def copies(self, slots: Iterable[int]) -> list[FloatArray]:
        """Refused."""
        _unseen()

    def columns(self, slots: Sequence[int], part: slice) -> Float64Array:
        """Refused."""
        _unseen()

    def _fill(self, slot: int, products: Mapping[int, float], square: float) -> None:
        self._products[slot] = self._products[:, slot] = 0
        for other, product in products.items():
            self._products[slot, other] = self._products[other, slot] = product
        self._products[slot, slot] = self._norms[slot] = square if math.isfinite(square) else math.inf
        self._filled[slot], self._owed[slot] = True, False


def _nobody(coefficients: Mapping[int, float], longest: float) -> Tensor:
    raise RunError("a sum of rows that the server does not have, outside of the step of a round")


def _unseen() -> NoReturn:
    raise RunError("values of a row that the server does not have: privacy.mode is masked")
