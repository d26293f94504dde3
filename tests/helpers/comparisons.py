"""Comparisons whose runs never took place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.plan import Job, Plan
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row, compare_rows, reference_of
from dqnfed_flwr.config import Settings
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.runs import make_event

NOWHERE = Path("nowhere")


def make_record(
    entry: Entry,
    seed: int,
    accuracies: Sequence[float] = (),
    *,
    rounds: int = 3,
    rho: float = 1.0,
    reason: str = "",
    settings: Settings | None = None,
) -> Record:
    """A run whose clients come to their accuracies in equal steps, or that failed for a reason."""
    job = Job(entry, {}, seed, settings or Settings(), NOWHERE / entry.method / str(seed))
    if reason:
        return Record(job, "failed", reason)
    events = [
        replace(
            make_event(t, [value * t / rounds for value in accuracies], rho=rho), seconds={"total": 0.5, "solve": 0.1}
        )
        for t in range(1, rounds + 1)
    ]
    return Record(job, "finished", "", (dict(enumerate(accuracies)),) * bool(accuracies), tuple(events))


def with_validation(event: RoundEvent, *validation: float) -> RoundEvent:
    """`event`, with validation accuracies of its clients."""
    return replace(event, validation=dict(enumerate(validation)))


def make_comparison(
    accuracies: Mapping[str, Sequence[Sequence[float]]], *, failed: Mapping[str, str] | None = None
) -> Comparison:
    """Rows by the name of their method, each with the accuracies of every seed; `failed` methods have none."""
    rows = []
    for method, runs in accuracies.items():
        entry = Entry(method, title=Settings.from_mapping({"method": method}).title)
        rows.append(Row(entry, {}, tuple(make_record(entry, seed, run) for seed, run in enumerate(runs))))
    for method, reason in (failed or {}).items():
        entry = Entry(method, title=method)
        rows.append(Row(entry, {}, (make_record(entry, 0, reason=reason),)))
    seeds = tuple(range(max(len(runs) for runs in accuracies.values())))
    plan = Plan({}, tuple(row.entry for row in rows), seeds, NOWHERE, 0)
    return compare_rows(plan, rows, reference_of(plan, None), "mean", 1)
