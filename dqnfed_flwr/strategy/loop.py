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
7. Save (`Checkpointer`): where a round is over, a checkpoint is written.

Whose clients they are, and who makes the step, is the `side`: `own_clients`, or somebody's strategy (`guarded`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings, without_effect
from dqnfed_flwr.errors import ConfigError, QuorumError
from dqnfed_flwr.methods._base import Memory, Method
from dqnfed_flwr.record_codec import pack, unpack
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, private_folder
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.checkpoint import (
    DAMAGE,
    Arrays,
    CheckpointStore,
    Provenance,
    check_settings,
    damaged,
    output_directory,
)
from dqnfed_flwr.strategy.collect import Collected, in_short
from dqnfed_flwr.strategy.hearing import decide_hearing
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.side import Side, TooFewReplies
from dqnfed_flwr.strategy.solve import NOT_FINITE
from dqnfed_flwr.strategy.state import STALLED, PendingStep, RunState
from dqnfed_flwr.strategy.step_search import StepSearch
from dqnfed_flwr.telemetry.event_log import Patience, read_events
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import under
from dqnfed_flwr.version import package_version

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
            done = self._state.round
            self._process(*self._side.exchange())
            if self._state.round > done:
                self._save()

    def _process(self, schedule: Schedule, collected: Collected) -> None:
        """Judge the pending step; where its round is over, begin the next one with the rows that came."""
        pending = self._state.pending
        alone = pending is not None and pending.ladder.alone
        accepted = pending is None or self._judge_pending(pending, schedule, collected)
        turned_down = not accepted and len(collected.probes) >= schedule.needed
        asked = () if turned_down else schedule.train  # a model that was turned down may be at fault itself
        faults = {client: drop for client, drop in collected.dropped.items() if client in asked}
        self._side.note_answers(collected.trained, faults, accepted=accepted)
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


@runtime_checkable
class KeepsClientState(Protocol):
    """A grid whose clients' memory lives and dies with this process, so that a checkpoint must hold it."""

    def export_client_states(self) -> dict[str, NDArray[np.generic]]:
        """Memory of all clients, by name."""

    def restore_client_states(self, states: dict[str, NDArray[np.generic]]) -> None:
        """Inverse of `export_client_states`."""


class Checkpointer:
    """Writes the checkpoints of a run to its output folder, and resumes it from there; without one it does nothing.

    A checkpoint holds what each of the `parts` remembers, by name, the state of the rule, and the memory of the clients
    where the grid `KeepsClientState`. `patience` waits where a disk is full.
    """

    def __init__(
        self, settings: Settings, parts: Mapping[str, Memory], rule: StepRule, *, grid: Grid, patience: Patience
    ) -> None:
        self._settings, self._parts, self._rule = settings, parts, rule
        self._grid, self._patience = grid, patience
        output = output_directory(settings)
        self._store = CheckpointStore(output / CHECKPOINT) if output is not None else None

    def start(
        self, begin: Callable[[], RunState], provenance: Provenance
    ) -> tuple[RunState, list[RoundEvent], Provenance]:
        """Start the run with the state that `begin` gives, or with `resume` go on with it from its checkpoint.

        `provenance` is data and code as they are now. Returned are the state for the loop to change, the events of the
        rounds before, and data and code, those of an interrupted run too. Without a folder to resume from it raises
        ConfigError, from an unfit checkpoint CheckpointError.
        """
        if self._settings.resume:
            return self._resumed(provenance)
        if self._store is not None:
            private_folder(self._store.path.parent)
            self._store.discard()  # of another run; not to be mistaken for this one's
        return begin(), [], provenance

    def save(self, state: RunState, provenance: Provenance) -> None:
        """Write a checkpoint of `state`, between two exchanges, where one is due; `provenance` is that of `start`.

        It waits for room on a full disk; for any other reason not to be written it raises OSError.
        """
        every, store = self._settings.checkpoint_every, self._store
        if not every or store is None or (state.round % every and state.status == "running"):
            return
        arrays: dict[str, NDArray[np.generic]] = {}
        record = pack(state, arrays) | {
            "version": package_version(),
            "settings": self._settings.flat(),
            **provenance.as_record(),
            "rule": self._rule.export_state(),
        }
        for name, part in self._parts.items():
            arrays |= group(name, part.export_state())
        if isinstance(self._grid, KeepsClientState):
            arrays |= group("clients", self._grid.export_client_states())
        self._patience.write(store.path, lambda: store.write(record, arrays))

    def _resumed(self, provenance: Provenance) -> tuple[RunState, list[RoundEvent], Provenance]:
        store = self._store
        if store is None:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        record, arrays = store.read()
        try:
            ignored = without_effect(self._settings, ["guarantee.entitlement"])
            check_settings(record["settings"], self._settings.flat(), ignored)
            provenance = provenance.continuing(record)
            state = self._restored(record, arrays)
        except DAMAGE as error:
            raise damaged(store.path, error) from error
        if state.round > self._settings.rounds:
            raise ConfigError(
                f"rounds: found {self._settings.rounds}, and {store.path.parent} has {state.round} rounds already; "
                "give more to go on, or name another folder"
            )
        if (dropped := reopen(state, self._settings)) and isinstance(method := self._parts["method"], Method):
            method.step_taken(dropped.step, 0.0)
        log(INFO, "Resumed after round %d", state.round)
        log_file = store.path.with_name(EVENTS)
        events = read_events(log_file, state.round) if log_file.exists() else []
        if len(events) < state.round:
            log(WARNING, "%s: %d of %d events are there; figures cover those", log_file, len(events), state.round)
        return state, events, provenance

    def _restored(self, record: dict[str, Any], arrays: Arrays) -> RunState:
        """Restore parts, rule and clients; the state of the run."""
        for name, part in self._parts.items():
            part.restore_state(under(f"{name}/", arrays))
        self._rule.restore_state(record["rule"])
        if isinstance(self._grid, KeepsClientState):
            self._grid.restore_client_states(under("clients/", arrays))
        return unpack(RunState, record, arrays)


def group(prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Put names under `prefix`."""
    return {f"{prefix}/{name}": np.asarray(value) for name, value in arrays.items()}


def reopen(state: RunState, settings: Settings) -> PendingStep | None:
    """Let a run that is over go on where `settings` now give it more rounds, or more patience; end it at fewer.

    Patience is that of early stopping, or that with a model that stands still.
    Without early stopping no model but the last counts, so the best one is forgotten. A step whose round is now beyond
    the last is not tried any more, and returned.
    """
    if not settings.early_stopping:
        state.best = None
    patient = state.best is None or state.best.since < settings.early_stopping
    if state.status == "finished" or (state.status == "early-stopped" and patient):
        state.status = "running"
    if state.status == STALLED and not 0 < settings.step.patience <= state.unmoved:
        state.status = "running"
    if state.status != "running" or state.round < settings.rounds:
        return None
    dropped, state.pending, state.status = state.pending, None, "finished"
    state.status = state.standstill(settings.step.patience) or state.status
    state.stay()
    return dropped
