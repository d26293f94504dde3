from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import sample_shape, to_model_input
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import as_list, load_dataset, refused


def small() -> dict[str, NDArray[Any]]:
    """Six samples for training and three for testing, of three classes."""
    return {
        "x_train": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": np.ones((3, 2), np.float32),
        "y_test": np.array([2, 1, 0]),
    }


def saved(tmp_path: Path, **changes: NDArray[Any] | None) -> str:
    arrays = {key: value for key, value in {**small(), **changes}.items() if value is not None}
    np.savez(tmp_path / "set.npz", allow_pickle=False, **arrays)
    return str(tmp_path / "set.npz")


def test_importing_the_package_is_lean() -> None:
    code = "import sys, dqnfed_flwr.data; print({'torch', 'sklearn', 'torchvision', 'flwr'} & set(sys.modules))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


def test_digits_fill_the_range_of_bytes() -> None:
    pytest.importorskip("sklearn")

    digits = load_dataset("digits")

    assert digits.x_train.shape == (1797, 8, 8)
    assert digits.x_train.dtype == np.uint8
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 255)
    assert len(np.unique(digits.x_train)) == 17
    assert digits.y_train.dtype == np.int64
    assert (digits.num_classes, sample_shape(digits.x_train), digits.x_test) == (10, (1, 8, 8), None)


def test_npz_comes_back_as_stored(tmp_path: Path) -> None:
    path = saved(tmp_path, groups_train=np.array([5, 5, 1, 1, 9, 9], np.int16), groups_test=np.array([1, 5, 9]))

    data = load_dataset(path)

    arrays = small()
    assert isinstance(data.x_train, np.memmap)
    np.testing.assert_array_equal(data.x_train, arrays["x_train"])
    np.testing.assert_array_equal(data.y_train, arrays["y_train"])
    assert as_list(data.x_test) == arrays["x_test"].tolist()
    assert as_list(data.y_test) == arrays["y_test"].tolist()
    assert data.groups_train is not None
    np.testing.assert_array_equal(data.groups_train, [5, 5, 1, 1, 9, 9])
    assert data.groups_train.dtype == np.int64
    assert (data.num_classes, sample_shape(data.x_train), data.name) == (3, (2,), path)


@pytest.mark.parametrize(("stored", "asked", "expected"), [(None, 5, 5), (7, 0, 7), (7, 5, 5)])
def test_number_of_classes_may_be_stated(tmp_path: Path, stored: int | None, asked: int, expected: int) -> None:
    path = saved(tmp_path, num_classes=None if stored is None else np.array(stored))

    assert load_dataset(path, asked).num_classes == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, "lacks ['x_train']"),
        ({"y_test": None}, "lacks ['y_test']"),
        ({"x_tests": np.zeros(1)}, "unknown arrays ['x_tests']"),
        ({"y_train": np.array([0, 1, 2])}, "x_train has 6 samples and y_train 3"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "y_train goes down to -1; number from 0"),
        ({"y_train": np.zeros(6)}, "y_train has dtype float64"),
        ({"y_train": np.eye(6, dtype=np.int64)}, "shape (6, 6); it must be one integer a sample"),
        ({"y_test": np.array([0, 1, 2]) > 0}, "y_test has dtype bool"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 10**12])}, "1000000000001 classes, where at most 1000000 are allowed"),
        ({"num_classes": np.array(10**12)}, "1000000000000 classes, where at most 1000000 are allowed"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 2**64 - 1], np.uint64)}, "y_train goes up to 18446744073709551615"),
        ({"groups_train": np.arange(5)}, "groups_train 5; they must be equal"),
        ({"x_test": np.ones((3, 4), np.float32)}, "differ in shape or dtype"),
        ({"x_test": np.ones((3, 2), np.float64)}, "differ in shape or dtype"),
        ({"x_test": np.ones((0, 2), np.float32), "y_test": np.arange(0)}, "leave out an empty test part"),
        ({"x_train": np.ones((6, 2), np.bool_)}, "found samples of dtype bool"),
        ({"x_train": np.array(1.0)}, "x_train has 0 samples"),
        ({"num_classes": np.array(2)}, "labels go up to 2, but 2 classes are stated"),
        ({"group_names": np.arange(3)}, "must be a text for each of the groups"),
        ({"group_names": np.array(["a"]), "groups_train": np.arange(6)}, "a text for each of the groups 0..5"),
        (
            {"class_names": np.array(["a", "b"])},
            "class_names has dtype <U1 and shape (2,); it must be a text for each of",
        ),
        ({"num_classes": np.array([3])}, "num_classes must be a single integer"),
        ({"y_train": np.array([0, 1, 3, 0, 1, 3])}, "no training sample of the classes [2]"),
        ({"y_train": np.array([0, 1, 1, 0, 1, 1])}, "no training sample of the classes [2]"),
    ],
)
def test_unfit_files_are_refused(tmp_path: Path, changes: dict[str, NDArray[Any] | None], message: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(saved(tmp_path, **changes))

    assert message in str(caught.value)


def test_a_class_may_be_missing_where_the_number_is_stated(tmp_path: Path) -> None:
    path = saved(tmp_path, y_train=np.array([1, 2, 3, 1, 2, 3]))

    assert load_dataset(path, 4).num_classes == 4


def test_a_function_is_no_whole_set() -> None:
    refused("package.module:function", "use load_client")


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
