"""Comparisons whose runs never took place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dqnfed_flwr.compare.plan import Job, Plan, make_plan
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Row, reference_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.runs import changed, make_event

NOWHERE = Path("nowhere")


def make_record(
    spec: RowSpec,
    seed: int,
    accuracies: Sequence[float] = (),
    *,
    rounds: int = 3,
    rho: float = 1.0,
    reason: str = "",
    settings: Settings | None = None,
) -> Record:
    """A run whose clients come to their accuracies in equal steps, or that failed for a reason."""
    settings = settings or Settings.from_mapping({"clients": len(accuracies) or Settings().clients})
    job = Job(spec, {}, seed, settings, NOWHERE / spec.method / str(seed))
    if reason:
        return Record(job, "failed", reason)
    events = [
        changed(
            make_event(t, [value * t / rounds for value in accuracies], rho=rho), seconds={"total": 0.5, "solve": 0.1}
        )
        for t in range(1, rounds + 1)
    ]
    return Record(job, "finished", "", (dict(enumerate(accuracies)),) * bool(accuracies), tuple(events))


def with_validation(event: RoundEvent, *validation: float) -> RoundEvent:
    """`event`, with validation accuracies of its clients."""
    return changed(event, validation=dict(enumerate(validation)))


def make_comparison(
    accuracies: Mapping[str, Sequence[Sequence[float]]], *, failed: Mapping[str, str] | None = None
) -> Comparison:
    """Rows by the name of their method, each with the accuracies of every seed; `failed` methods have none."""
    rows = []
    for method, runs in accuracies.items():
        spec = RowSpec(method, title=Settings.from_mapping({"method": method}).title)
        rows.append(Row(spec, {}, tuple(make_record(spec, seed, run) for seed, run in enumerate(runs))))
    for method, reason in (failed or {}).items():
        spec = RowSpec(method, title=method)
        rows.append(Row(spec, {}, (make_record(spec, 0, reason=reason),)))
    seeds = tuple(range(max(len(runs) for runs in accuracies.values())))
    plan = Plan({}, tuple(row.spec for row in rows), seeds, NOWHERE, 0)
    return Comparison(plan, rows, reference_of(plan, None), "mean", 1)


def plan_in(
    directory: Path,
    methods: str = "dqn-fed,fedavg",
    seeds: str = "0,1",
    grids: tuple[str, ...] = (),
    grid_rounds: int | None = None,
    grid_seed: int | None = None,
    **config: Scalar,
) -> Plan:
    """A plan of a comparison in a folder; `a__b_c` stands for the key `a.b-c`."""
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    return make_plan(keys, methods, seeds, directory, grids, grid_rounds, grid_seed)
