from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr.compare.files import as_json, evaluation_lines, read_comparison, read_runs, run_lines
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import read_final
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.run_files import EVENTS, RUN
from tests.helpers.comparisons import make_comparison, make_record
from tests.helpers.runs import changed, make_event, make_result


def with_run(comparison: Comparison, place: int, record: Record) -> Comparison:
    """`comparison`, with one run in that row."""
    rows = list(comparison.rows)
    rows[place] = replace(rows[place], records=(record,))
    return replace(comparison, rows=tuple(rows))


def evaluated_in(*rounds: int, ratios: list[float]) -> Record:
    """A run of so many rounds, each with its rho, whose two clients were evaluated in some of them."""
    record = make_record(RowSpec("fedavg"), 3, [0.5, 1.0], rounds=len(ratios))
    events = [
        changed(
            make_event(t, [t / 10, t / 5], rho=rho),
            test={0: t / 10, 1: t / 5} if t in rounds else None,
            exchanges=2,
            bytes_up=10,
            bytes_down=30,
            seconds={"total": 0.25},
        )
        for t, rho in enumerate(ratios, 1)
    ]
    return replace(record, events=tuple(events))


def test_evaluations_count_from_the_beginning_and_rho_since_the_one_before() -> None:
    record = evaluated_in(2, 4, ratios=[1.0, 0.5, math.nan, 0.0, 1.0])
    made = with_run(make_comparison({"dqn-fed": [[0.5, 0.7]], "fedavg": [[0.5, 0.7]]}), 1, record)
    second, fourth = evaluation_lines(made)[3:]
    assert {key: second[key] for key in ("method", "seed", "round", "rho")} == {
        "method": "fedavg",
        "seed": 3,
        "round": 2,
        "rho": 0.75,
    }
    assert {
        key: fourth[key] for key in ("exchanges", "bytes_up", "bytes_down", "seconds", "moved", "rho", "unharmed")
    } == {
        "exchanges": 8,
        "bytes_up": 40,
        "bytes_down": 120,
        "seconds": 1.0,
        "moved": 4,
        "rho": 0.0,
        "unharmed": 0.0,
    }
    exact = fairness_report([0.4, 0.8])
    assert {key: fourth[key] for key in exact} == {key: float(f"{value:.6g}") for key, value in exact.items()}


def test_rho_is_empty_where_no_round_knows_it() -> None:
    record = evaluated_in(1, 2, ratios=[math.nan, 1.0])
    made = with_run(make_comparison({"dqn-fed": [[0.5, 0.7]]}), 0, record)
    assert [line["rho"] for line in evaluation_lines(made)] == [None, 1.0]


def test_failed_runs_have_a_line_of_their_own_and_no_evaluations() -> None:
    made = make_comparison({"dqn-fed": [[0.5, 0.7]]}, failed={"krum": "too few clients"})
    assert {line["method"] for line in evaluation_lines(made)} == {"dqn-fed"}
    assert [(line["method"], line["status"], line["reason"]) for line in run_lines(made)] == [
        ("dqn-fed", "finished", ""),
        ("krum", "failed", "too few clients"),
    ]


def write_run(folder: Path, *, lost: str = "", more: Mapping[str, Any] | None = None) -> Path:
    """A finished run whose record lacks a setting, or has more of them."""
    made = make_result([make_event(1, [0.5, 0.75])])
    folder.mkdir()
    made.write(folder)
    record = json.loads((folder / RUN).read_text())
    kept = {key: value for key, value in record["settings"].items() if key != lost}
    record["settings"] = {**kept, **(more or {})}
    (folder / RUN).write_text(json.dumps(record))
    (folder / EVENTS).write_text("".join(f"{event.to_json()}\n" for event in made.events))
    return folder


def test_a_run_is_read_with_its_settings(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", more={"rounds": 7})
    (record,) = read_runs(folder, [folder]).comparison.records
    assert record.job.settings == Settings(rounds=7)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"lost": "guarantee.entitlement"}, r"guarantee\.entitlement: not among the settings"),
        ({"more": {"roundz": 1}}, r"roundz: unknown key; did you mean"),
    ],
)
def test_a_run_of_other_settings_keys_is_refused(tmp_path: Path, made: dict[str, Any], said: str) -> None:
    folder = write_run(tmp_path / "run", **made)
    with pytest.raises(ConfigError, match=rf"run\.json: cannot be read as a run \({said}"):
        read_runs(folder, [folder])
    with pytest.raises(RunError, match=rf"or a damaged one \(ConfigError: {said}"):
        read_final(folder)


@pytest.mark.parametrize("lost", ["last", "grid_seed", "skipped", "note", "reference_place"])
def test_a_comparison_that_lacks_something_is_refused(tmp_path: Path, lost: str) -> None:
    record = as_json(make_comparison({"fedavg": [(0.5, 0.7)]}), "none", 1.0)
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert read_comparison(tmp_path).comparison.last == 1
    del record[lost]
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=rf"comparison\.json: cannot be read as a comparison \('{lost}'\)"):
        read_comparison(tmp_path)
