from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.methods.fedcorr.labels import upper_component


def test_two_groups_far_apart_are_told_apart() -> None:
    split = upper_component(np.array([1.0, 9.0, 1.1, 0.9, 9.2, 1.05, 8.9]), seed=0)
    assert split.upper.tolist() == [False, True, False, False, True, False, True]
    assert split.status == "converged"


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), power=st.integers(-6, 6), shift=st.floats(-5, 5))
def test_size_and_place_of_the_values_do_not_matter(seed: int, power: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(0, 0.3, 12), rng.normal(4, 0.5, 8)])
    expected = upper_component(values, seed)
    moved = upper_component((values + shift) * 2.0**power, seed)
    assert np.array_equal(moved.upper, expected.upper)
    assert expected.upper.tolist() == [False] * 12 + [True] * 8


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0, 2.0], [0.0, 0.0], [5.0, 5.0 * (1 + 1e-16)]])
def test_without_two_different_values_nothing_is_upper(values: list[float]) -> None:
    split = upper_component(np.array(values), seed=0)
    assert not split.upper.any()
    assert len(split.upper) == len(values)
    assert split.status == "degenerate"


def test_two_values_are_two_groups() -> None:
    assert upper_component(np.array([1.0, 2.0, 1.0, 1.0]), seed=3).upper.tolist() == [False, True, False, False]


def test_a_fit_that_stops_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn import mixture

    class Hasty(mixture.GaussianMixture):  # type: ignore[misc]  # sklearn ships no types
        def __init__(self, n_components: int = 1, random_state: int = 0) -> None:
            super().__init__(n_components, random_state=random_state, max_iter=1, tol=0.0)

    monkeypatch.setattr(mixture, "GaussianMixture", Hasty)
    values = np.random.default_rng(0).normal(size=50)
    assert upper_component(values, seed=0).status == "unconverged"
