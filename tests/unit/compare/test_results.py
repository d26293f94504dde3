from __future__ import annotations

import json
from pathlib import Path

from dqnfed_flwr.compare.files import as_json
from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.reading import read_comparison
from dqnfed_flwr.compare.results import Comparison, Row
from dqnfed_flwr.compare.row_specs import RowSpec
from tests.helpers.comparisons import NOWHERE, make_record


def test_who_suffers_is_told_by_fedavg_without_settings_of_its_own() -> None:
    plain, own = RowSpec("fedavg", title="FedAvg"), RowSpec("fedavg", {"local.lr": 1e-4}, title="FedAvg [slow]")
    ours = RowSpec("dqn-fed", title="DQN-Fed")
    told = [(own, (0.1, 0.9)), (plain, (0.9, 0.1)), (ours, (0.5, 0.5))]
    rows = [Row(spec, {}, (make_record(spec, 0, found),)) for spec, found in told]
    for order in (rows, rows[::-1]):
        made = Comparison(Plan({}, tuple(row.spec for row in order), (0,), NOWHERE, 0), order, ours, "mean", 1)
        baseline = made.baseline
        assert baseline is not None
        assert (baseline.label, made.shifts[made.rows.index(baseline)]) == ("FedAvg", None)


def test_the_reference_is_read_back_by_its_place(tmp_path: Path) -> None:
    rows = [RowSpec("fedavg", {"local.lr": lr}, title="Same") for lr in (0.1, 0.2)]
    made = Comparison(
        Plan({}, tuple(rows), (0,), tmp_path, 0),
        [Row(spec, {}, (make_record(spec, 0, (0.5, 0.7)),)) for spec in rows],
        rows[1],
        "mean",
        1,
    )
    (tmp_path / "comparison.json").write_text(json.dumps(as_json(made, "none", 1.0)))
    found = read_comparison(tmp_path).comparison
    assert found.reference is found.rows[1]
