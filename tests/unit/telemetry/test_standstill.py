"""The likeliest causes of a standstill, ranked by what the events hold."""

from __future__ import annotations

from typing import Any

import pytest

from dqnfed_flwr.guarantee.overrule import LATER, two_losses
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.telemetry.standstill import MOST, STALLED_MARK, causes, stalled_words
from dqnfed_flwr.telemetry.totals import Totals, unmoved_at_end
from tests.helpers.runs import changed, make_event


def still(number: int, **changes: Any) -> RoundEvent:
    event = make_event(number, None)
    changes = {"status": "line-search-failed", **changes}
    return changed(event, factor=0.0, losses_after=[1.0] * 4, **changes)


def failing(*clients: int, reason: str = "client-error", detail: str = "code 2: ValueError: no") -> list[DroppedClient]:
    return [DroppedClient(client, reason, detail) for client in clients]


def test_clients_that_all_fail_stand_before_what_follows_from_it() -> None:
    stretch = [still(t, dropped=failing(0, 1, 2, 3), status="unjudged") for t in range(2, 8)]
    first, second = causes(stretch)
    assert first.words == (
        "client-error: clients 0 (6), 1 (6), 2 (6), 3 (6) without a part, in 6 rounds of 6; client 0 first: "
        "code 2: ValueError: no"
    )
    assert "mend that on the node" in first.remedy
    assert second.words.startswith("unjudged: too few participants came back")
    assert first.weight > second.weight


def test_one_that_refuses_alone_stands_before_one_of_many_that_fails() -> None:
    stretch = [still(t, refused=[2], dropped=failing(3)) for t in range(1, 5)]
    first, second = causes(stretch)
    assert (
        first.words == "client 2 (4) refused the step in 4 rounds of 4, which was cut down to step.min-move in 4 rounds"
    )
    assert "guarantee.tolerate" in first.remedy
    assert second.words.startswith("client-error: client 3 (4) without a part, in 4 rounds of 4")


def test_two_losses_of_one_model_lead_to_the_data_reader() -> None:
    words = two_losses("it reported loss", 2.0, "and later", 3.0)
    before = [still(1, dropped=failing(0, 1, 2, 3, reason="contradiction", detail=f"{LATER}9, for what it said"))]
    after = [still(t, dropped=failing(0, 1, 2, 3, reason="contradiction", detail=words)) for t in (2, 3)]
    (cause, *_) = causes([*before, *after])
    assert f"client 0 first: {words}" in cause.words
    assert "without draws" in cause.remedy


@pytest.mark.parametrize("status", ["not-finite", "no-step", "stationary", "contested", "unjudged"])
def test_the_ends_of_rounds_are_causes_themselves(status: str) -> None:
    (cause,) = causes([still(1, status=status), still(2, status=status)])
    assert cause.words.startswith(f"{status}: ")
    assert cause.words.endswith("in 2 rounds of 2")
    assert cause.remedy


def test_no_length_is_a_cause_where_nobody_is_named() -> None:
    (cause,) = causes([still(1)])
    assert cause.words == "no length of the step was accepted in 1 round of 1"


def test_at_most_three_are_named_and_long_texts_are_cut() -> None:
    drops = [*failing(0, detail="x" * 5000), *failing(1, reason="absent"), *failing(2, reason="bad-shape")]
    found = causes([still(1, dropped=drops, refused=[3])])
    assert len(found) == MOST
    assert all(len(str(cause)) < 1000 for cause in found)
    assert not causes([still(1, dropped=failing(0, reason="overruled"), status="converged")])


def test_the_words_are_a_line_and_one_for_each_cause() -> None:
    events = [make_event(1, None), *(still(t, refused=[1]) for t in range(2, 6))]
    head, *lines = stalled_words(events, 30).splitlines()
    assert head == (
        f"{STALLED_MARK} after round 5 of 30: its model has not moved since round 1, for 4 rounds, and nothing "
        "shows that it is stationary"
    )
    assert [line[:5] for line in lines] == ["  1. "]
    assert "What can be done: " in lines[0]
    assert "its model never moved, for 4 rounds" in stalled_words(events[1:], 5)
    assert stalled_words([], 5) == f"{STALLED_MARK} after round 0 of 5"


def test_the_end_of_a_run_that_did_not_move_it() -> None:
    events = [still(1), make_event(2, None), still(3), still(4)]
    assert unmoved_at_end(events) == events[2:]
    assert unmoved_at_end(events[:2]) == []


def test_rho_over_the_rounds_that_moved_the_model() -> None:
    events = [make_event(1, None, rho=0.5), *(still(t) for t in (2, 3, 4))]
    totals = Totals.of(events)
    assert totals.moved_words == "1 of 4 rounds moved the model; over these ρ 0.500, not harmed 0.500"
    assert Totals.of(events[1:]).moved_words == "0 of 3 rounds moved the model; over these ρ –, not harmed –"
