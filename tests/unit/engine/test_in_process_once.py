"""A call made once for all who need it."""

from __future__ import annotations

import threading
import time

import pytest

from dqnfed_flwr.engine.in_process import CallOnce


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
