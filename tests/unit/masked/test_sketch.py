from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, ortho_group

from dqnfed_flwr.masked.sketch import LONGEST, _axes, rotated, sketched
from dqnfed_flwr.types import Float64Array


def seed_of(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


def dense(seed: bytes, size: int) -> Float64Array:
    """Q as a matrix, by Stewart's recursion with reflections as matrices."""
    axes, _ = _axes(seed, size)
    found, start = np.array([[np.sign(axes[0])]]), 1
    for length in range(2, size + 1):
        x = axes[start : start + length]
        start += length
        sign = np.sign(x[0])
        v = x + sign * np.linalg.norm(x) * np.eye(length)[0]
        inner = np.zeros((length, length))
        inner[0, 0], inner[1:, 1:] = -sign, found
        found = (np.eye(length) - 2 * np.outer(v, v) / (v @ v)) @ inner
    return found


@given(st.integers(1, 60), st.integers(0, 10**6))
def test_rotation_is_the_product_of_its_reflections(size: int, number: int) -> None:
    matrix, vector = dense(seed_of(number), size), np.random.default_rng(number).standard_normal(size)
    np.testing.assert_allclose(rotated(vector, seed_of(number)), matrix @ vector, atol=1e-13)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(size), atol=1e-13)


@pytest.mark.parametrize("size", [1, 7, 650, LONGEST])
def test_rotation_keeps_the_gramian_to_twelve_digits(size: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, size)) * np.array([[1], [1e-6], [1e6], [3], [1]])
    turned = np.array([rotated(vector, seed_of(1)) for vector in vectors])
    scale = np.outer(*[np.linalg.norm(vectors, axis=1)] * 2)
    assert np.abs((turned @ turned.T - vectors @ vectors.T) / scale).max() < 1e-12


def views(vectors: Float64Array, *, fixed: bool, first: int = 0, count: int = 400) -> Float64Array:
    """What a server sees of these vectors in so many exchanges [count, K, m]."""
    seeds = (seed_of(first + (0 if fixed else number)) for number in range(count))
    return np.array([[rotated(vector, seed) for vector in vectors] for seed in seeds])


@pytest.mark.parametrize("fixed", [False, True])
def test_vectors_with_one_gramian_look_alike_and_would_not_by_one_rotation(fixed: bool) -> None:
    """Any figure of the view has one law for both; with a rotation that stays it shows which of them it is."""
    size = 6
    one = np.random.default_rng(1).standard_normal((3, size))
    other = one @ ortho_group.rvs(size, random_state=2)
    assert np.allclose(one @ one.T, other @ other.T)
    seen = views(one, fixed=fixed), views(other, fixed=fixed, first=0 if fixed else 10**6)
    probes = np.random.default_rng(3).standard_normal((8, 3, size))
    levels = [
        kstest(*(np.einsum("nkm,km->n", view, probe) + 1e-9 * np.arange(400) for view in seen)).pvalue
        for probe in probes
    ]
    assert (min(levels) < 1e-6) if fixed else (min(levels) > 1e-3)


def test_view_has_the_law_of_a_uniform_rotation() -> None:
    vectors = np.random.default_rng(1).standard_normal((2, 5))
    found = views(vectors, fixed=False, count=800)
    haar = np.array([vectors @ q.T for q in ortho_group.rvs(5, size=800, random_state=4)])
    for probe in np.random.default_rng(5).standard_normal((6, 2, 5)):
        assert kstest(*(np.einsum("nkm,km->n", view, probe) for view in (found, haar))).pvalue > 1e-3


def test_short_row_is_its_own_sketch() -> None:
    row = np.random.default_rng(0).standard_normal(LONGEST).astype(np.float32)
    np.testing.assert_array_equal(sketched(row, 3), row.astype(np.float64))


def test_sketch_is_a_signed_sum_of_places_as_long_as_the_row_and_linear_but_for_that() -> None:
    row = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    found = sketched(row, 7)
    assert found.shape == (LONGEST,)
    assert np.linalg.norm(found) == pytest.approx(np.linalg.norm(row.astype(np.float64)), rel=1e-12)
    unit = np.zeros(50_000)
    unit[17] = 2.0
    assert sorted(np.abs(sketched(unit, 7)))[-2:] == [0.0, 2.0]
    assert not np.array_equal(found, sketched(row, 8))


def test_products_of_sketches_are_as_good_as_their_size_says() -> None:
    rows = np.random.default_rng(0).standard_normal((12, 30_000))
    off = []
    for number in range(8):
        seen = np.array([sketched(row, number) for row in rows])
        cosines = (seen @ seen.T - rows @ rows.T) / np.outer(*[np.linalg.norm(rows, axis=1)] * 2)
        off.extend(cosines[np.triu_indices(12, 1)])
    assert np.std(off) * np.sqrt(LONGEST) == pytest.approx(1.0, abs=0.2)
    assert abs(np.mean(off)) < 4 / np.sqrt(LONGEST * len(off))
