"""When a checkpoint is written, what goes into it, and how a run goes on from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from logging import INFO, WARNING
from typing import Any, Protocol, runtime_checkable

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
