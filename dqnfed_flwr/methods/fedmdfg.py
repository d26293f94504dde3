"""FedMDFG: the shortest point of the hull of the clients' gradients and of a fairness objective.

Pan, Wang, Li, Wang, Tang and Zhao, "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance",
AAAI 2023, Algorithms 1 and 2. The line search, Algorithm 2, is the step rule `search`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.min_norm import CUTOFF, ScaledGram, Status
from dqnfed_flwr.methods._base import Method, RoundRows, State, left_out
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.methods.guidance import ANGLE, Direction, angle, common_direction, fairness_row
from dqnfed_flwr.schema.group import expert
from dqnfed_flwr.schema.plan import GRADIENTS_FIRST, Profile, RunPlan
from dqnfed_flwr.steps.search import SearchSettings
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, SearchHints, Sees

REFERENCES = "references"


class FedMdfgSettings(SearchSettings):
    """FedMDFG."""

    angle: float = expert(11.25, "degrees between losses and equal ones above which fairness is pursued", gt=0, le=90)


class FedMdfg(Method):
    """step = eta |mean g| d / |d|, d the shortest point of the convex hull of the objectives' gradients.

    The objectives are the clients' losses, their gradients equally long; while the losses differ too much, the cosine
    between them and equal ones (see `guidance`); and the losses of the clients of the round before that are absent
    now. The losses differ too much if their angle to equal ones is above `angle`, or if some clients, not all, are
    above the running reference of their own loss.

    Deviations from the paper: where all participants are above their references, that alone does not ask for fairness;
    a client with a zero gradient is left out of the round and counted; where the clients
    have a common descent direction and the further objectives have none with them, those are dropped, first fairness,
    then the absent clients, and `notes` say so (`objectives_dropped`). From published code: the rows of absent clients
    are as long as those of this round, not of theirs; with full participation none are kept; the hull problem is
    solved to 1e-6 and its status reported.
    """

    _remembered = ("last",)

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        self._angle = run.group_of(FedMdfgSettings).angle
        self._absent = AbsentClients(1, run.settings.sampled, run.settings.clients)
        self._references = LossReferences()
        self._memories = (self._references, self._absent)
        self._some_rose = self._lost = False
        self._last: tuple[int, ...] = ()
        self.reference_rows, self.sees = self._absent.room, Sees.PRODUCTS | self._absent.sees

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Take in the losses, and the rows of clients that are absent now."""
        self._absent.observe(batch, rows)
        risen = self._references.update(batch.clients, batch.losses)
        self._some_rose = 0 < risen < len(batch.clients)
        self._lost = not set(self._last) <= set(batch.clients)
        self._last = tuple(client for client, square in zip(batch.clients, np.diag(batch.gram), strict=True) if square)

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows and of the absent clients' rows."""
        count = len(batch.clients)
        slots = [*rows.slots, *self._absent.place(rows)]
        gram = rows.gram(slots)
        live = np.diag(batch.gram) > 0
        spread = angle(batch.losses[live]) if live.any() else 0.0
        unfair = spread > self._angle or self._some_rose
        found = _solve(gram, count, fairness_row(batch.losses, live) if unfair else None)
        direction, stretch = found.direction, _stretch(found.direction, found.gram, live)
        weights = np.zeros(rows.capacity)
        if direction.status is not Status.STATIONARY:
            weights[slots[: len(found.gram)]] = self._row_lr * stretch * direction.weights
        scaled = ScaledGram.of(batch.gram)
        return Combination(
            weights,
            rank=scaled.rank(CUTOFF),
            condition=scaled.condition(CUTOFF),
            residual=direction.residual,
            status=direction.status,
            excluded=left_out(batch, live),
            notes={
                "angle": spread,
                "fairness": float(found.fair),
                "absent": float(len(found.gram) - count),
                "objectives_dropped": float(found.dropped),
            },
            hints=SearchHints(fair=found.fair, lost=self._lost, stretch=stretch),
        )


class LossReferences:
    """What a client's loss has come down to, round by round (FedMDFG).

    A loss at or below the reference enters it as one of the rounds that the client has taken part in so far; a round
    with a loss above counts as one whose loss was the reference.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int]] = {}

    def update(self, clients: Sequence[int], losses: Float64Array) -> int:
        """Take in the losses of a round; how many lie above their client's reference."""
        risen = 0
        for client, loss in zip(clients, map(float, losses), strict=True):
            reference, count = self._known.get(client, (loss, 0))
            if loss <= reference:
                reference = (reference * count + loss) / (count + 1)
            else:
                risen += 1
            self._known[client] = (reference, count + 1)
        return risen

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Client, reference and rounds taken part in [n, 3]."""
        rows = [(client, *known) for client, known in sorted(self._known.items())]
        return {REFERENCES: np.array(rows, np.float64).reshape(-1, 3)}

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        self._known = {int(client): (loss, int(count)) for client, loss, count in state[REFERENCES].tolist()}


@dataclass(frozen=True, slots=True)
class _Found:
    """A direction, the Gramian of the rows that it serves, and what was left aside for it."""

    direction: Direction
    gram: Float64Array
    fair: bool
    dropped: int


def _solve(gram: Float64Array, count: int, fairness: Float64Array | None) -> _Found:
    """The direction for all objectives, or for those left when further ones are dropped one after the other."""
    attempts = [(gram, fairness)]
    if fairness is not None:
        attempts.append((gram, None))
    if len(gram) > count:
        attempts.append((gram[:count, :count], None))
    for dropped, (gradients, guide) in enumerate(attempts):
        found = _Found(common_direction(gradients, count, guide), gradients, guide is not None, dropped)
        if found.direction.status is not Status.STATIONARY:
            break
    return found


def _stretch(direction: Direction, gram: Float64Array, live: NDArray[np.bool_]) -> float:
    """|mean| / |d|: what gives the direction the length of the mean of the equally long gradients; 1 if it is zero."""
    mean = np.zeros(len(gram))
    mean[: len(live)] = direction.scales[: len(live)] * live / max(live.sum(), 1)
    squares = [float(weights @ gram @ weights) for weights in (mean, direction.weights)]
    return math.sqrt(squares[0] / squares[1]) if min(squares) > 0 else 1.0


class _FedMdfg(Profile):
    def nonnegative(self, run: RunPlan, *, floor: bool) -> str:
        return ANGLE


METHODS = (
    _FedMdfg(
        name="fedmdfg",
        title="FedMDFG",
        settings=FedMdfgSettings,
        build=FedMdfg,
        works=GRADIENTS_FIRST,
        one_gradient="its line search compares the losses with slopes along true gradients",
        rule="search",
    ),
)
