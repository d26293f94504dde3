"""The in-process grid: real contexts and messages, replies one by one or computed ahead, memory that can be saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dqnfed_flwr.engine.in_process import HELD, CallOnce, Groups, InProcessGrid, Prefetch
from dqnfed_flwr.errors import DataError, ModelError, RunError
from dqnfed_flwr.wire import decode_memory, encode_memory


def echo() -> tuple[ClientApp, list[int]]:
    """An app that notes in which order its nodes were asked, and counts in its memory how often."""
    app, order = ClientApp(), list[int]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        order.append(partition)
        times = decode_memory(context.state).get("times", np.array(0)) + 1
        encode_memory({"times": np.asarray(times)}, context.state)
        if partition == 1:
            raise DataError("labels are missing")
        if partition == 2:
            raise ZeroDivisionError("my fault")
        return Message(RecordDict(), reply_to=message)

    return app, order


def messages(grid: InProcessGrid) -> list[Message]:
    return [Message(RecordDict(), node, "train", group_id="1") for node in grid.get_node_ids()]


def test_every_node_has_a_partition_and_the_run_config() -> None:
    seen = []
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append((context.node_id, dict(context.node_config), dict(context.run_config)))
        return Message(RecordDict(), reply_to=message)

    grid = InProcessGrid(app, 2, {"rounds": 3})
    grid.send_and_receive(messages(grid))
    assert seen == [(node, {"partition-id": node - 2, "num-partitions": 2}, {"rounds": 3}) for node in (2, 3)]


def test_replies_come_one_a_call_in_the_order_of_the_messages() -> None:
    app, order = echo()
    grid = InProcessGrid(app, 4, {})
    numbers = grid.push_messages(messages(grid))
    assert len(set(numbers)) == 4
    assert order == []  # computed when pulled
    for place, number in enumerate(numbers):
        (reply,) = grid.pull_messages(numbers)
        assert reply.metadata.reply_to_message_id == number
        assert order == list(range(place + 1))
    assert grid.pull_messages(numbers) == []


def test_what_nobody_waited_for_is_forgotten() -> None:
    app, order = echo()
    grid = InProcessGrid(app, 4, {})
    late = grid.push_messages(messages(grid))
    grid.pull_messages(late[:1])
    grid.push_messages(messages(grid)[3:])
    assert grid.pull_messages(late) == []
    assert order == [0]  # the others did not even begin


def test_what_a_client_raises_is_an_error_reply() -> None:
    app, _ = echo()
    grid = InProcessGrid(app, 4, {})
    fine, known, unknown, _ = grid.send_and_receive(messages(grid))
    assert not fine.has_error()
    assert (known.error.code, known.error.reason) == (2, "DataError: labels are missing")
    assert unknown.error.code == 2
    assert str(unknown.error.reason).startswith("Traceback")
    assert str(unknown.error.reason).strip().endswith("ZeroDivisionError: my fault")


def test_an_interrupt_is_not_swallowed() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise KeyboardInterrupt

    grid = InProcessGrid(app, 1, {})
    with pytest.raises(KeyboardInterrupt):
        grid.send_and_receive(messages(grid))


def test_the_clients_memory_survives_the_grid() -> None:
    app, _ = echo()
    grid = InProcessGrid(app, 4, {})
    grid.send_and_receive(messages(grid))
    grid.send_and_receive(messages(grid))
    states = grid.export_client_states()
    assert {name: int(value) for name, value in states.items()} == {f"{node}/times": 2 for node in (2, 3, 4, 5)}
    another = InProcessGrid(app, 4, {})
    assert another.export_client_states() == {}
    another.restore_client_states(states)
    another.send_and_receive(messages(another))
    assert {int(value) for value in another.export_client_states().values()} == {3}


def test_messages_are_made_as_flower_wants_it() -> None:
    grid = InProcessGrid(ClientApp(), 1, {})
    with pytest.raises(RunError, match=r"build a flwr\.app\.Message"):
        grid.create_message(RecordDict(), "train", 2, "1")
    assert grid.run.run_id == messages(grid)[0].metadata.run_id


@pytest.mark.parametrize("jobs", [1, 3])
def test_what_a_group_does_together_is_done_once_before_its_answers(jobs: int) -> None:
    app, order = echo()
    done: list[tuple[int, int]] = []

    def together(asked: Sequence[tuple[Message, Context]]) -> None:
        nodes = [context.node_id for _, context in asked]
        assert not {node - 2 for node in nodes} & set(order)
        done.append((nodes[0], len(nodes)))

    grid = InProcessGrid(app, 9, {}, jobs=jobs, groups=Groups(4, together))
    for _ in range(2):
        grid.send_and_receive(messages(grid))
        assert sorted(done) == [(2, 4), (6, 4), (10, 1)]
        assert sorted(order) == list(range(9))
        done.clear()
        order.clear()


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_group_that_cannot_work_together_answers_all_the_same_unless_the_model_is_at_fault(jobs: int) -> None:
    faults: list[Exception] = [DataError("a client is at fault"), ModelError("the settings are at fault")]

    def together(asked: Sequence[tuple[Message, Context]]) -> None:
        del asked
        raise faults[0]

    app, order = echo()
    grid = InProcessGrid(app, 4, {}, jobs=jobs, groups=Groups(2, together))
    grid.send_and_receive(messages(grid))
    assert sorted(order) == list(range(4))
    faults.pop(0)
    with pytest.raises(ModelError, match="the settings are at fault"):
        grid.send_and_receive(messages(grid))


def test_several_clients_at_a_time_give_the_same_replies_and_memories() -> None:
    found = []
    for jobs in (1, 3):
        app, _ = echo()
        grid = InProcessGrid(app, 9, {}, jobs=jobs)
        for _ in range(2):
            replies = grid.send_and_receive(messages(grid))
        found.append(
            (
                [(reply.metadata.src_node_id, reply.has_error()) for reply in replies],
                {name: int(value) for name, value in grid.export_client_states().items()},
            )
        )
    assert found[0] == found[1]


def test_threads_that_come_meanwhile_wait_for_the_one_call() -> None:
    calls: list[int] = []

    def slow() -> None:
        time.sleep(0.05)
        calls.append(1)

    once, seen = CallOnce(slow), list[int]()

    def need() -> None:
        once()
        seen.append(len(calls))

    threads = [threading.Thread(target=need) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 4


def test_all_are_told_of_a_failure() -> None:
    def fail() -> None:
        raise ValueError("no")

    once = CallOnce(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            once()


INPUTS = {str(number): number for number in range(20)}


@pytest.mark.parametrize("threads", [1, 3])
def test_every_result_is_that_of_its_own_input(threads: int) -> None:
    prefetch: Prefetch[int, int] = Prefetch(lambda number: number**2, threads)
    prefetch.put(INPUTS)
    assert [prefetch.take(str(number)) for number in reversed(range(20))] == [n**2 for n in reversed(range(20))]
    with pytest.raises(KeyError):
        prefetch.take("3")


def test_no_more_than_a_few_results_wait() -> None:
    begun: list[int] = []
    prefetch = Prefetch(begun.append, 2)
    prefetch.put(INPUTS)
    prefetch.take("0")
    prefetch.put({})
    assert set(begun) <= set(range(1 + HELD * 2))


def test_as_many_calls_at_a_time_as_there_are_threads() -> None:
    together = threading.Barrier(3)
    prefetch: Prefetch[int, int] = Prefetch(lambda _: together.wait(timeout=20), 3)
    prefetch.put({"a": 0, "b": 0, "c": 0})
    assert {prefetch.take(key) for key in "abc"} == {0, 1, 2}  # each would wait for ever if it were alone


def test_new_inputs_wait_for_what_is_under_way_and_forget_the_rest() -> None:
    done, started = [], threading.Event()

    def work(number: int) -> int:
        if number == 1:
            started.set()
            time.sleep(0.1)
        done.append(number)
        return number

    prefetch = Prefetch(work, 2)
    prefetch.put({"0": 0, "1": 1, **{str(n): n for n in range(2, 9)}})
    prefetch.take("0")
    assert started.wait(20)
    prefetch.put({"9": 9})
    assert 1 in done
    assert 8 not in done
    assert prefetch.take("9") == 9
