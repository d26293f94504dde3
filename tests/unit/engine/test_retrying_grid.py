"""Calls that the SuperLink fails over are repeated; nobody is asked under a number that has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from benchmarks._clock import Clock
from client_app.app import app as client
from dqnfed_flwr.engine import retrying_grid
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.retrying_grid import PATIENCE_SECONDS, RetryingGrid, retrying
from dqnfed_flwr.errors import RunError
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy


def failure(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://superlink/v1/runtime/pull-messages")
    return httpx.HTTPStatusError("", request=request, response=httpx.Response(status, request=request))


class Busy(InProcessGrid):
    """A SuperLink in this process whose next `failing` calls end with `status`."""

    def __init__(self, failing: int = 0, status: int = 500) -> None:
        super().__init__(client, 2, {})
        self.failing, self.status = failing, status
        self.pushed: list[Message] = []

    def _fail(self) -> None:
        self.failing -= 1
        if self.failing >= 0:
            raise failure(self.status)

    def get_node_ids(self) -> list[int]:
        self._fail()
        return super().get_node_ids()

    def push_messages(self, messages: Any) -> list[str]:
        self.pushed += messages
        self._fail()
        return [str(len(self.pushed) - len(messages) + k) for k in range(len(messages))]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        self._fail()
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retrying_grid, "time", clock)
    return clock


CALLS: list[Callable[[Grid], object]] = [
    lambda grid: grid.get_node_ids(),
    lambda grid: grid.push_messages([]),
    lambda grid: grid.pull_messages(["1"]),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_repeated_until_the_superlink_can(
    call: Callable[[Grid], object], clock: Clock, said: list[str]
) -> None:
    grid = RetryingGrid(Busy(failing=3))
    assert call(grid) == call(Busy())
    assert (grid.take_repeats(), grid.take_repeats()) == (3, 0)
    assert clock.slept == 0.5 + 1 + 2
    assert len(said) == 3
    assert "/v1/runtime/pull-messages with status 500; repeated in 0.5 s" in said[0]


@pytest.mark.parametrize("call", CALLS)
def test_it_is_not_repeated_for_ever(call: Callable[[Grid], object], clock: Clock) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        call(RetryingGrid(Busy(failing=1000)))
    assert PATIENCE_SECONDS - 8 < clock.slept <= PATIENCE_SECONDS


@pytest.mark.parametrize("call", CALLS)
def test_the_callers_own_error_is_not_repeated(call: Callable[[Grid], object], clock: Clock) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        call(RetryingGrid(Busy(failing=1, status=403)))
    assert clock.slept == 0


def test_messages_sent_again_are_new_ones_and_the_rest_of_them_stays(clock: Clock) -> None:
    busy = Busy(failing=1)
    messages = [Message(RecordDict(), node, "train", ttl=7.0, group_id="3") for node in (4, 5)]
    assert RetryingGrid(busy).push_messages(messages) == ["2", "3"]
    assert [m.metadata.dst_node_id for m in busy.pushed] == [4, 5, 4, 5]
    assert {(m.metadata.message_type, m.metadata.ttl, m.metadata.group_id) for m in busy.pushed} == {
        ("train", 7.0, "3")
    }
    assert len({m.object_id for m in busy.pushed}) == 4
    assert all(m.content is messages[0].content for m in busy.pushed[::2])


class Stumbling(InProcessGrid):
    """A SuperLink in this process that fails over the first call of every exchange."""

    failing = False

    def push_messages(self, messages: Any) -> list[str]:
        self.failing = not self.failing
        if self.failing:
            raise failure(503)
        return super().push_messages(messages)


def test_repeats_are_in_the_events_of_their_rounds(clock: Clock) -> None:
    server = strategy(3)
    grid = RetryingGrid(Stumbling(Federation(spread_out(3)).app(), 3, {}))
    server.start(grid, start_at(np.zeros(6)))
    assert server.outcome is not None
    events = server.outcome.events
    assert [event.cost.repeated_calls - event.cost.exchanges for event in events] == [1, 0, 0]  # the first query, too


def test_a_grid_without_a_superlink_stays_as_it_is() -> None:
    grid = InProcessGrid(client, 2, {})
    assert retrying(grid) is grid


def test_the_rest_is_the_grids() -> None:
    grid = Busy()
    repeated = RetryingGrid(grid)
    repeated.set_run(grid.run)
    assert repeated.run.run_id == grid.run.run_id
    assert repeated.send_and_receive([]) == []
    with pytest.raises(RunError, match="deprecated"):
        repeated.create_message(RecordDict(), "train", 1, "")
