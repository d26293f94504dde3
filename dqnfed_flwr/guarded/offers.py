"""From what a strategy would do to the model that the clients test, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import ArrayRecord, RecordDict

from dqnfed_flwr.config import Settings
from dqnfed_flwr.guarded.arrays import Arrays, between, check_alike, flatten, moved, read, write
from dqnfed_flwr.guarded.nearest import Nearest
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.steps import StepRule, Verdict, make_rule
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.hearing import Hearing, decide_hearing, withdraw_votes
from dqnfed_flwr.strategy.judging import Judgement, judge_candidate
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.solve import NOT_FINITE, Solved, make_batch, pending_step, solve
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.strategy.step_search import NO_STEP
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination, Float64Array, Probe, RoundBatch


@dataclass(frozen=True)
class Model:
    """A model as a strategy hands it over, and its arrays."""

    record: ArrayRecord
    arrays: Arrays

    @classmethod
    def of(cls, record: ArrayRecord) -> Model:
        """The model in a record."""
        return cls(record, read(record))


@dataclass(slots=True)
class Asked:
    """How to ask a node for its test alone: what its last message to train held beside the model, and its type."""

    content: RecordDict
    key: str
    message_type: str


@dataclass(slots=True)
class Offer:
    """A step that waits for the tests of its participants."""

    pending: PendingStep
    start: Model  # that the step leads from
    target: Model  # at factor 1
    candidate: Model  # at the ladder's factor
    asked: dict[int, Asked] = field(default_factory=dict)  # by participant


class Offers:
    """Makes candidates of the steps that a strategy would take, and has the clients' tests decide.

    `state` holds what is remembered of clients between rounds; its vectors are not used.
    """

    def __init__(self, settings: Settings, demand: float) -> None:
        self._settings, self._method = settings, Nearest(settings, demand)
        self._rule: StepRule = make_rule(settings)
        nothing = torch.empty(0)
        self.state = RunState(nothing, nothing, {})

    def hear(self, collected: Collected, schedule: Schedule) -> Hearing:
        """Decide whose rows and updates count, and what the clients are entitled to; once for each round."""
        return decide_hearing(collected, schedule, self.state, self._settings, guaranteed=True)

    def make(
        self,
        start: Model,
        inner: ArrayRecord | None,
        collected: Collected,
        hearing: Hearing,
        schedule: Schedule,
        names: Sequence[str],
        dropped: list[DroppedClient],
    ) -> Offer:
        """The offer for a round, at no factor yet: `propose` makes it a candidate.

        `inner` is the model that the strategy would make, None where it makes none. Where no step is to be tried, the
        combination's status says why and the step's norm is 0.
        """
        target = start if inner is None else Model.of(inner)
        check_alike("the strategy's model", target.arrays, start.arrays)
        basis, place = collected.rows.basis, collected.rows.basis.capacity - 1
        there = flatten(start.arrays, names) if names else np.zeros(basis.dim)
        reference = there - (flatten(target.arrays, names) if names else there)
        basis.put(place, reference)
        status = NO_STEP if inner is None else "" if np.isfinite(basis.squared_norm(place)) else NOT_FINITE
        rows = collected.rows_of(hearing.heard, hearing.unheard)
        if hearing.heard and not status:
            self._method.disown(hearing.disowned)
            self._method.cuts = hearing.cuts
            batch = make_batch(collected.trained, hearing, rows, schedule.round, float(np.linalg.norm(there)))
            solved = solve(self._method, batch, rows)
        else:
            hearing = replace(hearing, heard=())
            batch, solved = _no_step(hearing, schedule.round, basis, status or NO_STEP)
        target = _changed(target, solved, basis, names)
        pending = pending_step(batch, solved, collected, hearing, dropped, asked=schedule.train)
        return Offer(pending, start, target, target)

    def propose(self, offer: Offer) -> None:
        """Make the step at the first factor of the round the candidate."""
        ladder = self._rule.propose(offer.pending.known_scale(self._settings.guarantee))
        offer.pending.first = ladder.factor
        offer.pending.ladder = ladder
        offer.candidate = self._at(offer.start, offer.target, ladder.factor)

    def judge(self, offer: Offer, collected: Collected) -> Judgement:
        """What becomes of the candidate by the tests in `collected`, one at least; where it goes on, make the next."""
        pending = offer.pending

        def withdraw(votes: Mapping[int, Probe], caught: Mapping[int, str], last_chance: bool) -> bool:
            standing, guarantee = self.state.standing, self._settings.guarantee
            return withdraw_votes(pending, votes, caught, standing, guarantee, last_chance=last_chance)

        def verdict(votes: Mapping[int, Probe]) -> Verdict:
            return self._rule.judge(pending.ladder, votes, pending.known_scale(self._settings.guarantee))

        judgement, factor = judge_candidate(pending, collected, withdraw, verdict)
        if judgement is Judgement.RESTART:
            self._restart(offer)
        elif judgement is Judgement.SHORTER:
            self._shorten(offer, factor)
        return judgement

    def _restart(self, offer: Offer) -> None:
        offer.pending.ladder = self._rule.retry(offer.pending.first)
        offer.candidate = self._at(offer.start, offer.target, offer.pending.first)

    def _shorten(self, offer: Offer, factor: float) -> None:
        """Go back on the line that the clients measured, through the candidate of before."""
        share = factor / offer.pending.ladder.factor
        offer.pending.ladder = self._rule.retry(factor)
        offer.candidate = self._at(offer.start, offer.candidate, share)

    @staticmethod
    def _at(start: Model, end: Model, share: float) -> Model:
        if share == 1:
            return end
        arrays = between(start.arrays, end.arrays, share, ())  # a share within the line: parameters are as the rest
        return Model(write(arrays), arrays)


def _changed(target: Model, solved: Solved, basis: Basis, names: Sequence[str]) -> Model:
    """The strategy's model with the solve's correction; the very model where there is none."""
    weights = solved.combination.weights.copy()
    weights[-1] = 0.0
    if not weights.any():
        return target
    arrays = moved(target.arrays, names, -basis.combine(weights).double().numpy())
    return Model(write(arrays), arrays)


def _no_step(hearing: Hearing, number: int, basis: Basis, status: str) -> tuple[RoundBatch, Solved]:
    """The solve of a round in which there is nothing to weigh, and nobody is heard."""
    nobody: Float64Array = np.zeros(0)
    batch = RoundBatch(np.zeros((0, 0)), nobody, nobody, nobody, (), number, slack=nobody)
    nothing = Combination(np.zeros(basis.capacity), status=status)
    return batch, Solved(nothing, torch.zeros(basis.dim), 0.0, np.zeros(len(hearing.slots)))
