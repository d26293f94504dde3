"""A comparison whose clients are evaluated by an error, of which less is better, in a unit of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dqnfed_flwr.compare.claims import ClaimVerdict, claims_of, findings, speed
from dqnfed_flwr.compare.files import as_json, write_files
from dqnfed_flwr.compare.record import Record, Trial, choose, trial_of
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.tables import markdown, tables
from dqnfed_flwr.report.comparison_plots import plot_comparison
from dqnfed_flwr.report.document import Chapter, Document, Section, report_markdown
from dqnfed_flwr.report.labels import bright_names
from dqnfed_flwr.report.page import html
from dqnfed_flwr.types import ACCURACY, Figure
from tests.helpers.comparisons import make_comparison, make_record
from tests.helpers.markdown import rows
from tests.helpers.runs import changed, make_event

MAE = Figure("mae", higher=False)
ERRORS = {
    "dqn-fed": [(40.0, 44.0, 48.0, 48.0), (42.0, 42.0, 46.0, 50.0)],
    "fedavg": [(30.0, 40.0, 60.0, 90.0), (32.0, 40.0, 60.0, 88.0)],
    "mgda": [(80.0, 80.0, 80.0, 80.0), (81.0, 81.0, 81.0, 81.0)],
}


def measured(record: Record, figure: Figure = MAE) -> Record:
    """The run, evaluated by another figure."""
    events = tuple(changed(event, figure=figure) for event in record.events)
    return replace(record, figure=figure, events=events)


@pytest.fixture
def comparison() -> Comparison:
    found = make_comparison(ERRORS, failed={"krum": "no file"})
    made = [
        replace(row, records=tuple(measured(record) if record.good else record for record in row.records))
        for row in found.rows
    ]
    return replace(found, rows=made)


def test_the_least_is_the_best_and_the_worst_clients_are_those_with_the_most(comparison: Comparison) -> None:
    ours, theirs, mgda, *_ = rows(markdown(tables(comparison)))
    assert ours[2] == "**45.00 ± 0.00**"
    assert (ours[4], theirs[4]) == ("**49.00 ± 1.41**", "89.00 ± 1.41")  # the highest of four clients
    assert theirs[5] == "**31.00 ± 1.41**"
    assert (mgda[2], mgda[3]) == ("80.50 ± 0.71", "**0.00 ± 0.00**")
    assert tables(comparison)[0].title == "Test mae of the clients, less is better"


def test_differences_are_in_the_unit_of_the_figure(comparison: Comparison) -> None:
    text = markdown(tables(comparison))
    assert "Difference to DQN-Fed, in mae, with 95 % intervals" in text
    assert "below means better than the reference" in text
    assert "A client suffers where FedAvg leaves it above its mean" in text
    assert "percent" not in text.lower()
    assert "accuracy" not in text.lower()


def test_claims_look_the_other_way(comparison: Comparison) -> None:
    found = findings(comparison)
    verdicts = {key: [each.verdict for each in against] for key, against in found.items()}
    assert verdicts["mean"] == [ClaimVerdict.BORNE_OUT, ClaimVerdict.BORNE_OUT]
    assert verdicts["worst10"] == [ClaimVerdict.BORNE_OUT, ClaimVerdict.BORNE_OUT]
    assert verdicts["std"] == [ClaimVerdict.BORNE_OUT, ClaimVerdict.NOT_BORNE_OUT]
    assert not [claim for claim in claims_of(MAE) if "accuracy" in claim.unit or "higher" in claim.text]


def test_rounds_are_counted_on_the_way_down() -> None:
    def falling(*errors: float) -> Record:
        events = tuple(make_event(t, [error]) for t, error in enumerate(errors, start=1))
        return measured(replace(make_record(RowSpec("fedavg"), 0, (errors[-1],)), events=events))

    fast, slow = falling(10.0, 2.0, 1.0, 1.0), falling(10.0, 8.0, 4.0, 1.0)
    # Both reach 1 from 10: 95 % of the way is 1.45, which takes 3 and 4 rounds.
    assert speed(fast, slow) == pytest.approx(-1 / 4)
    assert speed(slow, fast) == pytest.approx(1 / 3)


def test_a_grid_takes_the_point_with_the_least_error() -> None:
    def trial(mean: float, worst10: float, figure: Figure = MAE) -> Trial:
        return Trial({}, 0, 3, {"mean": mean, "worst10": worst10}, figure=figure)

    trials = [trial(3.0, 4.0), trial(2.0, 9.0), Trial({}, 0, 3, {}, "lost")]
    assert (choose(trials), choose(trials, "worst10")) == (1, 0)
    assert choose([trial(3.0, 4.0, ACCURACY), trial(2.0, 9.0, ACCURACY)]) == 0
    event = changed(make_event(1, [1.0]), validation={0: 2.0, 1: 6.0}, figure=MAE)
    found = trial_of(measured(replace(make_record(RowSpec("fedavg"), 0, (1.0,)), events=(event,))))
    assert (found.figures, found.figure) == ({"mean": 4.0, "worst10": 6.0}, MAE)


def test_files_page_and_pictures_name_the_figure(comparison: Comparison, tmp_path: Path) -> None:
    figures, shown = as_json(comparison, "dqnfed compare", 1.0), tables(comparison)
    assert figures["figure"] == {"name": "mae", "higher_is_better": False, "percent": False}
    write_files(tmp_path, comparison, figures, shown)
    chapter = Chapter("errors", "", [Section("comparison", "errors", "", comparison, shown, {})])
    document = Document("errors", [chapter])
    texts = [path.read_text() for path in tmp_path.iterdir()] + [html(document), report_markdown(document)]
    for text in (*texts, json.dumps(figures)):
        assert "accurac" not in text.lower()
    assert bright_names([comparison])[:2] == ["DQN-Fed", "FedAvg"]
    pictures = plot_comparison(comparison, tmp_path)
    assert [path.name for path in pictures] == ["figure.png", "clients.png", "rho.png", "fairness.png"]


def test_clients_without_a_figure_are_named_below_the_table(comparison: Comparison) -> None:
    first, *others = comparison.rows
    noted = {"without_figure": {"test": [7, 9]}}
    lacking = replace(first, records=tuple(replace(record, noted=noted) for record in first.records))
    text = markdown(tables(replace(comparison, rows=[lacking, *others])))
    assert "No mae, so not in the figures: seed 0, clients 7, 9 (DQN-Fed)." in text
