from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dqnfed_flwr.compare.execute import How, execute
from dqnfed_flwr.compare.plan import Job, Plan
from dqnfed_flwr.compare.results import Row
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.workers import Watcher
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.methods.q_ffl import QFflSettings
from dqnfed_flwr.report.progress import CompareProgress
from tests.helpers.comparisons import with_validation
from tests.helpers.runs import leave_run, make_event

VALIDATION = {0.1: 0.4, 1.0: 0.8, 2.0: 0.8}


class FakeWorkers:
    """Stands for the processes: a run with rate q has the validation accuracy `VALIDATION[q]`."""

    def __init__(self, fail: Sequence[tuple[str, float, int]] = ()) -> None:
        self.fail = fail
        self.calls: list[list[str]] = []

    def __call__(self, jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher) -> dict[Path, str]:
        self.calls.append([f"{job.spec.method} {job.settings.group_of(QFflSettings).q} {job.seed}" for job in jobs])
        failures = {}
        for job in jobs:
            watcher.on_begin(job)
            reason = "lost" if (job.spec.method, job.settings.group_of(QFflSettings).q, job.seed) in self.fail else ""
            if reason:
                failures[job.folder] = reason
            else:
                self.write(job, watcher)
            watcher.on_end(job, reason)
        return failures

    @staticmethod
    def write(job: Job, watcher: Watcher) -> None:
        event = with_validation(make_event(1, (0.5, 0.9)), VALIDATION[job.settings.group_of(QFflSettings).q])
        watcher.on_round(job, event)
        leave_run(job.folder, [event], settings=job.settings)


def make_plan(folder: Path, *, grid_rounds: int | None = None) -> Plan:
    specs = RowSpec("fedavg", title="FedAvg"), RowSpec("q-ffl", {}, {"q-ffl.q": (0.1, 1.0, 2.0)}, "q-FFL")
    return Plan({"rounds": 3}, specs, (0, 1), folder, 0, grid_rounds)


def carry(plan: Plan, workers: FakeWorkers) -> tuple[list[Row], list[str]]:
    stream = io.StringIO()
    with CompareProgress(Console(file=stream, width=200), plan.most_runs) as progress:
        rows = execute(plan, progress, How("", 2, workers))
    return rows, stream.getvalue().splitlines()


def test_searches_come_first_and_their_choice_is_run_with_all_seeds(tmp_path: Path) -> None:
    workers = FakeWorkers()
    rows, lines = carry(make_plan(tmp_path, grid_rounds=1), workers)
    assert workers.calls == [
        ["q-ffl 0.1 0", "q-ffl 1.0 0", "q-ffl 2.0 0"],
        ["fedavg 0.1 0", "fedavg 0.1 1", "q-ffl 1.0 0", "q-ffl 1.0 1"],
    ]
    assert (rows[0].label, rows[1].label, rows[1].point) == ("FedAvg", "q-FFL (q=1.0)", {"q-ffl.q": 1.0})
    assert [len(row.good) for row in rows] == [2, 2]
    assert [trial.figures["mean"] for trial in rows[1].trials] == [0.4, 0.8, 0.8]
    assert lines[0].startswith(
        "[1/7] q-FFL (q=0.1), seed 0: 1 rounds, mean  70.0 %  worst  50.0 %  ρ 1.00  unharmed 1.00  "
    )
    assert lines[-1].startswith("[7/7] ")
    assert "; 0 to go, " in lines[-1]


def test_a_search_of_full_length_is_not_run_twice(tmp_path: Path) -> None:
    workers = FakeWorkers()
    _, lines = carry(make_plan(tmp_path), workers)
    assert workers.calls[1] == ["fedavg 0.1 0", "fedavg 0.1 1", "q-ffl 1.0 1"]
    assert lines[-1].startswith("[6/6] ")


def test_rows_that_come_to_the_same_settings_share_their_runs(tmp_path: Path) -> None:
    workers = FakeWorkers()
    plan = make_plan(tmp_path, grid_rounds=1)
    fixed = RowSpec("q-ffl", {"q-ffl.q": 1.0}, title="fixed")
    rows, lines = carry(replace(plan, specs=(plan.specs[1], fixed)), workers)
    assert workers.calls[1] == ["q-ffl 1.0 0", "q-ffl 1.0 1"]
    assert [len(row.good) for row in rows] == [2, 2]
    assert lines[-1].startswith("[5/5] ")


def test_nothing_is_run_that_is_there(tmp_path: Path) -> None:
    first, _ = carry(make_plan(tmp_path), FakeWorkers())
    workers = FakeWorkers()
    again, lines = carry(make_plan(tmp_path), workers)
    assert workers.calls == []
    assert lines == ["3 of 7 runs are there already", "3 of 6 runs are there already"]
    assert [row.records for row in again] == [row.records for row in first]


def test_only_what_failed_is_tried_again(tmp_path: Path) -> None:
    rows, lines = carry(make_plan(tmp_path), FakeWorkers([("fedavg", 0.1, 1)]))
    assert rows[0].failures == ["seed 1 failed: lost"]
    assert len(rows[0].good) == 1
    assert any("FedAvg, seed 1: failed: lost" in line for line in lines)
    workers = FakeWorkers()
    rows, _ = carry(make_plan(tmp_path), workers)
    assert workers.calls == [["fedavg 0.1 1"]]
    assert len(rows[0].good) == 2


def test_a_method_fails_when_every_point_of_its_grid_does(tmp_path: Path) -> None:
    workers = FakeWorkers([("q-ffl", q, 0) for q in VALIDATION])
    rows, lines = carry(make_plan(tmp_path), workers)
    assert rows[1].reason == "every point of its grid failed; the first: lost"
    assert workers.calls[1] == ["fedavg 0.1 0", "fedavg 0.1 1"]
    assert lines[-1].startswith("[5/5] FedAvg")


def test_a_point_that_fails_is_not_chosen(tmp_path: Path) -> None:
    rows, _ = carry(make_plan(tmp_path), FakeWorkers([("q-ffl", 1.0, 0)]))
    assert rows[1].point == {"q-ffl.q": 2.0}
