from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.workers import _Reporter, brief, carry_out
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.runs import TINY, make_event

FAULTS = "tests.helpers.faulty_data"
"""Data that raise with seed 1 and end their process with seed 2."""


class Notes:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.rounds: Counter[int] = Counter()
        self.ended: dict[int, str] = {}

    def on_begin(self, job: Job) -> None:
        self.begun.append(job.seed)

    def on_round(self, job: Job, event: RoundEvent) -> None:
        self.rounds[job.seed] = event.round

    def on_end(self, job: Job, failure: str) -> None:
        self.ended[job.seed] = failure


def make_job(folder: Path, seed: int, **more: Any) -> Job:
    settings = Settings.from_mapping({**TINY, "method": "fedavg", "seed": seed, "output": str(folder), **more})
    return Job(RowSpec("fedavg"), {}, seed, settings, folder)


@pytest.mark.usefixtures("warm_workers")
def test_a_run_that_raises_or_dies_stops_no_other(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / str(seed), seed, data=f"{FAULTS}:data") for seed in range(4)]
    notes = Notes()
    failures = carry_out(jobs, 1, "in-process", notes)
    assert notes.begun == [0, 1, 2, 3]
    assert notes.rounds == {0: 2, 3: 2}
    assert failures == {jobs[1].folder: notes.ended[1], jobs[2].folder: notes.ended[2]}
    assert notes.ended[1].startswith(f"data: {FAULTS}:data raised ValueError: no data with seed 1 (faulty_data.py, ")
    assert notes.ended[2] == "its process was ended by SIGKILL"
    assert (notes.ended[0], notes.ended[3]) == ("", "")
    assert [job.finished for job in jobs] == [True, False, False, True]
    assert "Traceback" in (jobs[1].folder / "log.txt").read_text()
    log = (jobs[3].folder / "log.txt").read_text()
    assert "data of seed 3" in log
    assert "WARNING" in log
    assert "\x1b[" not in log
    assert multiprocessing.active_children() == []


def test_a_run_in_a_used_worker_is_the_run_alone(tmp_path: Path) -> None:
    jobs = [make_job(tmp_path / str(seed), seed) for seed in (5, 6)]
    assert carry_out(jobs, 1, "in-process", Notes()) == {}
    alone = run(Settings.from_mapping({**jobs[1].settings.flat(), "output": ""}))
    found = json.loads((jobs[1].folder / "run.json").read_text())
    assert found["accuracies"] == {str(client): value for client, value in alone.accuracies.items()}


@pytest.mark.usefixtures("warm_workers")
def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run(make_job(tmp_path, 0).settings)
    (tmp_path / "run.json").unlink()
    job = make_job(tmp_path, 0, rounds=4)
    notes = Notes()
    assert carry_out([job], 1, "in-process", notes) == {}
    assert notes.rounds == {0: 4}
    straight = run(Settings.from_mapping({**job.settings.flat(), "output": ""}))
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["accuracies"] == {str(client): value for client, value in straight.accuracies.items()}


@pytest.mark.usefixtures("warm_workers")
def test_an_interrupt_ends_the_workers(tmp_path: Path) -> None:
    class Impatient(Notes):
        def on_round(self, job: Job, event: RoundEvent) -> None:
            raise KeyboardInterrupt

    before = dict(os.environ)
    with pytest.raises(KeyboardInterrupt):
        carry_out([make_job(tmp_path / str(seed), seed) for seed in (0, 1)], 2, "in-process", Impatient())
    assert multiprocessing.active_children() == []
    assert dict(os.environ) == before


@pytest.mark.usefixtures("warm_workers")
def test_a_folder_that_cannot_be_made_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job = make_job(tmp_path / "file" / "run", 0)
    (reason,) = carry_out([job], 1, "in-process", Notes()).values()
    assert "cannot be written" in reason


def test_a_long_reason_is_its_first_and_last_line() -> None:
    assert brief("one  line") == "one line"
    assert brief("first\n\n  second\nlast \n") == "first ... last"
    assert brief("") == ""


def test_a_resumed_run_tells_the_last_accuracies_that_are_known() -> None:
    theirs, ours = multiprocessing.Pipe()
    known, later = make_event(2, (0.5, 0.7)), [make_event(3, None), make_event(4, None)]
    _Reporter(ours).on_start(9, [make_event(1, (0.1, 0.2)), known, *later])
    assert [theirs.recv().round, theirs.recv().round] == [2, 4]
    _Reporter(ours).on_start(9, [known])
    assert theirs.recv().round == 2
    assert not theirs.poll()
