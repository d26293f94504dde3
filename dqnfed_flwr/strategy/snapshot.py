"""Between a run's state and the record and arrays of a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.guarantee.overrule import Standing
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.strategy.checkpoint import group, ungroup
from dqnfed_flwr.strategy.pending import PendingStep
from dqnfed_flwr.strategy.state import BestModel, Move, RunState
from dqnfed_flwr.strategy.tally import Tally
from dqnfed_flwr.strategy.vectors import Arrays
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import Combination, SearchHints

_CLIENTS = ("asked", "clients", "heard", "binding", "voteless", "aside", "overruled", "caught", "refused")
_BY_CLIENT = ("losses", "slopes", "rates", "shares", "weights")


def pack_state(state: RunState) -> tuple[dict[str, Any], Arrays]:
    """Everything in `state` but what the running tally counts and times."""
    record: dict[str, Any] = {"round": state.round, "exchange": state.exchange, "status": state.status}
    record |= {"failures": state.failures, "unusable": [list(out) for out in state.unusable]}
    record |= {"standing": state.standing.export_state(), "moves": state.moves, "unmoved": state.unmoved}
    record["dropped"] = [asdict(drop) for drop in state.tally.dropped]
    arrays: Arrays = {"theta": state.theta.numpy(), "candidate": state.candidate.numpy()}
    arrays |= group("buffer", state.buffers)
    if state.pending is not None:
        record["pending"], pending = _pack_pending(state.pending)
        arrays |= group("pending", pending)
    record["last"] = None
    if state.last is not None:
        record["last"], arrays["last"] = {"factor": state.last.factor}, state.last.step.numpy()
    if state.best is not None:
        record["best"] = {"round": state.best.round, "accuracy": state.best.accuracy, "since": state.best.since}
        arrays["best"] = state.best.theta.numpy()
        arrays |= group("best-buffer", state.best.buffers)
    return record, arrays


def unpack_state(record: dict[str, Any], arrays: Arrays) -> RunState:
    """Inverse of `pack_state`; the tally holds nothing else."""
    best, last = record.get("best"), record.get("last")
    return RunState(
        theta=_tensor(arrays["theta"]),
        candidate=_tensor(arrays["candidate"]),
        buffers=ungroup("buffer", arrays),
        round=record["round"],
        exchange=record["exchange"],
        status=record["status"],
        failures=record.get("failures", 0),
        unusable=tuple(tuple(out) for out in record.get("unusable", [])),
        pending=_unpack_pending(record["pending"], ungroup("pending", arrays)) if "pending" in record else None,
        best=_unpack_best(best, arrays) if best else None,
        last=Move(_tensor(arrays["last"]), **last) if last else None,
        standing=Standing.of(record.get("standing", {})),
        moves=record.get("moves", record["round"]),
        unmoved=record.get("unmoved", 0),
        tally=Tally(dropped=[DroppedClient(**item) for item in record.get("dropped", [])]),
    )


def _unpack_best(record: dict[str, Any], arrays: Arrays) -> BestModel:
    return BestModel(theta=_tensor(arrays["best"]), buffers=ungroup("best-buffer", arrays), **record)


def _pack_pending(pending: PendingStep) -> tuple[dict[str, Any], Arrays]:
    combination = asdict(pending.combination)
    arrays: Arrays = {"step": pending.step.numpy(), "weights": combination.pop("weights"), "gram": pending.gram}
    if pending.fallback is not None:
        arrays["fallback"] = pending.fallback.numpy()
    record = {
        "round": pending.round,
        "ladder": asdict(pending.ladder),
        "scale": asdict(pending.scale),
        **{name: list(getattr(pending, name)) for name in _CLIENTS},
        "entitlement": pending.entitlement,
        **{name: list(getattr(pending, name).values()) for name in _BY_CLIENT},
        "combination": combination,
        "dropped": [asdict(item) for item in pending.dropped],
        "pairs_kept": pending.pairs_kept,
        "pairs_rejected": pending.pairs_rejected,
        "misses": pending.misses,
        "relaxed": pending.relaxed,
        "blocked": [list(item) for item in pending.blocked.items()],
        "promised": [[client, *named] for client, named in pending.promised.items()],
        "first": pending.first,
        "unreadable": pending.unreadable,
    }
    return record, arrays


def _unpack_pending(record: dict[str, Any], arrays: Arrays) -> PendingStep:
    _from_older(record, arrays)
    groups: dict[str, Any] = {name: tuple(record.pop(name)) for name in _CLIENTS}
    combination = record.pop("combination")
    combination["excluded"] = {int(client): reason for client, reason in combination["excluded"].items()}
    combination["hints"] = SearchHints(**combination["hints"])
    blocked = {int(client): int(count) for client, count in record.pop("blocked", [])}
    promised = {int(client): (float(factor), float(loss)) for client, factor, loss in record.pop("promised", [])}
    by_client: dict[str, Any] = {
        name: dict(zip(groups["clients"], record.pop(name), strict=True)) for name in _BY_CLIENT
    }
    return PendingStep(
        step=_tensor(arrays["step"]),
        fallback=_tensor(arrays["fallback"]) if "fallback" in arrays else None,
        ladder=Ladder(**record.pop("ladder")),
        scale=_unpack_scale(record.pop("scale")),
        combination=Combination(weights=np.asarray(arrays["weights"], dtype=np.float64), **combination),
        dropped=[DroppedClient(**item) for item in record.pop("dropped")],
        blocked=blocked,
        promised=promised,
        gram=np.asarray(arrays["gram"], dtype=np.float64),
        **groups,
        **by_client,
        **record,
    )


def _from_older(record: dict[str, Any], arrays: Arrays) -> None:
    """Complete a pending step of a version in which all participants were heard and nobody was entitled to a rise."""
    if "asked" in record:
        return
    clients = record["clients"]
    record |= {
        "asked": clients,
        "heard": clients,
        "binding": [],
        "voteless": [],
        "aside": [],
        "overruled": [],
        "refused": [],
        "promised": [],
    }
    record["caught"] = record.pop("silenced", [])
    arrays["gram"] = np.zeros((0, 0))


def _unpack_scale(record: dict[str, Any]) -> StepScale:
    return StepScale(**{**record, "hints": SearchHints(**record["hints"])})


def _tensor(values: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.array(values))
