"""Results computed ahead: the same under the same keys, a bounded number of them, and an end to what nobody takes."""

from __future__ import annotations

import threading
import time

import pytest

from dqnfed_flwr.engine.in_process import HELD, Prefetch

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
