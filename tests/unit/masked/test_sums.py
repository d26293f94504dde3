from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dqnfed_flwr.masked import MOST
from dqnfed_flwr.masked.secrets import KEY, derive
from dqnfed_flwr.masked.sums import HALF, effective, in_units, masked, most, opened, too_few, unit_for
from tests.helpers.masked import rows


def pair(one: int, other: int) -> bytes:
    return hashlib.sha256(f"{min(one, other)} {max(one, other)}".encode()).digest()


def secrets_of(client: int, clients: set[int], purpose: str = "") -> dict[int, bytes]:
    return {other: derive(pair(client, other), purpose) for other in clients - {client}}


@given(st.sets(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 40), st.integers(0, 99))
def test_masks_cancel_for_every_set_of_clients(clients: set[int], dim: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 2**32, (len(clients), dim), np.uint32)
    shown = [masked(own, client, secrets_of(client, clients)) for own, client in zip(words, clients, strict=True)]
    np.testing.assert_array_equal(np.sum(shown, axis=0, dtype=np.uint32), np.sum(words, axis=0, dtype=np.uint32))


@given(st.integers(2, 8), st.integers(0, 99), st.floats(-12, 12))
def test_sum_is_that_of_the_weighted_rows_to_half_a_unit_a_client(clients: int, seed: int, size: float) -> None:
    given_rows = rows(clients, 30, seed) * 10.0**size
    weights = np.random.default_rng(seed).uniform(-1, 2, clients)
    unit = unit_for(float(np.abs(weights) @ np.linalg.norm(given_rows, axis=1)), clients)
    found = [
        in_units(row, weight, unit, bytes([k] * KEY))
        for k, (row, weight) in enumerate(zip(given_rows, weights, strict=True))
    ]
    assert all(words is not None for words in found)
    total = opened([words for words in found if words is not None], unit)
    assert np.abs(total - weights @ given_rows).max() <= clients * unit * (1 + 1e-6)


def test_longest_sum_does_not_overflow() -> None:
    row = np.array([1.0, -1.0])
    unit = unit_for(4.0 * 1.0, 4)
    words = [in_units(row, 1.0, unit, bytes([k] * KEY)) for k in range(4)]
    total = opened([each for each in words if each is not None], unit)
    np.testing.assert_allclose(total, 4 * row, rtol=1e-8)
    assert in_units(row, 4 * HALF * unit, unit, bytes(KEY)) is None
    assert in_units(np.array([np.nan]), 1.0, unit, bytes(KEY)) is None


def test_rounding_is_right_on_average() -> None:
    found = in_units(np.full(100_000, 0.3), 1.0, 1.0, bytes(KEY))
    assert found is not None
    assert set(found.tolist()) == {0, 1}
    assert abs(found.mean() - 0.3) < 5 * np.sqrt(0.21 / 100_000)


def test_what_is_missing_of_a_sum_is_noise() -> None:
    clients = {1, 2, 3, 4}
    shown = [masked(np.zeros(1 << 16, np.uint32), client, secrets_of(client, clients)) for client in (1, 2, 3)]
    total = np.sum(shown, axis=0, dtype=np.uint32)
    assert chisquare(np.bincount(total >> 24, minlength=256)).pvalue > 1e-3
    assert chisquare(np.bincount(total & 255, minlength=256)).pvalue > 1e-3


COUNTS = st.lists(st.integers(1, 10**6), min_size=4, max_size=9)


@given(COUNTS, st.data())
def test_samples_of_a_sum_are_those_whose_equal_weights_vary_as_much(counts: list[int], data: st.DataObject) -> None:
    """By every sample's own weight, w = c_k / n_k: (sum w)^2 / sum w^2."""
    counts = [1 + count % 50 for count in counts]
    sizes = data.draw(st.lists(st.floats(1e-3, 1e3), min_size=len(counts), max_size=len(counts)))
    each = np.concatenate([np.full(count, size / count) for size, count in zip(sizes, counts, strict=True)])
    assert effective(sizes, counts) == pytest.approx(each.sum() ** 2 / (each**2).sum())
    assert effective(sizes, counts) == pytest.approx(effective([1e-300 * size for size in sizes], counts))
    assert effective(counts, counts) == pytest.approx(sum(counts))


@given(COUNTS, st.data())
def test_no_weights_that_clients_accept_give_more_than_the_most(counts: list[int], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.floats(0.01, 1), min_size=len(counts), max_size=len(counts)))
    capped = np.array(sizes) / sum(sizes)
    largest, others = counts.index(max(counts)), sum(counts) - max(counts)
    best = np.array(counts, float)
    best[largest] = min(best[largest], others)  # then it has half of the weights
    assert effective(best.tolist(), counts) == pytest.approx(most(counts))
    if capped.max() <= MOST:
        assert effective(sizes, counts) <= most(counts) * (1 + 1e-9)


def test_too_few_samples_are_said_with_what_was_found_what_is_needed_and_the_remedy() -> None:
    words = too_few(255.9, 256)
    assert words.startswith("a sum that is one of 255 samples; 256 are needed (privacy.min-samples")
    assert "let clients with more samples, or more clients, take part" in words
    assert too_few(effective([0.1] * 4, [64] * 4), 256) == ""
    assert "one of 0 samples" in too_few(effective([0.0] * 4, [64] * 4), 256)
