"""What is said of runs that end early and of clients that hold up the others: table, log, card."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import server_run
from dqnfed_flwr.engine.ending import LEFT_OUT, MARK, NAMED, early_end, early_end_in, held_up, left_out, left_out_in
from dqnfed_flwr.engine.export import card_of
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.telemetry.events import RoundEvent, Totals
from tests.helpers.runs import TINY, make_event, make_result


def stayed(number: int, **changes: object) -> RoundEvent:
    event = make_event(number, None)
    return replace(event, factor=0.0, losses_after=[1.0] * 4, **changes)  # type: ignore[arg-type]


def ended(status: str, **changes: object) -> RunResult:
    settings = Settings.from_mapping({"rounds": 9})
    return replace(make_result([make_event(1, None), stayed(2, **changes)], settings=settings), status=status)


@pytest.mark.parametrize("status", ["finished", "early-stopped"])
def test_nothing_is_said_of_a_run_that_did_not_end_early(status: str) -> None:
    assert early_end(ended(status)) == ""


def test_the_certificate_is_named_with_its_weights() -> None:
    words = early_end(ended("pareto-stationary", certificate={2: 0.25, 5: 0.75}, distance=2e-4))
    assert words.startswith(f"{MARK}, as pareto-stationary, after round 2 of 9: ")
    assert "clients 5 (0.75), 2 (0.25), weighted so, sum to a vector of length 0.0002" in words
    assert "step.min-move" not in words
    assert "\n" not in words


def test_of_many_clients_the_heaviest_are_named() -> None:
    weights = {client: (client + 1) / 820 for client in range(40)}
    words = early_end(ended("pareto-stationary", certificate=weights, distance=1e-6))
    assert "clients 39 (0.05), 38 (0.05)" in words
    assert f" and {40 - NAMED} more, weighted so" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refused": [3]}, "client 3 refused its step, until no length was left to try."),
        (
            {"refused": [1, 3], "certificate": {1: 1.0}, "distance": 0.5},
            "clients 1, 3 refused its step, until no length was left to try; ",
        ),
        ({}, "no length of its step was accepted."),
    ],
)
def test_a_failed_line_search_names_those_that_refused(changes: dict[str, object], words: str) -> None:
    said = early_end(ended("line-search-failed", **changes))
    assert words in said
    assert "step.min-move" in said


def test_a_model_at_which_every_gradient_vanishes() -> None:
    assert ": every gradient is 0. What can be done" in early_end(ended("pareto-stationary"))


def test_the_words_are_found_in_a_log_and_no_others() -> None:
    words = early_end(ended("line-search-failed", refused=[3]))
    assert early_end_in(f"\033[93mWARNING \033[0m:   {words}") == words
    assert early_end_in("INFO :   round 3 is settled") == ""
    assert early_end_in(f"{MARK} of the week") == ""
    assert left_out_in(f"\033[93mWARNING \033[0m:   {LEFT_OUT}client 3 in 2 of 2\n") == f"{LEFT_OUT}client 3 in 2 of 2"
    assert left_out_in("INFO :   round 3 is settled") == ""


def test_totals_count_what_moved_the_model() -> None:
    unknown = replace(make_event(4, None, rho=math.nan), asked=6)
    events = [make_event(1, None, rho=0.5), stayed(2, refused=[0]), make_event(3, None), unknown]
    totals = Totals.of(events)
    assert (totals.rounds, totals.moved, totals.judged, totals.improved) == (4, 3, 2, 1)
    assert (totals.improved_of_asked, totals.unharmed_ratio, totals.asked, totals.heard) == (0.75, 0.75, 4.5, 4.0)
    assert (totals.harmed, totals.refused, totals.overruled) == ({2: 1, 3: 1}, {0: 1}, {})
    assert math.isnan(Totals.of([]).improved_of_asked)


def test_who_refuses_in_most_rounds_holds_up_the_others() -> None:
    events = [stayed(1, refused=[7, 2]), stayed(2, refused=[2]), stayed(3, refused=[7, 2]), make_event(4, None)]
    assert held_up(Totals.of(events)) == "client 2 in 3 of 4 rounds"
    assert held_up(Totals.of(events[:3])) == "clients 2 in 3, 7 in 2 of 3 rounds"
    assert held_up(Totals.of([make_event(1, None)])) == ""


@pytest.mark.parametrize("run_id", ["", "17"])
def test_the_log_of_a_run_on_a_superlink_says_that_it_ended_early(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(server_run, "log", lambda level, text, *values: told.append(text % values))
    result = ended("pareto-stationary", refused=[3])
    server_run._warn(result, on_superlink=bool(run_id))
    server_run._warn(replace(result, events=[stayed(1, refused=[3])]), on_superlink=False)
    early = [line for line in told if line.startswith(MARK)]
    assert len(early) == (1 if run_id else 0)
    assert told[-1].endswith("holds up the others: client 3 in 1 of 1 rounds")


def test_the_card_says_what_rounds_did_to_the_clients() -> None:
    changes: dict[str, object] = {"overruled": [1], "refused": [0, 1], "certificate": {1: 1.0}, "distance": 0.0}
    result = ended("pareto-stationary", **changes)
    card = card_of(replace(result, events=[*result.events, stayed(3, **changes)]), 3)
    for words in (
        "- 3 rounds, of which 1 moved the model; ended as `pareto-stationary`",
        f"- {MARK}, as pareto-stationary, after round 3 of 9",
        "| rounds that moved the model | 1 of 3 |",
        "| every client asked improved | 1 of 1 rounds that moved the model |",
        "| mean share of participants not harmed, over these | 1.0000 |",
        "| clients heard of those asked, mean | 4.0 of 4.0 |",
        "| votes overruled | 2 |",
        "- overruled: 2 times, clients 1\n",
        "- held up the others by refusing steps: clients 0 in 2, 1 in 2 of 3 rounds\n",
    ):
        assert words in card


def test_a_real_run_that_ends_early_tells_who_is_behind_it() -> None:
    settings = {"rounds": 60, "evaluate-every": 0, "dqn-fed.form": "one-sided", "step.min-move": 1.0}
    result = run({**TINY, **settings})
    assert result.status == "line-search-failed"
    assert result.totals.moved < len(result.events) < 60
    refused = result.events[-1].refused
    assert refused
    assert f"client{'s' if len(refused) > 1 else ''} {', '.join(map(str, refused))} refused its step" in early_end(
        result
    )


def test_who_was_asked_and_has_no_part_in_most_rounds_is_named() -> None:
    def without(number: int, *clients: int) -> RoundEvent:
        event = make_event(number, None)
        return replace(event, participants=[0, 1], losses_before=[1.0] * 2, losses_after=[0.5] * 2, no_part=[*clients])

    events = [without(1, 2, 3), without(2, 3), without(3, 2), without(4)]
    totals = Totals.of(events)
    assert (totals.no_part, totals.asked_in) == ({2: 2, 3: 2}, {2: 2, 3: 2})
    assert totals.mostly_left_out == {2: 2, 3: 2}
    result = make_result(events)
    assert left_out(result) == "client 2 in 2 of 2, client 3 in 2 of 2"
    full = [replace(make_event(number, None), no_part=[]) for number in (5, 6)]
    assert left_out(make_result([*events, *full])) == ""  # in half of them
    assert left_out(replace(make_result(full), left_out={"node 7": "other-form:\n [5]"})) == (
        "node 7 in none (other-form: [5])"
    )


def test_rho_of_all_asked_counts_those_that_did_not_answer_again() -> None:
    event = replace(make_event(1, None), losses_after=[0.5, 1.5, 0.5, math.nan], improved_ratio=2 / 3, asked=8)
    assert event.improved_of_asked == 2 / 8
    assert replace(event, asked=0).improved_of_asked == 2 / 4  # an earlier version did not note it
    assert math.isnan(replace(event, losses_after=[math.nan] * 4, improved_ratio=math.nan).improved_of_asked)
    assert make_event(1, None, rho=0.75).improved_of_asked == 0.75
