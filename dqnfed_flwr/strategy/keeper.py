"""A run on disk: checkpoints while it goes, and where it goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings, without_effect
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.checkpoint import CheckpointStore, check_settings, group, output_directory, ungroup
from dqnfed_flwr.strategy.orders import trains_on_the_line
from dqnfed_flwr.strategy.origin import Origin
from dqnfed_flwr.strategy.snapshot import pack_state, unpack_state
from dqnfed_flwr.strategy.state import RunState, reopen
from dqnfed_flwr.strategy.vectors import Arrays
from dqnfed_flwr.telemetry.event_log import Patience, read_events
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.version import package_version


@runtime_checkable
class KeepsClientState(Protocol):
    """A grid whose clients' memory lives and dies with this process, so that a checkpoint must hold it."""

    def export_client_states(self) -> dict[str, NDArray[np.generic]]:
        """Memory of all clients, by name."""

    def restore_client_states(self, states: dict[str, NDArray[np.generic]]) -> None:
        """Inverse of `export_client_states`."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins or goes on.

    Attributes
    ----------
    state : RunState
        For the loop to change.
    events : list[RoundEvent]
        Of the rounds before.
    origin : Origin
        Data and code, those of an interrupted run too.
    """

    state: RunState
    events: list[RoundEvent]
    origin: Origin


class RunKeeper:
    """Keeps one run in its output folder; without such a folder it keeps nothing.

    Parameters
    ----------
    settings : Settings
        Of the run.
    method, rule : Method, StepRule
        Whose state belongs to it.
    grid : Grid
        Whose clients' memory may belong to it.
    patience : Patience
        Waits where a disk is full.
    """

    def __init__(self, settings: Settings, method: Method, rule: StepRule, *, grid: Grid, patience: Patience) -> None:
        self._settings, self._method, self._rule = settings, method, rule
        self._grid, self._patience = grid, patience
        output = output_directory(settings)
        self._store = CheckpointStore(output / CHECKPOINT) if output is not None else None

    def begin(self, initial_arrays: ArrayRecord, origin: Origin) -> Beginning:
        """Begin the run, or with `resume` go on with it.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The model of a run that begins.
        origin : Origin
            Data and code as they are now.

        Returns
        -------
        Beginning
            From the checkpoint where the run goes on.

        Raises
        ------
        ConfigError
            If there is no folder to resume from.
        CheckpointError
            If the run cannot be continued from its checkpoint.
        """
        if self._settings.resume:
            return self._resumed(origin)
        if self._store is not None:
            self._store.path.parent.mkdir(parents=True, exist_ok=True)
            self._store.discard()  # of another run; not to be mistaken for this one's
        theta, _, buffers = wire.decode_model(initial_arrays)
        model = torch.from_numpy(np.array(theta))
        return Beginning(RunState(theta=model, candidate=model, buffers=buffers), [], origin)

    def save(self, state: RunState, origin: Origin) -> None:
        """Write a checkpoint where one is due.

        Parameters
        ----------
        state : RunState
            Between two exchanges.
        origin : Origin
            As `begin` gave it.

        Raises
        ------
        OSError
            If it cannot be written for another reason than want of room, for which it waits.
        """
        every, store = self._settings.checkpoint_every, self._store
        if not every or store is None or (state.round % every and state.status == "running"):
            return
        record, arrays = pack_state(state)
        record |= {
            "version": package_version(),
            "settings": self._settings.flat(),
            **origin.as_record(),
            "rule": self._rule.export_state(),
        }
        arrays |= group("method", self._method.export_state())
        if isinstance(self._grid, KeepsClientState):
            arrays |= group("clients", self._grid.export_client_states())
        self._patience.write(store.path, lambda: store.write(record, arrays))

    def _resumed(self, origin: Origin) -> Beginning:
        store = self._store
        if store is None:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        record, arrays = store.read()
        wanted = self._settings.flat()
        check_settings(record["settings"], wanted, without_effect(self._settings, ["guarantee.entitlement"]))
        origin = origin.continuing(record)
        state = self._restored(store, record, arrays)
        if dropped := reopen(state, self._settings):
            self._method.settle(dropped.step, 0.0)
        log(INFO, "Resumed after round %d", state.round)
        if "last" not in record and not state.pending and state.round and trains_on_the_line(self._settings):
            log(WARNING, "The checkpoint is of an earlier version, without the last step: the next round has none")
        log_file = store.path.with_name(EVENTS)
        events = read_events(log_file, state.round) if log_file.exists() else []
        if len(events) < state.round:
            log(WARNING, "%s: %d of %d events are there; figures cover those", log_file, len(events), state.round)
        return Beginning(state, events, origin)

    def _restored(self, store: CheckpointStore, record: dict[str, Any], arrays: Arrays) -> RunState:
        """Hand everybody the state that was kept for them, and the run's to the caller."""
        version = record.get("version")
        try:
            self._method.restore_state(ungroup("method", arrays))
            self._rule.restore_state(record["rule"])
            if isinstance(self._grid, KeepsClientState):
                self._grid.restore_client_states(ungroup("clients", arrays))
            return unpack_state(record, arrays)
        except (LookupError, TypeError) as error:  # what another version keeps under other names
            raise CheckpointError(
                f"{store.path}: written by dqnfed-flwr {version}, and its state does not suit this version, "
                f"{package_version()} ({type(error).__name__}: {error}); continue with that version, or start anew"
            ) from error
