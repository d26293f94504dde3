from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from dqnfed_flwr.masked import MOST
from dqnfed_flwr.masked.secrets import KEY, derive
from dqnfed_flwr.masked.spread import Spread
from dqnfed_flwr.masked.sums import (
    HALF,
    SHORT_HALF,
    Words,
    effective,
    in_units,
    masked,
    most,
    opened,
    rounding_slack,
    too_few,
    unit_for,
)
from dqnfed_flwr.types import Float64Array
from tests.helpers.masked import rows


def pair(one: int, other: int) -> bytes:
    return hashlib.sha256(f"{min(one, other)} {max(one, other)}".encode()).digest()


def secrets_of(client: int, clients: set[int], purpose: str = "") -> dict[int, bytes]:
    return {other: derive(pair(client, other), purpose) for other in clients - {client}}


@pytest.mark.parametrize("word", [np.uint32, np.uint16])
@given(st.sets(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 40), st.integers(0, 99))
def test_masks_cancel_for_every_set_of_clients(word: type, clients: set[int], dim: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, np.iinfo(word).max, (len(clients), dim), word, endpoint=True)
    shown = [masked(own, client, secrets_of(client, clients)) for own, client in zip(words, clients, strict=True)]
    assert all(each.dtype == word for each in shown)
    np.testing.assert_array_equal(np.sum(shown, axis=0, dtype=word), np.sum(words, axis=0, dtype=word))


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


def short_sum(given_rows: Float64Array, weights: Float64Array, seed: int = 0) -> tuple[Float64Array, float, float]:
    """The sum in words of 16 bits, its unit, and sum |c_k| |g_k|."""
    clients, dim = given_rows.shape
    spread = Spread(dim, clients, bytes([seed % 256] * KEY))
    longest = float(np.abs(weights) @ np.linalg.norm(given_rows, axis=1))
    unit = unit_for(longest, clients, spread)
    words: list[Words] = []
    for k, (row, weight) in enumerate(zip(given_rows, weights, strict=True)):
        made = in_units(row, weight, unit, derive(bytes([seed % 256] * KEY), k), spread)
        assert made is not None
        assert made.dtype == np.uint16
        words.append(made)
    return opened(words, unit, spread), unit, longest


@given(st.integers(4, 40), st.integers(1, 6000), st.integers(0, 99), st.floats(-12, 12), st.sampled_from([1, 9]))
def test_short_sum_is_off_by_its_rounding_alone(clients: int, dim: int, seed: int, size: float, tail: int) -> None:
    """Of every vector, heavy tails among them: 8 standard deviations of K D draws, each of at most half a unit."""
    draws = np.random.default_rng(seed)
    given_rows = draws.standard_normal((clients, dim)) ** tail * 10.0**size
    weights = draws.uniform(-1, 2, clients)
    total, unit, longest = short_sum(given_rows, weights, seed)
    exact = weights @ given_rows
    wrong = float(np.linalg.norm(total - exact))
    assert wrong <= unit / 2 * np.sqrt(clients) * (np.sqrt(dim) + 8) + 1e-5 * longest
    assert abs(total @ total - exact @ exact) <= (rounding_slack(dim, clients) + 1e-5) * longest**2


def test_spreading_is_what_makes_a_short_sum_precise() -> None:
    given_rows = np.random.default_rng(0).standard_normal((10, 80_000))
    weights = np.full(10, 0.1)
    total, unit, longest = short_sum(given_rows, weights)
    exact = weights @ given_rows
    assert np.linalg.norm(total - exact) < 2e-3 * np.linalg.norm(exact)
    assert unit < longest / SHORT_HALF / 25  # of words that have room for a vector of one value


@given(st.integers(4, 4096), st.integers(2, 3000), st.sampled_from([1.0, -1.0]))
def test_longest_short_sum_does_not_overflow(clients: int, dim: int, sign: float) -> None:
    """All have the same vector, one of whose values is, spread, as large as they allow."""
    spread = Spread(dim, clients, bytes(KEY))
    turned = np.full(dim, np.sqrt((1 - spread.reach**2) / (dim - 1)))
    turned[-1] = sign * spread.reach
    row = spread.back(turned)
    unit = unit_for(clients * float(np.linalg.norm(row)), clients, spread)
    words = in_units(row, 1.0, unit, bytes(KEY), spread)
    assert words is not None
    most = clients * int(words.view(np.int16)[-1])
    assert SHORT_HALF - 4 * clients - 10 < sign * most < SHORT_HALF
    total = opened([words * np.uint16(clients)], unit, spread)
    assert spread.out(total)[-1] == pytest.approx(most * unit, rel=1e-3)


def test_short_words_refuse_what_would_wrap() -> None:
    spread, row = Spread(500, 4, bytes(KEY)), np.ones(500)
    unit = unit_for(4 * float(np.linalg.norm(row)), 4, spread)
    assert in_units(row, 1.0, unit, bytes(KEY), spread) is not None
    assert in_units(row, 1.0, unit / 100, bytes(KEY), spread) is None
    assert in_units(np.full(500, np.nan), 1.0, unit, bytes(KEY), spread) is None
    beyond = spread.back(np.eye(1, 500)[0])  # chosen by who knows the signs
    assert in_units(beyond, 1.0, unit, bytes(KEY), spread) is None


def test_short_rounding_is_right_on_average() -> None:
    given_rows, weights = np.random.default_rng(1).standard_normal((4, 300)), np.full(4, 0.25)
    found = [short_sum(given_rows, weights, seed) for seed in range(256)]
    mean, unit = np.mean([total for total, _, _ in found], axis=0), found[0][1]
    assert np.abs(mean - weights @ given_rows).max() <= 5 * unit / np.sqrt(256)
