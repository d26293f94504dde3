"""The row of a reply that comes too late for its exchange counts among those of the absent clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message

from benchmarks._clock import Clock
from benchmarks._queueing import QueueingGrid
from dqnfed_flwr import wire
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.guarantee.overrule import CONTRADICTION
from dqnfed_flwr.methods.absent import AbsentClients
from dqnfed_flwr.strategy.exchange import LATE
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.transport import through_flower
from tests.unit.strategy.test_exchange_stragglers import After

pytestmark = pytest.mark.usefixtures("clock")

CLIENTS = 6
SLOW = 1
"""A client whose first message asks for the row of round 2, and for nothing else."""
DISCARDED = "it is discarded"
Then = Callable[[RoundEvent], None]


class Run:
    """A run in which one message to a client is answered so many seconds after it was sent, where others take one.

    That is the first message to it, or the first that is sent when a round is over.
    """

    def __init__(
        self,
        clock: Clock,
        seconds: float = 11.5,
        settings: Mapping[str, Any] | None = None,
        *,
        since: int = 0,
        federation: Federation | None = None,
        then: Then = lambda event: None,
    ) -> None:
        self.federation = federation or Federation(spread_out(CLIENTS))
        self._grid = QueueingGrid(self.federation.app(), CLIENTS, clock)
        self._seconds, self._since, self._then = seconds, since, then
        for node in self._grid.nodes.values():
            node.seconds = 1.0
        self.models = {0: np.zeros(6)}
        self._delay(0)
        given = {"deadline": 10.0, "rounds": 7, "participation": 0.5, "dqn-fed.form": "anchored", **(settings or {})}
        self.server = DQNFed(strategy(CLIENTS, given).settings, listeners=[After(self._over)])
        self.server.start(self._grid, start_at(self.models[0]), evaluate_fn=self._note)

    def _note(self, number: int, arrays: ArrayRecord) -> None:
        self.models[number] = np.array(wire.decode_model(arrays)[0])

    def _over(self, event: RoundEvent) -> None:
        self._delay(event.round)
        self._then(event)

    def _delay(self, done: int) -> None:
        if done == self._since:
            self._grid.nodes[SLOW].once = self._seconds - 1.0

    @property
    def events(self) -> list[RoundEvent]:
        assert self.server.outcome is not None
        return self.server.outcome.events

    @property
    def late(self) -> dict[int, str]:
        """What became of late replies, by the round of the event."""
        drops = [(event.round, drop) for event in self.events for drop in event.dropped if drop.reason == LATE]
        assert {drop.client for _, drop in drops} <= {SLOW}
        return {number: drop.detail.split("over, and ")[1] for number, drop in drops}

    @property
    def tasks(self) -> list[ClientTask]:
        """What the slow client was asked for."""
        return [given.task for client, given in self.federation.asked if client == SLOW]

    @property
    def absent(self) -> list[float]:
        """Absent clients that had a say, by round."""
        return [event.notes.get("absent", 0.0) for event in self.events]

    @property
    def model(self) -> bytes:
        return self.models[max(self.models)].tobytes()


class Sent(QueueingGrid):
    """Replies travel as bytes."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """As they arrive."""
        replies = super().pull_messages(message_ids)
        for reply in replies:
            reply.content = through_flower(reply.content)
        return replies


def test_a_late_row_may_come_through_flower(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Run(clock)
    monkeypatch.setattr(f"{__name__}.QueueingGrid", Sent)
    sent = Run(clock)
    assert sent.late == here.late == {3: "its row of round 2 is kept"}
    assert sent.model == here.model


class Boastful(Federation):
    """The slow client's rows of round 2 are changed."""

    def __init__(self, change: Callable[[FloatArray], FloatArray]) -> None:
        super().__init__(spread_out(CLIENTS))
        self._change = change

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        reply = super().reply(client, given)
        changed = client == SLOW and given.task.round == 2 and reply.row is not None
        return replace(reply, row=self._change(reply.row)) if changed else reply  # type: ignore[arg-type]


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, FloatArray]]:
    """The late rows that are kept, with client and round."""
    found = []
    keep = AbsentClients.keep_late

    def noted(memory: AbsentClients, client: int, number: int, now: int, read: Callable[[], FloatArray]) -> bool:
        def row() -> FloatArray:
            found.append((client, number, read()))
            return found[-1][-1]

        return keep(memory, client, number, now, row)

    monkeypatch.setattr(AbsentClients, "keep_late", noted)
    return found


@pytest.mark.parametrize("rule", ["clipped", "probed"])
def test_a_late_row_counts_among_those_of_the_absent(
    clock: Clock, rows: list[tuple[int, int, FloatArray]], rule: str
) -> None:
    run = Run(clock, settings={"step-rule": rule})
    assert run.events[1].participants == [0, 3]
    assert run.late == {3: "its row of round 2 is kept"}
    assert run.absent[:5] == [0, 3, 2, 3, 3]  # 0, 5 and the late one in round 4; 0, 3 and the late one's new row in 5
    ((client, number, row),) = rows
    assert (client, number) == (SLOW, 2)
    np.testing.assert_array_equal(row, run.federation.objectives[SLOW].gradient(run.models[1]))


def test_a_late_row_changes_the_step_where_the_step_would_do_its_client_harm(clock: Clock) -> None:
    honest, other = Run(clock), Run(clock, federation=Boastful(lambda row: -row))
    assert honest.late == other.late
    assert honest.models[3].tobytes() == other.models[3].tobytes()
    assert honest.model != other.model


def test_when_it_comes_in_a_round_makes_no_difference(clock: Clock) -> None:
    assert len({Run(clock, seconds).model for seconds in (11.2, 11.4, 11.6)}) == 1


@pytest.mark.parametrize(
    ("seconds", "settings"),
    [
        (11.5, {"dqn-fed.absent-rounds": 0}),
        (13.0, {}),
        (11.5, {"guarantee.tolerate": 1}),
        (11.5, {"dqn-fed.form": "one-sided"}),
        (11.5, {"participation": 1}),
    ],
)
def test_it_is_discarded_where_it_is_of_no_use(clock: Clock, seconds: float, settings: dict[str, Any]) -> None:
    runs = [Run(clock, seconds, settings), Run(clock, seconds, settings, federation=Boastful(lambda row: -row))]
    assert [[*run.late.values()] for run in runs] == [[DISCARDED]] * 2
    assert runs[0].model == runs[1].model


def test_a_row_is_kept_for_as_many_rounds_as_those_of_the_absent(clock: Clock) -> None:
    assert Run(clock, 13.0, {"dqn-fed.absent-rounds": 4}).late == {5: "its row of round 2 is kept"}


@pytest.mark.parametrize(
    ("change", "why"), [(lambda row: row * np.nan, "not-finite"), (lambda row: row[1:], "bad-shape")]
)
def test_an_unfit_late_reply_costs_only_itself(
    clock: Clock, change: Callable[[FloatArray], FloatArray], why: str
) -> None:
    run = Run(clock, federation=Boastful(change))
    assert run.late[3].startswith(f"{DISCARDED}: {why}: ")
    assert run.absent[3] == 2
    assert all(SLOW in event.votes.heard for event in run.events[4:])


def test_the_row_of_a_candidate_that_was_turned_down_is_discarded(clock: Clock) -> None:
    run = Run(clock, settings={"step-rule": "probed", "step.max-fall": 1, "local.lr": 10}, since=2)
    assert [task.exchange for task in run.tasks if task.train and task.round == 4] == [4]
    assert [event.cost.misses for event in run.events[:4]] == [
        0,
        0,
        1,
        1,
    ]  # exchange 4 carried the first candidate of round 3
    assert run.late == {4: DISCARDED}


class Refusing(Federation):
    """The slow client refuses what it should like, where it trains as well."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        reply = super().reply(client, given)
        if client != SLOW or reply.probe is None or reply.row is None:
            return reply
        return replace(reply, probe=replace(reply.probe, holds=False, grown_holds=None))


def test_a_late_test_decides_nothing(clock: Clock) -> None:
    run = Run(clock, settings={"step-rule": "probed", "rounds": 6}, since=3, federation=Refusing(spread_out(CLIENTS)))
    assert next(iter(run.late.values())).startswith(f"{DISCARDED}: contradiction: ")
    assert not any(event.cost.misses or event.votes.refused for event in run.events)
    assert not any(drop.reason == CONTRADICTION for event in run.events for drop in event.dropped)


class Lying(Federation):
    """The slow client has more samples in round 4 than it said at first."""

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        reply = super().reply(client, given)
        return replace(reply, num_examples=999) if client == SLOW and given.task.round == 4 else reply


@pytest.mark.parametrize("lies", [False, True])
def test_the_row_of_a_client_that_contradicted_itself_is_not_kept(clock: Clock, lies: bool) -> None:
    federation = (Lying if lies else Federation)(spread_out(CLIENTS))
    run = Run(clock, settings={"step-rule": "probed"}, since=3, federation=federation)
    assert [task.round for task in run.tasks if task.exchange == 5] == [5]
    assert run.late == {6: DISCARDED if lies else "its row of round 5 is kept"}


def test_a_run_that_is_resumed_has_the_late_row(clock: Clock, tmp_path: Path) -> None:
    def die(event: RoundEvent) -> None:
        if event.round == 4:
            raise KeyboardInterrupt

    whole = Run(clock)
    with pytest.raises(KeyboardInterrupt):
        Run(clock, settings={"output": str(tmp_path)}, then=die)
    resumed = Run(clock, settings={"output": str(tmp_path), "resume": True}, since=99)
    assert resumed.absent == whole.absent[3:]
    assert resumed.model == whole.model


def slow_loss(clock: Clock, rounds: int) -> tuple[float, set[int]]:
    """Loss of a client that a quorum never waits for, at the end, and whose rows came in time.

    It alone cares for the last coordinate, of which its loss is 1/2 at the start.
    """
    last = np.eye(6)[-1]
    alone, others = Quadratic(last, last), Quadratic(np.eye(6)[0], 1 - last)
    federation = Federation([alone if client == SLOW else others for client in range(CLIENTS)])
    grid = QueueingGrid(federation.app(), CLIENTS, clock)
    for client, node in grid.nodes.items():
        node.seconds = 3.5 if client == SLOW else 1.0
    shared = {"rounds": 30, "quorum": 5 / 6, "local.lr": 0.01, "step-rule": "clipped"}
    settings = {**shared, "dqn-fed.form": "anchored", "dqn-fed.anchor": "fedsgd", "dqn-fed.absent-rounds": rounds}
    server = DQNFed(strategy(CLIENTS, settings).settings)
    server.start(grid, start_at(np.zeros(6)))
    assert server.outcome is not None
    heard = {client for event in server.outcome.events for client in event.votes.heard}
    return federation.objectives[SLOW].loss(np.asarray(server.outcome.theta, np.float64)), heard


def test_a_quorum_learns_from_late_rows_alone(clock: Clock) -> None:
    discarded, kept = slow_loss(clock, 0), slow_loss(clock, 10)
    assert SLOW not in discarded[1] | kept[1]
    assert discarded[0] == 0.5
    assert kept[0] < 0.45
    assert kept == slow_loss(clock, 10)  # the simulated clock has one order of arrival


def test_with_a_quorum_nobody_is_harmed_who_answers_in_time(clock: Clock) -> None:
    federation = Federation(spread_out(CLIENTS))
    grid = QueueingGrid(federation.app(), CLIENTS, clock)

    def tire(event: RoundEvent) -> None:
        for client, node in grid.nodes.items():
            node.seconds = 1.0 + 2 * ((client + event.round) % 4)

    settings = {"rounds": 20, "quorum": 0.5, "dqn-fed.form": "anchored", "guarantee.entitlement": "0"}
    server = DQNFed(strategy(CLIENTS, {**settings, "step-rule": "probed"}).settings, listeners=[After(tire)])
    server.start(grid, start_at(np.zeros(6)))
    assert server.outcome is not None
    judged = 0
    for event in server.outcome.events:
        before, after = np.array(event.losses_before), np.array(event.losses_after)
        in_time = ~np.isnan(after)
        assert not_above(after[in_time], before[in_time]).all()
        judged += int(in_time.sum()) * event.moved
    assert judged > 20
    assert {drop.reason for event in server.outcome.events for drop in event.dropped} >= {LATE, "absent"}
