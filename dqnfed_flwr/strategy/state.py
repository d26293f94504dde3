"""State of a run between two exchanges: all that a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from dqnfed_flwr.config import Settings
from dqnfed_flwr.guarantee.overrule import Standing
from dqnfed_flwr.strategy.records import PendingStep, RoundCost
from dqnfed_flwr.wire import Buffers, decode_model

RunStatus = Literal["running", "finished", "pareto-stationary", "line-search-failed", "early-stopped"]
ENDED_EARLY = ("pareto-stationary", "line-search-failed")
"""Of a run that ended before its rounds were done, and not because it had learnt enough."""


@dataclass(slots=True)
class BestModel:
    """The model of best validation `accuracy`, the mean over the clients, so far, for early stopping.

    It was the model, `theta` [D] with its `buffers`, after `round`; there were `since` evaluations after that.
    """

    round: int
    accuracy: float
    theta: Tensor
    buffers: Buffers
    since: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A step [D] and the factor it is tried or was taken at: the line through a model."""

    step: Tensor
    factor: float


@dataclass(slots=True)
class RunState:
    """Where a run stands.

    A step goes through `begin`, then `accept` or `reject`, then `end_round`, or else `solve_anew`.

    Attributes
    ----------
    round : int
        Rounds done.
    exchange : int
        Exchanges sent.
    theta : Tensor
        theta^round [D], the last model that was accepted.
    candidate : Tensor
        [D], what the next exchange carries; `theta` itself when nothing is pending.
    buffers : Buffers
        The model's buffers.
    failures : int
        Exchanges in a row with too few usable replies.
    unusable : tuple[tuple[int, ...], ...]
        Of those in which clients that were asked to train gave no usable reply, these clients, rising.
    status : RunStatus
        The loop goes on as long as it is `running`.
    pending : PendingStep | None
        The step behind `candidate`.
    best : BestModel | None
        With early stopping.
    last : Move | None
        The step that led to `theta`, from the end of its round to the next solve, where clients need to hear of it.
    standing : Standing
        What is remembered of clients.
    moves, unmoved : int
        Steps taken: the number of the model; and rounds since the last of them.
    cost : RoundCost
        Of the round that is under way.
    """

    theta: Tensor
    candidate: Tensor
    buffers: Buffers
    round: int = 0
    exchange: int = 0
    failures: int = 0
    unusable: tuple[tuple[int, ...], ...] = ()
    status: RunStatus = "running"
    pending: PendingStep | None = None
    best: BestModel | None = None
    last: Move | None = None
    standing: Standing = field(default_factory=Standing)
    moves: int = 0
    unmoved: int = 0
    cost: RoundCost = field(default_factory=RoundCost)

    @classmethod
    def at(cls, arrays: ArrayRecord, rounds: int = 0) -> RunState:
        """The state of a run that has done so many rounds and exchanges, and is at the model that `arrays` hold."""
        theta, _, buffers = decode_model(arrays)
        model = torch.from_numpy(np.array(theta))
        return cls(theta=model, candidate=model, buffers=buffers, round=rounds, exchange=rounds)

    @property
    def move(self) -> Move | None:
        """The step that leads to `candidate`, where there is one and clients need to know of it."""
        return self.last if self.pending is None else Move(self.pending.step, self.pending.ladder.factor)

    def fall_short(self, unusable: Iterable[int]) -> None:
        """An exchange brought too few usable replies; `unusable` were asked to train and gave none."""
        self.failures += 1
        if out := tuple(sorted(unusable)):
            self.unusable += (out,)

    def go_on(self) -> None:
        """An exchange brought enough, or the step that it was waiting for has been dropped."""
        self.failures, self.unusable = 0, ()

    def begin(self, pending: PendingStep, buffers: Buffers) -> None:
        """A step waits to be judged; `buffers` are those of the model it leads from."""
        self.pending, self.last, self.buffers = pending, None, buffers

    def accept(self, *, keep_move: bool) -> None:
        """The candidate is the model; `keep_move` where clients need to hear of the step that led there."""
        self.last = self.move if keep_move else None
        self.theta = self.candidate
        self.moves += 1

    def reject(self) -> None:
        """The candidate is no more; the model stays."""
        self.candidate = self.theta

    def end_round(self, pending: PendingStep, rounds: int) -> None:
        """The round of the `pending` step is over, and with the last of `rounds` the run."""
        self.round, self.pending, self.cost = pending.round, None, RoundCost()
        if self.round >= rounds:
            self.status = "finished"

    def solve_anew(self, pending: PendingStep) -> None:
        """The round of the `pending` step begins anew; what the step cost stays on its account."""
        self.cost.misses += pending.misses
        self.cost.add_dropped(pending.dropped)
        self.pending = None

    def watch(self, round_number: int, accuracy: float, patience: int) -> None:
        """Keep the model of best validation `accuracy`; after `patience` evaluations without a better one, stop."""
        if self.best is None or accuracy > self.best.accuracy:
            self.best = BestModel(round_number, accuracy, self.theta, self.buffers)
            return
        self.best.since += 1
        if self.best.since >= patience:
            self.status = "early-stopped"


def reopen(state: RunState, settings: Settings) -> PendingStep | None:
    """Let a run that is over go on where `settings` now give it more rounds, or more patience; end it at fewer.

    Without early stopping no model but the last counts, so the best one is forgotten.

    Returns
    -------
    PendingStep | None
        The step that is not tried any more, because its round is beyond the last.
    """
    if not settings.early_stopping:
        state.best = None
    patient = state.best is None or state.best.since < settings.early_stopping
    if state.status == "finished" or (state.status == "early-stopped" and patient):
        state.status = "running"
    if state.status != "running" or state.round < settings.rounds:
        return None
    dropped, state.pending, state.status = state.pending, None, "finished"
    state.reject()
    return dropped
