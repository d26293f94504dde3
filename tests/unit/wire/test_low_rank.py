"""Matrices in low rank: as near as the singular values allow, as long as the sides say, and nothing unreadable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.low_rank import SIDES, LowRank
from dqnfed_flwr.wire.rounding import CODES, Parts

SHAPES = ((40, 30), (40,), (), (8, 4, 3, 3), (0, 5), (3, 2))
DIM = 40 * 30 + 40 + 1 + 8 * 36 + 6
BFLOAT16 = 2.0**-7


def sent(vector: FloatArray, rank: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> tuple[FloatArray, Parts]:
    parts = LowRank(rank, shapes).pack(vector, np.random.default_rng(0))
    return LowRank().unpack(parts, vector.shape), parts


def drawn(seed: int, dim: int = DIM) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(dim).astype(np.float32)


@given(seed=st.integers(0, 1000), rank=st.integers(1, 6), power=st.integers(-60, 60))
def test_a_matrix_of_low_rank_is_itself_but_for_bfloat16(seed: int, rank: int, power: int) -> None:
    draws = np.random.default_rng(seed)
    left, right = draws.standard_normal((40, rank)), draws.standard_normal((rank, 30))
    matrix = (left @ right * 2.0**power).astype(np.float32)
    found, _ = sent(matrix.reshape(-1), rank, ((40, 30),))
    assert np.linalg.norm(found - matrix.reshape(-1)) <= 3 * BFLOAT16 * np.linalg.norm(matrix)


@given(seed=st.integers(0, 300), rank=st.integers(1, 8))
def test_what_is_lacking_is_little_more_than_the_smaller_singular_values(seed: int, rank: int) -> None:
    """The best that a matrix of the rank can do is the root of the sum of their squares (Eckart and Young)."""
    matrix = drawn(seed, 1200).reshape(40, 30) * np.float32(0.7) ** np.arange(30, dtype=np.float32)
    values = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    found, _ = sent(matrix.reshape(-1), rank, ((40, 30),))
    lacking, best = np.linalg.norm(found - matrix.reshape(-1)), np.linalg.norm(values[rank:])
    assert best * 0.99 <= lacking <= 1.1 * best + 3 * BFLOAT16 * np.linalg.norm(matrix)


@pytest.mark.parametrize(("rank", "numbers"), [(1, 70 + 41 + 44 + 5), (2, 140 + 41 + 88 + 6), (20, DIM)])
def test_factors_are_sent_where_they_are_shorter(rank: int, numbers: int) -> None:
    found, parts = sent(drawn(1), rank)
    assert parts[CODES].nbytes == 2 * numbers
    assert found.shape == (DIM,)
    assert found.dtype == np.float32
    small = slice(1200, 1241)  # a side alone, and a number
    assert (np.abs(found[small] - drawn(1)[small]) <= BFLOAT16 * np.abs(drawn(1)[small])).all()


def test_a_step_of_float64_and_one_of_zeros() -> None:
    found, _ = sent(drawn(2).astype(np.float64), 2)
    np.testing.assert_array_equal(found, sent(drawn(2), 2)[0])
    zeros = np.zeros(DIM, np.float32)
    np.testing.assert_array_equal(sent(zeros, 3)[0], zeros)


def test_products_are_added_in_their_order_value_by_value() -> None:
    """So that two machines with other libraries have the same bits."""
    found, parts = sent(drawn(3, 1200), 3, ((40, 30),))
    factors = (parts[CODES].astype(np.uint32) << 16).view(np.float32).reshape(3, 70)
    for row in range(40):
        for column in range(30):
            value = np.float32(0)
            for factor in factors:
                value = np.float32(value + np.float32(factor[row] * factor[40 + column]))
            assert found[row * 30 + column] == value


def changed(parts: Parts, sides: object) -> dict[str, NDArray[np.generic]]:
    return {**parts, SIDES: np.array(sides, np.int64)}


@pytest.mark.parametrize(
    ("sides", "named"),
    [
        ([[40, 30, 2], [6, 1, 1]], "140 factors of 1206 values; 1200 values are needed"),
        ([[40, 30, 1]], "140 factors of 1200 values; 1200 values are needed"),
        ([[40, 31, 2]], "140 factors of 1240 values; 1200 values are needed"),
        ([[40, -30, 2]], "a part of sides 40 and -30 and rank 2 among 1200 values"),
        ([[-40, -30, 0]], "a part of sides -40 and -30 and rank 0"),
        ([[40, 30, -2]], "rank -2"),
        ([[40, 30, 2], [0, 0, 2**40]], f"a part of sides 0 and 0 and rank {2**40}"),
        ([[40, 30, 2], [0, 2**62, 0]], f"a part of sides 0 and {2**62} and rank 0"),
        ([[2**62, 2**62, 2]], "a part of sides"),
        ([40, 30, 2], r"sides of shape \(3,\); need \[L, 3\]"),
        ([[40, 30]], r"sides of shape \(1, 2\); need \[L, 3\]"),
        ([], r"sides of shape \(0,\); need \[L, 3\]"),
    ],
)
def test_sides_that_do_not_fit_are_refused(sides: object, named: str) -> None:
    _, parts = sent(drawn(4, 1200), 2, ((40, 30),))
    with pytest.raises(ShapeError, match=named):
        LowRank().unpack(changed(parts, sides), (1200,))


def test_negative_sides_of_as_many_values_are_refused() -> None:
    parts = LowRank(1, ((1200,),)).pack(drawn(4, 1200), np.random.default_rng(0))
    with pytest.raises(ShapeError, match="a part of sides -40 and -30"):
        LowRank().unpack(changed(parts, [[-40, -30, 0]]), (1200,))


def test_factors_that_are_missing_are_refused() -> None:
    _, parts = sent(drawn(4, 1200), 2, ((40, 30),))
    with pytest.raises(ShapeError, match="139 factors of 1200 values; 1200 values are needed"):
        LowRank().unpack({**parts, CODES: parts[CODES][:-1]}, (1200,))


def test_shapes_of_another_model_are_refused() -> None:
    with pytest.raises(ShapeError, match="shapes of 1200 values for a vector of 1201"):
        LowRank(2, ((40, 30),)).pack(drawn(1, 1201), np.random.default_rng(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_no_number_shows(bad: float) -> None:
    vector = drawn(5)
    vector[7] = bad
    found, _ = sent(vector, 2)
    assert not np.isfinite(found[7])
    assert np.isfinite(found[1200:]).all()


@pytest.mark.parametrize("scale", [1e37, 1e-37])
def test_a_matrix_of_very_large_or_small_values_is_as_near_as_any(scale: float) -> None:
    vector = drawn(6, 1200)
    one, other = sent(vector, 4, ((40, 30),))[0], sent(vector * np.float32(scale), 4, ((40, 30),))[0]
    lacking = [np.linalg.norm((each.astype(np.float64) / by) - vector) for each, by in ((one, 1), (other, scale))]
    assert lacking[1] == pytest.approx(lacking[0], rel=0.02)
