"""Work done ahead: the same results under the same keys, a bounded number of them, and an end to what nobody takes."""

from __future__ import annotations

import threading
import time

import pytest

from dqnfed_flwr.engine.ahead import HELD, Ahead

INPUTS = {str(number): number for number in range(20)}


@pytest.mark.parametrize("threads", [1, 3])
def test_every_result_is_that_of_its_own_input(threads: int) -> None:
    ahead: Ahead[int, int] = Ahead(lambda number: number**2, threads)
    ahead.put(INPUTS)
    assert [ahead.take(str(number)) for number in reversed(range(20))] == [n**2 for n in reversed(range(20))]
    with pytest.raises(KeyError):
        ahead.take("3")


def test_no_more_than_a_few_results_wait() -> None:
    begun: list[int] = []
    ahead = Ahead(begun.append, 2)
    ahead.put(INPUTS)
    ahead.take("0")
    ahead.put({})
    assert set(begun) <= set(range(1 + HELD * 2))


def test_as_many_calls_at_a_time_as_there_are_threads() -> None:
    together = threading.Barrier(3)
    ahead: Ahead[int, int] = Ahead(lambda _: together.wait(timeout=20), 3)
    ahead.put({"a": 0, "b": 0, "c": 0})
    assert {ahead.take(key) for key in "abc"} == {0, 1, 2}  # each would wait for ever if it were alone


def test_new_inputs_wait_for_what_is_under_way_and_forget_the_rest() -> None:
    done, started = [], threading.Event()

    def work(number: int) -> int:
        if number == 1:
            started.set()
            time.sleep(0.1)
        done.append(number)
        return number

    ahead = Ahead(work, 2)
    ahead.put({"0": 0, "1": 1, **{str(n): n for n in range(2, 9)}})
    ahead.take("0")
    assert started.wait(20)
    ahead.put({"9": 9})
    assert 1 in done
    assert 8 not in done
    assert ahead.take("9") == 9
