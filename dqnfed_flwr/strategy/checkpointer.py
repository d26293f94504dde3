"""A run on disk: its state as a record and arrays, written while it goes on and read where it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from logging import INFO, WARNING
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.config import Settings, without_effect
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.guarantee.overrule import Standing
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, private_folder
from dqnfed_flwr.steps import Ladder, StepRule, StepScale
from dqnfed_flwr.strategy.checkpoint import Arrays, CheckpointStore, Provenance, check_settings, output_directory
from dqnfed_flwr.strategy.schedule import training_needs_step
from dqnfed_flwr.strategy.search_memory import SearchMemory
from dqnfed_flwr.strategy.state import BestModel, Move, PendingStep, RoundCost, RunState, reopen
from dqnfed_flwr.telemetry.event_log import Patience, read_events
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import Combination, SearchHints, under
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

    A checkpoint holds the state of method and rule, and the memory of the clients where the grid `KeepsClientState`.
    `patience` waits where a disk is full.
    """

    def __init__(self, settings: Settings, method: Method, rule: StepRule, *, grid: Grid, patience: Patience) -> None:
        self._settings, self._method, self._rule = settings, method, rule
        self._grid, self._patience = grid, patience
        output = output_directory(settings)
        self._store = CheckpointStore(output / CHECKPOINT) if output is not None else None

    def start(
        self, initial_arrays: ArrayRecord, provenance: Provenance
    ) -> tuple[RunState, list[RoundEvent], Provenance]:
        """Start the run from `initial_arrays`, or with `resume` go on with it from its checkpoint.

        `provenance` is data and code as they are now. Returned are the state for the loop to change, the events of the
        rounds before, and data and code, those of an interrupted run too. Without a folder to resume from it raises
        ConfigError, from an unfit checkpoint CheckpointError.
        """
        if self._settings.resume:
            return self._resumed(provenance)
        if self._store is not None:
            private_folder(self._store.path.parent)
            self._store.discard()  # of another run; not to be mistaken for this one's
        return RunState.at(initial_arrays), [], provenance

    def save(self, state: RunState, provenance: Provenance) -> None:
        """Write a checkpoint of `state`, between two exchanges, where one is due; `provenance` is that of `start`.

        It waits for room on a full disk; for any other reason not to be written it raises OSError.
        """
        every, store = self._settings.checkpoint_every, self._store
        if not every or store is None or (state.round % every and state.status == "running"):
            return
        record, arrays = pack_state(state)
        record |= {
            "version": package_version(),
            "settings": self._settings.flat(),
            **provenance.as_record(),
            "rule": self._rule.export_state(),
        }
        arrays |= group("method", self._method.export_state())
        if isinstance(self._grid, KeepsClientState):
            arrays |= group("clients", self._grid.export_client_states())
        self._patience.write(store.path, lambda: store.write(record, arrays))

    def _resumed(self, provenance: Provenance) -> tuple[RunState, list[RoundEvent], Provenance]:
        store = self._store
        if store is None:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        record, arrays = store.read()
        ignored = without_effect(self._settings, ["guarantee.entitlement"])
        check_settings(record["settings"], self._settings.flat(), ignored)
        provenance = provenance.continuing(record)
        state = self._restored(store, record, arrays)
        if state.round > self._settings.rounds:
            raise ConfigError(
                f"rounds: found {self._settings.rounds}, and {store.path.parent} has {state.round} rounds already; "
                "give more to go on, or name another folder"
            )
        if dropped := reopen(state, self._settings):
            self._method.step_taken(dropped.step, 0.0)
        log(INFO, "Resumed after round %d", state.round)
        if "last" not in record and not state.pending and state.round and training_needs_step(self._settings):
            log(WARNING, "The checkpoint is of an earlier version, without the last step: the next round has none")
        log_file = store.path.with_name(EVENTS)
        events = read_events(log_file, state.round) if log_file.exists() else []
        if len(events) < state.round:
            log(WARNING, "%s: %d of %d events are there; figures cover those", log_file, len(events), state.round)
        return state, events, provenance

    def _restored(self, store: CheckpointStore, record: dict[str, Any], arrays: Arrays) -> RunState:
        """Restore method, rule and clients; the state of the run."""
        try:
            self._method.restore_state(under("method/", arrays))
            self._rule.restore_state(record["rule"])
            if isinstance(self._grid, KeepsClientState):
                self._grid.restore_client_states(under("clients/", arrays))
            return unpack_state(record, arrays)
        except (LookupError, TypeError) as error:  # what another version keeps under other names
            raise CheckpointError(
                f"{store.path}: written by dqnfed-flwr {record.get('version')}, and its state does not suit this "
                f"version, {package_version()} ({type(error).__name__}: {error}); continue with that version, or "
                "start anew"
            ) from error


_CLIENTS = ("asked", "clients", "heard", "binding", "voteless", "aside", "overruled", "caught", "refused")
_CLIENTS_SINCE = ("refused_training", "refused_held_out", "unable")
"""Clients that checkpoints of earlier versions do not name."""
_BY_CLIENT = ("losses", "slopes", "rates", "shares", "weights")
_PLAIN = ("round", "entitlement", "pairs_kept", "pairs_rejected", "misses", "relaxed", "first", "unreadable")


def pack_state(state: RunState) -> tuple[dict[str, Any], Arrays]:
    """Everything in `state` but what the running cost counts and times."""
    record: dict[str, Any] = {"round": state.round, "exchange": state.exchange, "status": state.status}
    record |= {"failures": state.failures, "unusable": [list(out) for out in state.unusable]}
    record |= {"standing": state.standing.export_state(), "moves": state.moves, "unmoved": state.unmoved}
    record["dropped"] = [asdict(drop) for drop in state.cost.dropped]
    record["search"] = asdict(state.search)
    arrays: Arrays = {"theta": state.theta.numpy(), "candidate": state.candidate.numpy()}
    arrays |= group("buffer", state.buffers)
    if state.settled is not None and state.settled is not state.buffers:
        arrays |= group("settled-buffer", state.settled)
    if state.pending is not None:
        record["pending"], pending = _pack_pending(state.pending)
        arrays |= group("pending", pending)
    record["last"] = None
    if state.last is not None:
        record["last"], arrays["last"] = {"factor": state.last.factor}, state.last.step.numpy()
    if state.best is not None:
        record["best"] = {"round": state.best.round, "accuracy": state.best.figure, "since": state.best.since}
        arrays["best"] = state.best.theta.numpy()
        arrays |= group("best-buffer", state.best.buffers)
    return record, arrays


def unpack_state(record: dict[str, Any], arrays: Arrays) -> RunState:
    """Inverse of `pack_state`; the cost holds nothing else."""
    best, last = record.get("best"), record.get("last")
    if best:  # the record calls it accuracy, as earlier versions did, whatever it is
        best = {"round": best["round"], "figure": best["accuracy"], "since": best["since"]}
    buffers, settled = under("buffer/", arrays), under("settled-buffer/", arrays)
    return RunState(
        theta=_tensor(arrays["theta"]),
        candidate=_tensor(arrays["candidate"]),
        buffers=buffers,
        settled=(settled or buffers) if "pending" in record else None,
        round=record["round"],
        exchange=record["exchange"],
        status=record["status"],
        failures=record.get("failures", 0),
        unusable=tuple(tuple(out) for out in record.get("unusable", [])),
        pending=_unpack_pending(record["pending"], under("pending/", arrays)) if "pending" in record else None,
        best=BestModel(theta=_tensor(arrays["best"]), buffers=under("best-buffer/", arrays), **best) if best else None,
        last=Move(_tensor(arrays["last"]), **last) if last else None,
        standing=Standing.of(record.get("standing", {})),
        moves=record.get("moves", record["round"]),
        unmoved=record.get("unmoved", 0),
        search=_search(record.get("search", {})),
        cost=RoundCost(dropped=[DroppedClient(**item) for item in record.get("dropped", [])]),
    )


def _search(record: dict[str, Any]) -> SearchMemory:
    return SearchMemory(**{**record, "judges": tuple(record.get("judges", ()))})


def _pack_pending(pending: PendingStep) -> tuple[dict[str, Any], Arrays]:
    combination = asdict(pending.combination)
    arrays: Arrays = {"step": pending.step.numpy(), "weights": combination.pop("weights"), "gram": pending.gram}
    if pending.mean_row is not None:
        arrays["fallback"] = pending.mean_row.numpy()
    record = {
        **{name: getattr(pending, name) for name in _PLAIN},
        "ladder": asdict(pending.ladder),
        "scale": asdict(pending.scale),
        **{name: list(getattr(pending, name)) for name in (*_CLIENTS, *_CLIENTS_SINCE)},
        **{name: list(getattr(pending, name).values()) for name in _BY_CLIENT},
        "combination": combination,
        "dropped": [asdict(item) for item in pending.dropped],
        "blocked": [list(item) for item in pending.blocked.items()],
        "promised": [[client, *named] for client, named in pending.promised.items()],
    }
    return record, arrays


def _unpack_pending(record: dict[str, Any], arrays: Arrays) -> PendingStep:
    _from_older(record, arrays)
    groups: dict[str, Any] = {name: tuple(record.pop(name)) for name in _CLIENTS}
    groups |= {name: tuple(record.pop(name, ())) for name in _CLIENTS_SINCE}
    combination, scale = record.pop("combination"), record.pop("scale")
    combination["excluded"] = {int(client): reason for client, reason in combination["excluded"].items()}
    combination["hints"] = SearchHints(**combination["hints"])
    by_client: dict[str, Any] = {
        name: dict(zip(groups["clients"], record.pop(name), strict=True)) for name in _BY_CLIENT
    }
    return PendingStep(
        step=_tensor(arrays["step"]),
        mean_row=_tensor(arrays["fallback"]) if "fallback" in arrays else None,
        ladder=Ladder(**record.pop("ladder")),
        scale=StepScale(**{**scale, "hints": SearchHints(**scale["hints"])}),
        combination=Combination(weights=np.asarray(arrays["weights"], dtype=np.float64), **combination),
        dropped=[DroppedClient(**item) for item in record.pop("dropped")],
        blocked={int(client): int(count) for client, count in record.pop("blocked", [])},
        promised={int(client): (float(factor), float(loss)) for client, factor, loss in record.pop("promised", [])},
        gram=np.asarray(arrays["gram"], dtype=np.float64),
        **groups,
        **by_client,
        **record,
    )


def _from_older(record: dict[str, Any], arrays: Arrays) -> None:
    """Complete a pending step of a version in which all participants were heard and no loss might rise."""
    if "asked" in record:
        return
    record |= dict.fromkeys(("asked", "heard"), record["clients"])
    record |= {name: [] for name in ("binding", "voteless", "aside", "overruled", "refused")}
    record["caught"] = record.pop("silenced", [])
    record["promised"] = []  # they had another form
    arrays["gram"] = np.zeros((0, 0))


def group(prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Put names under `prefix`."""
    return {f"{prefix}/{name}": np.asarray(value) for name, value in arrays.items()}


def _tensor(values: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(values))
