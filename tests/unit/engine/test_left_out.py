from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from client_app.app import app as client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import left_out, server_run
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.left_out import LeftOutWatch, most_left_out
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from tests.helpers.runs import TINY, make_event


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


def test_it_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(left_out, "log", lambda level, text, *values: told.append(text % values))
    watch = LeftOutWatch()
    for number in (1, 2, 3):
        watch.on_round(lost(number, no_part=[0, 1, 2] if number > 1 else []))
    assert told == ["Round 2 went without 3 of 4 clients ()"]


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
    for place in (left_out, server_run):
        monkeypatch.setattr(place, "log", lambda level, text, *values: told.append(text % values))
    result = run_with({1, 2}, **{"guarantee.voters": 0.3})
    for event in result.events:
        assert (event.asked, event.no_part, event.participants) == (3, [1, 2], [0])
        assert event.improved_of_asked == event.improved_ratio / 3
    early, late = told
    assert early.startswith("Round 1 went without 2 of 3 clients (client-error 2); client 1: ")
    assert late == "Asked, and without a part in most of the rounds: client 1 in 3 of 3, client 2 in 3 of 3"


@pytest.mark.parametrize("method", ["fedavg", "dqn-fed"])
def test_nothing_is_told_where_everybody_has_a_part(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(server_run, "log", lambda level, text, *values: told.append(text % values))
    result = run_with(set(), method=method)
    assert told == []
    assert all(event.no_part == [] for event in result.events)
    assert result.improved_of_asked == result.improved_ratio
