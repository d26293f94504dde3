"""What is said of clients left out, of those that hold up the others, and of runs that end early: log, table, card."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client_app.app import app as client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import notices, server_run
from dqnfed_flwr.engine.export import card_of
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.notices import (
    LEFT_OUT,
    MARK,
    NAMED,
    LeftOutWatch,
    early_end,
    held_up,
    left_out,
    most_left_out,
    notice_in,
)
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.guarantee.overrule import Certificate
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.telemetry.standstill import STALLED_MARK
from dqnfed_flwr.telemetry.totals import Totals
from tests.helpers.runs import TINY, changed, make_event, make_result


def stayed(number: int, **changes: object) -> RoundEvent:
    event = make_event(number, None)
    return changed(event, factor=0.0, losses_after=[1.0] * 4, **changes)


def ended(status: str, **changes: object) -> RunResult:
    settings = Settings.from_mapping({"rounds": 9})
    return replace(make_result([make_event(1, None), stayed(2, **changes)], settings=settings), status=status)


@pytest.mark.parametrize("status", ["finished", "early-stopped"])
def test_nothing_is_said_of_a_run_that_did_not_end_early(status: str) -> None:
    assert early_end(ended(status)) == ""


def test_the_certificate_is_named_with_its_weights() -> None:
    words = early_end(ended("pareto-stationary", certificate=Certificate({2: 0.25, 5: 0.75}, 2e-4)))
    assert words.startswith(f"{MARK}, as pareto-stationary, after round 2 of 9: ")
    assert "clients 5 (0.75), 2 (0.25), weighted so, sum to a vector of length 0.0002" in words
    assert "step.min-move" not in words
    assert "\n" not in words


def test_of_many_clients_the_heaviest_are_named() -> None:
    weights = {client: (client + 1) / 820 for client in range(40)}
    words = early_end(ended("pareto-stationary", certificate=Certificate(weights, 1e-6)))
    assert "clients 39 (0.05), 38 (0.05)" in words
    assert f" and {40 - NAMED} more, weighted so" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"refused": [3]}, "client 3 refused its step, until no length was left to try."),
        (
            {"refused": [1, 3], "certificate": Certificate({1: 1.0}, 0.5)},
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


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (MARK, early_end(ended("line-search-failed", refused=[3]))),
        (STALLED_MARK, early_end(ended("stalled", refused=[3])).splitlines()[0]),
        (LEFT_OUT, f"{LEFT_OUT}client 3 in 2 of 2"),
    ],
)
def test_notices_are_found_in_a_log_and_no_others(notice: str, words: str) -> None:
    for before in ("\033[93mWARNING \033[0m:   ", "dqnfed_flwr.errors.StalledError: "):
        assert notice_in(f"{before}{words}\n") == (notice, words)
    for line in ("INFO :   round 3 is settled", f"{MARK} of the week", "DqnfedModelStalled: The run stalled"):
        assert notice_in(line) == ("", "")


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
def test_the_log_of_a_run_on_a_superlink_says_that_it_ended_early(run_id: str, said: list[str]) -> None:
    result = ended("pareto-stationary", refused=[3])
    server_run._warn(result, on_superlink=bool(run_id))
    server_run._warn(replace(result, events=[stayed(1, refused=[3])]), on_superlink=False)
    early = [line for line in said if line.startswith(MARK)]
    assert len(early) == (1 if run_id else 0)
    assert said[-1].endswith("holds up the others: client 3 in 1 of 1 rounds")


def test_the_card_says_what_rounds_did_to_the_clients() -> None:
    changes: dict[str, object] = {"overruled": [1], "refused": [0, 1], "certificate": Certificate({1: 1.0}, 0.0)}
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
    refused = result.events[-1].votes.refused
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
    event = replace(make_event(1, None), losses_after=[0.5, 1.5, 0.5, math.nan], asked=8)
    assert event.improved_of_asked == 2 / 8
    assert replace(event, asked=4).improved_of_asked == 2 / 4
    assert math.isnan(replace(event, losses_after=[math.nan] * 4).improved_of_asked)
    assert make_event(1, None, rho=0.75).improved_of_asked == 0.75


def test_a_run_that_stalled_tells_its_causes_in_log_and_card() -> None:
    result = ended("stalled", refused=[3])
    head, first = early_end(result).splitlines()
    assert head.startswith("The run stalled after round 2 of 9: its model has not moved since round 1, for 1 round")
    assert first.startswith("  1. client 3 (1) refused the step in 1 round of 1. What can be done: ")
    assert f"- {head}\n{first}" in card_of(result, 3)


def test_a_run_that_rested_from_the_first_round_on_learnt_nothing() -> None:
    never = replace(ended("held-out-stationary"), events=[stayed(1, refused_held_out=[2, 3], status="held-out")])
    words = early_end(never)
    assert words.startswith(f"{MARK}, as held-out-stationary, after round 1 of 9, none of which moved its model: ")
    assert "the held-out parts of clients 2, 3 refused every length of its step" in words
    assert early_end(ended("held-out-stationary")) == ""  # it had moved
    assert "none of which moved its model" not in early_end(ended("pareto-stationary"))


def test_the_record_has_the_ratios_over_the_rounds_that_moved() -> None:
    result = make_result([make_event(1, None, rho=0.5), stayed(2), stayed(3)])
    record = result.to_json()
    assert (record["rounds"], record["rounds_moved"]) == (3, 1)
    assert (record["improved_of_asked_moved"], record["unharmed_ratio_moved"]) == (0.5, 0.5)
    assert record["improved_of_asked"] == [0.5, 1.0, 1.0]
    never = make_result([stayed(1)]).to_json()
    assert (never["improved_of_asked_moved"], never["unharmed_ratio_moved"]) == (None, None)


def lost(number: int, *dropped: DroppedClient, no_part: list[int]) -> RoundEvent:
    return replace(make_event(number, None), dropped=[*dropped], no_part=no_part)


def test_a_round_without_most_of_its_clients_is_told_with_reasons() -> None:
    absent = [DroppedClient(client, "absent", "no reply") for client in (2, 3)]
    failed = DroppedClient(1, "client-error", "Traceback:\n  ValueError: no labels")
    words = most_left_out(lost(4, *absent, failed, no_part=[1, 2, 3]))
    assert words == (
        "Round 4 went without 3 of 4 clients (absent 2, client-error 1); client 1: Traceback: ValueError: no labels"
    )
    assert most_left_out(lost(4, *absent, no_part=[2, 3])) == ""
    assert most_left_out(make_event(1, None)) == ""


def test_nodes_that_are_not_asked_as_they_do_not_fit_count() -> None:
    unfit = [DroppedClient(client, "other-form", "[5] for [4]") for client in range(4, 9)]
    assert most_left_out(lost(1, *unfit, no_part=[])).startswith("Round 1 went without 5 of 9 clients (other-form 5)")
    assert most_left_out(lost(1, *unfit[:4], no_part=[])) == ""


def test_it_is_told_once(said: list[str]) -> None:
    watch = LeftOutWatch()
    for number in (1, 2, 3):
        watch.on_round(lost(number, no_part=[0, 1, 2] if number > 1 else []))
    assert said == ["Round 2 went without 3 of 4 clients ()"]


def run_with(failing: set[int], **changes: object) -> RunResult:
    """A run of three clients, some of which fail at every training."""
    settings = Settings.from_mapping({**TINY, "rounds": 3, "method": "fedavg", **changes})

    def some(message: Message, context: Context) -> Message:
        if message.metadata.message_type == MessageType.TRAIN and context.node_config["partition-id"] in failing:
            raise RuntimeError("no labels")
        return client(message, context)

    return serve(InProcessGrid(cast(ClientApp, some), 3, settings.flat()), settings)


def test_clients_that_fail_count_in_rho_and_are_named_early_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for place in (notices, server_run):
        monkeypatch.setattr(place, "log", lambda level, text, *values: told.append(text % values))
    result = run_with({1, 2}, **{"guarantee.voters": 0.3})
    for event in result.events:
        assert (event.asked, event.no_part, event.participants) == (3, [1, 2], [0])
        assert event.improved_of_asked == event.improved_ratio / 3
    early, late = told  # those left out for good are told by the registry
    assert early.startswith("Round 1 went without 2 of 3 clients (client-error 2); client 1: ")
    assert late.startswith(
        "Asked, and without a part in most of the rounds: client 1 in none (repeated-fault: 3 times "
    )
    assert "RuntimeError: no labels), client 2 in none (repeated-fault: " in late


@pytest.mark.parametrize("method", ["fedavg", "dqn-fed"])
def test_nothing_is_told_where_everybody_has_a_part(method: str, said: list[str]) -> None:
    result = run_with(set(), method=method)
    assert said == []
    assert all(event.no_part == [] for event in result.events)
    assert result.improved_of_asked == result.improved_ratio
