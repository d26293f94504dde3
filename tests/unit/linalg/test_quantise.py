"""Vectors in a few bits: never further off than a level, right on average, and nothing unreadable gets through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.linalg.quantise import BITS, BLOCK, pack, packed_sizes, unpack
from dqnfed_flwr.types import FloatArray

bits_of = pytest.mark.parametrize("bits", BITS)


def there_and_back(vector: FloatArray, bits: int, seed: int = 0) -> FloatArray:
    return unpack(pack(vector, bits, np.random.default_rng(seed)))


def levels(vector: FloatArray, bits: int) -> FloatArray:
    """The distance of two levels of each value, with one part in 128 for the rounding of the scale."""
    padded = np.pad(np.abs(vector), (0, -len(vector) % BLOCK)).reshape(-1, BLOCK)
    return np.repeat(padded.max(axis=1) / (2 ** (bits - 1) - 1), BLOCK)[: len(vector)] * (1 + 2**-7)


@bits_of
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 3 * BLOCK), power=st.integers(-60, 60))
def test_no_value_is_off_by_more_than_a_level(bits: int, seed: int, dim: int, power: int) -> None:
    vector = (np.random.default_rng(seed).standard_normal(dim) * 2.0**power).astype(np.float32)
    back = there_and_back(vector, bits, seed)
    assert back.dtype == np.float32
    assert (np.abs(back - vector) <= levels(vector, bits)).all()


@bits_of
def test_values_on_levels_come_back_as_they_were(bits: int) -> None:
    largest = 2 ** (bits - 1) - 1
    vector = np.resize(np.arange(-largest, largest + 1), 2 * BLOCK).astype(np.float32) / 4
    np.testing.assert_array_equal(there_and_back(vector, bits), vector)


@bits_of
def test_the_mean_over_many_roundings_is_the_vector(bits: int) -> None:
    vector = np.random.default_rng(1).standard_normal(BLOCK).astype(np.float32)
    rounds = 2000
    mean = np.mean([there_and_back(vector, bits, seed) for seed in range(rounds)], axis=0)
    # a rounding between two levels has at most a standard deviation of half their distance
    assert (np.abs(mean - vector) <= 5 * levels(vector, bits) / 2 / np.sqrt(rounds)).all()


@bits_of
def test_zeros_are_zeros_and_a_last_block_may_be_short(bits: int) -> None:
    vector = np.zeros(BLOCK + 3, np.float32)
    packed = pack(vector, bits, np.random.default_rng(0))
    assert (len(packed.codes), len(packed.scales)) == packed_sizes(len(vector), bits) == (2 * BLOCK * bits // 8, 2)
    np.testing.assert_array_equal(unpack(packed), vector)


def test_four_bits_take_an_eighth_and_a_scale_for_each_block() -> None:
    dim = 1000 * BLOCK
    packed = pack(np.ones(dim, np.float32), 4, np.random.default_rng(0))
    assert packed.codes.nbytes + packed.scales.nbytes == 4 * dim / 8 + 2 * 1000


@given(value=st.floats(1e-30, 1e30))
def test_scales_are_bfloat16_not_below_what_they_stand_for(value: float) -> None:
    vector = np.full(BLOCK, value, np.float32)
    scale = torch.from_numpy(pack(vector, 2, np.random.default_rng(0)).scales.view(np.int16)).view(torch.bfloat16)
    assert vector[0] <= float(scale[0]) <= float(vector[0]) * (1 + 2**-7)


@bits_of
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_shows(bits: int, bad: float) -> None:
    vector = np.ones(2 * BLOCK, np.float32)
    vector[3] = bad
    back = there_and_back(vector, bits)
    assert not np.isfinite(back[:BLOCK]).all()
    assert np.isfinite(back[BLOCK:]).all()


def test_what_does_not_fit_is_refused() -> None:
    packed = pack(np.ones(5, np.float32), 4, np.random.default_rng(0))
    for wrong in (replace(packed, codes=packed.codes[1:]), replace(packed, scales=packed.scales[:0])):
        with pytest.raises(ShapeError, match="5 values need others"):
            unpack(wrong)
    with pytest.raises(ShapeError, match="a code of 15; 4 bits have codes from 0 to 14"):
        unpack(replace(packed, codes=np.full_like(packed.codes, 255)))
    for vector, bits in ((np.ones(5), 3), (np.ones((2, 2)), 4)):
        with pytest.raises(ShapeError, match="2, 4, 8 bits"):
            pack(vector.astype(np.float32), bits, np.random.default_rng(0))
