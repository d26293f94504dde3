"""Who is there: queries that nobody waits for, and partitions that are claimed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from benchmarks._clock import Clock
from dqnfed_flwr import wire
from dqnfed_flwr.errors import ConfigError, DataError, QuorumError
from dqnfed_flwr.strategy import client_registry
from dqnfed_flwr.strategy.client_registry import ASK_AGAIN_SECONDS, ClientRegistry
from tests.helpers.grids import ChangingGrid, SilentGrid
from tests.helpers.quadratics import Federation, spread_out


def at_rest(grid: ChangingGrid) -> None:
    """Change nothing."""


def app(clients: int = 4) -> ClientApp:
    return Federation(spread_out(clients)).app()


def nodes(registry: ClientRegistry) -> dict[int, int]:
    return {client: member.node_id for client, member in registry.members.items()}


def test_all_are_met_at_once_where_all_answer(clock: Clock) -> None:
    registry = ClientRegistry(4, 1, 60)
    registry.wait(ChangingGrid(app(), 4, at_rest))
    assert nodes(registry) == {0: 2, 1: 3, 2: 4, 3: 5}
    member = registry.members[2]
    assert (member.num_examples, member.num_classes, member.input_shape) == (12, 2, (1,))
    assert clock.slept == 0


def test_a_wait_that_is_over_is_not_repeated(clock: Clock) -> None:
    registry = ClientRegistry(5, 3, 60)
    registry.wait(ChangingGrid(app(), 4, at_rest))
    slept = clock.slept
    registry.wait(ChangingGrid(app(), 4, at_rest))
    assert clock.slept == slept


def test_a_late_node_is_waited_for(clock: Clock) -> None:
    def plan(grid: ChangingGrid) -> None:
        if grid.looked == 1:
            grid.leave(5)
        if grid.looked == 7:
            grid.join(9, client=3)

    registry = ClientRegistry(4, 1, 60)
    registry.wait(ChangingGrid(app(), 4, plan))
    assert nodes(registry)[3] == 9
    assert 0 < clock.slept < 10


def test_waiting_ends_with_the_deadline_and_enough_clients(clock: Clock) -> None:
    registry = ClientRegistry(5, 3, 60)
    registry.wait(ChangingGrid(app(), 4, at_rest))
    assert len(registry.members) == 4
    assert clock.slept == pytest.approx(60, abs=1)
    with pytest.raises(QuorumError, match=r"4 of 6 clients came within 60 s; at least 5 are needed \(min-clients\)"):
        ClientRegistry(6, 5, 60).wait(ChangingGrid(app(), 4, at_rest))


def test_too_few_are_waited_for_over_several_deadlines(clock: Clock) -> None:
    def plan(grid: ChangingGrid) -> None:
        if grid.looked == 1:
            for node in (2, 3, 4, 5):
                grid.leave(node)
        if clock.now > began + 100:
            grid.join(9, client=3)

    began = clock.now
    registry = ClientRegistry(4, 1, 30, retries=3)
    registry.wait(ChangingGrid(app(), 4, plan))
    assert nodes(registry) == {3: 9}
    assert 100 < clock.slept < 105
    with pytest.raises(QuorumError, match="0 of 4 clients came within 120 s"):
        ClientRegistry(4, 1, 30, retries=3).wait(ChangingGrid(app(), 0, at_rest))


def test_a_node_that_does_not_answer_the_query_holds_up_nobody(clock: Clock) -> None:
    class Mute(SilentGrid):
        def pull_messages(self, message_ids: object) -> list[Message]:
            quiet = {n for n, message in self._waiting.items() if message.metadata.dst_node_id in self.silent}
            return super(SilentGrid, self).pull_messages([n for n in self._waiting if n not in quiet])

    grid = Mute(app(), 4, silent=[1])
    registry = ClientRegistry(4, 1, 60)
    registry.refresh(grid)
    assert sorted(registry.members) == [0, 2, 3]
    assert clock.slept == 0
    grid.silent.clear()  # its answer comes late
    registry.refresh(grid)
    assert sorted(registry.members) == [0, 1, 2, 3]


def test_a_node_that_lost_the_query_is_asked_again_and_ever_more_rarely(clock: Clock) -> None:
    asked: list[float] = []

    class Losing(ChangingGrid):
        """Client 1's process dies over what it is sent, until there are three queries."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            given = list(messages)
            sent = super().push_messages(given)
            for number, message in zip(sent, given, strict=True):
                if message.metadata.dst_node_id == 3:
                    asked.append(clock.now)
                    if len(asked) < 3:
                        del self._waiting[number]
            return sent

    grid, registry = Losing(app(), 4, at_rest), ClientRegistry(4, 1, 60)
    began = clock.now
    while len(registry.members) < 4:
        registry.refresh(grid)
        clock.now += 1
    assert [when - began for when in asked] == [0, ASK_AGAIN_SECONDS, 3 * ASK_AGAIN_SECONDS]


def test_a_node_that_fails_is_asked_again_after_a_while(clock: Clock) -> None:
    asked: Counter[int] = Counter()
    inner = app()
    failing = ClientApp()

    @failing.query()
    def query(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        asked[client] += 1
        if client == 1 and asked[1] < 3:
            raise ConfigError("no data yet")
        return inner(message, context)

    grid, registry = ChangingGrid(failing, 4, at_rest), ClientRegistry(4, 1, 60)
    for _ in range(10):
        registry.refresh(grid)
    assert sorted(registry.members) == [0, 2, 3]
    assert asked == {0: 1, 1: 1, 2: 1, 3: 1}
    for _ in range(2):
        clock.now += ASK_AGAIN_SECONDS + 1
        registry.refresh(grid)
    assert asked[1] == 3
    assert sorted(registry.members) == [0, 1, 2, 3]


def test_waiting_ends_when_all_have_spoken_even_if_not_all_can_take_part(clock: Clock) -> None:
    inner, failing = app(), ClientApp()

    @failing.query()
    def query(message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) in (1, 2):
            raise DataError("the file is missing")
        return inner(message, context)

    registry = ClientRegistry(4, 2, 60)
    registry.wait(ChangingGrid(failing, 4, at_rest))
    assert sorted(registry.members) == [0, 3]
    assert clock.slept == 0
    with pytest.raises(QuorumError, match=r"2 of 4 clients .* 2 could not take part: .*DataError: the file is missing"):
        ClientRegistry(4, 3, 60).wait(ChangingGrid(failing, 4, at_rest))


@pytest.mark.parametrize(
    "properties", [{}, {"partition": "x"}, {"partition": 1, "num-examples": 5, "num-classes": 2, "input-shape": "a"}]
)
def test_a_node_with_odd_properties_does_not_take_part(clock: Clock, properties: dict[str, str | int]) -> None:
    inner = app()

    class Odd(ClientApp):
        def __call__(self, message: Message, context: Context) -> Message:
            if context.node_config["partition-id"] == 1 and message.metadata.message_type == MessageType.QUERY:
                return Message(wire.encode_properties(properties), reply_to=message)
            return inner(message, context)

    registry = ClientRegistry(4, 1, 60)
    registry.refresh(ChangingGrid(Odd(), 4, at_rest))
    assert sorted(registry.members) == [0, 2, 3]


def test_a_node_that_comes_back_under_another_id_takes_its_partition_up_again(clock: Clock) -> None:
    grid, registry = ChangingGrid(app(), 4, at_rest), ClientRegistry(4, 1, 60)
    registry.refresh(grid)
    grid.join(77, client=3)  # the new life has begun, while the old node still counts as connected
    registry.refresh(grid)
    assert nodes(registry)[3] == 5
    grid.leave(5)
    registry.refresh(grid)
    assert nodes(registry)[3] == 77


def test_of_two_nodes_that_claim_a_partition_the_lower_id_has_it(clock: Clock) -> None:
    grid, registry = ChangingGrid(app(), 4, at_rest), ClientRegistry(4, 1, 60)
    grid.join(1, client=0)
    grid.join(99, client=0)
    registry.refresh(grid)
    assert nodes(registry)[0] == 1
    for gone, following in ((1, 2), (2, 99)):
        grid.leave(gone)
        registry.refresh(grid)
        assert nodes(registry)[0] == following
    grid.leave(99)
    registry.refresh(grid)
    assert 0 not in registry.members


def refusing(reasons: Mapping[int, str]) -> ClientApp:
    """A federation of which some clients cannot take part."""
    inner, failing = app(), ClientApp()

    @failing.query()
    def query(message: Message, context: Context) -> Message:
        if reason := reasons.get(int(context.node_config["partition-id"])):
            raise DataError(reason)
        return inner(message, context)

    return failing


@pytest.mark.usefixtures("clock")
def test_a_reason_that_several_give_is_told_once_and_kept_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(client_registry, "log", lambda level, text, *values: told.append(text % values))
    registry = ClientRegistry(4, 1, 60)
    grid = ChangingGrid(refusing({0: "no file", 2: "no file", 3: "no labels"}), 4, at_rest)
    registry.wait(grid)
    registry.refresh(grid)
    assert [line for line in told if "does not take part" in line] == [
        "Node 2 (and 1 more) does not take part: client-error: code 2: DataError: no file",
        "Node 5 does not take part: client-error: code 2: DataError: no labels",
    ]
    assert registry.refused == {
        "node 2": "client-error: code 2: DataError: no file",
        "node 4": "client-error: code 2: DataError: no file",
        "node 5": "client-error: code 2: DataError: no labels",
    }


@pytest.mark.usefixtures("clock")
def test_the_one_reason_of_all_is_all_that_is_said() -> None:
    reasons = dict.fromkeys(range(4), "no file")
    with pytest.raises(
        QuorumError, match=r"^none of 4 clients can take part: client-error: code 2: DataError: no file$"
    ):
        ClientRegistry(4, 1, 60).wait(ChangingGrid(refusing(reasons), 4, at_rest))
    with pytest.raises(QuorumError, match=r"0 of 4 clients came .* 4 could not take part: client-error: .*: no file"):
        ClientRegistry(4, 1, 60).wait(ChangingGrid(refusing({**reasons, 2: "no labels"}), 4, at_rest))


def named(names: Mapping[int, str]) -> ClientApp:
    """A federation whose nodes have names."""
    inner, naming = app(), ClientApp()

    @naming.query()
    def query(message: Message, context: Context) -> Message:
        reply = inner(message, context)
        said = {**wire.decode_properties(reply.content), "name": names[int(context.node_config["partition-id"])]}
        return Message(wire.encode_properties(said), reply_to=message)

    return naming


@pytest.mark.usefixtures("clock")
def test_the_log_has_the_names_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(client_registry, "log", lambda level, text, *values: told.append(text % values))
    registry = ClientRegistry(3, 1, 60)
    registry.wait(ChangingGrid(named({0: "ward-a", 1: "", 2: "ward\x1b[31m\nINFO: c" + "c" * 200}), 3, at_rest))
    lines = [line for line in told if line.startswith("Client ")]
    assert lines[0] == "Client 0 is node ward-a (2)"
    assert lines[1].startswith("Client 2 is node ward[31mINFO: cc")  # nothing that a terminal would obey
    assert (len(lines), len(lines[1]) < 150) == (2, True)
