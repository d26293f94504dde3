from __future__ import annotations

import json
from pathlib import Path

from dqnfed_flwr.compare.entries import Entry
from dqnfed_flwr.compare.files import as_json
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.reading import read_comparison
from dqnfed_flwr.compare.results import Row, baseline_of, compare_rows
from tests.helpers.comparisons import NOWHERE, make_record


def test_who_suffers_is_told_by_fedavg_without_settings_of_its_own() -> None:
    plain, own = Entry("fedavg", title="FedAvg"), Entry("fedavg", {"local.lr": 1e-4}, title="FedAvg [slow]")
    ours = Entry("dqn-fed", title="DQN-Fed")
    told = [(own, (0.1, 0.9)), (plain, (0.9, 0.1)), (ours, (0.5, 0.5))]
    rows = [Row(entry, {}, (make_record(entry, 0, found),)) for entry, found in told]
    for order in (rows, rows[::-1]):
        made = compare_rows(Plan({}, tuple(row.entry for row in order), (0,), NOWHERE, 0), order, ours, "mean", 1)
        baseline = baseline_of(made.rows)
        assert baseline is not None
        assert (baseline.label, made.shifts[made.rows.index(baseline)]) == ("FedAvg", None)


def test_the_reference_is_read_back_by_its_place(tmp_path: Path) -> None:
    rows = [Entry("fedavg", {"local.lr": lr}, title="Same") for lr in (0.1, 0.2)]
    made = compare_rows(
        Plan({}, tuple(rows), (0,), tmp_path, 0),
        [Row(entry, {}, (make_record(entry, 0, (0.5, 0.7)),)) for entry in rows],
        rows[1],
        "mean",
        1,
    )
    (tmp_path / "comparison.json").write_text(json.dumps(as_json(made, "none", 1.0)))
    found = read_comparison(tmp_path).comparison
    assert found.reference is found.rows[1]
