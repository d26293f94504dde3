from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.report.progress import CompareProgress
from tests.helpers.comparisons import plan_in
from tests.helpers.runs import make_event


def test_a_live_display_shows_all_runs(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    jobs = [replace(job, spec=RowSpec("fedavg", title="[b]FedAvg")) for job in plan_in(tmp_path, "fedavg").possible()]
    with CompareProgress(console, len(jobs)) as progress:
        progress.found(0)
        for job in jobs:
            progress.on_begin(job)
            progress.on_round(job, make_event(1, (0.5, 0.9)))
            progress.on_end(job, "")
    assert "all runs" in stream.getvalue()
    assert "[b]FedAvg, seed 1" in stream.getvalue()
    assert "2/2" in stream.getvalue()
