"""When a checkpoint is written, what goes into it, and how a run goes on from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings, without_effect
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import Memory, Method
from dqnfed_flwr.record_codec import pack, unpack
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, private_folder
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
from dqnfed_flwr.strategy.state import STALLED, PendingStep, RunState
from dqnfed_flwr.telemetry.event_log import Patience, read_events
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import under
from dqnfed_flwr.version import package_version


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
    where the grid `KeepsClientState`. There it is written while the next exchange goes on, until `finish`; `with` the
    checkpointer, the last is on the disk at the end. Nodes remember by themselves, and no further back than a round:
    they are asked again when it is written. `patience` waits where a disk is full.
    """

    def __init__(
        self, settings: Settings, parts: Mapping[str, Memory], rule: StepRule, *, grid: Grid, patience: Patience
    ) -> None:
        self._settings, self._parts, self._rule = settings, parts, rule
        self._grid = grid
        output = output_directory(settings)
        self._store = CheckpointStore(output / CHECKPOINT) if output is not None else None
        self._writer = Writer(self._store.path, patience) if self._store is not None else None

    def __enter__(self) -> Self:
        """Checkpoints are written within."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Wait for the last; OSError where it cannot be written, unless an `error` ends the run already."""
        if self._writer is not None:
            self._writer.close(error)

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

        It holds the state of now, whenever it is written: no array that was given out is written to again. One that is
        still being written is waited for, also for room on a full disk. OSError where that, or this one, failed for any
        other reason.
        """
        every, store, writer = self._settings.checkpoint_every, self._store, self._writer
        if not every or store is None or writer is None or (state.round % every and state.status == "running"):
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
        grid = self._grid
        if isinstance(grid, KeepsClientState):
            arrays |= group("clients", grid.export_client_states())
        writer.begin(partial(store.write, record, arrays))
        if not isinstance(grid, KeepsClientState):
            writer.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is written; OSError where it cannot be."""
        if self._writer is not None:
            self._writer.finish()

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


class Writer:
    """Writes `path` on a thread of its own, one write at a time, and each of them whole before the next begins.

    What fails there is done again, or raised, by whoever waits for it: `patience` and its listeners stay on one thread.
    """

    def __init__(self, path: Path, patience: Patience) -> None:
        self._path, self._patience = path, patience
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")  # starts its thread when it is needed
        self._begun: tuple[Callable[[], None], Future[None]] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Finish the write before, and begin this one, which can be done again from its beginning."""
        self.finish()
        self._begun = write, self._pool.submit(write)

    def finish(self) -> None:
        """Wait for what was begun, and for room where there was none; OSError where it failed for another reason."""
        if self._begun is not None:
            write, future = self._begun
            attempts = chain([future.result], repeat(write))
            self._patience.write(self._path, lambda: next(attempts)())
            self._begun = None

    def close(self, error: BaseException | None = None) -> None:
        """Finish, and end the thread. After an `error` nobody waits for room: what fails then is said in the log."""
        try:
            if error is None:
                self.finish()
            elif self._begun and (failed := self._begun[1].exception()) not in (None, error):
                log(WARNING, "%s: the one before stays, the last could not be written (%s)", self._path, failed)
        finally:
            self._pool.shutdown()


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
