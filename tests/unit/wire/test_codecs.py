"""Vectors in a few bits: never further off than a level, right on average, and nothing unreadable gets through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from dqnfed_flwr.errors import ShapeError, WireError
from dqnfed_flwr.masked.secrets import Stream
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.codecs import KINDS, LOW_RANK, WHOLE, KindName
from dqnfed_flwr.wire.levels import MOST, Levels
from dqnfed_flwr.wire.low_rank import LowRank
from dqnfed_flwr.wire.rounding import BLOCK, CODES, SCALES, SWEEP, Brief, Parts, Rounded, _add

BITS = (2, 4, 6, 8)
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


@pytest.mark.parametrize("codec", [Brief(), Rounded(8), Rounded(4)], ids=["16", "8", "4"])
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 3 * BLOCK), tail=st.floats(1.0, 4.0))
def test_what_rounding_may_have_changed_is_no_less_than_it_did(
    codec: Brief | Rounded, seed: int, dim: int, tail: float
) -> None:
    draws = np.random.default_rng(seed)
    vector = (draws.standard_normal(dim) ** 3 * draws.random(dim) ** tail).astype(np.float32)
    parts = codec.pack(vector, draws)
    back = codec.unpack(parts, vector.shape)
    allowed = codec.error(parts, back)
    assert np.linalg.norm(back - vector) <= allowed
    assert allowed <= (0.01 if isinstance(codec, Brief) else BLOCK**0.5 / (2 ** (codec.bits - 1) - 2)) * np.linalg.norm(
        back
    )


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
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, np.uint32(0xFFFF_FFFF).view(np.float32)])
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
    record, codec = ArrayRecord(), KINDS[kind]
    largest = MOST if isinstance(codec.codecs[bits], Levels) else 2 ** (min(bits, 8) - 1) - 1
    vector = np.resize([-largest, 0, largest], BLOCK + 3).astype(np.float32)
    writer = LowRank(1, (vector.shape,)) if bits == LOW_RANK else codec.codecs[bits]
    codec.write(record, writer.pack(vector, np.random.default_rng(0)), "name")
    assert set(record) == codec.keys("name", bits)
    codec.write(record, np.ones(3), "other")
    assert np.array_equal(codec.read(record, vector.shape, "name", bits), vector)
    assert np.array_equal(codec.sent(record, "other"), np.ones(3))
    if kind == "row":
        assert np.array_equal(codec.sent(record, "name", bits)[: len(vector)], vector)


@bits_of
def test_codes_are_put_together_by_sweeps_of_65536_values(bits: int) -> None:
    """What nodes and servers of one version send each other."""
    largest, blocks = 2 ** (bits - 1) - 1, 257
    draws = np.random.default_rng(0).integers(-largest, largest + 1, (blocks, 256))
    draws[:, 0] = largest
    codes = pack(draws.reshape(-1).astype(np.float32), bits)[CODES]
    for first, count in ((0, 65536), (65536, 256)):
        each = draws.reshape(-1)[first : first + count] + largest
        if bits == 6:
            own, apart = each[: 3 * count // 4].reshape(3, -1), each[3 * count // 4 :]
            expected = np.concatenate([own[k] | (apart >> 2 * k & 3) << 6 for k in range(3)])
        else:
            parts = each.reshape(8 // bits, -1)
            expected = sum(part << bits * k for k, part in enumerate(parts))
        np.testing.assert_array_equal(codes[first * bits // 8 :][: len(expected)], expected)


def test_the_table_is_that_of_the_wire() -> None:
    assert {kind: (found.key, set(found.codecs)) for kind, found in KINDS.items()} == {
        "row": ("gradient", {WHOLE, 16, 8, 6, 4}),
        "step": ("step", {WHOLE, 16, 8, 4, 2, LOW_RANK}),
        "model": ("theta", {WHOLE}),
        "extra": ("extra.", {WHOLE, 8, 4, 2}),
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


@bits_of
@pytest.mark.parametrize("value", [1e-39, 1e-45, -3e-40, 0.0])
def test_a_block_of_denormals_comes_back_as_zeros(bits: int, value: float) -> None:
    """Its scale has no inverse in float32; no value is off by more than 1e-36."""
    np.testing.assert_array_equal(there_and_back(np.full(BLOCK + 1, value, np.float32), bits), 0)


@bits_of
@given(value=st.floats(2.0**-100, 2.0**100), sign=st.sampled_from([-1, 1]))
def test_a_block_of_one_value_is_within_the_rounding_of_its_scale(bits: int, value: float, sign: int) -> None:
    vector = np.full(2 * BLOCK, sign * value, np.float32)
    assert (np.abs(there_and_back(vector, bits) - vector) <= levels(vector, bits)).all()


@pytest.mark.parametrize("bits", [4, 8])
@given(data=st.binary(min_size=BLOCK, max_size=BLOCK), scales=st.binary(min_size=4, max_size=4))
def test_any_codes_are_refused_or_read(bits: int, data: bytes, scales: bytes) -> None:
    """By the definition, value by value: (code - L) times the scale."""
    codec, largest = Rounded(bits), 2 ** (bits - 1) - 1
    dim = BLOCK * 8 // bits
    blocks = dim // BLOCK
    wide = [np.array([0, 0, *scales[2 * k : 2 * k + 2]], np.uint8).view(np.float32)[0] for k in range(blocks)]
    parts: Parts = {CODES: np.frombuffer(data, np.uint8), SCALES: np.frombuffer(scales, np.uint16)[:blocks]}
    codes = [(byte >> shift) % 2**bits for byte in data for shift in range(0, 8, bits)]
    if max(codes) > 2 * largest:
        with pytest.raises(ShapeError):
            codec.unpack(parts, (dim,))
        return
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.array([np.float32(c - largest) * wide[k // BLOCK] for k, c in enumerate(codes)], np.float32)
    np.testing.assert_array_equal(codec.unpack(parts, (dim,)), expected)


def brief(vector: FloatArray, seed: int = 0) -> FloatArray:
    return Brief().unpack(Brief().pack(vector, np.random.default_rng(seed)), vector.shape)


@given(st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_bfloat16_is_one_of_the_two_beside_the_value(values: list[float]) -> None:
    """Among them NaN, infinities, zeros, denormals."""
    vector = np.array(values, np.float32)
    back = brief(vector)
    bits, found = vector.view(np.uint32), back.view(np.uint32)
    odd = ~np.isfinite(vector)
    np.testing.assert_array_equal(np.isnan(back[odd]), np.isnan(vector[odd]))
    np.testing.assert_array_equal(back[odd & ~np.isnan(vector)], vector[odd & ~np.isnan(vector)])
    assert (found & 0xFFFF == 0).all()
    beside = found[~odd].astype(np.int64) - (bits[~odd] & 0xFFFF_0000)
    assert set(beside.tolist()) <= {0, 1 << 16}
    assert np.isfinite(back[~odd]).all()


@pytest.mark.parametrize("payload", [0x7FFF_FFFF, 0xFFFF_FFFF, 0x7F80_0001])
def test_nan_of_any_payload_stays_nan(payload: int) -> None:
    assert np.isnan(brief(np.array([payload] * 50, np.uint32).view(np.float32))).all()


def test_the_mean_over_many_roundings_to_bfloat16_is_the_vector() -> None:
    vector, rounds = np.random.default_rng(1).standard_normal(BLOCK).astype(np.float32), 2000
    mean = np.mean([brief(vector, seed) for seed in range(rounds)], axis=0)
    assert (np.abs(mean - vector) <= 5 * np.abs(vector) * 2.0**-7 / 2 / np.sqrt(rounds)).all()
    assert np.abs(mean - vector).max() > 0


@pytest.mark.parametrize("dim", [1, SWEEP * BLOCK - 1, SWEEP * BLOCK, SWEEP * BLOCK + 1, 2 * SWEEP * BLOCK + 300])
@bits_of
def test_sweeps_leave_no_seam(bits: int, dim: int) -> None:
    """By the definition, in whole numbers: x / s in steps of 2^(bits - 23), a number added that cuts off right."""
    vector, step = np.random.default_rng(dim).standard_normal(dim).astype(np.float32), 23 - bits
    parts, largest = pack(vector, bits), 2 ** (bits - 1) - 1
    padded = np.pad(vector, (0, -dim % BLOCK)).reshape(-1, BLOCK)
    scales = (parts[SCALES].astype(np.uint32) << 16).view(np.float32)
    places = np.rint((padded * (np.float32(1) / scales)[:, None]).astype(np.float64) * 2**step).astype(np.int64)
    drawn = numbers(np.random.default_rng(0), padded.size, step).reshape(padded.shape)
    expected = (((places + (largest << step) + drawn) >> step) - largest) * scales[:, None]
    np.testing.assert_array_equal(there_and_back(vector, bits), expected.reshape(-1)[:dim].astype(np.float32))


def numbers(generator: np.random.Generator, count: int, bits: int) -> NDArray[np.int64]:
    """What is added to so many values: two numbers of each word of AES-256-CTR, by sweeps."""
    encryptor, found = Cipher(AES(generator.bytes(32)), CTR(bytes(16))).encryptor(), []
    for start in range(0, count, SWEEP * BLOCK):
        size = min(SWEEP * BLOCK, count - start)
        words = np.frombuffer(encryptor.update(bytes(2 * size)), "<u4").astype(np.int64)
        found += [words % 2**bits, words >> (32 - bits)]
    return np.concatenate(found)


@pytest.mark.parametrize("bits", [15, 16, 19, 21])
def test_what_is_added_is_each_number_as_often_as_any_other(bits: int) -> None:
    """First bits, last bits, and first bits of two that share a word together."""
    count = 1 << 17
    added = np.zeros(count, np.uint32)
    _add(added, bits, Stream(bytes(32), 2 * count), np.empty(count, np.uint32))
    first, last = added >> (bits - 4), added & 15
    for each in (first, last, 16 * first[: count // 2] + first[count // 2 :]):
        assert chisquare(np.bincount(each)).pvalue > 1e-3
    assert added.max() < 2**bits


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("power", [-119.0, -0.5, 119.0])
def test_no_block_whatever_its_size_and_scale_ends_beyond_the_last_level(bits: int, power: float) -> None:
    """The largest value, over its scale, is rounded a few times; its level must be one that there is."""
    sizes = 2.0 ** (power + np.arange(4000) / 4000)
    vector = np.outer(sizes, np.resize([1, -1, 0.3], BLOCK)).astype(np.float32).reshape(-1)
    back, largest = there_and_back(vector, bits), 2 ** (bits - 1) - 1
    assert (np.abs(back - vector) <= np.float64(1 + 2**-7) * np.repeat(sizes, BLOCK) / largest).all()
