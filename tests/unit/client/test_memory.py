"""What a client keeps for a method, when rounds come again."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from dqnfed_flwr.client.memory import RoundMemory
from dqnfed_flwr.errors import ShapeError


def memory(*rounds: int) -> RoundMemory:
    kept = RoundMemory(torch.float32, torch.device("cpu"))
    for number in rounds:
        kept.keep(number, {"v": torch.tensor(float(number))})
    return kept


def held(kept: RoundMemory, number: int) -> float | None:
    found = kept.before(number)
    return float(found["v"]) if found else None


def test_the_last_round_can_be_done_again() -> None:
    kept = memory(1, 2, 3)
    assert [held(kept, number) for number in (4, 3)] == [3.0, 2.0]
    kept.keep(3, {"v": torch.tensor(30.0)})
    assert [held(kept, number) for number in (4, 3)] == [30.0, 2.0]


def test_a_client_that_is_sampled_goes_back_to_its_last_round() -> None:
    kept = memory(3, 7)
    assert [held(kept, number) for number in (9, 7, 5, 4)] == [7.0, 3.0, 3.0, 3.0]
    assert [held(memory(3), number) for number in (4, 3, 1)] == [3.0, None, None]


def test_further_back_it_begins_anew_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(logging.getLogger("flwr"), "warning", lambda text, *given: told.append(text % given))
    kept = memory(1, 2, 3)
    assert held(kept, 2) is None  # not 2, which is what held after round 2
    kept.keep(2, {"v": torch.tensor(20.0)})
    assert [text[:19] for text in told] == ["Round 2 comes again"]
    assert [held(kept, number) for number in (3, 2, 1)] == [20.0, None, None]
    kept.keep(2, {"v": torch.tensor(21.0)})
    kept.keep(3, {"v": torch.tensor(30.0)})
    assert len(told) == 1
    assert [held(kept, number) for number in (4, 3, 2)] == [30.0, 21.0, None]


@pytest.mark.parametrize("rounds", [(), (5,), (3, 7), (1, 2, 3), (3, 7, 2)])
def test_a_memory_read_back_is_the_memory_written(rounds: tuple[int, ...]) -> None:
    written, read = memory(*rounds), memory()
    read.load(written.export())
    assert [held(read, number) for number in range(1, 9)] == [held(written, number) for number in range(1, 9)]
    assert read.export().keys() == written.export().keys()


@pytest.mark.parametrize("lost", ["round", "before/since"])
def test_a_memory_that_lacks_a_round_is_refused(lost: str) -> None:
    stored = {name: values for name, values in memory(3, 7).export().items() if name != lost}
    with pytest.raises(ShapeError, match="lack a round; restore what `export` gave"):
        memory().load(stored)


def test_entries_that_nobody_wrote_are_refused() -> None:
    with pytest.raises(ShapeError, match="unknown entry 'later/v'"):
        memory().load({"later/v": np.array(1.0)})
