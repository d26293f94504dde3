from __future__ import annotations

import gzip
import hashlib
import re
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data import torchvision_sets
from dqnfed_flwr.data.dataset import sample_shape
from dqnfed_flwr.data.torchvision_sets import Size
from dqnfed_flwr.errors import DataError
from tests.helpers.file_server import FileServer, file_server
from tests.helpers.small_sets import as_list, load_dataset, refused, shrink

TEN = Size(10, 10, (28, 28), 10)


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
        first = 1 if arguments else 0
        self.targets = [first, first + 1, first, first + 1] if train else [first + 1, first]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeSet]:
    class Fresh(FakeSet):
        pass

    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "cifar10", Size(4, 2, (2, 3), 2))
    shrink(monkeypatch, "emnist-letters", Size(4, 2, (3, 2), 2))
    names = dict.fromkeys(("CIFAR10", "EMNIST"), Fresh)
    monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: SimpleNamespace(**names))
    return Fresh


def test_downloads_once_and_maps_from_then_on(fake: type[FakeSet], tmp_path: Path) -> None:
    first = load_dataset("cifar10")
    again = load_dataset("torchvision:cifar10")

    assert fake.made == 1 + 2  # not there, then both parts
    assert [path.name for path in tmp_path.iterdir()] == ["cifar10.npz"]
    assert isinstance(again.x_train, np.memmap)
    np.testing.assert_array_equal(first.x_train, np.arange(24).reshape(4, 2, 3))
    np.testing.assert_array_equal(again.y_train, [0, 1, 0, 1])


def test_files_that_lie_there_are_not_downloaded(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.present, fake.online = str(tmp_path), False

    assert sample_shape(load_dataset("cifar10").x_train) == (1, 2, 3)


def test_emnist_is_turned_upright_and_numbered_from_zero(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.present = str(tmp_path)

    letters = load_dataset("emnist-letters")

    assert fake.arguments == {"split": "letters"}
    np.testing.assert_array_equal(letters.x_train[0], np.arange(6).reshape(2, 3).T)
    np.testing.assert_array_equal(letters.y_train, [0, 1, 0, 1])


@pytest.mark.parametrize("first", [0, 1])
def test_a_file_numbered_as_published_is_numbered_from_zero(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "emnist-letters", Size(26, 26, (4, 4), 26))
    labels = np.arange(26) + first
    images = np.zeros((26, 4, 4), np.uint8)
    np.savez(tmp_path / "emnist-letters.npz", x_train=images, y_train=labels, x_test=images, y_test=labels[::-1])
    data = load_dataset("emnist-letters")
    assert data.y_train.tolist() == list(range(26))
    assert as_list(data.y_test) == list(range(25, -1, -1))


def test_offline_says_what_to_do_and_leaves_nothing_behind(fake: type[FakeSet], tmp_path: Path) -> None:
    fake.online = False

    refused("cifar10", r"cannot be downloaded \(Name or service not known\).*set DQNFED_DATA")

    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_nothing_behind(
    fake: type[FakeSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)

    with pytest.raises(DataError, match=r"No space left.*set DQNFED_DATA"):
        torchvision_sets.torchvision_npz("cifar10")

    assert list(tmp_path.iterdir()) == []


def test_unknown_set_lists_the_known() -> None:
    refused("torchvision:imagenet", r"unknown torchvision set 'imagenet'; allowed: cifar10, .*mnist")


def test_without_torchvision_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torchvision_sets, "find_spec", lambda _: None)

    with pytest.raises(DataError, match="torchvision, which is not installed"):
        torchvision_sets.torchvision_datasets()


@pytest.mark.parametrize("loads", [True, False])
def test_operators_are_declared_only_where_the_library_does_not_load(
    loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared: list[bool] = []
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(torchvision_sets, "find_spec", lambda _: SimpleNamespace(origin="/package/__init__.py"))
    monkeypatch.setattr(torchvision_sets, "_operators_load", lambda _: loads)
    monkeypatch.setattr(torchvision_sets, "_declare_operators", lambda: declared.append(True))
    monkeypatch.setattr(torchvision_sets, "import_module", ModuleType)

    assert torchvision_sets.torchvision_datasets().__name__ == "torchvision.datasets"
    assert declared == ([] if loads else [True])


def test_a_library_that_is_absent_or_broken_does_not_load(tmp_path: Path) -> None:
    assert not torchvision_sets._operators_load(tmp_path)
    (tmp_path / "_C.so").write_bytes(b"no library")
    assert not torchvision_sets._operators_load(tmp_path)


class Archived(FakeSet):
    """A set that torchvision unpacks from one archive, which must lie below the root."""

    filename = "set.tar.gz"
    tgz_md5 = hashlib.md5(b"archive", usedforsecurity=False).hexdigest()
    url = ""

    def __init__(self, root: str, train: bool, download: bool, **arguments: str) -> None:
        super().__init__(root, train, download, **arguments)
        assert (Path(root) / self.filename).read_bytes() == b"archive"


@pytest.fixture
def archived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[FileServer, type[FakeSet]]]:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    with file_server() as server:

        class Fresh(Archived):
            url = f"{server.url}/set.tar.gz"

        server.files["/set.tar.gz"] = b"archive"
        shrink(monkeypatch, "cifar10", Size(4, 2, (2, 3), 2))
        monkeypatch.setattr(torchvision_sets, "torchvision_datasets", lambda: SimpleNamespace(CIFAR10=Fresh))
        yield server, Fresh


def test_archives_are_fetched_by_our_own_means(
    archived: tuple[FileServer, type[FakeSet]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archived[0].cuts = [3]

    load_dataset("cifar10")

    assert [wanted for _, wanted in archived[0].asked] == ["", "bytes=3-"]
    assert f"cifar10: kept in {tmp_path / 'cifar10.npz'}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cifar10.npz"]


def test_an_archive_that_lies_there_is_used(archived: tuple[FileServer, type[FakeSet]], tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"archive")

    load_dataset("cifar10")

    assert archived[0].asked == []
    assert (tmp_path / "set.tar.gz").exists()


def test_an_archive_that_is_cut_short_says_what_to_do(
    archived: tuple[FileServer, type[FakeSet]], tmp_path: Path
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"arch")

    refused("cifar10", r"set\.tar\.gz is not the published file: .*delete it and try again, or fetch")


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
@pytest.mark.parametrize("name", sorted(torchvision_sets.TORCHVISION_SETS))
def test_torchvision_names_archives_and_sums(name: str) -> None:
    make = getattr(torchvision_sets.torchvision_datasets(), torchvision_sets.TORCHVISION_SETS[name].class_name)

    found = list(torchvision_sets.archives(make))

    assert len(found) == (4 if name in ("mnist", "fashion-mnist") else 1)
    for place, published in found:
        assert place == ("" if "cifar" in name else f"{make.__name__}/raw")
        assert re.fullmatch("[0-9a-f]{32}", published.md5)
        assert all(url.startswith("http") and url.endswith(published.name) for url in published.urls)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_reads_the_published_file_format(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 10, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 10) + bytes(range(10)))
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "mnist", TEN)

    data = load_dataset("mnist")

    np.testing.assert_array_equal(data.x_train, images)
    np.testing.assert_array_equal(data.y_train, np.arange(10))
    assert (data.num_classes, sample_shape(data.x_train)) == (10, (1, 28, 28))


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_torchvision_unpacks_what_was_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mnist = torchvision_sets.torchvision_datasets().MNIST
    images = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)
    contents = {
        "images-idx3": struct.pack(">4i", 0x803, 10, 28, 28) + images.tobytes(),
        "labels-idx1": struct.pack(">2i", 0x801, 10) + bytes(range(10)),
    }
    packed = {
        f"{part}-{kind}-ubyte.gz": gzip.compress(content)
        for part in ("train", "t10k")
        for kind, content in contents.items()
    }
    sums = [(name, hashlib.md5(content, usedforsecurity=False).hexdigest()) for name, content in packed.items()]
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "mnist", TEN)
    with file_server() as server:
        server.files = {f"/there/{name}": content for name, content in packed.items()}
        server.cuts = [10]
        monkeypatch.setattr(mnist, "mirrors", [f"{server.url}/gone/", f"{server.url}/there/"])
        monkeypatch.setattr(mnist, "resources", sums)

        data = load_dataset("mnist")

    np.testing.assert_array_equal(data.x_train, images)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["mnist.npz"]
    assert len(server.asked) == 4 * 2 + 1
