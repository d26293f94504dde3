"""Vectors in a few bits: never further off than a level, right on average, and nothing unreadable gets through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.codecs import BLOCK, CODES, KINDS, SCALES, WHOLE, KindName, Parts, Rounded

BITS = (2, 4, 8)
bits_of = pytest.mark.parametrize("bits", BITS)


def pack(vector: FloatArray, bits: int, seed: int = 0) -> Parts:
    return Rounded(bits).pack(vector, np.random.default_rng(seed))


def there_and_back(vector: FloatArray, bits: int, seed: int = 0) -> FloatArray:
    return Rounded(bits).unpack(pack(vector, bits, seed), vector.shape)


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
    parts = pack(vector, bits)
    found = {end: (part.shape, (str(part.dtype),)) for end, part in parts.items()}
    assert found == Rounded(bits).expected(vector.shape)
    assert found == {CODES: ((2 * BLOCK * bits // 8,), ("uint8",)), SCALES: ((2,), ("uint16",))}
    np.testing.assert_array_equal(there_and_back(vector, bits), vector)


def test_four_bits_take_an_eighth_and_a_scale_for_each_block() -> None:
    dim = 1000 * BLOCK
    assert sum(part.nbytes for part in pack(np.ones(dim, np.float32), 4).values()) == 4 * dim / 8 + 2 * 1000


@given(value=st.floats(1e-30, 1e30))
def test_scales_are_bfloat16_not_below_what_they_stand_for(value: float) -> None:
    vector = np.full(BLOCK, value, np.float32)
    scale = torch.from_numpy(pack(vector, 2)[SCALES].view(np.int16)).view(torch.bfloat16)
    assert vector[0] <= float(scale[0]) <= float(vector[0]) * (1 + 2**-7)


@bits_of
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_shows(bits: int, bad: float) -> None:
    vector = np.ones(2 * BLOCK, np.float32)
    vector[3] = bad
    back = there_and_back(vector, bits)
    assert not np.isfinite(back[:BLOCK]).all()
    assert np.isfinite(back[BLOCK:]).all()


def test_a_code_that_is_none_is_refused() -> None:
    parts = {**pack(np.ones(5, np.float32), 4), CODES: np.full(BLOCK // 2, 255, np.uint8)}
    with pytest.raises(ShapeError, match="a code of 15; 4 bits have codes from 0 to 14"):
        Rounded(4).unpack(parts, (5,))


@pytest.mark.parametrize(("kind", "bits"), [(kind, bits) for kind, found in KINDS.items() for bits in found.codecs])
def test_what_the_table_writes_it_reads(kind: KindName, bits: int) -> None:
    """Under the keys that it names, whatever lies beside them; values that lie on levels, to the bit."""
    largest, record, codec = 2 ** (min(bits, 8) - 1) - 1, ArrayRecord(), KINDS[kind]
    vector = np.resize([-largest, 0, largest], BLOCK + 3).astype(np.float32)
    codec.write(record, codec.codecs[bits].pack(vector, np.random.default_rng(0)), "name")
    assert set(record) == codec.keys("name", bits)
    codec.write(record, np.ones(3), "other")
    assert np.array_equal(codec.read(record, vector.shape, "name", bits), vector)
    assert np.array_equal(codec.sent(record, "other"), np.ones(3))


def test_the_table_is_that_of_the_wire() -> None:
    assert {kind: (found.key, set(found.codecs)) for kind, found in KINDS.items()} == {
        "row": ("gradient", {WHOLE}),
        "step": ("step", {WHOLE}),
        "model": ("theta", {WHOLE}),
        "extra": ("extra.", {WHOLE, *BITS}),
    }


@pytest.mark.parametrize(
    ("end", "part", "reason"),
    [
        (CODES, np.zeros(BLOCK // 2 - 1, np.uint8), "bad-shape"),
        (CODES, np.zeros(BLOCK // 2, np.int8), "bad-dtype"),
        (CODES, np.full(BLOCK // 2, 255, np.uint8), "bad-array"),
        (SCALES, np.zeros(2, np.uint16), "bad-shape"),
        (SCALES, np.zeros(1, np.float32), "bad-dtype"),
    ],
)
def test_parts_that_nobody_packed_are_refused(end: str, part: NDArray[np.generic], reason: str) -> None:
    record, extra = ArrayRecord(), KINDS["extra"]
    extra.write(record, {**pack(np.ones(5, np.float32), 4), end: part}, "name")
    with pytest.raises(WireError) as found:
        extra.read(record, (5,), "name", 4)
    assert found.value.reason == reason
