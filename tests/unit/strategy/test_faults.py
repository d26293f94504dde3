"""Faults that stay: who answers in the same way three times in a row is left out by name, or ends the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from dqnfed_flwr import wire
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.notices import left_out
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.errors import ModelError, QuorumError
from dqnfed_flwr.strategy.collect import REPEATED, TIMES, Fault, in_short
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.grids import ChangingGrid
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

CLIENTS, BAD = 4, 1
SAME = DroppedClient(BAD, "client-error", "code 2: ModelError: layer 3 at 0x7f12 gave -0.25")
OTHER_NUMBERS = DroppedClient(BAD, "client-error", "code 2: ModelError: layer 4 at 0x8a00 gave -1.75")
OTHER_WORDS = DroppedClient(BAD, "client-error", "code 2: ValueError: no such file")
ABSENT = DroppedClient(BAD, "absent", "no reply before the exchange closed")
NAN = DroppedClient(BAD, "not-finite", "the gradient holds NaN or Inf")


@pytest.mark.parametrize(
    ("answers", "stays"),
    [
        ([SAME, SAME, SAME], True),
        ([SAME, OTHER_NUMBERS, SAME], True),
        ([SAME, ABSENT, SAME, ABSENT, SAME], True),
        ([SAME, SAME], False),
        ([SAME, SAME, None, SAME], False),
        ([SAME, SAME, OTHER_WORDS], False),
        ([SAME, SAME, NAN, SAME], False),
        ([NAN] * 5, False),
        ([ABSENT] * 5, False),
    ],
)
def test_the_same_answer_three_times_in_a_row(answers: list[DroppedClient | None], stays: bool) -> None:
    fault = Fault()
    for answer in answers:
        fault.note(answer)
    assert fault.stays == stays


def test_a_traceback_is_told_by_its_first_and_last_line() -> None:
    assert in_short("Traceback:\n  File x\n\nValueError: no\n") == "Traceback: ... ValueError: no"
    assert in_short("one line") == "one line"
    assert in_short("") == ""


class Faulty(Federation):
    """Some clients raise an error as long as `fails` says so, of an exchange."""

    bad: Collection[int] = (BAD,)
    fails: Callable[[int], bool] = staticmethod(lambda exchange: True)
    error: Callable[[int], Exception] = staticmethod(lambda number: ModelError(f"the loss is {-number}"))

    def answer(self, message: Message, context: Context) -> Message:
        """Fail, or not."""
        exchange = wire.decode_task(message.content).task.exchange
        if int(context.node_config["partition-id"]) in self.bad and self.fails(exchange):
            raise self.error(exchange)
        return super().answer(message, context)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is logged as a warning."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("flwr")
    filters = list(logger.filters)
    monkeypatch.setattr(logger, "filters", [])
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)
    assert filters


def run(federation: Federation, **settings: Any) -> DQNFed:
    server = strategy(CLIENTS, {"rounds": 6, "deadline": 60, **settings})
    server.start(InProcessGrid(federation.app(), CLIENTS, {}), start_at(np.zeros(6)))
    return server


def reasons(server: DQNFed) -> list[list[tuple[int, str]]]:
    assert server.outcome is not None
    return [[(drop.client, drop.reason) for drop in event.dropped] for event in server.outcome.events]


def test_a_client_that_fails_each_time_is_left_out_for_good_by_name(told: list[str]) -> None:
    federation = Faulty(spread_out(CLIENTS))
    server = run(federation)
    assert reasons(server) == [[(BAD, "client-error")]] * TIMES + [[(BAD, REPEATED)]] * 3
    assert server.outcome is not None
    assert all(event.moved for event in server.outcome.events)
    assert [event.asked for event in server.outcome.events] == [4, 4, 4, 3, 3, 3]
    words = "client-error: code 2: ModelError: the loss is -4"  # one at a candidate that was turned down does not count
    assert [line for line in told if "for good" in line] == [
        f"Client {BAD} is left out for good, after 3 times the same: {words}"
    ]
    assert sum("ModelError" in line for line in told) == TIMES + 2
    assert server.registry.refused == {f"client {BAD}": f"{REPEATED}: 3 times in a row {words}"}


def test_the_final_words_name_it_with_the_rounds_that_it_had_a_part_in() -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.fails = lambda exchange: exchange > 2
    server = run(federation)
    outcome = server.outcome
    assert outcome is not None
    result = RunResult(
        server.settings,
        outcome.status,
        outcome.theta.numpy(),
        outcome.events,
        {},
        1.0,
        server.registry.form,
        left_out=server.registry.refused,
    )
    assert left_out(result).startswith(f"client {BAD} in 2 ({REPEATED}: 3 times in a row client-error: code 2: ModelE")


def test_errors_that_differ_are_absences() -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.error = lambda exchange: ValueError("abcdefgh"[exchange % 8])
    assert reasons(run(federation)) == [[(BAD, "client-error")]] * 6


def test_one_that_trains_in_between_stays() -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.fails = lambda exchange: exchange % 3 != 0
    assert (BAD, REPEATED) not in [drop for drops in reasons(run(federation)) for drop in drops]


def test_a_fault_of_all_ends_the_run_at_once_with_its_cause(told: list[str]) -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.bad = range(CLIENTS)
    federation.fails = lambda exchange: exchange > 2
    with pytest.raises(QuorumError) as failed:
        run(federation, retries=50)
    (words,) = str(failed.value).splitlines()
    assert words.startswith("0 of 4 clients can train; at least 1 are needed (min-clients): client 0: 3 times in a row")
    assert "client-error: code 2: ModelError: the loss is -5, and 3 more fail each time" in words
    assert "The model is unchanged since round 1" in words
    assert sum("attempt" in line for line in told) == TIMES


def test_too_few_that_can_train_end_it_too() -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.bad = (0, 1, 2)
    with pytest.raises(QuorumError, match="1 of 4 clients can train; at least 2 are needed"):
        run(federation, retries=50, **{"min-clients": 2})


def test_a_node_that_comes_anew_is_asked_again() -> None:
    federation = Faulty(spread_out(CLIENTS))
    federation.fails = lambda exchange: exchange <= TIMES + 1

    def plan(grid: ChangingGrid) -> None:
        if grid.exchanges == 6:
            grid.leave(BAD + 2)
            grid.join(1000, client=BAD)

    server = strategy(CLIENTS, {"rounds": 8, "deadline": 60})
    server.start(ChangingGrid(federation.app(), CLIENTS, plan), start_at(np.zeros(6)))
    assert server.outcome is not None
    took_part = [BAD in event.participants for event in server.outcome.events]
    assert took_part[: TIMES + 1] == [False] * (TIMES + 1)
    assert took_part[-1]
    assert server.registry.refused == {}


def test_a_step_whose_judges_all_fail_is_dropped_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks._clock import Clock
    from dqnfed_flwr.strategy import client_registry

    clock = Clock()
    monkeypatch.setattr(client_registry, "time", clock)
    federation = Faulty(spread_out(CLIENTS))
    federation.bad = (0, 1)
    federation.fails = lambda exchange: exchange > 1
    server = run(federation, participation=0.5, rounds=8, seed=3)
    assert server.outcome is not None
    assert clock.slept == 0
    assert server.outcome.events[-1].moved
