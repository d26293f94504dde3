"""The training loop: one exchange a round, with the probe of the step before riding on it.

The message of an exchange carries the candidate theta_hat = theta^{t-1} - alpha * step of the pending step, that of
round t. One turn of the loop, in order (the first has no step to probe and to judge):

1. Schedule: the participants of round t probe the step, a sample trains for round t+1, and clients evaluate where that
   is due.
2. Exchange (`collect`, `exchange`): every reply is checked by itself, and its row goes into a `RowSet`.
3. Judge (`step_search`): the probes are losses along the step. If the rule accepts the candidate, it is theta^t and
   round t is over: it cost one exchange, and the gradients at hand are those of round t+1. If not, they are thrown
   away, and the next exchange carries the factor that the rule named. At a candidate that goes out alone nobody
   trains: the rows are asked for once it is accepted.
4. Hear (`hearing`): it is decided whose rows make the step of round t+1.
5. Solve (`solve`): the method weighs these rows, and their weighted sum is the step.
6. Offer (`step_search`): the rule proposes a factor, and with it the step makes the next candidate.
7. Save (`checkpointer`): where a round is over, a checkpoint is begun; nodes are asked again when it is written.

Whose clients they are, and who makes the step, is the `side`: `own_clients`, or somebody's strategy (`guarded`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from logging import WARNING
from typing import Any, NoReturn

from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp.strategy import Strategy

from dqnfed_flwr.errors import ConfigError, QuorumError
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.collect import Collected, in_short
from dqnfed_flwr.strategy.hearing import decide_hearing
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.side import Side, TooFewReplies
from dqnfed_flwr.strategy.solve import NOT_FINITE
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.strategy.step_search import StepSearch
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Of `start`: evaluates the model after a round, on the server."""
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
    prepared the next.
    """

    def __init__(
        self,
        run: RunPlan,
        state: RunState,
        side: Side,
        rule: StepRule,
        on_round: Callable[[RoundEvent], None],
        save: Callable[[], None],
    ) -> None:
        self._run, self._settings, self._state, self._side, self._save = run, run.settings, state, side, save
        self._step_search = StepSearch(run, state, side, rule, on_round)

    def run(self) -> None:
        """Exchange until the run is at its end.

        Raises
        ------
        QuorumError
            If too few clients answered, `retries` times over; at once where too few are left that do not fail each
            time.
        """
        while self._state.status == "running":
            if lacking := self._side.ready(self._state.pending):
                if self._drop_unjudged():
                    self._save()
                else:
                    self._fall_short(lacking)
                continue
            if self._state.status != "running":
                return
            if self._went_back():
                self._save()
                continue
            done = self._state.round
            self._process(*self._side.exchange())
            if self._state.round > done:
                self._save()

    def _went_back(self) -> bool:
        """Go back to the confirmed model, where newer ones were refused too often; whether it did."""
        known = self._state.confirmation
        model = None if known is None else known.take_back(self._settings.guarantee)
        if model is None:
            return False
        pending = self._state.pending
        log(WARNING, "The run goes back to the model of round %d, the last that was confirmed", model.round)
        self._state.go_back(model)
        if pending is not None:
            self._step_search.abandon(pending, withdrawn=True)
        return True

    def _process(self, schedule: Schedule, collected: Collected) -> None:
        """Judge the pending step; where its round is over, begin the next one with the rows that came."""
        pending = self._state.pending
        alone = pending is not None and pending.ladder.alone
        accepted = pending is None or self._judge_pending(pending, schedule, collected)
        turned_down = not accepted and len(collected.probes) >= schedule.needed
        asked = () if turned_down else schedule.train  # a model that was turned down may be at fault itself
        faults = {client: drop for client, drop in collected.dropped.items() if client in asked}
        self._side.note_answers(collected, faults, accepted=accepted)
        goes_on = self._state.status == "running" and schedule.round <= self._settings.rounds
        if accepted and goes_on and not alone:
            try:
                self._begin_step(schedule, collected)
            except TooFewReplies as found:
                self._state.add_dropped(found.dropped)
                self._fall_short(found.what, found.dropped, unusable=found.unusable)

    def _begin_step(self, schedule: Schedule, collected: Collected) -> None:
        """Decide who is heard, solve for a step and offer it."""
        since, state, side = time.perf_counter(), self._state, self._side
        side.check(collected, schedule)
        hearing = decide_hearing(collected, schedule, state, self._run, guaranteed=side.method.guaranteed)
        direction = side.direction(collected, hearing, schedule)
        state.go_on()
        state.cost.add_time("solve", since)
        dropped = [drop for client, drop in collected.dropped.items() if client in schedule.train]
        self._step_search.begin(direction, collected, hearing, [*dropped, *side.not_asked], asked=schedule.train)

    def _judge_pending(self, pending: PendingStep, schedule: Schedule, collected: Collected) -> bool:
        """Have the pending step judged; True if its round ended with it, so that replies go into the next."""
        if len(collected.probes) >= schedule.needed:
            return self._step_search.judge(pending, schedule, collected)
        self._state.add_dropped(collected.dropped.values())
        if not self._drop_unjudged():
            what = f"{len(collected.probes)} of {len(pending.clients)} participants of round {pending.round}"
            words = f"{what} answered again; {schedule.needed} must judge its step"
            self._fall_short(words, collected.dropped.values())
        return False

    def _drop_unjudged(self) -> bool:
        """Drop a step that no client is left to judge, where others are there to go on with; True if that was done."""
        pending, failures = self._state.pending, self._state.failures
        if pending is None or failures < min(UNJUDGED_ATTEMPTS, self._settings.retries) or not self._side.can_train:
            return False
        log(WARNING, "Too few participants of round %d came back; its step is dropped, the model stays", pending.round)
        self._state.go_on()
        self._step_search.abandon(pending)
        return True

    def _fall_short(self, what: str, dropped: Collection[DroppedClient] = (), *, unusable: Iterable[int] = ()) -> None:
        """Too few replies: the model stays, the exchange is repeated with another sample, but not for ever."""
        self._state.fall_short(unusable)
        log(WARNING, "%s; attempt %d of %d", what, self._state.failures, self._settings.retries + 1)
        if self._state.failures > self._settings.retries:
            raise QuorumError(
                f"{what}, {self._state.failures} times in a row; min-clients is {self._settings.min_clients}, deadline "
                f"{self._settings.deadline:.0f} s. The model is unchanged since round {self._state.round}"
                + most_frequent_reason(dropped, moved=self._state.moves > 0)
            )


class OwnLoop(Strategy):
    """A strategy whose `start` is this loop: what Flower's inherited one would call is refused.

    That one ends a round before its step could be tested, and so does a strategy that wraps this one.
    """

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        name = type(self).__name__
        raise ConfigError(
            f"{name} runs its own loop: call its start, and where strategies wrap each other put it outermost, as in "
            "Guaranteed(Other(FedAvg())), not Other(Guaranteed(FedAvg()))"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse


def most_frequent_reason(dropped: Collection[DroppedClient], *, moved: bool) -> str:
    """Why most of the clients in `dropped` were left out, with what the first of them said; empty if none was.

    Where the figures of several were all too large at once, what helps is said: the model went astray, if it `moved`
    since the run began.
    """
    if not dropped:
        return ""
    reason, count = Counter(drop.reason for drop in dropped).most_common(1)[0]
    said = next(drop for drop in dropped if drop.reason == reason)
    why = f". {count} of {len(dropped)} left out: {reason}, client {said.client}: {in_short(said.detail)}"
    if len(dropped) > 1 and all(drop.reason == NOT_FINITE for drop in dropped):
        why += f". All at once{ASTRAY if moved else BEGAN}"
    return why
