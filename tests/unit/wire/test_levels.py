"""Steps as the nearest of a few levels: half a level off at the most, short, and nothing unreadable gets through."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.codecs import Codec
from dqnfed_flwr.wire.levels import MOST, Levels
from dqnfed_flwr.wire.rounding import BLOCK, CODES, SCALES, SWEEP, Parts, Rounded

SPACINGS = (2.0, 1.0, 0.0)
spacing_of = pytest.mark.parametrize("spacing", SPACINGS)
DRAWS = np.random.default_rng(0)


def scales_of(parts: Parts) -> FloatArray:
    """Of each block, as float32."""
    return (parts[SCALES].astype(np.uint32) << 16).view(np.float32)


def deflated(codes: bytes) -> NDArray[np.uint8]:
    """By another of Deflate's ways."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return np.frombuffer(squeeze.compress(codes) + squeeze.flush(), np.uint8)


@spacing_of
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 3 * BLOCK), power=st.integers(-60, 60), tail=st.integers(1, 5))
def test_a_value_is_sent_as_the_nearest_level(spacing: float, seed: int, dim: int, power: int, tail: int) -> None:
    vector = (np.random.default_rng(seed).standard_normal(dim) ** tail * 2.0**power).astype(np.float32)
    parts = Levels(spacing).pack(vector, DRAWS)
    back = Levels().unpack(parts, vector.shape)
    scales = np.repeat(scales_of(parts), BLOCK)[:dim].astype(np.float64)
    expected = np.clip(np.rint(vector / scales.astype(np.float32)), -MOST, MOST) * scales
    np.testing.assert_allclose(back, expected, rtol=1e-6)
    if not spacing:
        assert (np.abs(back - vector) <= scales * 0.501).all()


@given(seed=st.integers(0, 1000), spacing=st.sampled_from([1.0, 2.0]))
def test_scales_are_so_many_root_mean_squares(seed: int, spacing: float) -> None:
    vector = np.random.default_rng(seed).standard_normal(BLOCK).astype(np.float32)
    (scale,) = scales_of(Levels(spacing).pack(vector, DRAWS))
    exact = spacing * float(np.sqrt(np.square(vector.astype(np.float64)).mean()))
    assert exact * (1 - 1e-6) <= scale <= exact * (1 + 2**-7)


def test_few_bits_and_a_smaller_error_than_that_of_random_rounding_in_more() -> None:
    """Of normal values; entropies by the normal law are 1.26, 2.1 and 3.3 bits, and a scale takes 1/16."""
    vector = np.random.default_rng(1).standard_normal(1000 * BLOCK).astype(np.float32)
    bits, errors = list[float](), list[float]()
    codecs: list[Codec] = [*map(Levels, SPACINGS), Rounded(2), Rounded(4)]
    for codec in codecs:
        parts = codec.pack(vector, np.random.default_rng(0))
        bits.append(8 * sum(part.nbytes for part in parts.values()) / vector.size)
        errors.append(float(np.linalg.norm(codec.unpack(parts, vector.shape) - vector) / np.linalg.norm(vector)))
    assert bits[0] < 1.45
    assert bits[1] < 2.25
    assert bits[2] < 3.45
    assert errors[0] < errors[3] / 2
    assert errors[2] < 0.75 * errors[4]


@spacing_of
@pytest.mark.parametrize("dim", [1, BLOCK + 3, SWEEP * BLOCK, SWEEP * BLOCK + 1])
def test_sweeps_leave_no_seam_and_codes_are_never_longer_than_four_bits(spacing: float, dim: int) -> None:
    vector = np.random.default_rng(dim).uniform(-1, 1, dim).astype(np.float32)
    parts = Levels(spacing).pack(vector, DRAWS)
    blocks = -(-dim // BLOCK)
    assert parts[CODES].nbytes <= blocks * BLOCK // 2 * 1.001 + 16
    whole = Levels().unpack(parts, (dim,))
    for first in range(0, blocks, SWEEP):
        part = slice(first * BLOCK, (first + SWEEP) * BLOCK)
        alone = Levels(spacing).pack(vector[part], DRAWS)
        np.testing.assert_array_equal(Levels().unpack(alone, vector[part].shape), whole[part])


@spacing_of
@pytest.mark.parametrize("value", [0.0, 1e-39, -3e-40])
def test_zeros_and_denormals_come_back_as_zeros_in_hardly_any_bytes(spacing: float, value: float) -> None:
    vector = np.full(100 * BLOCK, value, np.float32)
    parts = Levels(spacing).pack(vector, DRAWS)
    np.testing.assert_array_equal(Levels().unpack(parts, vector.shape), 0)
    assert parts[CODES].nbytes < 100


@spacing_of
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_shows(spacing: float, bad: float) -> None:
    vector = np.ones(2 * BLOCK, np.float32)
    vector[3] = bad
    back = Levels().unpack(Levels(spacing).pack(vector, DRAWS), vector.shape)
    assert not np.isfinite(back[:BLOCK]).all()
    assert np.isfinite(back[BLOCK:]).all()


@spacing_of
@given(power=st.integers(-118, 120))
def test_a_block_of_one_value_is_that_value_or_within_a_scale(spacing: float, power: int) -> None:
    vector = np.full(BLOCK, -(2.0**power), np.float32)
    back = Levels().unpack(Levels(spacing).pack(vector, DRAWS), vector.shape)
    assert (np.abs(back - vector) <= (spacing / 2 if spacing else 0.5 / MOST) * 1.01 * 2.0**power).all()


def test_nothing_is_drawn() -> None:
    draws, vector = np.random.default_rng(3), np.ones(BLOCK, np.float32)
    Levels(1.0).pack(vector, draws)
    assert draws.bit_generator.state == np.random.default_rng(3).bit_generator.state


@pytest.mark.parametrize(
    ("codes", "named"),
    [
        (np.zeros(BLOCK // 2, np.uint8), "not Deflate's"),
        (np.zeros(0, np.uint8), "do not stand for the 128 bytes"),
        (deflated(bytes(BLOCK // 2 - 1)), "do not stand for"),
        (deflated(bytes(BLOCK // 2 + 1)), "do not stand for"),
        (deflated(bytes(100_000_000)), "do not stand for"),
        (deflated(bytes(BLOCK // 2))[:-1], "do not stand for"),
        (np.append(deflated(bytes(BLOCK // 2)), np.uint8(0)), "do not stand for"),
        (deflated(b"\xff" * (BLOCK // 2)), "a code of 15"),
    ],
)
def test_codes_that_nobody_packed_are_refused(codes: NDArray[np.uint8], named: str) -> None:
    parts = {**Levels().pack(np.ones(5, np.float32), DRAWS), CODES: codes}
    with pytest.raises(ShapeError, match=named):
        Levels().unpack(parts, (5,))
