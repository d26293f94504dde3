"""The training loop: one exchange a round, with the probe of the step before riding on it.

The message of an exchange carries the candidate theta_hat = theta^{t-1} - alpha * step of the pending step, that of
round t. One turn of the loop, in order (the first has no step to probe and to judge):

1. Schedule (`schedule`): the participants of round t probe the step, a sample trains for round t+1, and all members
   evaluate where that is due.
2. Exchange (`collect`, `exchange`): every reply is checked by itself, and its row goes into the basis.
3. Judge (`step_search`): the probes are losses along the step. If the rule accepts the candidate, it is theta^t and
   round t is over: it cost one exchange, and the gradients at hand are those of round t+1. If not, they are thrown
   away, and the next exchange carries the factor that the rule named.
4. Hear (`hearing`): it is decided whose rows make the step of round t+1.
5. Solve (`solve`): the method weighs these rows, and their weighted sum is the step.
6. Offer (`step_search`): the rule proposes a factor, and with it the step makes the next candidate.
7. Save (`checkpointer`): where a round is over, a checkpoint is written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.collect import PATIENCE, Collected, ReplyCollector
from dqnfed_flwr.strategy.exchange import Repeats
from dqnfed_flwr.strategy.hearing import decide_hearing, say_if_tolerate_is_cut
from dqnfed_flwr.strategy.schedule import Schedule, schedule_evaluation, schedule_exchange
from dqnfed_flwr.strategy.solve import NOT_FINITE, solve_replies
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.strategy.step_search import StepSearch
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientReply, Figure

UNJUDGED_ATTEMPTS = 3
"""Exchanges that a step waits for any of its participants to come back, before it is dropped for the others' sake."""
ASTRAY = (
    ": the training has diverged; lower local.lr or step.lr, or take a step rule that holds the step back (step-rule "
    "clipped, probed)"
)
BEGAN = (
    ", at the model that the run began with: lower the clients' learning rate, or look for very large features or "
    "targets in their data, and scale them"
)


class RoundLoop:
    """Drives one run from its `state`, which is changed in place, to its end.

    `on_round` is called with the event of every round that is over, `save` after every exchange that ended a round and
    prepared the next. `patience` waits where a disk is full.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        method: Method,
        rule: StepRule,
        registry: ClientRegistry,
        on_round: Callable[[RoundEvent], None],
        save: Callable[[], None],
        patience: Patience = PATIENCE,
    ) -> None:
        self._settings, self._state, self._method = settings, state, method
        self._registry, self._save = registry, save
        self._step_search = StepSearch(settings, state, method, rule, registry, on_round)
        self._collector = ReplyCollector(settings, state.theta, state.buffers, method, patience)
        self._num_classes = registry.form.num_classes

    @property
    def figure(self) -> Figure:
        """What clients are evaluated by."""
        return self._collector.figure

    def run(self, grid: Grid) -> None:
        """Exchange until the run is at its end.

        Raises
        ------
        QuorumError
            If too few clients answered, `retries` times over.
        """
        say_if_tolerate_is_cut(self._settings, self._settings.sampled)
        while self._state.status == "running":
            self._registry.wait_until(grid, self._can_go_on)
            if not self._can_go_on():
                self._registry.stragglers.ask_all()  # where the others are too few, one that owes a reply is asked, too
            if not self._can_go_on():
                if self._drop_unjudged():
                    self._save()
                else:
                    self._fall_short(f"{len(self._registry.members)} clients are there")
                continue
            not_asked = [*self._registry.stragglers.left_out, *self._registry.left_out]
            available, done = list(self._registry.available), self._state.round
            schedule = schedule_exchange(self._state, self._settings, available, self._num_classes, self._method)
            self._process(schedule, self._exchange(grid, schedule), not_asked)
            if self._state.round > done:
                self._save()

    def evaluate(self, grid: Grid) -> Mapping[int, ClientReply]:
        """Evaluate the model as it stands on all members; after the last exchange no client need catch up."""
        self._registry.refresh(grid)
        schedule = schedule_evaluation(self._state, list(self._registry.members), self._num_classes)
        return self._exchange(grid, schedule).answered

    def _exchange(self, grid: Grid, schedule: Schedule) -> Collected:
        collected = self._collector.exchange(grid, schedule, self._state, self._registry)
        if isinstance(grid, Repeats):
            self._state.cost.repeated_calls += grid.take_repeats()
        return collected

    def _can_go_on(self) -> bool:
        """Whether enough members are free, and one of those who must judge the pending step."""
        free, pending = self._registry.available, self._state.pending
        judged = pending is None or any(client in free for client in pending.clients)
        return len(free) >= self._settings.min_clients and judged

    def _process(self, schedule: Schedule, collected: Collected, not_asked: list[DroppedClient]) -> None:
        """Judge the pending step; where its round is over, begin the next one with the rows that came."""
        pending = self._state.pending
        if pending is not None and not self._judge_pending(pending, schedule, collected):
            return
        if pending is None and not schedule.train:
            clients = list(self._registry.members)
            self._fall_short(
                f"the method trains none of clients {clients[:12]} in round {schedule.round}; one that plans by number "
                f"needs partition-ids below clients ({self._settings.clients})"
            )
            return
        if self._state.status == "running" and schedule.train:
            self._begin_step(schedule, collected, not_asked)

    def _begin_step(self, schedule: Schedule, collected: Collected, not_asked: list[DroppedClient]) -> None:
        """Decide who is heard, solve for a step and offer it; or fall short where too few rows came."""
        dropped = [drop for client, drop in collected.dropped.items() if client in schedule.train]
        if len(collected.trained) < self._settings.min_clients:
            self._state.cost.add_dropped(dropped)
            what = f"{len(collected.trained)} usable replies in round {schedule.round}"
            self._fall_short(what, collected.dropped, unusable=[drop.client for drop in dropped])
            return
        since, state = time.perf_counter(), self._state
        hearing = decide_hearing(collected, schedule, state, self._settings, guaranteed=self._method.guaranteed)
        if not hearing.heard:
            state.cost.add_dropped(hearing.dropped)
            self._fall_short(f"nobody is heard in round {schedule.round}", unusable=list(hearing.losses))
            return
        state.go_on()
        batch, solved = solve_replies(self._method, collected, hearing, schedule.round, float(state.theta.norm()))
        state.cost.add_time("solve", since)
        self._step_search.begin(batch, solved, collected, hearing, [*dropped, *not_asked], asked=schedule.train)

    def _judge_pending(self, pending: PendingStep, schedule: Schedule, collected: Collected) -> bool:
        """Have the pending step judged; True if its round ended with it, so that replies go into the next."""
        needed = self._settings.guarantee.needed(len(pending.clients))
        if len(collected.probes) >= needed:
            return self._step_search.judge(pending, schedule, collected)
        self._state.cost.add_dropped(collected.dropped.values())
        if not self._drop_unjudged():
            what = f"{len(collected.probes)} of {len(pending.clients)} participants of round {pending.round}"
            self._fall_short(f"{what} answered again; {needed} must judge its step", collected.dropped)
        return False

    def _drop_unjudged(self) -> bool:
        """Drop a step that no client is left to judge, where others are there to go on with; True if that was done."""
        pending, failures = self._state.pending, self._state.failures
        if pending is None or failures < min(UNJUDGED_ATTEMPTS, self._settings.retries):
            return False
        if len(self._registry.available) < self._settings.min_clients:
            return False
        log(WARNING, "Too few participants of round %d came back; its step is dropped, the model stays", pending.round)
        self._state.go_on()
        self._step_search.abandon(pending)
        return True

    def _fall_short(
        self, what: str, dropped: Mapping[int, DroppedClient] | None = None, *, unusable: Iterable[int] = ()
    ) -> None:
        """Too few replies: the model stays, the exchange is repeated with another sample, but not for ever."""
        self._state.fall_short(unusable)
        log(WARNING, "%s; attempt %d of %d", what, self._state.failures, self._settings.retries + 1)
        if self._state.failures > self._settings.retries:
            raise QuorumError(
                f"{what}, {self._state.failures} times in a row; min-clients is {self._settings.min_clients}, deadline "
                f"{self._settings.deadline:.0f} s. The model is unchanged since round {self._state.round}"
                + most_frequent_reason(dropped or {}, moved=self._state.moves > 0)
            )


def most_frequent_reason(dropped: Mapping[int, DroppedClient], *, moved: bool) -> str:
    """Why most of the clients in `dropped` were left out, with what the first of them said; empty if none was.

    Where the figures of several were all too large at once, what helps is said: the model went astray, if it `moved`
    since the run began.
    """
    if not dropped:
        return ""
    reason, count = Counter(drop.reason for drop in dropped.values()).most_common(1)[0]
    said = next(drop for drop in dropped.values() if drop.reason == reason)
    lines = [line.strip() for line in said.detail.splitlines() if line.strip()] or [""]
    detail = lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
    why = f". {count} of {len(dropped)} left out: {reason}, client {said.client}: {detail}"
    if len(dropped) > 1 and all(drop.reason == NOT_FINITE for drop in dropped.values()):
        why += f". All at once{ASTRAY if moved else BEGAN}"
    return why
