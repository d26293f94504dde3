"""What becomes of a step: offered as a candidate, judged by its participants, taken, cut, relaxed or given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO

import numpy as np
from flwr.common.logger import log
from torch import Tensor

from dqnfed_flwr.config import Settings
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.rates import ZERO_GRADIENT
from dqnfed_flwr.params import line_point
from dqnfed_flwr.steps import Ladder, StepRule, StepScale, Verdict, hardly_moves, mean_loss_falls
from dqnfed_flwr.strategy.events import round_event
from dqnfed_flwr.strategy.intake import Collected, mean_buffers
from dqnfed_flwr.strategy.orders import Orders, trains_on_the_line
from dqnfed_flwr.strategy.pending import PendingStep, pending_step
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.solve import NOT_FINITE, Solved
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.strategy.votes import silence, silence_unfit
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientReply, Probe, RoundBatch

STATIONARY, UNJUDGED, NO_STEP = "stationary", "unjudged", "no-step"
RELAXED_BACKOFF = 0.25
"""A relaxed step that does not lower the mean loss is cut to this share."""


class StepTrials:
    """Holds the steps of a run, one after the other, against the losses of their participants.

    Parameters
    ----------
    settings : Settings
        Of the run.
    state : RunState
        Changed in place.
    method, rule : Method, StepRule
        With their own state.
    roster : Roster
        Who is there.
    on_round : Callable[[RoundEvent], None]
        Told of every settled round.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        method: Method,
        rule: StepRule,
        roster: Roster,
        on_round: Callable[[RoundEvent], None],
    ) -> None:
        self._settings, self._state, self._method, self._rule = settings, state, method, rule
        self._roster, self._on_round = roster, on_round

    def begin(self, batch: RoundBatch, solved: Solved, collected: Collected, dropped: list[DroppedClient]) -> None:
        """Make the step of a solve the pending one and offer it, or end the round where there is none to try.

        Parameters
        ----------
        batch : RoundBatch
            Figures of the round.
        solved : Solved
            The step.
        collected : Collected
            What the clients sent; their buffers become the model's.
        dropped : list[DroppedClient]
            Who was left out before the solve.
        """
        pending = pending_step(batch, solved, collected, dropped, theta_norm=float(self._state.theta.norm()))
        if self._settings.step.on_stationary == "relax":
            pending.fallback = collected.rows.combine(batch.shares)
        self._state.begin(pending, mean_buffers(collected.trained, self._state.buffers))
        if solved.norm > 0:
            ladder = self._rule.propose(_told(pending))
            pending.first = ladder.factor
            self._offer(pending, ladder)
        elif solved.combination.status == NOT_FINITE:
            self._give_up(pending, NOT_FINITE)
        elif _rests_on_nothing(solved, collected, batch):
            self._give_up(pending, NO_STEP)
        else:
            self._no_common_step(pending)

    def judge(self, pending: PendingStep, orders: Orders, collected: Collected) -> bool:
        """Judge the candidate, and take it, cut it, or give the step up.

        Parameters
        ----------
        pending : PendingStep
            That of the state.
        orders : Orders
            Of the exchange that carried the candidate.
        collected : Collected
            What it brought, a probe at least.

        Returns
        -------
        bool
            Whether the candidate is the model now, so that the gradients collected there are of use.
        """
        probes = collected.probes
        verdict = self._verdict(pending, probes)
        if verdict.stationary and silence_unfit(pending, probes, self._state.ledger, self._settings.admission):
            verdict = self._verdict(pending, probes)
        if verdict.accepted:
            self._take(pending, verdict.factor, orders, collected)
            return True
        pending.misses += 1
        self._state.tally.leave_out(collected.dropped.values())
        if silence(pending, probes, self._state.ledger, self._settings.admission, last_chance=verdict.stationary):
            self._offer(pending, self._rule.retry(pending.first))
        elif verdict.stationary:
            self._state.withdraw()
            self._no_common_step(pending)
        else:
            self._offer(pending, self._rule.retry(verdict.factor))
        return False

    def abandon(self, pending: PendingStep) -> None:
        """End the round without the step, which nobody is left to judge; the model stays."""
        self._state.withdraw()
        self._give_up(pending, UNJUDGED)

    def _offer(self, pending: PendingStep, ladder: Ladder) -> None:
        """Make theta - factor * step the candidate, on the line through the candidate before."""
        state = self._state
        since = time.perf_counter()
        state.candidate = line_point(state.candidate, pending.step, pending.ladder.factor, ladder.factor)
        pending.ladder = ladder
        state.tally.spend("step", since)

    def _verdict(self, pending: PendingStep, probes: Mapping[int, Probe]) -> Verdict:
        probes = {client: probe for client, probe in probes.items() if client not in pending.silenced} or probes
        if not pending.relaxed:
            return self._rule.judge(pending.ladder, probes, _told(pending))
        factor = pending.ladder.factor
        if mean_loss_falls(probes, pending.losses, pending.shares):
            return Verdict(accepted=True, factor=factor)
        smaller = RELAXED_BACKOFF * factor
        if hardly_moves(smaller, pending.scale, self._settings.step.min_move):
            return Verdict(accepted=False, factor=0.0, stationary=True)
        return Verdict(accepted=False, factor=smaller)

    def _take(self, pending: PendingStep, factor: float, orders: Orders, collected: Collected) -> None:
        """The candidate is the model."""
        self._state.accept(keep_move=trains_on_the_line(self._settings))
        self._method.settle(pending.step, factor)
        for client in set(collected.probes) - set(pending.silenced):
            self._state.ledger.voted(client)
        losses = {client: probe.loss for client, probe in collected.probes.items()}
        late = [drop for client, drop in collected.dropped.items() if client not in orders.train]
        status = "relaxed" if pending.relaxed else pending.combination.status
        self._finish(pending, factor, losses, status, collected.answered, late)

    def _no_common_step(self, pending: PendingStep) -> None:
        """No step lowers every participant's loss: relax, or leave the model as it is."""
        if pending.misses and not pending.relaxed and self._method.retreat():
            self._state.solve_anew(pending)
            return
        choice = self._settings.step.on_stationary
        if choice == "relax" and pending.clients and pending.fallback is not None:
            self._relax(pending, pending.fallback)
            return
        self._give_up(pending, STATIONARY)
        if choice == "stop" and self._all_had_a_say(pending):
            log(INFO, "The model is Pareto-stationary after %d rounds", pending.round)
            self._state.status = "pareto-stationary"

    def _all_had_a_say(self, pending: PendingStep) -> bool:
        """Whether everybody who is there took part, or was at an optimum of its own; a few do not end a run."""
        resting = {drop.client for drop in pending.dropped if drop.reason == ZERO_GRADIENT}
        heard = resting.union(pending.clients)
        return self._settings.sampled >= self._settings.clients and heard.issuperset(self._roster.members)

    def _relax(self, pending: PendingStep, mean_gradient: Tensor) -> None:
        """Go on along the mean row, as long as FedAvg's step, judged by the mean loss."""
        step = self._settings.unit * mean_gradient
        pending.step, pending.fallback, pending.relaxed = step, None, True
        pending.scale = replace(pending.scale, norm=float(step.norm()))
        pending.ladder = Ladder(0.0)
        self._offer(pending, Ladder(1.0))

    def _give_up(self, pending: PendingStep, status: str) -> None:
        """The round ends with the model that it began with."""
        self._method.settle(pending.step, 0.0)
        self._finish(pending, 0.0, pending.losses, status, {}, [])

    def _finish(
        self,
        pending: PendingStep,
        factor: float,
        losses: Mapping[int, float],
        status: str,
        evaluated: Mapping[int, ClientReply],
        dropped: list[DroppedClient],
    ) -> None:
        dropped = [*dropped, *self._roster.debts.take_late()]
        event = round_event(pending, factor, losses, status, evaluated, dropped, self._state.tally)
        self._state.settle(pending, self._settings.rounds)
        self._watch_validation(event)
        self._on_round(event)

    def _watch_validation(self, event: RoundEvent) -> None:
        patience = self._settings.early_stopping
        if not patience or not event.validation:
            return
        self._state.watch(event.round, sum(event.validation.values()) / len(event.validation), patience)
        if self._state.status == "early-stopped" and self._state.best:
            log(INFO, "Stopped early: round %d had the best validation accuracy", self._state.best.round)


def _told(pending: PendingStep) -> StepScale:
    """What the rule is told of a step: its scale, with losses and slopes of the participants."""
    return replace(pending.scale, losses=pending.losses, slopes=pending.slopes)


def _rests_on_nothing(solved: Solved, collected: Collected, batch: RoundBatch) -> bool:
    """Whether a step vanished because all its weight lies on rows of zeros, while other clients' rows are not.

    A rule such as Krum or a median can come to that by a single client, and the model is stationary for nobody else.
    """
    basis, weights = collected.rows.basis, solved.combination.weights
    weighed = [slot for slot in basis.filled if weights[slot]]
    return bool(weighed) and not any(map(basis.squared_norm, weighed)) and bool(np.diag(batch.gram).any())
