from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard as dense

from dqnfed_flwr.masked.secrets import KEY
from dqnfed_flwr.masked.spread import Spread, hadamard


def seed(number: int) -> bytes:
    return bytes([number % 256] * KEY)


@pytest.mark.parametrize("power", range(9))
def test_transform_is_the_matrix_of_hadamard_over_the_root(power: int) -> None:
    values = np.random.default_rng(power).standard_normal(1 << power).astype(np.float32)
    np.testing.assert_allclose(hadamard(values), dense(1 << power) @ values / np.sqrt(1 << power), rtol=1e-5, atol=1e-5)


@given(st.integers(1, 3000), st.integers(0, 99))
def test_spread_vectors_keep_their_products_and_come_back(dim: int, number: int) -> None:
    spread, (one, other) = Spread(dim, 5, seed(number)), np.random.default_rng(number).standard_normal((2, dim))
    turned = spread.out(one), spread.out(other)
    assert turned[0] @ turned[1] == pytest.approx(one @ other, abs=1e-5 * np.sqrt(one @ one * (other @ other)))
    np.testing.assert_allclose(spread.back(turned[0]), one, atol=1e-5)


@given(st.integers(1, 5000), st.integers(0, 99), st.sampled_from(["one", "few", "all", "heavy"]))
def test_no_value_is_beyond_the_reach_whatever_the_vector(dim: int, number: int, kind: str) -> None:
    draws = np.random.default_rng(number)
    vector = {
        "one": np.eye(1, dim, number % dim)[0],
        "few": np.arange(dim) < 3,
        "all": np.ones(dim),
        "heavy": draws.standard_normal(dim) ** 9,
    }[kind].astype(np.float64)
    spread = Spread(dim, 5, seed(number))
    assert np.abs(spread.out(vector)).max() <= spread.reach * np.linalg.norm(vector) * (1 + 1e-5)


def test_reach_falls_with_the_root_of_the_length() -> None:
    reaches = [Spread(dim, 10, b"").reach for dim in (1, 100, 10_000, 1_000_000)]
    assert reaches[0] == 1
    assert all(after < before for before, after in pairwise(reaches))
    assert reaches[-1] < 10 / np.sqrt(2**19)


def test_signs_are_others_for_another_seed() -> None:
    vector = np.ones(2000)
    one, other = (Spread(2000, 5, seed(number)).out(vector) for number in (1, 2))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15
