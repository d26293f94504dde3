from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.config import Settings


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, 1),
        ({"participation": 0.9}, 1),
        ({"participation": 0.5}, 2),
        ({"participation": 0.1}, 10),
        ({"clients": 1000, "participation": 0.01}, 100),
        ({"clients": 3, "participation": 0.01}, 3),  # one is asked
        ({"evaluate-every": "auto", "participation": 0.1}, 10),
        ({"evaluate-every": 1, "participation": 0.1}, 1),
        ({"evaluate-every": 0, "participation": 0.1}, 0),
    ],
)
def test_all_are_evaluated_about_as_often_as_each_is_asked(chosen: dict[str, float | str], expected: int) -> None:
    assert Settings.from_mapping(chosen).evaluate_every == expected


@given(st.integers(1, 5000), st.floats(1e-4, 1))
def test_evaluations_ask_at_most_half_as_many_again_as_training(clients: int, share: float) -> None:
    settings = Settings.from_mapping({"clients": clients, "participation": share, "min-clients": 1})
    assert clients / settings.evaluate_every <= 1.5 * settings.sampled


def test_what_a_run_writes_down_is_the_number() -> None:
    flat = Settings.from_mapping({"participation": 0.1}).flat()
    assert flat["evaluate-every"] == 10
    assert Settings.from_mapping(flat).evaluate_every == 10
