"""Which code, data and versions made the runs of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dqnfed_flwr.compare.files import as_json
from dqnfed_flwr.compare.provenance import commits_of, commits_text, mixture_notes, seconds_of
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.tables import tables
from dqnfed_flwr.reproduce.manifests import load_manifest
from dqnfed_flwr.reproduce.tables import notes_of
from tests.helpers.comparisons import make_comparison

TORCH = {"versions": {"torch": "2.7", "numpy": "2.1"}}


def noted(*records: dict[str, Any]) -> Comparison:
    """A row with a run for each of these contents of `run.json`."""
    made = make_comparison({"fedavg": [(0.5, 0.7)] * len(records)})
    (row,) = made.rows
    runs = tuple(replace(record, noted=found) for record, found in zip(row.records, records, strict=True))
    return replace(made, rows=(replace(row, records=runs),))


def commits(*lists: Sequence[str | None]) -> Comparison:
    return noted(*({"commits": list(each)} for each in lists))


def test_runs_are_counted_by_their_commits_not_by_that_of_the_table() -> None:
    made = commits(["a1b2c3"], ["a1b2c3"], ["d4e5f6+"], ["a1b2c3", "d4e5f6+"])
    expected = {"a1b2c3": 2, "d4e5f6+": 1, "a1b2c3, then d4e5f6+": 1}
    assert commits_of(made) == expected
    assert commits_text(made) == "a1b2c3 (2 runs), d4e5f6+ (1 run), a1b2c3, then d4e5f6+ (1 run)"
    assert as_json(made, "dqnfed compare", 1.0)["commits"] == expected


def test_where_no_run_noted_a_commit_there_is_no_text() -> None:
    assert commits_text(noted({}, {})) == ""
    assert commits_text(commits([None], [None])) == ""
    assert commits_text(noted({"commits": ["a1b2c3"]}, {})) == "a1b2c3 (1 run), not recorded (1 run)"


def test_a_note_below_the_table_says_what_is_mixed() -> None:
    same = {"commits": ["a1b2c3"], "fingerprint": "0" * 16, **TORCH}
    assert mixture_notes(noted(same, same)) == []
    other = {"commits": ["d4e5f6"], "fingerprint": "1" * 16, "versions": {"torch": "2.8", "numpy": "2.1"}}
    expected = [
        "Runs of several commits: a1b2c3 (2 runs), d4e5f6 (1 run).",
        "Runs of several versions of torch: 2.7 (2 runs), 2.8 (1 run).",
        f"Runs of several data, by their fingerprint: {'0' * 16} (2 runs), {'1' * 16} (1 run).",
    ]
    made = noted(same, other, same)
    assert mixture_notes(made) == expected
    assert set(expected) <= set(tables(made)[0].notes)
    part = next(iter(load_manifest("table1").parts.values()))
    assert set(expected) <= set(notes_of(part, made))


def test_the_seconds_of_the_runs_are_added() -> None:
    made = commits(["a1b2c3"], ["a1b2c3"])
    assert seconds_of(made) == 2 * 3 * 0.5  # rounds of half a second each
    assert as_json(made, "dqnfed compare", 0.25)["runs_seconds"] == 3.0
