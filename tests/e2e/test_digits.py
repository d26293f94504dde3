"""The run that the project is about: real digits, ten clients, nobody harmed in any round."""

from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run

ROUNDS = 20


@pytest.fixture(scope="module")
def digits() -> RunResult:
    return run({"rounds": ROUNDS, "local.threads": 1})


def test_nobody_is_harmed_in_any_round(digits: RunResult) -> None:
    assert [event.unharmed_ratio for event in digits.events] == [1.0] * ROUNDS
    for event in digits.events:
        assert event.participants == [*event.votes.heard] == list(range(10))
        assert event.entitlement <= 0.5 * np.mean(event.losses_before) + 1e-12
        before, after = np.array(event.losses_before), np.array(event.losses_after)
        assert (after <= np.maximum(before * (1 + 1e-6) + 1e-9, event.entitlement)).all()
    assert (np.diff([event.entitlement for event in digits.events]) <= 0).all()
    assert digits.status == "finished"


def test_every_loss_of_every_client_falls_in_every_round_where_none_may_rise() -> None:
    strict = run({"rounds": ROUNDS, "local.threads": 1, "guarantee.entitlement": 0})
    assert strict.improved_ratio == [1.0] * ROUNDS
    for event in strict.events:
        assert event.entitlement == 0
        assert all(
            after <= before * (1 + 1e-6) + 1e-9
            for before, after in zip(event.losses_before, event.losses_after, strict=True)
        )
    assert strict.status == "finished"


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
    assert all(event.moved and not event.harmed for event in result.events)
    assert np.mean(result.events[-1].losses_after) < np.mean(result.events[0].losses_before)
