from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dqnfed_flwr.compare.plan import Plan
from dqnfed_flwr.compare.results import Comparison, Row, reference_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.tables import Cell
from dqnfed_flwr.reproduce.schema import Part, check_manifest
from dqnfed_flwr.reproduce.tables import paper_table
from tests.helpers.comparisons import NOWHERE, make_record

TERM_5 = {"term.t": 5.0}


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
