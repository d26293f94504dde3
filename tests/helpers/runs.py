"""Results of runs that never took place, and runs that end early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.guarantee.overrule import Votes
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import Cost, Evaluated, Listener, RoundEvent

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def make_event(round_number: int, accuracy: Sequence[float] | None, *, rho: float = 1.0) -> RoundEvent:
    """A round of four clients, of which the share `rho` improved."""
    fallen = 0 if math.isnan(rho) else round(4 * rho)
    return RoundEvent(
        round=round_number,
        participants=[0, 1, 2, 3],
        losses_before=[1.0] * 4,
        losses_after=[math.nan] * 4 if math.isnan(rho) else [0.5] * fallen + [1.5] * (4 - fallen),
        rates=[0.1] * 4,
        weights=[0.25] * 4,
        step_norm_squared=1.0,
        factor=1.0,
        rank=4,
        condition=1.0,
        residual=0.0,
        status="converged",
        asked=4,
        votes=Votes((0, 1, 2, 3)),
        cost=Cost(exchanges=1, bytes_up=1_000_000, bytes_down=2_000_000),
        evaluated=Evaluated(None if accuracy is None else dict(enumerate(accuracy))),
    )


def changed(record: T, **changes: Any) -> T:
    """A dataclass with other values of fields, of its own or of those of its records."""
    own = {field.name: changes.pop(field.name) for field in fields(record) if field.name in changes}
    for name, inner in ((field.name, getattr(record, field.name)) for field in fields(record)):
        if is_dataclass(inner) and not isinstance(inner, type):
            found = {field.name: changes.pop(field.name) for field in fields(inner) if field.name in changes}
            own |= {name: replace(inner, **found)} if found else {}
    return replace(record, **own, **changes)


def make_result(
    events: Sequence[RoundEvent], accuracies: Sequence[float] = (0.5, 0.6, 0.7, 0.8), settings: Settings | None = None
) -> RunResult:
    """A run of these rounds that ended with these accuracies."""
    return RunResult(
        settings=settings or Settings(),
        status="finished",
        theta=np.zeros(3, np.float32),
        events=list(events),
        accuracies=dict(enumerate(accuracies)),
        seconds=1.25,
        form=Form((1, 8, 8), "images", 10),
    )


def leave_run(
    folder: Path,
    events: Sequence[RoundEvent],
    accuracies: Sequence[float] = (0.5, 0.9),
    settings: Settings | None = None,
    status: str = "finished",
) -> None:
    """Write what such a run leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    replace(make_result(events, accuracies, settings), status=status).write(folder)
    log = EventLog(folder)
    log.on_start(len(events), list(events))
    log.on_end()


WHOLE: dict[str, str | int | float] = {"messages.row": 32, "messages.step": 32}
"""Nothing is rounded."""
TINY: dict[str, str | int | float] = {
    "clients": 3,
    "rounds": 2,
    "model": "logistic",
    "split.samples": 150,
    "local.threads": 1,
}
"""Settings of a run on real digits that takes a blink."""


class Stop(Exception):
    """Whatever ends a run from outside."""


class StopAfter(Listener):
    """Ends the run with `Stop` when a round is settled, before it is saved."""

    def __init__(self, number: int) -> None:
        self._number = number

    def on_round(self, event: RoundEvent) -> None:
        """Stop."""
        if event.round == self._number:
            raise Stop
