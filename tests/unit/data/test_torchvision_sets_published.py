"""Torchvision's files, and sets kept before, that are not what was published."""

from __future__ import annotations

import hashlib
import struct
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data import torchvision_sets
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS, Size, torchvision_npz
from dqnfed_flwr.errors import DataError
from tests.helpers.small_sets import load_dataset, refused, shrink

SIZE = Size(60, 20, (28, 28), 10)
torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "mnist", SIZE)
    return tmp_path


@pytest.fixture
def raw(root: Path) -> Path:
    """Folder of a whole MNIST of `SIZE`, as torchvision unpacks it."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, samples in (("train", 60), ("t10k", 20)):
        images = bytes(samples * 28 * 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, samples, 28, 28) + images)
        labels = bytes(number % 10 for number in range(samples))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, samples) + labels)
    return folder


def arrays(train: int = 60, test: int = 20, classes: int = 10) -> dict[str, Any]:
    return {
        "x_train": np.zeros((train, 28, 28), np.uint8),
        "y_train": np.arange(train) % classes,
        "x_test": np.zeros((test, 28, 28), np.uint8),
        "y_test": np.arange(test) % classes,
    }


@torchvision
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-labels-idx1-ubyte", struct.pack(">2i", 0x801, 50) + bytes(50), "has 58 bytes, published are 68"),
        ("train-images-idx3-ubyte", bytes(23_528), "has 23,528 bytes, published are 47,056"),
        ("t10k-labels-idx1-ubyte", bytes(28), r"does not begin as a file of shape \[20\] does"),
    ],
    ids=["fewer-labels", "half-the-images", "another-header"],
)
def test_an_unfit_file_is_named_and_nothing_is_kept(
    raw: Path, root: Path, name: str, content: bytes, message: str
) -> None:
    whole = (raw / name).read_bytes()
    (raw / name).write_bytes(content)

    refused("mnist", rf"mnist: .*MNIST/raw/{name} {message}.*delete them.*fetched anew")

    assert [path.name for path in root.iterdir()] == ["MNIST"]
    (raw / name).write_bytes(whole)
    assert len(load_dataset("mnist").y_train) == 60


@torchvision
def test_every_unfit_file_is_named(raw: Path) -> None:
    for name in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (raw / name).write_bytes(b"")

    refused("mnist", r"train-images-idx3-ubyte has 0 bytes.*t10k-labels-idx1-ubyte has 0 bytes")


@torchvision
def test_a_set_of_another_size_is_not_taken_for_the_published_one(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DQNFED_DATA", str(raw.parent.parent))

    refused("mnist", r"train-images-idx3-ubyte has 47,056 bytes, published are 47,040,016")


@torchvision
def test_labels_that_lack_a_class_are_not_kept(raw: Path, root: Path) -> None:
    (raw / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 20) + bytes([7] * 20))

    refused("mnist", r"mnist in .*MNIST/raw .*y_test has 1 different labels, 7 to 7, published are")

    assert not (root / "mnist.npz").exists()


def test_batches_with_another_sum_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    sums = {name: hashlib.md5(name.encode(), usedforsecurity=False).hexdigest() for name in ("one", "two", "meta")}

    class Batches:
        base_folder = "batches"
        train_list = (("one", sums["one"]),)
        test_list = (("two", sums["two"]),)
        meta = MappingProxyType({"filename": "meta", "md5": sums["meta"]})

    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: SimpleNamespace(CIFAR10=Batches))
    (tmp_path / "batches").mkdir()
    for name, content in (("one", b"one"), ("two", b"tw"), ("meta", b"met")):
        (tmp_path / "batches" / name).write_bytes(content)

    refused("cifar10", r"cifar10: \S*batches/two has MD5 .*; \S*batches/meta has MD5 .*fetched anew")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.arange(50) % 10}, r"y_train has shape \[50\], published is \[60\]"),
        ({"x_test": np.zeros((20, 14, 14), np.uint8)}, r"x_test has shape \[20, 14, 14\], published is \[20, 28, 28\]"),
        (arrays(classes=9), "y_train has 9 different labels, 0 to 8, published are all of 0 to 9"),
    ],
)
def test_a_kept_set_that_is_unfit_says_to_delete_it(root: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(root / "mnist.npz", **(arrays() | changes))

    for use in (load_dataset, torchvision_npz):
        with pytest.raises(DataError, match=rf"mnist\.npz is not mnist as published: {message}; delete this file, and"):
            use("mnist")


def test_a_kept_set_without_a_test_part_is_unfit(root: Path) -> None:
    np.savez(root / "mnist.npz", **{key: values for key, values in arrays().items() if "train" in key})

    refused("mnist", "no array x_test; delete this file")
    assert len(load_dataset(str(root / "mnist.npz")).y_train) == 60  # by its path it is a set of one's own


def test_a_kept_set_that_is_corrupt_says_to_delete_it(root: Path) -> None:
    (root / "mnist.npz").write_bytes(b"PK\x03\x04 cut short")

    refused("mnist", r"mnist\.npz.*made here: delete it")


@pytest.mark.parametrize("name", sorted(TORCHVISION_SETS))
def test_sizes_are_those_that_the_documentation_names(name: str) -> None:
    size = TORCHVISION_SETS[name].size
    text = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    named = "mnist" if name == "fashion-mnist" else name
    line = next(line for line in text.splitlines() if line.startswith("|") and f"`{named}`" in line)

    assert f"{size.train:,} + {size.test:,} " in line
    assert f"{size.image[0]}\N{MULTIPLICATION SIGN}{size.image[1]}" in line
