"""An exchange: who has answered when it closes, and when it does."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.clientapp import ClientApp
from google.protobuf.message import DecodeError

from benchmarks._clock import Clock
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.strategy.exchange import Answer, send_and_receive

NODES = [2, 3, 4, 5]


class SlowGrid(InProcessGrid):
    """Nodes answer so many seconds after they were asked; an exception in place of seconds is raised when pulled."""

    def __init__(self, clock: Clock, answers: dict[int, float | Exception], failing: Iterable[int] = ()) -> None:
        super().__init__(ClientApp(), len(answers), {})
        self._clock, self._answers, self._failing = clock, answers, set(failing)
        self._began = clock.now
        self.most_pulled = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = super().push_messages(messages)
        self._began = self._clock.now
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = list(message_ids)
        self.most_pulled = max(self.most_pulled, len(asked))
        replies = []
        for number in asked:
            node = self._waiting[number].metadata.dst_node_id
            answer = self._answers[node]
            if isinstance(answer, Exception):
                raise answer
            if self._clock.now - self._began >= answer:
                replies.append(self._reply(number, node))
        return replies

    def _reply(self, number: str, node: int) -> Message:
        message = self._waiting[number]
        if node in self._failing:
            return Message(Error(2, "out of data"), reply_to=message)
        return Message(RecordDict(), reply_to=message)


def outcome(answer: Answer) -> str:
    try:
        answer.content()
    except WireError as error:
        return error.reason
    return "answered"


def to_all() -> list[Message]:
    return [Message(RecordDict(), node, "train", group_id="1") for node in NODES]


def talk(grid: InProcessGrid, deadline: float = 10, quorum: float = 1.0) -> dict[int, str]:
    answers = list(send_and_receive(grid, to_all(), deadline=deadline, quorum=quorum))
    assert sorted(answer.node for answer in answers) == NODES  # one for every node
    return {answer.node: outcome(answer) for answer in answers}


def test_it_closes_when_all_have_answered(clock: Clock) -> None:
    grid = SlowGrid(clock, {2: 0, 3: 3, 4: 1, 5: 0})
    assert talk(grid) == dict.fromkeys(NODES, "answered")
    assert 3 <= clock.slept < 3.5


def test_answers_come_in_the_order_of_their_arrival_one_at_a_time(clock: Clock) -> None:
    grid = SlowGrid(clock, {2: 5, 3: 1, 4: 9, 5: 3})
    answers = send_and_receive(grid, to_all(), deadline=60)
    assert [answer.node for answer in answers] == [3, 5, 2, 4]
    assert grid.most_pulled == 1


def test_whoever_is_late_is_absent(clock: Clock) -> None:
    grid = SlowGrid(clock, {2: 0, 3: 99, 4: 0, 5: 99})
    assert talk(grid, deadline=10) == {2: "answered", 3: "absent", 4: "answered", 5: "absent"}
    assert clock.slept == pytest.approx(10)


def test_a_quorum_is_enough(clock: Clock) -> None:
    grid = SlowGrid(clock, {2: 0, 3: 2, 4: 4, 5: 99})
    assert talk(grid, deadline=60, quorum=0.75) == {2: "answered", 3: "answered", 4: "answered", 5: "absent"}
    assert clock.slept < 5


def judged(grid: InProcessGrid, judges: list[int], needed: int, unawaited: Iterable[int] = ()) -> dict[int, str]:
    found = send_and_receive(
        grid, to_all(), deadline=10, quorum=0.25, judges=judges, needed=needed, unawaited={*unawaited}
    )
    return {answer.node: outcome(answer) for answer in found}


@pytest.mark.parametrize(("needed", "after", "late"), [(0, 0, [3, 4, 5]), (1, 2, [4, 5]), (2, 4, [5])])
def test_a_quorum_waits_for_as_many_judges_as_are_needed(
    clock: Clock, needed: int, after: float, late: list[int]
) -> None:
    found = judged(SlowGrid(clock, {2: 0, 3: 2, 4: 4, 5: 99}), [3, 4, 5], needed)
    assert [node for node, said in found.items() if said == "absent"] == late
    assert after <= clock.slept < after + 0.6


def test_judges_that_do_not_answer_are_waited_for_until_the_deadline(clock: Clock) -> None:
    found = judged(SlowGrid(clock, {2: 0, 3: 99, 4: 4, 5: 99}), [3, 5], 1)
    assert found == {2: "answered", 3: "absent", 4: "answered", 5: "absent"}
    assert clock.slept == pytest.approx(10)


def test_judges_that_fail_hold_nobody_up(clock: Clock) -> None:
    assert judged(SlowGrid(clock, {2: 0, 3: 1, 4: 9, 5: 9}, failing=[3]), [3], 1)[3] == "client-error"
    assert clock.slept < 2


def test_judges_on_trial_hold_nobody_up_and_have_a_say(clock: Clock) -> None:
    assert judged(SlowGrid(clock, {2: 0, 3: 99, 4: 99, 5: 99}), [3], 1, unawaited=[3])[3] == "absent"
    assert clock.slept == 0
    assert judged(SlowGrid(clock, {2: 3, 3: 1, 4: 99, 5: 99}), [3, 4], 1, unawaited=[3])[3] == "answered"
    assert clock.slept < 4


def test_an_error_does_not_count_towards_the_quorum(clock: Clock) -> None:
    grid = SlowGrid(clock, {2: 0, 3: 0, 4: 3, 5: 3}, failing=[2, 3])
    found = talk(grid, quorum=0.5)
    assert found == {2: "client-error", 3: "client-error", 4: "answered", 5: "answered"}


def test_it_closes_when_nobody_is_left_to_wait_for(clock: Clock) -> None:
    assert talk(SlowGrid(clock, dict.fromkeys(NODES, 0.0), failing=NODES)) == dict.fromkeys(NODES, "client-error")
    assert clock.slept == 0


@pytest.mark.parametrize(
    "fault", [ValueError("no header"), TypeError("shape"), KeyError("vectors"), DecodeError("cut")]
)
def test_a_reply_that_cannot_be_unpacked_takes_no_other_with_it(clock: Clock, fault: Exception) -> None:
    grid = SlowGrid(clock, {2: 0, 3: fault, 4: 0, 5: 0})
    assert talk(grid) == {2: "answered", 3: "unreadable", 4: "answered", 5: "answered"}


def test_a_lost_server_is_not_taken_for_a_bad_client(clock: Clock) -> None:
    with pytest.raises(ConnectionError):
        talk(SlowGrid(clock, {2: 0, 3: ConnectionError("refused"), 4: 0, 5: 0}))


def test_a_message_that_could_not_be_sent_leaves_its_node_absent(clock: Clock) -> None:
    class Refusing(SlowGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            first, *others = super().push_messages(messages)
            del self._waiting[first]
            return ["", *others]  # as Flower's, which gives None for a message that it did not take

    assert talk(Refusing(clock, dict.fromkeys(NODES, 0.0)))[2] == "absent"
    assert clock.slept == 0


def test_the_reason_keeps_the_end_of_a_long_traceback() -> None:
    message = Message(RecordDict(), 2, "train")
    reply = Message(Error(2, "Traceback\n" + "x" * 5000 + "\nValueError: at last"), reply_to=message)
    with pytest.raises(WireError, match=r"^client-error: code 2: Traceback(?s:.*)ValueError: at last$") as caught:
        Answer(2, reply).content()
    assert len(caught.value.detail) < 2100
