from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.record import read_record
from dqnfed_flwr.config import Settings
from dqnfed_flwr.telemetry.log import EventLog
from tests.helpers.runs import make_event, make_result

EVENTS = [make_event(1, (0.2, 0.4)), make_event(2, None, rho=0.5), make_event(3, (0.4, 0.8))]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    make_result(EVENTS, (0.5, 0.7)).write(tmp_path)
    log = EventLog(tmp_path)
    log.on_start(3, EVENTS)
    log.on_end()
    return Job(Entry("fedavg"), {}, 0, Settings(), tmp_path)


def test_a_run_is_read_back_with_its_figures(job: Job) -> None:
    record = read_record(job)
    assert (record.good, record.status, record.accuracies) == (True, "finished", {0: 0.5, 1: 0.7})
    assert record.figures["mean"] == pytest.approx(0.6)
    assert (record.figures["rho_mean"], record.figures["rho_min"]) == pytest.approx((2.5 / 3, 0.5))
    assert (record.figures["rounds"], record.figures["exchanges"], record.figures["bytes_up"]) == (3, 3, 3_000_000)


def test_accuracies_may_be_means_over_the_last_evaluations(job: Job) -> None:
    assert read_record(job, last=2).accuracies == pytest.approx({0: 0.3, 1: 0.6})
    assert read_record(job, last=9).accuracies == read_record(job, last=2).accuracies


def test_a_failed_run_has_a_reason_and_no_figures(job: Job) -> None:
    record = read_record(job, "out of memory")
    assert (record.good, record.status, record.reason, record.figures) == (False, "failed", "out of memory", {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"accuracies": {"a": 1}, "status": "finished"}'])
def test_a_result_that_cannot_be_read_is_a_failed_run(job: Job, text: str) -> None:
    (job.folder / "run.json").write_text(text)
    record = read_record(job)
    assert record.status == "failed"
    assert "cannot be read" in record.reason
