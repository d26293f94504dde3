"""State of a run between two exchanges: all that a checkpoint must hold."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from dqnfed_flwr.admission import Ledger
from dqnfed_flwr.config import Settings
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination
from dqnfed_flwr.wire import Buffers

RunStatus = Literal["running", "finished", "pareto-stationary", "early-stopped"]


@dataclass(slots=True)
class PendingStep:
    """A step that was solved for and waits for the clients' losses at the candidate.

    Attributes
    ----------
    round : int
        t; the step leads from theta^{t-1} to theta^t.
    step : Tensor
        [D].
    ladder : Ladder
        Candidate factor and rungs asked for.
    scale : StepScale
        What the rule may know of it.
    clients : tuple[int, ...]
        Participants, rising.
    losses, slopes, rates, shares, weights : dict[int, float]
        By participant: f_k(theta^{t-1}), g_k . step, d~_k, p_k, coefficient.
    combination : Combination
        Of the solve; for the record.
    dropped : list[DroppedClient]
        Who was left out of the round, with the reason.
    pairs_kept, pairs_rejected : int
        Curvature pairs of the participants, counted.
    misses : int
        Candidates on this step that were turned down.
    relaxed : bool
        The step is that of the mean gradient, judged by the mean loss, because no common descent was found.
    fallback : Tensor | None
        Mean gradient [D], kept when the run may relax.
    blocked : dict[int, int]
        Exchanges in a row in which no factor suited a participant, see `admission.votes`.
    promised : dict[int, float]
        The factor that each participant named one exchange ago as one at which its loss falls enough.
    silenced : tuple[int, ...]
        Participants without a vote on this step.
    first : float
        The first factor that was tried.
    """

    round: int
    step: Tensor
    ladder: Ladder
    scale: StepScale
    clients: tuple[int, ...]
    losses: dict[int, float]
    slopes: dict[int, float]
    rates: dict[int, float]
    shares: dict[int, float]
    weights: dict[int, float]
    combination: Combination
    dropped: list[DroppedClient]
    pairs_kept: int = 0
    pairs_rejected: int = 0
    misses: int = 0
    relaxed: bool = False
    fallback: Tensor | None = None
    blocked: dict[int, int] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)
    silenced: tuple[int, ...] = ()
    first: float = 0.0


@dataclass(slots=True)
class Tally:
    """What the exchanges since the last settled round cost, and who was left out in those that settled nothing.

    Attributes
    ----------
    exchanges, misses, repeated_calls : int
        Counts; misses are those of steps given up before the round's own.
    bytes_up, bytes_down : int
        Of arrays and figures, without framing.
    seconds : dict[str, float]
        By phase.
    dropped : list[DroppedClient]
        Each client once for each reason.
    since : float
        When it began (perf_counter).
    """

    exchanges: int = 0
    misses: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    repeated_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    dropped: list[DroppedClient] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def spend(self, phase: str, since: float) -> None:
        """Book the time since `since` (perf_counter) to `phase`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since

    def leave_out(self, dropped: Iterable[DroppedClient]) -> None:
        """Keep `dropped` for the event of the round, each client once for each reason."""
        known = {(drop.client, drop.reason) for drop in self.dropped}
        self.dropped += [drop for drop in dropped if (drop.client, drop.reason) not in known]


@dataclass(slots=True)
class BestModel:
    """The model of best mean validation accuracy so far, for early stopping.

    Attributes
    ----------
    round : int
        After which it was the model.
    accuracy : float
        Mean over the clients.
    theta : Tensor
        [D].
    buffers : Buffers
        Its buffers.
    since : int
        Evaluations since then.
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

    Attributes
    ----------
    round : int
        Rounds settled.
    exchange : int
        Exchanges sent.
    theta : Tensor
        theta^round [D], the last model that was accepted.
    candidate : Tensor
        [D], what the next exchange carries; `theta` itself when nothing is pending.
    buffers : Buffers
        The model's buffers.
    failures : int
        Exchanges in a row that too few answered.
    status : RunStatus
        The loop goes on as long as it is `running`.
    pending : PendingStep | None
        The step behind `candidate`.
    best : BestModel | None
        With early stopping.
    last : Move | None
        The step that led to `theta`, from the end of its round to the next solve, where clients need to hear of it.
    ledger : Ledger
        What admission remembers of clients.
    tally : Tally
        Of the round that is under way.
    """

    theta: Tensor
    candidate: Tensor
    buffers: Buffers
    round: int = 0
    exchange: int = 0
    failures: int = 0
    status: RunStatus = "running"
    pending: PendingStep | None = None
    best: BestModel | None = None
    last: Move | None = None
    ledger: Ledger = field(default_factory=Ledger)
    tally: Tally = field(default_factory=Tally)

    @property
    def move(self) -> Move | None:
        """The step that leads to `candidate`, where one does that clients are told of."""
        return self.last if self.pending is None else Move(self.pending.step, self.pending.ladder.factor)


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
    dropped, state.pending = state.pending, None
    state.candidate, state.status = state.theta, "finished"
    return dropped
