"""What is said of all clients together, and of those that could not be judged."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.audit.statistics import holm, mcnemar
from dqnfed_flwr.audit.tables import MOST_ROWS, html, left_out, marks_of, reading, tables, tiles
from dqnfed_flwr.audit.verdict import Audit, ClientVerdict, JudgedClient, JudgedTest, judge
from dqnfed_flwr.types import Figure
from tests.helpers.audits import END, make_audit, make_measured, make_pair


def test_a_harmed_client_is_named_and_corrected_over_both_tests_of_all() -> None:
    audits = [
        make_audit(0, start=make_pair(0, 20)),
        make_audit(1, start=make_pair(20, 0)),
        make_audit(2, start=make_pair(5, 5)),
    ]
    (comparison,) = judge(audits, {})
    assert [client.verdict for client in comparison.clients] == [
        ClientVerdict.WORSE,
        ClientVerdict.BETTER,
        ClientVerdict.OPEN,
    ]
    p = [mcnemar(0, 20).worse, mcnemar(20, 0).worse, mcnemar(5, 5).worse, 1.0, 1.0, 1.0]
    assert [accuracy_of(client).worse for client in comparison.clients] == holm_of(p)[:3]
    assert comparison.summary == (
        "clients shown to be worse off: 0. 3 of 3 clients could be judged: by their accuracy 3, by their loss 3"
    )
    assert Audit("run", [comparison], END).worse == {"start": [0]}


def accuracy_of(client: JudgedClient) -> JudgedTest:
    assert client.accuracy is not None
    return client.accuracy


def holm_of(p: list[float]) -> list[float]:
    import numpy as np

    found: list[float] = holm(np.array(p)).tolist()
    return found


def test_the_loss_alone_can_show_harm() -> None:
    audits = [make_audit(k, start=make_pair(1, 1, worse=0.0001 if k == 1 else 0.6)) for k in range(4)]
    (comparison,) = judge(audits, {})
    assert [client.audit.partition for client in comparison.those(ClientVerdict.WORSE)] == [1]
    assert not any(accuracy_of(client).judged for client in comparison.clients)


def test_who_could_not_be_judged_is_named_with_the_smallest_p_possible() -> None:
    audits = [
        make_audit(0, 3, start=make_pair(0, 2)),
        make_audit(1, 0, start=make_pair(0, 0)),
        make_audit(2, start=make_pair(1, 9)),
    ]
    (comparison,) = judge(audits, {4: "no line"})
    assert comparison.unjudged == {
        0: "with 3 test samples p could not be below 0.25 for accuracy and 0.12 for loss; 0.025 is needed",
        1: "no test samples",
        4: "no line",
    }
    assert comparison.summary.endswith("1 of 4 clients could be judged: by their accuracy 1, by their loss 1")
    assert [line.partition(":")[0] for line in left_out(comparison)] == [f"client {k}, not judged" for k in (0, 1, 4)]


def test_nobody_judged_is_not_nobody_harmed() -> None:
    (comparison,) = judge([make_audit(0, 2, start=make_pair(0, 2))], {})
    assert comparison.summary.startswith("nothing can be said. 0 of 1 clients could be judged")
    assert Audit("run", [comparison], END).worse == {}


def test_a_client_that_did_not_compare_with_a_model_is_left_out_of_that_comparison_alone() -> None:
    audits = [make_audit(0, start=make_pair(0, 9)), make_audit(1, start=make_pair(0, 9), FedAvg=make_pair(1, 1))]
    start, fedavg = judge(audits, {})
    assert start.unjudged == {}
    assert fedavg.unjudged == {0: "it did not compare with this model"}


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12), st.randoms())
def test_the_order_of_the_clients_makes_no_difference(pairs: list[tuple[int, int]], random: object) -> None:
    audits = [make_audit(k, start=make_pair(*pair)) for k, pair in enumerate(pairs)]
    shuffled = list(audits)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Audit("run", judge(audits, {}), END).to_json() == Audit("run", judge(shuffled, {}), END).to_json()


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=12))
def test_swapped_models_swap_worse_and_better(pairs: list[tuple[int, int]]) -> None:
    (one,) = judge([make_audit(k, start=make_pair(a, b)) for k, (a, b) in enumerate(pairs)], {})
    (other,) = judge([make_audit(k, start=make_pair(b, a)) for k, (a, b) in enumerate(pairs)], {})
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        one_test, other_test = accuracy_of(mine), accuracy_of(theirs)
        assert str((one_test.worse, one_test.better)) == str((other_test.better, other_test.worse))


def many(count: int) -> Audit:
    harmed = make_pair(0, 28)
    audits = [make_audit(k, start=harmed if k == count - 1 else make_pair(6, 6)) for k in range(count)]
    return Audit("<run>", judge(audits, {count: "no line"}), END, faults=["x:1: changed"], notes=["a note"])


def test_a_long_table_shows_the_harmed_and_says_what_it_does_not_show() -> None:
    (table,) = tables(many(60))
    assert len(table.rows) == MOST_ROWS
    assert table.rows[0][0].text == "59"
    assert table.rows[0][-1].text == "worse"
    assert table.notes[0].startswith("35 more clients are in audit.json")
    assert "59" in table.notes[-1]


def test_the_page_holds_every_client_and_escapes_names() -> None:
    audit = many(60)
    page = html(audit)
    assert "<run>" not in page
    assert "&lt;run&gt;" in page
    assert page.count('<td class="claim') == 60
    assert page.count("✗ worse") == 1
    for text in ("x:1: changed", "a note", "client 60, not judged: no line", "shown to be worse off: 59"):
        assert text in page
    assert "http" not in page.replace("http-equiv", "")
    assert tiles(audit.comparisons[0])[0] == ("1", " of 60 judged", "clients shown to be worse off")


def test_an_interval_lies_to_the_right_where_the_federated_model_is_better() -> None:
    (comparison,) = many(3).comparisons
    low, middle, high = marks_of(comparison.clients[0], comparison)
    assert (low, middle, high) == (4.0, 46.0, 88.0)


def test_json_has_no_nan() -> None:
    record = many(3).to_json()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["worse"] == {"start": [2]}
    figures = record["comparisons"][0]["clients"][2]
    assert (figures["only_federated"], figures["only_other"], figures["standing"]) == (0, 28, "worse")


def test_without_right_answers_the_loss_alone_is_one_family() -> None:
    p = [0.004, 0.9, 0.03]
    audits = [make_measured(k, start=(worse, 1.0)) for k, worse in enumerate(p)]
    (comparison,) = judge(audits, {7: "no line"})
    assert [client.loss.worse for client in comparison.clients] == holm_of(p)
    assert [client.accuracy for client in comparison.clients] == [None] * 3
    assert Audit("run", [comparison], END).worse == {"start": [0]}
    assert comparison.summary == "clients shown to be worse off: 0. 3 of 4 clients could be judged, by their loss"


def test_too_few_samples_are_told_by_the_loss_alone() -> None:
    (comparison,) = judge([make_measured(0, 3, start=(0.2, 0.9)), make_measured(1, 0, start=(1.0, 1.0))], {})
    assert comparison.unjudged == {
        0: "with 3 test samples p could not be below 0.12 for loss; 0.05 is needed",
        1: "no test samples",
    }


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12), st.randoms())
def test_the_order_of_clients_without_right_answers_makes_no_difference(p: list[float], random: object) -> None:
    audits = [make_measured(k, start=(worse, 1.0)) for k, worse in enumerate(p)]
    shuffled = list(audits)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Audit("run", judge(audits, {}), END).to_json() == Audit("run", judge(shuffled, {}), END).to_json()


def test_tables_and_page_without_right_answers_show_the_figure_and_no_accuracy() -> None:
    lacking = make_measured(1, start=(0.5, 0.5))
    lacking = replace(lacking, models={name: replace(model, figure=None) for name, model in lacking.models.items()})
    audit = Audit("run", judge([make_measured(0, start=(0.001, 1.0)), lacking], {}), END)
    (table,) = tables(audit)
    assert table.headings == ("client", "samples", "mae", "other", "loss", "other", "p", "worse", "")
    assert [cell.text for cell in table.rows[0]][:6] == ["0", "40", "1.500", "1.500", "0.7500", "0.5000"]
    assert [cell.text for cell in table.rows[1]][2:4] == ["–", "–"]
    page = html(audit)
    shown = page.partition("</style>")[2].partition("<script>")[0].replace("to the right is better", "")
    for text in (shown, json.dumps(audit.to_json()), audit.comparisons[0].summary):
        for word in ("right", "accurac", "McNemar", "alone", "2 ln C", "None"):
            assert word not in text
    assert "cut off at 3.000, twice the mean training loss that the run began at" in page
    assert '<th scope="col">mae</th>' in page
    assert audit.to_json()["bound"] == 3.0
    assert audit.to_json()["figure"] == {"name": "mae", "higher_is_better": False, "percent": False}


def test_a_share_is_shown_in_per_cent_and_the_mean_loss_beside_the_one_that_is_cut_off() -> None:
    share, loss = Figure("auroc", percent=True), Figure("loss", higher=False)
    audits = [replace(make_measured(0, start=(1.0, 1.0)), figure=figure) for figure in (share, loss)]
    audits[0] = replace(audits[0], models={n: replace(m, figure=0.5) for n, m in audits[0].models.items()})
    found = [tables(Audit("run", judge([audit], {}), END))[0] for audit in audits]
    assert [table.headings[2] for table in found] == ["auroc", "uncut loss"]
    assert found[0].rows[0][2].text == "50.0 %"
    assert "more is better" in reading(Audit("run", judge(audits[:1], {}), END))[0]
