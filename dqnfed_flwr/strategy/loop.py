"""The training loop: one exchange a round, with the probe of the step before riding on it.

The message of an exchange carries the candidate theta_hat = theta^{t-1} - alpha * step. Participants of round t
return loss, gradient and rate there; those of round t-1 return their losses along the step. If the step rule accepts
the candidate it is theta^t, and the gradients are where they should be: the round cost one exchange. If not, the
gradients are thrown away and the next exchange carries the factor that the rule named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.methods.rates import ZERO_GRADIENT
from dqnfed_flwr.params import line_point
from dqnfed_flwr.steps import Ladder, StepRule, StepScale, Verdict, hardly_moves, mean_loss_falls
from dqnfed_flwr.strategy.admission import book, present, silence
from dqnfed_flwr.strategy.events import most_frequent_reason, round_event
from dqnfed_flwr.strategy.exchange import Repeats
from dqnfed_flwr.strategy.intake import Collected, Intake, mean_buffers
from dqnfed_flwr.strategy.orders import Orders, final_evaluation, next_orders, trains_on_the_line
from dqnfed_flwr.strategy.pending import pending_step
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.solve import NOT_FINITE, Solved, make_batch, solve
from dqnfed_flwr.strategy.state import BestModel, PendingStep, RunState, Tally
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientReply, Probe, RoundBatch

STATIONARY, UNJUDGED = "stationary", "unjudged"
UNJUDGED_ATTEMPTS = 3
"""Exchanges that a step waits for any of its participants to come back, before it is dropped for the others' sake."""
RELAXED_BACKOFF = 0.25
"""A relaxed step that does not lower the mean loss is cut to this share."""


class RoundLoop:
    """Drives one run from its state to its end.

    Parameters
    ----------
    settings : Settings
        Of the run.
    state : RunState
        Where it stands; changed in place.
    method, rule : Method, StepRule
        With their own state.
    roster : Roster
        Who is there.
    on_round : Callable[[RoundEvent], None]
        Told of every settled round.
    save : Callable[[], None]
        Called after every exchange that settled a round and prepared the next.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        method: Method,
        rule: StepRule,
        roster: Roster,
        *,
        on_round: Callable[[RoundEvent], None],
        save: Callable[[], None],
    ) -> None:
        self._settings, self._state, self._method, self._rule = settings, state, method, rule
        self._roster, self._on_round, self._save = roster, on_round, save
        self._intake = Intake(settings, state.theta, state.buffers, method)
        self._num_classes = roster.form.num_classes

    def run(self, grid: Grid) -> None:
        """Exchange until the run is at its end.

        Raises
        ------
        QuorumError
            If too few clients answered, `retries` times over.
        """
        while self._state.status == "running":
            self._roster.gather(grid, self._can_go_on)
            if not self._can_go_on():
                self._roster.debts.forgive()  # nobody is left out for what it owes where the others are too few
            if not self._can_go_on():
                if self._gave_up():
                    self._save()
                else:
                    self._short_of(f"{len(self._roster.members)} clients are there")
                continue
            clients, suspended = present(self._state, self._roster.free, self._settings)
            not_asked = [*suspended, *self._roster.debts.owing, *self._roster.left_out]
            orders = next_orders(self._state, self._settings, clients, self._num_classes, self._method)
            settled = self._state.round
            collected = self._exchange(grid, orders)
            self._absorb(orders, collected, not_asked)
            if self._state.round > settled:
                self._save()

    def evaluate(self, grid: Grid) -> Mapping[int, ClientReply]:
        """Evaluate the model as it stands on all members; after the last exchange nobody need catch up."""
        self._roster.refresh(grid)
        return self._exchange(grid, final_evaluation(self._state, [*self._roster.members], self._num_classes)).answered

    def _exchange(self, grid: Grid, orders: Orders) -> Collected:
        collected = self._intake.exchange(grid, orders, self._state, self._roster.members, self._roster.debts)
        if isinstance(grid, Repeats):
            self._state.tally.repeated_calls += grid.take_repeats()
        return collected

    def _can_go_on(self) -> bool:
        """Whether enough members are free, and one of those who must judge the pending step."""
        free, pending = self._roster.free, self._state.pending
        judged = pending is None or any(client in free for client in pending.clients)
        return len(free) >= self._settings.min_clients and judged

    def _absorb(self, orders: Orders, collected: Collected, not_asked: list[DroppedClient]) -> None:
        pending = self._state.pending
        if pending is not None and not self._settle(pending, orders, collected):
            return
        if pending is None and not orders.train:
            clients = list(self._roster.members)
            self._short_of(
                f"the method trains none of clients {clients[:12]} in round {orders.round}; one that plans by number "
                f"needs partition-ids below clients ({self._settings.clients})"
            )
            return
        if self._state.status != "running" or not orders.train:
            return
        dropped = [drop for client, drop in collected.dropped.items() if client in orders.train]
        if len(collected.trained) < self._settings.min_clients:
            self._state.tally.leave_out(dropped)
            self._short_of(f"{len(collected.trained)} usable replies in round {orders.round}", collected.dropped)
            return
        self._state.failures = 0
        book(self._state.ledger, collected, orders, self._settings.admission)
        since = time.perf_counter()
        batch = make_batch(collected.trained, collected.rows, orders.round)
        solved = solve(self._method, batch, collected.rows)
        self._state.tally.spend("solve", since)
        self._prepare(batch, solved, collected, [*dropped, *not_asked])

    def _prepare(self, batch: RoundBatch, solved: Solved, collected: Collected, dropped: list[DroppedClient]) -> None:
        """Make the step of a solve the pending one."""
        pending = pending_step(batch, solved, collected, dropped, theta_norm=float(self._state.theta.norm()))
        self._state.buffers = mean_buffers(collected.trained, self._state.buffers)
        if self._settings.step.on_stationary == "relax":
            pending.fallback = collected.rows.combine(batch.shares)
        self._state.pending, self._state.last = pending, None
        if solved.norm > 0:
            ladder = self._rule.propose(_told(pending))
            pending.first = ladder.factor
            self._offer(pending, ladder)
        elif solved.combination.status == NOT_FINITE:
            self._method.settle(pending.step, 0.0)
            self._finish_round(pending, 0.0, pending.losses, NOT_FINITE, {}, [])
        else:
            self._no_common_step(pending)

    def _offer(self, pending: PendingStep, ladder: Ladder) -> None:
        """Make theta - factor * step the candidate, on the line through the candidate before."""
        state = self._state
        since = time.perf_counter()
        state.candidate = line_point(state.candidate, pending.step, pending.ladder.factor, ladder.factor)
        pending.ladder = ladder
        state.tally.spend("step", since)

    def _settle(self, pending: PendingStep, orders: Orders, collected: Collected) -> bool:
        """Judge the candidate; True if the round is over, one way or the other."""
        probes = collected.probes
        if not probes:
            self._state.tally.leave_out(collected.dropped.values())
            if not self._gave_up():
                self._short_of(f"no participant of round {pending.round} answered again", collected.dropped)
            return False
        verdict = self._judge(pending, probes)
        if verdict.accepted:
            self._state.theta = self._state.candidate
            self._state.last = self._state.move if trains_on_the_line(self._settings) else None
            self._method.settle(pending.step, verdict.factor)
            for client in set(probes) - set(pending.silenced):
                self._state.ledger.voted(client)
            losses = {client: probe.loss for client, probe in probes.items()}
            late = [drop for client, drop in collected.dropped.items() if client not in orders.train]
            status = "relaxed" if pending.relaxed else pending.combination.status
            self._finish_round(pending, verdict.factor, losses, status, collected.answered, late)
            return True
        pending.misses += 1
        self._state.tally.leave_out(collected.dropped.values())
        if silence(pending, probes, self._state.ledger, self._settings.admission, last_chance=verdict.stationary):
            self._offer(pending, self._rule.retry(pending.first))
            return False
        if verdict.stationary:
            self._state.candidate = self._state.theta
            self._no_common_step(pending)
            return False
        self._offer(pending, self._rule.retry(verdict.factor))
        return False

    def _judge(self, pending: PendingStep, probes: Mapping[int, Probe]) -> Verdict:
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

    def _gave_up(self) -> bool:
        """Drop a step that nobody is left to judge, where there are others to go on with; whether that was done."""
        pending, failures = self._state.pending, self._state.failures
        if pending is None or failures < min(UNJUDGED_ATTEMPTS, self._settings.retries):
            return False
        if len(self._roster.free) < self._settings.min_clients:
            return False
        log(WARNING, "No participant of round %d came back; its step is dropped, the model stays", pending.round)
        self._state.failures, self._state.candidate = 0, self._state.theta
        self._method.settle(pending.step, 0.0)
        self._finish_round(pending, 0.0, pending.losses, UNJUDGED, {}, [])
        return True

    def _no_common_step(self, pending: PendingStep) -> None:
        """No step lowers every participant's loss: relax, or leave the model as it is."""
        if pending.misses and not pending.relaxed and self._method.retreat():
            self._state.tally.misses += pending.misses
            self._state.tally.leave_out(pending.dropped)
            self._state.pending = None
            return
        choice = self._settings.step.on_stationary
        if choice == "relax" and pending.clients and pending.fallback is not None:
            self._relax(pending, pending.fallback)
            return
        self._method.settle(pending.step, 0.0)
        self._finish_round(pending, 0.0, pending.losses, STATIONARY, {}, [])
        if choice == "stop" and self._all_had_a_say(pending):
            log(INFO, "The model is Pareto-stationary after %d rounds", pending.round)
            self._state.status = "pareto-stationary"

    def _all_had_a_say(self, pending: PendingStep) -> bool:
        """Whether everybody who is there took part, or was at an optimum of its own; a few do not end a run."""
        resting = {drop.client for drop in pending.dropped if drop.reason == ZERO_GRADIENT}
        heard = resting.union(pending.clients)
        return self._settings.sampled >= self._settings.clients and heard.issuperset(self._roster.members)

    def _relax(self, pending: PendingStep, mean_gradient: Tensor) -> None:
        """Go on along the mean gradient, judged by the mean loss."""
        pending.step, pending.fallback, pending.relaxed = mean_gradient, None, True
        pending.scale = replace(pending.scale, norm=float(mean_gradient.norm()))
        pending.ladder = Ladder(0.0)
        self._offer(pending, Ladder(self._settings.local.lr))

    def _finish_round(
        self,
        pending: PendingStep,
        factor: float,
        losses: Mapping[int, float],
        status: str,
        evaluated: Mapping[int, ClientReply],
        dropped: list[DroppedClient],
    ) -> None:
        state = self._state
        dropped = [*dropped, *self._roster.debts.take_late()]
        event = round_event(pending, factor, losses, status, evaluated, dropped, state.tally)
        state.pending, state.round, state.tally = None, pending.round, Tally()
        if state.round >= self._settings.rounds:
            state.status = "finished"
        self._watch_validation(event)
        self._on_round(event)

    def _watch_validation(self, event: RoundEvent) -> None:
        patience = self._settings.early_stopping
        if not patience or not event.validation:
            return
        state = self._state
        accuracy = sum(event.validation.values()) / len(event.validation)
        if state.best is None or accuracy > state.best.accuracy:
            state.best = BestModel(event.round, accuracy, state.theta, state.buffers)
            return
        state.best.since += 1
        if state.best.since >= patience:
            log(INFO, "Stopped early: round %d had the best validation accuracy", state.best.round)
            state.status = "early-stopped"

    def _short_of(self, what: str, dropped: Mapping[int, DroppedClient] | None = None) -> None:
        """Too few replies: the model stays, the exchange is repeated, but not for ever."""
        self._state.failures += 1
        log(WARNING, "%s; attempt %d of %d", what, self._state.failures, self._settings.retries + 1)
        if self._state.failures > self._settings.retries:
            raise QuorumError(
                f"{what}, {self._state.failures} times in a row; min-clients is {self._settings.min_clients}, deadline "
                f"{self._settings.deadline:.0f} s. The model is unchanged since round {self._state.round}"
                + most_frequent_reason(dropped or {})
            )


def _told(pending: PendingStep) -> StepScale:
    """What the rule is told of a step: its scale, with losses and slopes of the participants."""
    return replace(pending.scale, losses=pending.losses, slopes=pending.slopes)
