from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dqnfed_flwr.report.document import Section, about
from tests.helpers.comparisons import make_comparison


def how_it_was_run(commits: Sequence[Sequence[str | None]]) -> dict[str, str]:
    """Of a comparison whose runs noted these commits, and whose tables were written at `c3d4e5`."""
    made = make_comparison({"fedavg": [(0.5, 0.7)] * len(commits)})
    (row,) = made.rows
    records = (replace(x, noted={"commits": list(of)}) for x, of in zip(row.records, commits, strict=True))
    made = replace(made, rows=(replace(row, records=tuple(records)),))
    return dict(about(Section("", "", "", made, [], {"commit": "c3d4e5", "seconds": 0.4})))


def test_commits_are_those_of_the_runs() -> None:
    assert how_it_was_run([["a1b2c3"], ["d4e5f6+"], ["a1b2c3"]])["commit"] == "a1b2c3 (2 runs), d4e5f6+ (1 run)"
    assert how_it_was_run([[], [None]])["commit"] == "c3d4e5"  # all that is known


def test_seconds_of_runs_that_were_there_already_are_in_their_sum() -> None:
    found = how_it_was_run([["a1b2c3"]] * 4)
    assert found["wall clock"] == "0 s for what was still to be done"
    assert found["sum of the runs"] == "6 s"
