from __future__ import annotations

import struct
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data import _torchvision, load_dataset, torchvision_sets
from dqnfed_flwr.errors import DataError


class FakeSet:
    """A torchvision data set whose files lie in `present`, or can be downloaded when `online`."""

    present: str | None = None
    online = True
    made = 0
    arguments: dict[str, str]

    def __init__(self, root: str, train: bool, download: bool, **arguments: str) -> None:
        type(self).made += 1
        type(self).arguments = arguments
        if root != self.present and not download:
            raise RuntimeError("Dataset not found")
        if download and not self.online:
            raise OSError("Name or service not known")
        self.data = np.arange(24 if train else 12, dtype=np.uint8).reshape(-1, 2, 3)
        self.targets = [1, 2, 1, 2] if train else [2, 1]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeSet]:
    class Fresh(FakeSet):
        pass

    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    names = dict.fromkeys(("CIFAR10", "EMNIST"), Fresh)
    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: SimpleNamespace(**names))
    return Fresh


def test_downloads_once_and_maps_from_then_on(fake: type[FakeSet], tmp_path: Path) -> None:
    first = load_dataset("cifar10", 3)
    again = load_dataset("torchvision:cifar10", 3)

    assert fake.made == 1 + 2  # not there, then both parts
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10.npz"]
    assert isinstance(again.x_train, np.memmap)
    np.testing.assert_array_equal(first.x_train, np.arange(24).reshape(4, 2, 3))
    np.testing.assert_array_equal(again.y_train, [1, 2, 1, 2])


def test_files_that_lie_there_are_not_downloaded(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.present, fake.online = str(tmp_path), False

    assert load_dataset("cifar10", 3).input_shape == (1, 2, 3)


def test_emnist_is_turned_upright_and_numbered_from_zero(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.present = str(tmp_path)

    letters = load_dataset("emnist-letters")

    assert fake.arguments == {"split": "letters"}
    np.testing.assert_array_equal(letters.x_train[0], np.arange(6).reshape(2, 3).T)
    np.testing.assert_array_equal(letters.y_train, [0, 1, 0, 1])


def test_offline_says_what_to_do_and_leaves_nothing_behind(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.online = False

    with pytest.raises(DataError, match=r"cannot be downloaded \(Name or service not known\).*set DQNFED_DATA"):
        load_dataset("cifar10")

    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_behind(
    fake: type[FakeSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)

    with pytest.raises(OSError, match="No space left"):
        torchvision_sets.torchvision_npz("cifar10")

    assert list(tmp_path.iterdir()) == []


def test_unknown_set_lists_the_known() -> None:
    with pytest.raises(DataError, match=r"unknown torchvision set 'imagenet'; allowed: cifar10, .*mnist"):
        load_dataset("torchvision:imagenet")


def test_without_torchvision_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(_torchvision, "find_spec", lambda _: None)

    with pytest.raises(DataError, match="torchvision, which is not installed"):
        _torchvision.torchvision_datasets()


@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_only_where_the_library_does_not_load(
    loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[bool] = []
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(_torchvision, "find_spec", lambda _: SimpleNamespace(origin="/package/__init__.py"))
    monkeypatch.setattr(_torchvision, "_operators_load", lambda _: loads)
    monkeypatch.setattr(_torchvision, "_declare_operators", lambda: declared.append(True))
    monkeypatch.setattr(_torchvision, "import_module", ModuleType)

    assert _torchvision.torchvision_datasets().__name__ == "torchvision.datasets"
    assert declared == ([] if loads else [True])


def test_a_library_that_is_absent_or_broken_does_not_load(tmp_path: Path) -> None:
    assert not _torchvision._operators_load(tmp_path)
    (tmp_path / "_C.so").write_bytes(b"no library")
    assert not _torchvision._operators_load(tmp_path)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_reads_the_published_file_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 10, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 10) + bytes(range(10)))
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))

    data = load_dataset("mnist")

    np.testing.assert_array_equal(data.x_train, images)
    np.testing.assert_array_equal(data.y_train, np.arange(10))
    assert (data.num_classes, data.input_shape) == (10, (1, 28, 28))
