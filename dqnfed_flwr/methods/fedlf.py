"""FedLF: a common descent direction for every layer of the model.

Pan, Li, Yu, Wang, Wang, Tang and Zhao, "FedLF: Layer-Wise Fair Federated Learning", AAAI 2024, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dqnfed_flwr.linalg.min_norm import Status
from dqnfed_flwr.methods._base import LayerMethod, RoundRows, left_out
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.guidance import ANGLE, Direction, common_direction, fairness_row
from dqnfed_flwr.schema.plan import Profile, RunPlan
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

if TYPE_CHECKING:
    from torch import Tensor

VANISHING = 1e-5
"""A layer whose direction is shorter, relatively, counts as vanished and is merged with a neighbour."""
Parts = Iterator[tuple[slice, Float64Array]]
_GRAVITY = [Status.CONVERGED, Status.BVLS, Status.NOT_CONVERGED, Status.STATIONARY]


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring layers that share one direction: the inner products of the rows' parts [B, B], and the direction."""

    layers: tuple[int, ...]
    gram: Float64Array
    direction: Direction


class FedLf(LayerMethod):
    """step = eta |mean g| d / |d|, d put together of one direction d_l for each layer l.

    d_l is the shortest point of the convex hull of the clients' parts of layer l, made equally long; of the gradient
    of the cosine between losses and equal ones (see `guidance`) in that layer, as long; and of the parts of clients
    absent now, as long. Where d_l vanishes the layer is merged with the next one, the last with the one before, and
    the two are solved for together.

    A client counts as absent for as many rounds as it takes to ask all clients once, clients / sampled.

    Deviations from the paper: a client without a gradient is left out and counted; where no direction is left with
    all layers merged, fairness is dropped, then the absent clients, each time from single layers on (`notes` say so).
    From published code: a layer is weight and bias together, and layers are merged; zero parts are left out and
    nothing is divided by their length; the window of absent clients counts clients, not those seen so far.
    """

    sees = Sees.PRODUCTS | Sees.COLUMNS

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        clients, sampled = run.settings.clients, run.settings.sampled
        self._absent = AbsentClients(clients // sampled, sampled, clients)
        self._memories = (self._absent,)
        self._outcome = Combination(np.zeros(0))

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Remember the rows, and find those of clients that are absent now."""
        self._absent.observe(batch, rows)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """The step in the last slot, with what is known of it."""
        weights = super().combine(batch, rows).weights
        return replace(self._outcome, weights=weights)

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """The step [D], in the dtype of the rows; zero where the clients have no common descent direction."""
        count = len(batch.clients)
        live = np.diag(batch.gram) > 0
        layers = self.layers or (slice(0, rows.dim),)
        grams = [self._gram(layer, rows) for layer in layers]
        blocks, fair, dropped = self._solve(grams, count, fairness_row(batch.losses, live))
        vanished = len(blocks) == 1 and self._vanishes(blocks[0])
        used = len(blocks[0].gram) - count
        square = sum(float(block.direction.weights @ block.gram @ block.direction.weights) for block in blocks)
        mean = sum(float(gram[:count, :count].sum()) for gram in grams) / count**2
        scale = 0.0 if vanished or square <= 0 else self._row_lr * math.sqrt(max(mean, 0.0) / square)
        statuses: list[Status] = [block.direction.status for block in blocks]
        self._outcome = Combination(
            np.zeros(0),
            residual=max(block.direction.residual for block in blocks),
            status=Status.STATIONARY if not scale else max(statuses, key=_GRAVITY.index),
            excluded=left_out(batch, live),
            notes={
                "blocks": float(len(blocks)),
                "fairness": float(fair),
                "absent": float(used),
                "objectives_dropped": float(dropped),
            },
        )
        return rows.assemble(self._moves(blocks, layers, rows, scale))

    def _solve(
        self, grams: list[Float64Array], count: int, fairness: Float64Array | None
    ) -> tuple[list[Block], bool, int]:
        """Blocks with their directions, whether fairness has a say, and how many objectives were dropped."""
        attempts = [(grams, fairness)]
        if fairness is not None:
            attempts.append((grams, None))
        if self._absent.absent:
            attempts.append(([gram[:count, :count] for gram in grams], None))
        for dropped, (parts, guide) in enumerate(attempts):
            found = self._merged(parts, count, guide), guide is not None, dropped
            if not all(self._vanishes(block) for block in found[0]):
                break
        return found

    def _merged(self, grams: list[Float64Array], count: int, fairness: Float64Array | None) -> list[Block]:
        """A block for each layer; those whose direction vanishes are merged with a neighbour until none is left."""

        def block(layers: tuple[int, ...], gram: Float64Array) -> Block:
            return Block(layers, gram, common_direction(gram, count, fairness, fairness_as_long=True))

        blocks = [block((layer,), gram) for layer, gram in enumerate(grams)]
        while len(blocks) > 1:
            vanished = next((place for place, found in enumerate(blocks) if self._vanishes(found)), None)
            if vanished is None:
                break
            first = min(vanished, len(blocks) - 2)
            one, other = blocks[first : first + 2]
            blocks[first : first + 2] = [block(one.layers + other.layers, one.gram + other.gram)]
        return blocks

    def _vanishes(self, block: Block) -> bool:
        return block.direction.status is Status.STATIONARY or block.direction.short <= VANISHING

    def _gram(self, layer: slice, rows: RoundRows) -> Float64Array:
        size = len(rows.slots) + len(self._absent.absent)
        gram = np.zeros((size, size))
        for _, part in self._parts(layer, rows):
            gram += part @ part.T
        return (gram + gram.T) / 2

    def _parts(self, layer: slice, rows: RoundRows) -> Parts:
        """The columns of a layer, block by block, of the clients' rows and of those absent, in float64."""
        for columns in rows.column_blocks():
            part = slice(max(layer.start, columns.start), min(layer.stop, columns.stop))
            if part.start < part.stop:
                absent = [item.row[part].astype(np.float64)[None] for item in self._absent.absent]
                yield part, np.concatenate([rows.columns(part), *absent])

    def _moves(self, blocks: Sequence[Block], layers: Sequence[slice], rows: RoundRows, scale: float) -> Parts:
        """The step, block by block of columns; nothing where there is none."""
        for block in blocks if scale else ():
            weights = scale * block.direction.weights
            for layer in block.layers:
                for part, values in self._parts(layers[layer], rows):
                    yield part, weights @ values[: len(weights)]


class _FedLf(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return ANGLE


METHODS = (_FedLf(name="fedlf", title="FedLF", build=FedLf),)
