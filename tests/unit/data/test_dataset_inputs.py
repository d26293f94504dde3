from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import sample_shape, to_model_input
from dqnfed_flwr.errors import DataError


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.zeros((2, 28, 20), np.uint8), (1, 28, 20)),
        (np.zeros((2, 32, 30, 3), np.uint8), (3, 32, 30)),
        (np.zeros((2, 7), np.float32), (7,)),
        (np.zeros((2, 3, 8, 8), np.float64), (3, 8, 8)),
        (np.zeros((2, 80), np.int64), (80,)),
        (np.zeros((2, 80), np.int16), (80,)),
    ],
)
def test_shape_is_that_of_the_tensor(x: NDArray[Any], shape: tuple[int, ...]) -> None:
    assert sample_shape(x) == shape
    assert to_model_input(x, torch.float32).shape == (2, *shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_scaled_to_plus_minus_one(dtype: torch.dtype) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)

    got = to_model_input(x, dtype)

    assert got.dtype == dtype
    expected = torch.arange(256, dtype=torch.float64) * 2 / 255 - 1
    torch.testing.assert_close(got.reshape(-1).double(), expected, rtol=0, atol=1e-6)
    assert got.min() == -1
    assert got.max() == 1


def test_colours_come_first() -> None:
    x = np.zeros((1, 2, 3, 3), np.uint8)
    x[0, 1, 2, 0] = 255  # red at row 1, column 2

    got = to_model_input(x, torch.float32)

    assert got.is_contiguous()
    assert (got == 1).nonzero().tolist() == [[0, 0, 1, 2]]


def test_features_keep_their_values_and_tokens_their_dtype() -> None:
    features = np.array([[0.1, -3.0]], np.float64)
    tokens = np.array([[3, 1]], np.int32)

    assert torch.equal(to_model_input(features, torch.float64), torch.tensor([[0.1, -3.0]], dtype=torch.float64))
    assert to_model_input(features, torch.float32).dtype == torch.float32
    assert torch.equal(to_model_input(tokens, torch.float32), torch.tensor([[3, 1]]))


@pytest.mark.parametrize("dtype", [">f4", "<f8", ">i4", "<i2"])
def test_bytes_may_come_in_either_order(dtype: str) -> None:
    assert to_model_input(np.array([[3, 1]], dtype), torch.float32).tolist() == [[3, 1]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_read_only_samples_are_copied(dtype: type[np.generic]) -> None:
    x = np.ones((2, 3, 4) if dtype == np.uint8 else (2, 3), dtype)
    x.flags.writeable = False

    to_model_input(x, torch.float32).zero_()

    assert (x == 1).all()


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 7), np.uint8),
        np.zeros(2),
        np.zeros((2, 3), np.bool_),
        np.zeros((2, 3), np.complex64),
        np.zeros((2, 3), np.longdouble),
        np.zeros((2, 3, 4), np.int64),
        np.array([["a"]]),
    ],
)
def test_other_samples_are_refused(x: NDArray[Any]) -> None:
    with pytest.raises(DataError, match=rf"found samples of dtype {x.dtype} and shape .*; allowed are uint8 images"):
        sample_shape(x)


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (2, 1, 8, 8), (2, 4, 28, 20)])
def test_images_with_their_channels_first_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"looks like \[N, C, H, W\]; store \[N, H, W, C\]"):
        sample_shape(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(2, 64, 64, 13), (2, 3, 3, 13), (2, 3, 32, 3), (2, 1, 100, 1), (2, 32, 32, 4)])
def test_many_channels_and_narrow_images_are_taken(shape: tuple[int, ...]) -> None:
    assert sample_shape(np.zeros(shape, np.uint8)) == (shape[3], shape[1], shape[2])
