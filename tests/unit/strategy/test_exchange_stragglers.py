"""Nodes slower than the rounds: asked again when they have answered, never before, and never left out for good."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from benchmarks._clock import Clock
from benchmarks._queueing import QueueingGrid
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import QuorumError
from dqnfed_flwr.strategy import exchange
from dqnfed_flwr.strategy.exchange import ASK_AGAIN_AFTER, LATE, OWING, Answer, Stragglers
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.grids import SilentGrid
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy

pytestmark = pytest.mark.usefixtures("clock")

CLIENTS, SLOW = 4, 2
OTHERS = [0, 1, 3]
DEADLINE = 10.0


def federation(clock: Clock, slow: float) -> QueueingGrid:
    """Clients that need a second each, and one that needs `slow`."""
    grid = QueueingGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, clock)
    for client, node in grid.nodes.items():
        node.seconds = slow if client == SLOW else 1.0
    return grid


class After:
    """Does something after every round."""

    def __init__(self, then: Callable[[RoundEvent], None]) -> None:
        self.on_round = then

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None: ...

    def on_end(self) -> None: ...


class Rounds:
    """When rounds were settled."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.ends = clock, [clock.now]

    def note(self, event: RoundEvent) -> None:
        """A round is settled."""
        del event
        self.ends.append(self.clock.now)

    @property
    def seconds(self) -> list[float]:
        """What each took."""
        return [later - earlier for earlier, later in itertools.pairwise(self.ends)]


def trained(
    grid: InProcessGrid | QueueingGrid,
    settings: Mapping[str, Any] | None = None,
    then: Callable[[RoundEvent], None] = lambda event: None,
) -> DQNFed:
    given = {"deadline": DEADLINE, "rounds": 20, "step-rule": "clipped", **(settings or {})}
    server = DQNFed(strategy(CLIENTS, given).settings, listeners=[After(then)])
    server.start(grid, start_at(np.zeros(6)))
    return server


def events(server: DQNFed) -> list[RoundEvent]:
    assert server.outcome is not None
    return server.outcome.events


def dropped(events: list[RoundEvent]) -> Counter[tuple[int, str]]:
    return Counter((drop.client, drop.reason) for event in events for drop in event.dropped)


def theta(server: DQNFed) -> list[float]:
    assert server.outcome is not None
    return [float(value) for value in server.outcome.theta]


def test_a_slow_node_has_one_message_at_a_time_and_its_late_replies_are_counted(clock: Clock) -> None:
    grid = federation(clock, slow=24.0)
    backlog: list[int] = []
    server = trained(grid, then=lambda event: backlog.append(grid.nodes[SLOW].backlog))
    assert max(backlog) == 1
    assert [event.participants for event in events(server)] == [OTHERS] * 20
    # A message takes it 24 s: one exchange waits 10 s for it, and some of 1 s pass until it is asked again.
    moments = [when for client, when in grid.asked if client == SLOW]
    assert all(24 <= later - earlier < 26 for earlier, later in itertools.pairwise(moments))
    counts = dropped(events(server))
    assert counts[SLOW, LATE] == len(moments) - 1
    assert counts[SLOW, "absent"] == len(moments)
    assert counts[SLOW, OWING] == 20 - len(moments)
    assert {client for client, _ in counts} == {SLOW}


@pytest.mark.parametrize("slow", [3.0, 10.0])
def test_by_default_a_slow_node_is_heard_in_every_round(clock: Clock, slow: float) -> None:
    defaults = Settings()
    server = trained(federation(clock, slow), {"deadline": defaults.deadline, "quorum": defaults.quorum})
    assert all(SLOW in event.participants for event in events(server))


def test_a_quorum_below_one_never_hears_a_slow_node(clock: Clock) -> None:
    server = trained(federation(clock, slow=3.0), {"quorum": 0.75})
    assert not any(SLOW in event.participants for event in events(server))
    assert dropped(events(server))[SLOW, LATE] > 3  # and that is counted


@pytest.mark.parametrize("rule", ["clipped", "probed"])
def test_a_quorum_closes_no_exchange_before_the_step_can_be_judged(clock: Clock, rule: str) -> None:
    grid = federation(clock, slow=1.0)

    def tire(event: RoundEvent) -> None:
        for client, node in grid.nodes.items():
            node.seconds = 1.0 + 2 * ((client + event.round) % 4)

    done = events(trained(grid, {"quorum": 0.25, "step-rule": rule}, tire))
    assert all(event.moved and event.cost.exchanges <= 2 for event in done)
    assert not any(np.isnan(event.losses_after).all() for event in done)
    assert clock.now - 1000 < 20 * DEADLINE


def test_late_work_is_never_used(clock: Clock) -> None:
    slow = trained(federation(clock, slow=24.0))
    silent = trained(SilentGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, silent=[SLOW]))
    # Where it is not asked there is no empty slot among the rows, which changes the order of sums.
    np.testing.assert_allclose(theta(slow), theta(silent), rtol=1e-12)
    for outcome in (slow, silent):
        assert [[*event.votes.heard] for event in events(outcome)] == [OTHERS] * 20


def test_an_exchange_closes_at_its_deadline_while_a_node_is_late(clock: Clock) -> None:
    rounds = Rounds(clock)
    trained(federation(clock, slow=24.0), then=rounds.note)
    spent = rounds.seconds[1:]  # the first round takes two exchanges
    assert max(spent) == pytest.approx(DEADLINE, abs=0.01)
    assert 1 <= sum(seconds > 2 for seconds in spent) <= 5  # only when it was asked


def test_a_node_that_is_fast_again_is_back_when_it_has_answered(clock: Clock) -> None:
    grid, rounds = federation(clock, slow=24.0), Rounds(clock)

    def mend(event: RoundEvent) -> None:
        rounds.note(event)
        if event.round == 10:
            grid.nodes[SLOW].seconds = 1.0

    server = trained(grid, {"rounds": 45}, mend)
    alone = [event.round for event in events(server) if SLOW not in event.participants]
    assert alone == list(range(1, len(alone) + 1))
    assert sum(rounds.seconds[10 : len(alone)]) < 24 + 3  # what it was at when it was mended, and no backlog


def test_a_node_that_was_offline_owes_nothing(clock: Clock) -> None:
    grid = federation(clock, slow=1e6)

    def restart(event: RoundEvent) -> None:
        if event.round == 5:
            grid.leave(SLOW)
        if event.round == 8:
            grid.nodes[SLOW].seconds = 1.0
            grid.join(SLOW)

    done = events(trained(grid, {"rounds": 12}, restart))
    assert [event.round for event in done if SLOW in event.participants] == [10, 11, 12]
    assert dropped(done)[SLOW, LATE] == 0


def test_a_restart_that_nobody_saw_costs_some_deadlines(clock: Clock) -> None:
    grid = federation(clock, slow=1e6)

    def restart(event: RoundEvent) -> None:
        if event.round == 3:
            grid.lose(SLOW)
            grid.nodes[SLOW].seconds = 1.0

    done = events(trained(grid, {"rounds": 40}, restart))
    first = next(event.round for event in done if SLOW in event.participants)
    assert all(SLOW in event.participants for event in done[first:])
    once, again, *_ = [when for client, when in grid.asked if client == SLOW]
    assert again - once == pytest.approx(ASK_AGAIN_AFTER * DEADLINE, abs=1.5)


def test_a_node_that_never_answers_is_asked_more_and_more_rarely(clock: Clock) -> None:
    grid = federation(clock, slow=1e6)
    trained(grid, {"rounds": 200})
    moments = np.array([when for client, when in grid.asked if client == SLOW])
    assert np.diff(moments)[:3] == pytest.approx(np.array([3, 6, 12]) * DEADLINE, abs=3)


def test_a_node_that_never_answers_costs_the_deadline_once(clock: Clock) -> None:
    grid, rounds = federation(clock, slow=1e6), Rounds(clock)
    done = events(trained(grid, {"rounds": 200}, rounds.note))
    assert [event.participants for event in done] == [OTHERS] * 200
    assert sum(client == SLOW for client, _ in grid.asked) > 3  # it had its chances
    assert sum(seconds >= DEADLINE for seconds in rounds.seconds) == 1
    assert max(rounds.seconds[1:]) < 2
    assert clock.now - 1000 < DEADLINE + 200 * 1.2  # the evaluation at the end did not wait for it either


def test_a_reply_that_the_superlink_has_given_up_costs_no_second_deadline(clock: Clock) -> None:
    grid, rounds = federation(clock, slow=1e6), Rounds(clock)

    def give_up(event: RoundEvent) -> None:
        rounds.note(event)
        grid.give_up(SLOW)

    done = events(trained(grid, {"rounds": 30}, give_up))
    assert [event.participants for event in done] == [OTHERS] * 30
    assert sum(seconds >= DEADLINE for seconds in rounds.seconds) == 1


@pytest.mark.parametrize("slower", [0.0, 0.5])
def test_a_node_on_trial_that_answers_is_waited_for_again(clock: Clock, slower: float) -> None:
    grid = federation(clock, slow=1e6)

    def mend(event: RoundEvent) -> None:
        if event.round == 10:
            grid.lose(SLOW)
            grid.nodes[SLOW].seconds = 1.0 + slower

    done = events(trained(grid, {"rounds": 80}, mend))
    back = [SLOW in event.participants for event in done]
    assert back[-1]
    assert all(back[back.index(True) :])


def test_patience_grows_to_what_a_very_slow_node_needs(clock: Clock) -> None:
    grid = federation(clock, slow=55.0)
    backlog: list[int] = []
    done = events(trained(grid, {"rounds": 400}, lambda event: backlog.append(grid.nodes[SLOW].backlog)))
    assert max(backlog) <= 3
    assert max(backlog[-200:]) <= 1
    assert dropped(done)[SLOW, LATE] > 3


def test_nobody_is_spared_where_the_others_are_too_few(clock: Clock) -> None:
    grid = federation(clock, slow=13.0)
    with pytest.raises(QuorumError, match="3 usable replies in round 1, 4 times in a row; min-clients is 4"):
        trained(grid, {"min-clients": 4, "retries": 3})
    # Each attempt waits for the reply that is owed before it asks again: 3 s longer than the deadline.
    assert clock.now - 1000 < 4 * (DEADLINE + 5)
    assert sum(client == SLOW for client, _ in grid.asked) == 4


def test_a_node_that_is_needed_is_asked_in_spite_of_its_debt(clock: Clock) -> None:
    grid = federation(clock, slow=1e6)
    with pytest.raises(QuorumError):
        trained(grid, {"min-clients": 4, "retries": 2})
    assert sum(client == SLOW for client, _ in grid.asked) == 3
    assert clock.now - 1000 == pytest.approx((3 + 2) * DEADLINE, abs=2)  # three attempts, two waits before them


def test_a_step_whose_judges_all_owe_is_not_settled_without_them(clock: Clock) -> None:
    grid = federation(clock, slow=1.0)

    def stall(event: RoundEvent) -> None:
        for node in grid.nodes.values():
            node.once = 13.0 if event.round == 2 else 0.0

    done = events(trained(grid, {"rounds": 5}, stall))
    assert [event.round for event in done] == [1, 2, 3, 4, 5]
    assert not any(np.isnan(event.losses_after).all() for event in done)
    assert dropped(done)[SLOW, LATE] == 1


def test_with_a_quorum_those_cut_off_sit_out_until_they_have_answered(clock: Clock) -> None:
    grid = federation(clock, slow=2.6)
    done = events(trained(grid, {"quorum": 0.75, "deadline": 600}))
    assert dropped(done)[SLOW, OWING] >= 5
    assert grid.nodes[SLOW].backlog <= 1
    assert dropped(done)[SLOW, LATE] > 3


def test_a_server_that_is_resumed_asks_everybody_once(clock: Clock, tmp_path: Path) -> None:
    grid = federation(clock, slow=24.0)
    settings = {"output": str(tmp_path), "rounds": 12}

    def die(event: RoundEvent) -> None:
        if event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(grid, settings, die)
    before = len(grid.asked)
    done = events(trained(grid, {**settings, "resume": True}))
    moments = [when for client, when in grid.asked[before:] if client == SLOW]
    assert moments[0] == grid.asked[before][1]
    assert all(later - earlier >= 24 for earlier, later in itertools.pairwise(moments))
    assert done[-1].round == 12
    assert all(event.participants == OTHERS for event in done)


def test_late_replies_are_taken_in_as_long_as_the_exchange_lasts(clock: Clock) -> None:
    echo = ClientApp()
    echo.train()(lambda message, context: Message(RecordDict(), reply_to=message))
    grid, owed = QueueingGrid(echo, CLIENTS, clock), Stragglers(DEADLINE)
    sent = exchange.push(grid, [Message(RecordDict(), node, "train") for node in (3, 4)])
    owed.start_exchange()
    for number, node in sent.items():
        owed.record(Answer(node, None, owed=number), node - 2)
    clock.now += 60
    owed.drain(grid, until=clock.now)
    assert owed.busy == {3, 4}
    assert [(drop.client, drop.reason) for drop in owed.left_out] == [(1, OWING), (2, OWING)]
    owed.drain(grid, until=clock.now + 1)
    assert owed.busy == set()
    assert [(drop.client, drop.reason) for drop in owed.take_late()] == [(1, LATE), (2, LATE)]
    assert owed.take_late() == []


def test_clients_in_this_process_never_owe(clock: Clock) -> None:
    grid = InProcessGrid(Federation(spread_out(CLIENTS)).app(), CLIENTS, {})
    done = events(trained(grid, {"quorum": 0.5}))
    assert [event.participants for event in done] == [[0, 1]] * 20
    assert {reason for _, reason in dropped(done)} == {"absent"}


def test_nothing_is_kept_of_nodes_that_are_gone(clock: Clock) -> None:
    book = Stragglers(DEADLINE)
    for node in range(2, 1000):
        book.start_exchange()
        book.record(Answer(node, Message(RecordDict(), node, "train")), client=0)
        book.record(Answer(node, None, owed=str(node)), client=0)
        clock.sleep(10 * DEADLINE)
        book.update([node])
    book.update([])
    assert {name: len(kept) for name, kept in vars(book).items() if isinstance(kept, dict)} == {
        "_owed": 0,
        "_last_answered": 0,
        "_waits": 0,
    }
