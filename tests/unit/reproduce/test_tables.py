"""Published figures that cannot hold beside each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.results import Comparison, Row, reference_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.tables import Cell
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.reproduce.schema import Part, check_manifest
from dqnfed_flwr.reproduce.tables import impossible, paper_table, published_doubts, published_figures
from dqnfed_flwr.types import Float64Array
from tests.helpers.comparisons import NOWHERE, make_record
from tests.helpers.manifests import part_of

TERM_5 = {"term.t": 5.0}


def test_spreads_that_the_tails_forbid_are_found() -> None:
    # 100 clients, 5 at 0 and 5 at 100, the others at 50: variance 0.1 x 2500, so 15.81
    tails = {"mean": 50.0, "worst5": 0.0, "best5": 100.0}
    assert "alone force 15.8" in impossible({**tails, "std": 15.7}, 100)["low"]
    assert impossible({**tails, "std": 15.82}, 100) == {}
    assert impossible({"mean": 50.0, "std": 0.0}, 100) == {}
    # 3 clients, a tail is one client: 0, 50 and 100 have variance 5000 / 3
    assert "alone force 40.8" in impossible({"mean": 50.0, "std": 40.0, "worst10": 0.0, "best10": 100.0}, 3)["low"]


def test_spreads_that_the_tails_do_not_reach_are_found() -> None:
    # 10 clients: 0.1 x (40 x 10 + 40 x 10) + 0.8 x 10 x 10 within, 0.1 x (100 + 100) between the groups: 180 in all
    tails = {"mean": 50.0, "worst10": 40.0, "best10": 60.0}
    assert "which allow 13.4 at most" in impossible({**tails, "std": 14.0}, 10)["high"]
    assert impossible({**tails, "std": 13.9}, 10) == {}


def test_means_that_the_tails_forbid_are_found() -> None:
    # the other eight would average (500 - 52 - 70) / 8 = 47.25, less than the worst
    found = impossible({"mean": 50.0, "std": 5.0, "worst10": 52.0, "best10": 70.0}, 10)
    assert list(found) == ["mean"]
    assert "the others would average 47.25" in found["mean"]


def test_angles_are_those_of_mean_and_spread() -> None:
    # tan 45 degrees = 1; Table 5, skewed: 13.91 / 93.80 is the tangent of 8.44 degrees
    assert impossible({"mean": 30.0, "std": 30.0, "angle_deg": 45.0, "angle_rad": 0.785}, 10) == {}
    found = impossible({"mean": 93.80, "std": 13.91, "angle_deg": 11.41}, 100)
    assert "an angle of 11.41°" in found["angle"]
    assert "its tangent: 8.44°" in found["angle"]
    assert "0.199 rad" in impossible({"mean": 93.80, "std": 13.91, "angle_rad": 0.199}, 100)["angle"]
    assert impossible({"mean": 93.80, "std": 13.91, "angle_deg": 8.9}, 100) == {}


def test_means_that_are_not_those_of_all_clients_are_found() -> None:
    three = {"std": 3.0, "tshirt": 90.0, "pullover": 80.0, "shirt": 70.0}
    assert impossible({**three, "mean": 80.04}, 3) == {}
    assert impossible({**three, "mean": 79.9}, 3)["clients"] == (
        "mean 79.90 cannot be that of 90.00, 80.00, 70.00, which is 80.00"
    )
    assert impossible({**three, "mean": 60.0}, 10) == {}
    (told,) = published_doubts(part_of("table9", "fashion-mnist"))
    assert "DQN-Fed: mean 81.27 cannot be that of 90.99, 88.21, 72.57, which is 83.92." in told


def test_the_contradictions_of_a_table_are_told_once_a_kind() -> None:
    figures = published_figures(part_of("table5", "original"))
    assert all("angle" in impossible(row, 500) for row in figures.values())
    (told,) = published_doubts(part_of("table5", "skewed"))
    assert told.count("°") == 2
    assert "the same of 6 more rows" in told
    (both,) = published_doubts(part_of("table6", "setup1"))
    assert "at most; the same of 2 more rows." in both
    assert "FedMGDA+: mean 53.08 cannot hold" in both
    assert published_doubts(part_of("table11", "tiny-imagenet")) == []


@given(arrays.arrays(np.float64, st.integers(3, 60), elements=st.floats(0.01, 1.0)))
def test_figures_of_real_clients_contradict_nothing(accuracies: Float64Array) -> None:
    report = fairness_report(dict(enumerate(accuracies.tolist())))
    angles = ("angle_deg", "angle_rad")
    figures = {key: value if key in angles else 100 * value for key, value in report.items()}
    assert impossible(figures, len(accuracies)) == {}
    assert math.tan(report["angle_rad"]) == pytest.approx(report["std"] / report["mean"], abs=1e-6)


@given(
    arrays.arrays(np.float64, (5, 20), elements=st.floats(-4.0, 4.0)),
    arrays.arrays(np.float64, 20, elements=st.floats(0.2, 0.8)),
)
def test_averages_over_seeds_contradict_nothing(noise: Float64Array, accuracies: Float64Array) -> None:
    reports = [fairness_report(dict(enumerate((accuracies + seed / 100).tolist()))) for seed in noise]
    keys = ("mean", "std", "worst10", "best10")
    figures = {key: 100 * float(np.mean([report[key] for report in reports])) for key in keys}
    figures["angle_deg"] = float(np.mean([report["angle_deg"] for report in reports]))
    assert impossible(figures, 20) == {}


@pytest.fixture
def part() -> Part:
    rows = [
        {"paper": "Ours", "method": "dqn-fed", "figures": {"mean": 90.0}},
        {"paper": "FedAvg", "method": "fedavg", "figures": {"mean": 70.0}},
        {"paper": "q-FFL", "method": "q-ffl", "figures": {"mean": 80.0}},
        {"paper": "TERM(1)", "method": "term", "figures": {"mean": 75.0}},
        {"paper": "TERM(5)", "method": "term", "settings": {"term": {"t": 5.0}}, "figures": {"mean": 85.0}},
        {"paper": "Ditto", "method": "ditto", "figures": {"mean": 60.0}},
    ]
    reduced = {"settings": {"rounds": 1}}
    mapping = {"title": "A setup", "columns": ["mean"], "settings": {"rounds": 2}, "rows": rows, "reduced": reduced}
    return check_manifest({"title": "A table", "source": "ours", "parts": {"only": mapping}}, "test").part("only")


def compared(*rows: tuple[RowSpec, float], seeds: Sequence[int] = (0,)) -> Comparison:
    """Rows whose clients all have one accuracy."""
    made = [
        Row(spec, {}, tuple(make_record(spec, seed, (accuracy, accuracy)) for seed in seeds)) for spec, accuracy in rows
    ]
    plan = Plan({}, tuple(spec for spec, _ in rows), tuple(seeds), NOWHERE, 0)
    return Comparison(plan, made, reference_of(plan, None), "mean", 1)


def cells(part: Part, comparison: Comparison) -> dict[str, tuple[Cell, Cell]]:
    """Ours and the paper's, by the row's name."""
    return {row[0].text: (row[1], row[2]) for row in paper_table(part, comparison).rows}


def test_the_papers_figures_are_ranked_among_all_its_rows(part: Part) -> None:
    rows = (RowSpec("fedavg", title="FedAvg"), 0.5), (RowSpec("q-ffl", title="q-FFL"), 0.4)
    found = cells(part, compared(*rows))
    assert found == {
        "FedAvg": (Cell("50.00", 1), Cell("70.00", 0)),  # 90, 85, 80 and 75 are above it
        "q-FFL": (Cell("40.00", 2), Cell("80.00", 0)),
    }
    assert cells(part, compared((RowSpec("term", TERM_5, title="TERM"), 0.5)))["TERM"] == (
        Cell("50.00"),
        Cell("85.00", 2),
    )


def test_a_row_with_other_settings_has_the_papers_figure_with_a_mark(part: Part) -> None:
    comparison = compared(
        (RowSpec("q-ffl", {"q-ffl.q": 3.0}, title="q-FFL"), 0.4), (RowSpec("term", TERM_5, title="T"), 0.5)
    )
    found = cells(part, comparison)
    assert found["q-FFL"][1].text == "80.00*"
    assert found["T"][1].text == "85.00"
    assert any(note.startswith("* the paper's figure of the method") for note in paper_table(part, comparison).notes)


def test_the_mark_is_explained_where_it_stands(part: Part) -> None:
    told = "* the paper's figure of the method, which was run with other settings here."
    other, same = (RowSpec("q-ffl", {"q-ffl.q": 3.0}, title="q-FFL"), 0.5), (RowSpec("fedavg", title="FedAvg"), 0.5)
    without_figures = part.model_copy(update={"columns": ["kl_uniform"]})
    assert told in paper_table(part, compared(other)).notes
    assert told not in paper_table(part, compared(same)).notes
    assert told not in paper_table(without_figures, compared(other)).notes


def test_which_of_two_published_rows_is_meant_is_not_guessed(part: Part) -> None:
    rows = (
        (RowSpec("term", {"term.t": 3.0}, title="T"), 0.5),
        (RowSpec("mgda", title="M"), 0.4),
        (RowSpec("fedavg"), 0.3),
    )
    found = cells(part, compared(*rows))
    assert [found[name][1].text for name in ("T", "M")] == ["–", "–"]
    assert not any(note.startswith("*") for note in paper_table(part, compared(*rows)).notes)


def test_personal_models_are_not_ranked_among_ours(part: Part) -> None:
    rows = (
        (RowSpec("fedavg", title="FedAvg"), 0.5),
        (RowSpec("q-ffl", title="q-FFL"), 0.4),
        (RowSpec("ditto", title="D"), 0.9),
    )
    found = cells(part, compared(*rows))
    assert [found[name][0].rank for name in ("FedAvg", "q-FFL", "D")] == [1, 2, 0]


def test_the_reference_is_the_row_without_settings_of_its_own() -> None:
    tuned, plain = RowSpec("dqn-fed", {"step.max-fall": 0.1}, title="tuned"), RowSpec("dqn-fed", title="plain")
    plan = Plan({}, (tuned, RowSpec("fedavg"), plain), (0,), NOWHERE, 0)
    assert reference_of(plan, None) == plain
    assert reference_of(plan, "dqn-fed@step.max-fall=0.1") == tuned
    assert reference_of(replace(plan, specs=(tuned, RowSpec("fedavg"))), None) == tuned
