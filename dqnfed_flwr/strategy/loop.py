"""The training loop: one exchange a round, with the probe of the step before riding on it.

The message of an exchange carries the candidate theta_hat = theta^{t-1} - alpha * step. Participants of round t
return loss, gradient and rate there; those of round t-1 return their losses along the step. If the step rule accepts
the candidate it is theta^t, and the gradients are where they should be: the round cost one exchange. If not, the
gradients are thrown away and the next exchange carries the factor that the rule named.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.events import most_frequent_reason
from dqnfed_flwr.strategy.exchange import Repeats
from dqnfed_flwr.strategy.hearing import hold_hearing
from dqnfed_flwr.strategy.intake import Collected, Intake
from dqnfed_flwr.strategy.orders import Orders, final_evaluation, next_orders
from dqnfed_flwr.strategy.pending import PendingStep
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.solve import solve_replies
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.strategy.trials import StepTrials
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientReply

UNJUDGED_ATTEMPTS = 3
"""Exchanges that a step waits for any of its participants to come back, before it is dropped for the others' sake."""


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
        self._settings, self._state, self._method = settings, state, method
        self._roster, self._save = roster, save
        self._trials = StepTrials(settings, state, method, rule, roster, on_round)
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
            not_asked = [*self._roster.debts.owing, *self._roster.left_out]
            orders = next_orders(self._state, self._settings, list(self._roster.free), self._num_classes, self._method)
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
            what = f"{len(collected.trained)} usable replies in round {orders.round}"
            self._short_of(what, collected.dropped, unusable=[drop.client for drop in dropped])
            return
        since = time.perf_counter()
        state = self._state
        hearing = hold_hearing(
            collected.losses,
            collected.rows.basis,
            collected.slots(),
            collected.caught,
            state.standing,
            self._settings,
            round_number=orders.round,
            model=state.moves,
            guaranteed=self._method.guaranteed,
            asked=len(orders.train),
            unreadable=sum(drop.client not in collected.losses and drop.reason != "absent" for drop in dropped),
        )
        if not hearing.heard:
            state.tally.leave_out(hearing.dropped)
            self._short_of(f"nobody is heard in round {orders.round}", unusable=list(hearing.losses))
            return
        state.go_on()
        batch, solved = solve_replies(self._method, collected, hearing, orders.round, float(state.theta.norm()))
        state.tally.spend("solve", since)
        self._trials.begin(batch, solved, collected, hearing, [*dropped, *not_asked], asked=orders.train)

    def _settle(self, pending: PendingStep, orders: Orders, collected: Collected) -> bool:
        """Have the pending step judged; True if its round ended with it, so that replies go into the next."""
        needed = max(math.ceil(self._settings.guarantee.voters * len(pending.clients) - 1e-9), 1)
        if len(collected.probes) >= needed:
            return self._trials.judge(pending, orders, collected)
        self._state.tally.leave_out(collected.dropped.values())
        if not self._gave_up():
            what = f"{len(collected.probes)} of {len(pending.clients)} participants of round {pending.round}"
            self._short_of(f"{what} answered again; {needed} must judge its step", collected.dropped)
        return False

    def _gave_up(self) -> bool:
        """Drop a step that nobody is left to judge, where there are others to go on with; whether that was done."""
        pending, failures = self._state.pending, self._state.failures
        if pending is None or failures < min(UNJUDGED_ATTEMPTS, self._settings.retries):
            return False
        if len(self._roster.free) < self._settings.min_clients:
            return False
        log(WARNING, "Too few participants of round %d came back; its step is dropped, the model stays", pending.round)
        self._state.go_on()
        self._trials.abandon(pending)
        return True

    def _short_of(
        self, what: str, dropped: Mapping[int, DroppedClient] | None = None, *, unusable: Iterable[int] = ()
    ) -> None:
        """Too few replies: the model stays, the exchange is repeated with another sample, but not for ever."""
        self._state.fall_short(unusable)
        log(WARNING, "%s; attempt %d of %d", what, self._state.failures, self._settings.retries + 1)
        if self._state.failures > self._settings.retries:
            raise QuorumError(
                f"{what}, {self._state.failures} times in a row; min-clients is {self._settings.min_clients}, deadline "
                f"{self._settings.deadline:.0f} s. The model is unchanged since round {self._state.round}"
                + most_frequent_reason(dropped or {})
            )
