"""State of a run between two exchanges: all that a checkpoint must hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord
from torch import Tensor

from dqnfed_flwr.config import GuaranteeSettings
from dqnfed_flwr.guarantee.overrule import Certificate, Standing, Votes, certificate
from dqnfed_flwr.record_codec import TRANSIENT
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.strategy.confirmation import Confirmation, KnownModel
from dqnfed_flwr.telemetry.events import AlongStep, Cost, DroppedClient, RunStatus
from dqnfed_flwr.types import Combination, Float64Array, on_host
from dqnfed_flwr.wire import Buffers, decode_model

BUDGET_SPENT: RunStatus = "budget-spent"
"""Of a run whose budget of differential privacy holds no further exchange."""
ENDED_EARLY = ("pareto-stationary", "line-search-failed", BUDGET_SPENT)
"""Of a run that ended before its rounds were done, and not because it had learnt enough."""
SAMPLED = 64
"""Values of a step by which a search is known again, besides its sum and its norm."""
STALLED: RunStatus = "stalled"
"""Of a run whose model did not move any more, or never did, without a certificate that it is stationary."""


@dataclass(slots=True)
class Tried:
    """How a step has been tried so far."""

    first: float = 0.0  # the first factor
    misses: int = 0  # candidates that were turned down
    blocked: dict[int, int] = field(default_factory=dict)  # ladders that clients refused against their own gradient
    promised: dict[int, tuple[float, float]] = field(default_factory=dict)  # factor named last time, and the loss there
    relaxed: bool = False  # no common descent was found: the mean row's step, judged by the mean loss
    mean_row: Tensor | None = None  # [D], kept when the run may relax
    along: AlongStep | None = field(default=None, metadata=TRANSIENT)  # losses at other lengths, where asked for


@dataclass(slots=True)
class PendingStep:
    """A step that was solved for and waits for the clients' losses at the candidate.

    The participants are the clients that were asked for a row and said what their loss is. Tuples of clients rise. The
    dicts are by participant.
    """

    round: int  # t; the step leads from theta^{t-1} to theta^t
    step: Tensor  # [D]
    ladder: Ladder  # candidate factor and rungs asked for
    scale: StepScale  # what the rule may know of the step
    asked: tuple[int, ...]  # asked for a row
    clients: tuple[int, ...]  # the participants
    votes: Votes  # whose rows and whose votes count
    losses: dict[int, float]  # f_k(theta^{t-1})
    slopes: dict[int, float]  # g_k . step; 0 without a row
    rates: dict[int, float]  # d~_k; NaN where not heard
    shares: dict[int, float]  # p_k; 0 where not heard
    weights: dict[int, float]  # coefficient of the row; 0 where not heard
    combination: Combination  # of the solve; for the record
    dropped: list[DroppedClient]  # left out of the round
    gram: Float64Array  # inner products of the rows of `binding` [B, B]; [0, 0] where nobody reads products
    binding: tuple[int, ...]  # those heard whose loss is above `entitlement`; all heard where none is [B]
    entitlement: float = 0.0  # e of the round, see `guarantee.harm`
    pairs_kept: int = 0  # curvature pairs of those heard, counted
    pairs_rejected: int = 0
    limits: dict[int, float] = field(default_factory=dict)  # with a window: the largest of the last losses
    doubts: dict[int, float] = field(default_factory=dict)  # by what rounding may have a slope wrong, where it may
    tried: Tried = field(default_factory=Tried)

    def known_scale(self, settings: GuaranteeSettings) -> StepScale:
        """What the step rule may know: the scale, losses and slopes of the participants, and how many may lie."""
        return replace(self.scale, losses=self.losses, slopes=self.slopes, doubters=settings.liars(len(self.asked)))

    @property
    def certificate(self) -> Certificate:
        """How near the model is to a Pareto-stationary one, by the gradients that the step was made of.

        It is empty where their products were not computed.
        """
        return certificate(self.gram, self.binding)


@dataclass(slots=True)
class BestModel:
    """The model of best validation `figure`, the mean over the clients, so far, for early stopping.

    It was the model, `theta` [D] with its `buffers`, after `round`; there were `since` evaluations after that.
    """

    round: int
    figure: float
    theta: Tensor
    buffers: Buffers
    since: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A step [D] and the factor it is tried or was taken at: the line through a model."""

    step: Tensor
    factor: float


@dataclass(slots=True)
class SearchMemory:
    """The search for a length that is under way, and the last that found none, with how its round ended.

    A search is known by its first step, the factor it begins with, and all that its judges are asked: with the same
    participants, losses and rules, clients give the same answers again.
    """

    round: int = 0
    judges: tuple[int, ...] = ()
    begun: str = ""
    vain: str = ""
    status: str = ""

    def begin(self, round_number: int, step: Tensor, judges: Sequence[int], judged_by: Sequence[object]) -> str:
        """Note the first step [D] of a round; how its search ended the last time, empty if it is to be done.

        `judges` are the participants, and `judged_by` is all else that decides on its length, as JSON can write it.
        Where a further step of the round has other judges, the search is not one that can be known again.
        """
        if self.round == round_number:
            self.begun = self.begun if tuple(judges) == self.judges else ""
            return ""
        self.judges = tuple(judges)
        text = json.dumps([list(judges), *judged_by, *_sketch(step)])
        self.round, self.begun = round_number, hashlib.sha256(text.encode()).hexdigest()
        return self.status if self.begun == self.vain else ""

    def in_vain(self, round_number: int, status: str) -> None:
        """A round ended without a length, with all steps tried in it; one in which none was tried says nothing."""
        if self.round == round_number and self.begun:
            self.vain, self.status = self.begun, status

    def forget(self) -> None:
        """The model has moved."""
        self.vain = self.status = ""


def _sketch(step: Tensor) -> list[float]:
    """Figures of a vector [D], which stays where it is, that another one shares by chance alone."""
    sampled: list[float] = step[:: max(1, len(step) // SAMPLED)].tolist()
    return [float(step.sum()), float(step.norm()), *sampled]


@dataclass(slots=True)
class RunState:
    """Where a run stands.

    A step goes through `begin`, then `accept` or `stay`, then `end_round`, or else through `reject` and `solve_anew`.
    """

    theta: Tensor  # theta^round [D], the last model that was accepted
    candidate: Tensor  # [D], what the next exchange carries; `theta` itself when nothing is pending
    buffers: Buffers  # of the candidate
    round: int = 0  # rounds done
    exchange: int = 0  # exchanges sent
    failures: int = 0  # exchanges in a row with too few usable replies
    unusable: tuple[tuple[int, ...], ...] = ()  # by such exchange: asked to train, without a usable reply; rising
    status: RunStatus = "running"  # the loop goes on as long as it is `running`
    pending: PendingStep | None = None  # the step behind `candidate`
    settled: Buffers | None = None  # those of `theta`, where a step is pending
    best: BestModel | None = None  # with early stopping
    confirmation: Confirmation | None = None  # where the result is a model that all clients have confirmed
    last: Move | None = None  # that led to `theta`, from its round's end to the next solve, where clients need it
    standing: Standing = field(default_factory=Standing)  # what is remembered of clients
    moves: int = 0  # steps taken: the number of the model
    unmoved: int = 0  # rounds since the last of them
    changed: bool = False  # whether a step changed the loss of anybody, or nobody said
    resting: RunStatus | None = None  # how a run ends whose model rests by what one of these rounds showed
    earlier: dict[int, list[float]] = field(default_factory=dict)  # with a window: losses before the last, by client
    search: SearchMemory = field(default_factory=SearchMemory)  # of the searches for a length
    cost: Cost = field(default_factory=Cost, metadata=TRANSIENT)  # of the round that is under way
    dropped: list[DroppedClient] = field(default_factory=list)  # since the last round, in exchanges that ended none

    @classmethod
    def at(cls, arrays: ArrayRecord, rounds: int = 0) -> RunState:
        """The state of a run that has done so many rounds and exchanges, and is at the model that `arrays` hold."""
        theta, _, buffers = decode_model(arrays)
        model = torch.from_numpy(np.array(on_host(theta)))
        return cls(theta=model, candidate=model, buffers=buffers, round=rounds, exchange=rounds)

    def to(self, device: torch.device) -> None:
        """Have the vectors on a device, as those of a checkpoint are not."""
        self.theta, self.candidate = self.theta.to(device), self.candidate.to(device)
        if self.last is not None:
            self.last = replace(self.last, step=self.last.step.to(device))
        if self.best is not None:
            self.best.theta = self.best.theta.to(device)
        if self.pending is not None:
            tried, self.pending.step = self.pending.tried, self.pending.step.to(device)
            tried.mean_row = None if tried.mean_row is None else tried.mean_row.to(device)

    @property
    def move(self) -> Move | None:
        """The step that leads to `candidate`, where there is one and clients need to know of it."""
        return self.last if self.pending is None else Move(self.pending.step, self.pending.ladder.factor)

    @property
    def confirmed_note(self) -> dict[str, float]:
        """Note of a round, with `guarantee.confirm`: the round of the last model that all clients had confirmed."""
        found = None if self.confirmation is None else self.confirmation.confirmed
        return {} if found is None else {"confirmed": float(found.round)}

    def add_dropped(self, dropped: Iterable[DroppedClient]) -> None:
        """Keep `dropped` for the event of the round, each client once for each reason."""
        self.dropped = each_once([*self.dropped, *dropped])

    def fall_short(self, unusable: Iterable[int]) -> None:
        """An exchange brought too few usable replies; `unusable` were asked to train and gave none."""
        self.failures += 1
        if out := tuple(sorted(unusable)):
            self.unusable += (out,)

    def go_on(self) -> None:
        """An exchange brought enough, or the step that it was waiting for has been dropped."""
        self.failures, self.unusable = 0, ()

    def begin(self, pending: PendingStep, buffers: Buffers) -> None:
        """A step waits to be judged; `buffers` are those of the model that it leads to."""
        self.pending, self.last = pending, None
        self.settled, self.buffers = self.buffers, buffers

    def accept(self, *, keep_move: bool) -> None:
        """The candidate is the model; `keep_move` where clients need to hear of the step that led there."""
        self.last = self.move if keep_move else None
        self.theta, self.settled = self.candidate, None
        self.moves += 1

    def keep_losses(self, pending: PendingStep, window: int) -> None:
        """The model moved: losses before it count as earlier ones, as many as the `window` has besides the last."""
        self.earlier |= {c: [*self.earlier.get(c, []), loss][1 - window :] for c, loss in pending.losses.items()}

    def limits(self, losses: Mapping[int, float]) -> dict[int, float]:
        """The largest of the last losses of those whose `losses` are known, where a window asks for them."""
        return {c: max([loss, *self.earlier.get(c, [])]) for c, loss in losses.items() if self.earlier}

    def reject(self) -> None:
        """The candidate is no more; another one may follow it."""
        self.candidate = self.theta

    def stay(self) -> None:
        """No candidate follows; the model stays, with its buffers."""
        self.candidate = self.theta
        if self.settled is not None:
            self.buffers, self.settled = self.settled, None

    def go_back(self, model: KnownModel) -> None:
        """The model is that one, and no step is pending; it counts as another than any before."""
        self.moves += 1
        self.theta = self.candidate = model.theta.to(self.theta.device)
        self.buffers, self.settled, self.last = model.buffers, None, None
        self.earlier = {}
        self.search.forget()

    def end_round(self, pending: PendingStep, rounds: int) -> None:
        """The round of the `pending` step is over, and with the last of `rounds` the run."""
        self.round, self.pending, self.cost, self.dropped = pending.round, None, Cost(), []
        if self.round >= rounds:
            self.status = "finished"

    def count_move(
        self, pending: PendingStep, factor: float, losses: Mapping[int, float], resting: RunStatus | None = None
    ) -> None:
        """The round of the `pending` step is over, which moved the model where `factor` is not 0.

        `losses` are those of participants after it; `resting` where it showed why the model rests.
        """
        moved = bool(factor)
        self.unmoved = 0 if moved else self.unmoved + 1
        known = [losses[client] != pending.losses[client] for client in pending.clients if client in losses]
        self.changed |= moved and (any(known) or not known)
        self.resting = None if moved else self.resting or resting

    def standstill(self, patience: int) -> RunStatus | None:
        """How the run ends because its model stands still; None where it does not, or `patience` is 0.

        Nobody knows why the model has not moved for `patience` rounds in a row: `stalled`. At the end of a run in which
        it never moved, or never by enough to change a loss: what showed that it rests, else `stalled`.
        """
        if not patience:
            return None
        if self.unmoved >= patience and self.resting is None:
            return STALLED
        never = self.unmoved >= self.round or not self.changed
        return self.resting or STALLED if self.status != "running" and never else None

    def solve_anew(self, pending: PendingStep) -> None:
        """The round of the `pending` step begins anew; what the step cost stays on its account."""
        self.cost.misses += pending.tried.misses
        self.add_dropped(pending.dropped)
        self.stay()
        self.pending = None

    def watch(self, round_number: int, figure: float, patience: int, *, sign: int = 1) -> None:
        """Keep the model of best validation `figure`; after `patience` evaluations without a better one, stop.

        `sign` is -1 where less is better.
        """
        if self.best is None or sign * figure > sign * self.best.figure:
            self.best = BestModel(round_number, figure, self.theta, self.buffers)
            return
        self.best.since += 1
        if self.best.since >= patience:
            self.status = "early-stopped"


def each_once(dropped: Iterable[DroppedClient]) -> list[DroppedClient]:
    """The first for each client and reason: a client may fail at the same in several exchanges of a round."""
    found: dict[tuple[int, str], DroppedClient] = {}
    for drop in dropped:
        found.setdefault((drop.client, drop.reason), drop)
    return list(found.values())
