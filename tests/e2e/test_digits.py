"""The run that the project is about: real digits, ten clients, every loss falling in every round."""

from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run

ROUNDS = 20


@pytest.fixture(scope="module")
def digits() -> RunResult:
    return run({"rounds": ROUNDS, "local.threads": 1})


def test_every_loss_of_every_client_falls_in_every_round(digits: RunResult) -> None:
    assert digits.improved_ratio == [1.0] * ROUNDS
    for event in digits.events:
        assert event.participants == list(range(10))
        assert all(after <= before for before, after in zip(event.losses_before, event.losses_after, strict=True))
    assert digits.status == "finished"


def test_losses_after_a_round_are_those_before_the_next(digits: RunResult) -> None:
    for event, following in zip(digits.events[:-1], digits.events[1:], strict=True):
        assert following.losses_before == event.losses_after


def test_it_learns(digits: RunResult) -> None:
    assert digits.final["mean"] > 0.9
    assert np.mean(digits.events[-1].losses_after) < 0.2 * np.mean(digits.events[0].losses_before)


def test_two_runs_of_one_seed_are_one(digits: RunResult) -> None:
    again = run({"rounds": ROUNDS, "local.threads": 1})
    assert again.theta.tobytes() == digits.theta.tobytes()
    assert again.accuracies == digits.accuracies
    assert run({"rounds": 1, "local.threads": 1, "seed": 1}).theta.tobytes() != digits.theta.tobytes()


def test_a_model_that_begins_at_zero_trains_as_well() -> None:
    result = run({"rounds": 8, "local.threads": 1, "model": "tests.helpers.models:zeros"})
    assert result.improved_ratio == [1.0] * 8
    assert np.mean(result.events[-1].losses_after) < np.mean(result.events[0].losses_before)
