from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.compare.files import as_json, write_files
from dqnfed_flwr.compare.record import Trial
from dqnfed_flwr.compare.results import Comparison, Interval, reference_of
from dqnfed_flwr.compare.tables import grid_table, markdown, tables
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError, RunError
from tests.helpers.comparisons import make_comparison
from tests.helpers.markdown import rows

ACCURACIES = {
    "dqn-fed": [(0.8, 0.8, 0.8, 0.8), (0.9, 0.9, 0.9, 0.9)],
    "fedavg": [(0.5, 0.7, 0.9, 0.9), (0.5, 0.7, 0.9, 0.9)],
    "mgda": [(0.6, 0.6, 0.6, 0.6), (0.6, 0.6, 0.6, 0.6)],
}


@pytest.fixture
def comparison() -> Comparison:
    return make_comparison(ACCURACIES, failed={"krum": "DataError: no file | there, and this is a long story to tell"})


def with_grid(comparison: Comparison) -> Comparison:
    first = comparison.rows[0]
    trials = (
        Trial({"local.lr": 0.1}, 0, 2, {"mean": 0.5, "worst10": 0.25}),
        Trial({"local.lr": 1}, 0, 2, {}, "diverged"),
    )
    searched = replace(first, point={"local.lr": 0.1}, trials=trials)
    made = (searched, *comparison.rows[1:])
    return Comparison(comparison.plan, made, first.spec, "mean", 2)


def test_rows_are_methods_with_the_best_two_marked(comparison: Comparison) -> None:
    found = rows(markdown(tables(comparison)))
    ours, theirs, mgda, krum = (row for row in found[:4])
    assert ours[:6] == [
        "DQN-Fed",
        "2 of 2",
        "**85.00 ± 7.07**",
        "**0.00 ± 0.00**",
        "**85.00 ± 7.07**",
        "_85.00 ± 7.07_",
    ]
    assert theirs[:6] == [
        "FedAvg", "2 of 2", "_75.00 ± 0.00_", "_16.58 ± 0.00_", "50.00 ± 0.00", "**90.00 ± 0.00**"
    ]  # fmt: skip
    assert mgda[2:5] == ["60.00 ± 0.00", "**0.00 ± 0.00**", "_60.00 ± 0.00_"]
    assert krum == ["krum", "failed: DataError: no file \\| there, and [...]", *["–"] * 7]


def test_notes_tell_the_whole_reason_of_a_failure(comparison: Comparison) -> None:
    text = markdown(tables(comparison))
    assert "- krum: seed 0 failed: DataError: no file \\| there, and this is a long story to tell\n" in text
    assert "log.txt" in text


@pytest.mark.parametrize(("own", "noted"), [({}, True), ({"local.epochs": 2}, False), ({"local.batch-size": 8}, False)])
def test_one_full_batch_step_is_noted(comparison: Comparison, own: dict[str, int], noted: bool) -> None:
    row = comparison.rows[1]
    settings = Settings.from_mapping({"method": "fedavg", **own})
    records = tuple(replace(record, job=replace(record.job, settings=settings)) for record in row.records)
    made = [comparison.rows[0], replace(row, records=records)]
    note = "FedAvg: one full-batch step a round, which is FedSGD; set local.batch-size or local.epochs"
    assert (note in tables(Comparison(comparison.plan, made, None, "mean", 1))[0].notes) is noted


def test_personal_models_are_shown_and_not_ranked() -> None:
    found = tables(make_comparison({"dqn-fed": [(0.5, 0.6)], "fedavg": [(0.4, 0.5)], "ditto": [(0.9, 0.9)]}))[0]
    means = {row[0].text: row[2] for row in found.rows}
    assert {name: (cell.text, cell.rank) for name, cell in means.items()} == {
        "DQN-Fed": ("55.00", 1),
        "FedAvg": ("45.00", 2),
        "Ditto": ("90.00", 0),
    }
    assert any(note.startswith("Ditto: accuracies of a personal model on every client") for note in found.notes)


def test_cost_has_no_best_where_all_are_equal(comparison: Comparison) -> None:
    cost = tables(comparison)[1]
    assert [cell.text for cell in cost.rows[0]][1:] == [
        "2 of 2", "1.000 ± 0.000", "1.000 ± 0.000", "1.000 ± 0.000", "3.0 ± 0.0", "3.0 ± 0.0",
        "1.000 ± 0.000", "1.000 ± 0.000", "4.0 ± 0.0", "0.0 ± 0.0", "1.00 ± 0.00", "0.500 ± 0.000",
    ]  # fmt: skip
    assert {cell.rank for row in cost.rows for cell in row} == {0}


def test_differences_are_to_the_first_dqn_fed(comparison: Comparison) -> None:
    table = tables(comparison)[2]
    assert table.title.startswith("Difference to DQN-Fed")
    assert [row[0].text for row in table.rows] == ["FedAvg", "MGDA", "krum"]
    # -20 and -30 points: -25 -+ 12.7062 * 5, Student's quantile of one degree of freedom times the standard error.
    assert table.rows[1][1].text == "-25.00 [-88.53, +38.53]"
    assert table.rows[2][1].text == "–"


def test_points_that_came_out_alike_are_said_to_have_chosen_nothing(comparison: Comparison) -> None:
    made = with_grid(comparison)
    first = made.rows[0]
    alike = replace(first, trials=(first.trials[0], replace(first.trials[1], figures=first.trials[0].figures)))
    table = grid_table(replace(made, rows=(alike, *made.rows[1:])))
    assert table is not None
    assert table.notes[-1] == "DQN-Fed: all points came out alike; the first was taken."
    ordinary = grid_table(made)
    assert ordinary is not None
    assert ordinary.notes[1:] == (
        "Averaged over the last 2 evaluations of a trial, as the figures of the final runs are.",
    )


def test_trials_with_fewer_evaluations_than_the_figures_are_named(comparison: Comparison) -> None:
    made = with_grid(comparison)
    first, *others = made.rows
    short = replace(first, trials=tuple(replace(trial, evaluations=1) for trial in first.trials))
    table = grid_table(replace(made, rows=(short, *others)))
    assert table is not None
    assert table.notes[-1] == "Not all trials have 2 evaluations: DQN-Fed 1."


@pytest.mark.parametrize(
    ("interval", "text", "mark"),
    [
        (Interval(-0.03, -0.02, -0.01), "-2.00 [-3.00, -1.00]", " ▼"),
        (Interval(math.nan, -0.02, math.nan), "-2.00", ""),
        (Interval(0.01, 0.02, 0.03), "+2.00 [+1.00, +3.00]", " ▲"),
        (Interval(-0.01, 0.02, 0.03), "+2.00 [-1.00, +3.00]", ""),
    ],
)
def test_an_interval_is_marked_where_it_excludes_zero(interval: Interval, text: str, mark: str) -> None:
    assert (interval.text(100), interval.mark) == (text, mark)


def test_a_personal_model_is_not_called_better_than_one_for_all() -> None:
    rows: dict[str, list[Sequence[float]]] = {"dqn-fed": [(0.5, 0.6), (0.51, 0.62)], "ditto": [(0.9, 0.9), (0.9, 0.9)]}
    rows["fedavg"] = [(0.4, 0.5), (0.405, 0.515)]
    (found,) = (table for table in tables(make_comparison(rows)) if table.title.startswith("Difference to DQN-Fed"))
    means = {row[0].text: row[1].text for row in found.rows}
    assert means["FedAvg"].endswith("▼")
    assert means["Ditto"] == "+34.25 [+24.72, +43.78]"


def test_clients_against_fedavg(comparison: Comparison) -> None:
    table = tables(comparison)[3]
    # FedAvg: mean 0.75, so 0.5 and 0.7 suffer. DQN-Fed improves both; it degrades those at 0.9 with seed 0 only.
    assert [cell.text for cell in table.rows[0]] == ["DQN-Fed", "100.0 ± 0.0", "50.0 ± 70.7"]
    assert [cell.text for cell in table.rows[1]] == ["MGDA", "50.0 ± 0.0", "100.0 ± 0.0"]
    assert len(table.rows) == 2


def test_tables_without_content_are_left_out() -> None:
    assert len(tables(make_comparison({"mgda": [(0.5, 0.6)], "fedsgd": [(0.5, 0.6)]}))) == 2


def test_grid_shows_every_point_and_the_choice(comparison: Comparison) -> None:
    table = tables(with_grid(comparison))[-1]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["DQN-Fed", "local.lr=0.1", "50.00", "25.00", "chosen"],
        ["DQN-Fed", "local.lr=1", "–", "–", "failed: diverged"],
    ]
    assert "DQN-Fed (local.lr=0.1)" in markdown(tables(with_grid(comparison)))
    assert "those of each of the last 2 evaluations of a run, averaged" in markdown(tables(with_grid(comparison)))


def test_reference_is_the_one_named_or_the_first_dqn_fed(comparison: Comparison) -> None:
    plan = comparison.plan
    assert reference_of(plan, None) == plan.specs[0]
    assert reference_of(plan, "mgda") == plan.specs[2]
    assert reference_of(replace(plan, specs=plan.specs[1:]), None) is None
    with pytest.raises(ConfigError, match="--reference: found 'nobody'; allowed: dqn-fed, fedavg, mgda, krum"):
        reference_of(plan, "nobody")


def test_files_hold_a_line_a_run_and_everything_else(comparison: Comparison, tmp_path: Path) -> None:
    searched = with_grid(comparison)
    figures = as_json(searched, "dqnfed compare digits", 1.5)
    files = write_files(tmp_path, searched, figures, tables(searched))
    names = ["comparison.json", "comparison.md", "comparison.csv", "evaluations.csv", "grid.csv"]
    assert [file.name for file in files] == names
    assert json.loads(files[0].read_text()) == figures
    assert {"dqnfed-flwr", "flwr", "torch", "numpy", "scipy", "python"} == figures["versions"].keys()
    assert figures["methods"][0]["chosen"] == {"local.lr": 0.1}
    assert [point["chosen"] for point in figures["methods"][0]["grid"]] == [True, False]
    assert figures["methods"][1]["runs"][0]["accuracies"] == {"0": 0.5, "1": 0.7, "2": 0.9, "3": 0.9}
    lines = list(csv.DictReader(io.StringIO(files[2].read_text())))
    assert [(line["method"], line["setting"], line["seed"], line["status"]) for line in lines] == [
        ("dqn-fed", "local.lr=0.1", "0", "finished"),
        ("dqn-fed", "local.lr=0.1", "1", "finished"),
        ("fedavg", "", "0", "finished"),
        ("fedavg", "", "1", "finished"),
        ("mgda", "", "0", "finished"),
        ("mgda", "", "1", "finished"),
        ("krum", "", "0", "failed"),
    ]
    assert float(lines[2]["mean"]) == pytest.approx(0.75)
    assert {"jain", "rho_min", "rounds", "exchanges", "bytes_up", "bytes_down", "seconds"} <= lines[0].keys()
    evaluations = list(csv.DictReader(io.StringIO(files[3].read_text())))
    assert [line["method"] for line in evaluations] == ["dqn-fed"] * 6 + ["fedavg"] * 6 + ["mgda"] * 6
    grid = list(csv.DictReader(io.StringIO(files[4].read_text())))
    assert [(line["setting"], line["chosen"]) for line in grid] == [("local.lr=0.1", "true"), ("local.lr=1", "false")]


def test_a_file_of_an_earlier_call_that_would_tell_of_other_runs_goes(comparison: Comparison, tmp_path: Path) -> None:
    searched = with_grid(comparison)
    write_files(tmp_path, searched, as_json(searched, "dqnfed compare digits", 1.5), tables(searched))
    files = write_files(tmp_path, comparison, as_json(comparison, "dqnfed compare digits", 1.5), tables(comparison))
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert not (tmp_path / "grid.csv").exists()


def test_files_that_cannot_be_written_are_an_error(comparison: Comparison, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written"):
        write_files(tmp_path / "none", comparison, {}, [])
