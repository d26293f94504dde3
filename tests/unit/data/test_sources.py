from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data import store
from dqnfed_flwr.data.dataset import sample_shape
from dqnfed_flwr.data.forms import FORMS, NAMED
from dqnfed_flwr.data.sources import catalogue, source_of
from dqnfed_flwr.data.store import Arrays, kept
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS, Size
from dqnfed_flwr.errors import DataError
from tests.helpers.published import write_both, write_leaf
from tests.helpers.small_sets import load_dataset, refused, shrink


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    return tmp_path


def test_a_name_is_taken_apart() -> None:
    source = source_of("libsvm:/data/a.txt,b.txt").files()
    assert (source.form, source.paths) == ("libsvm", (Path("/data/a.txt"), Path("b.txt").absolute()))
    source = source_of("folder:~/x y,size=64, train=train+valid").files()
    assert (source.paths, source.options) == ((Path.home() / "x y",), (("size", "64"), ("train", "train+valid")))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("known", [*NAMED, "femnist,users=3"]),
        ("form", ["leaf:x", "roles:/a/b.json.xz", "csv:/a/t.npz"]),
        ("archive", ["/data/leaf.npz", "a:b.npz"]),
        ("public", ["cifar10", "torchvision:mnist"]),
        ("package", ["digits"]),
        ("function", ["mine:data", "object:not-given-here", "femnist:x"]),
        ("unknown", ["leaf", "table.csv", ""]),
    ],
)
def test_a_name_has_one_kind(kind: str, names: list[str]) -> None:
    for source in map(source_of, names):
        assert source.kind == kind
        assert source.is_decoded == (kind in ("known", "form"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaf:", "names no file; write leaf:PATH"),
        ("leaf:a,b", "leaf takes 1 path.*must hold no comma"),
        ("tff:a,b,c", "takes 2 path"),
        ("leaf:a,side=3", "unknown option side; leaf knows size, words"),
        ("folder:a,size=16,size=4", "size is given twice"),
        ("libsvm:a.txt,./a.txt", "names a file twice; what is tested on must not be trained on"),
        ("folder:a,sise=3", "unknown option sise; folder knows size, train, test"),
        ("cinic10,there", r"behind cinic10 come options, key=value; found \['there'\]"),
        ("no-such-set", "FORM:PATH with one of the forms leaf, tff, roles, folder, clothing1m, libsvm"),
    ],
)
def test_a_faulty_name_says_what_is_allowed(root: Path, name: str, message: str) -> None:
    refused(name, message)


@pytest.mark.parametrize("name", NAMED)
def test_a_set_that_is_not_there_says_which_files_go_where(root: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name)

    text = str(caught.value)
    assert text.startswith(f"data: {name} is not in {root}: put ")
    assert f"into {root}/" in text
    assert "set DQNFED_DATA" in text
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", NAMED)
def test_a_decoded_set_needs_no_published_files(root: Path, name: str) -> None:
    np.savez(root / f"{name}.npz", x_train=np.ones((2, 3), np.float32), y_train=np.array([0, 1]))

    assert sample_shape(load_dataset(name).x_train) == (3,)
    assert source_of(name).fetch() == root / f"{name}.npz"


def test_a_decoded_set_that_is_corrupt_says_to_delete_it(root: Path) -> None:
    (root / "femnist.npz").write_bytes(b"PK\x03\x04 cut short")

    refused("femnist", r"femnist\.npz.*made here: delete it")


def test_every_form_has_a_reader() -> None:
    for form in FORMS:
        module = import_module(f"dqnfed_flwr.data.{FORMS[form].module}")
        assert callable(getattr(module, f"{form}_files"))
        assert callable(getattr(module, f"read_{form}"))


def test_the_catalogue_says_what_is_there(root: Path) -> None:
    np.savez(root / "mnist.npz", x_train=np.ones(1))
    (root / "downloads" / "cifar10").mkdir(parents=True)
    (root / "downloads" / "cifar10" / "cifar-10-python.tar.gz.part").touch()
    (root / "cinic-10").mkdir()

    found = {entry.name: entry for entry in catalogue()}

    assert set(found) == {"digits", *TORCHVISION_SETS, *NAMED}
    assert (found["mnist"].state, found["mnist"].where) == ("yes", str(root / "mnist.npz"))
    assert [found[name].state for name in ("digits", "cifar10", "cifar100")] == ["yes", "begun", "no"]
    assert (found["cinic10"].state, found["cinic10"].where) == ("to be decoded", str(root / "cinic-10"))
    assert str(root / "femnist") in found["femnist"].where


def test_a_kept_set_that_is_damaged_is_neither_there_nor_fetched(root: Path) -> None:
    (root / "mnist.npz").write_bytes(b"PK\x03\x04 cut short")
    (root / "femnist.npz").write_bytes(b"PK\x03\x04 cut short")

    found = {entry.name: entry for entry in catalogue()}

    for name in ("mnist", "femnist"):
        assert (found[name].state, found[name].where) == (
            "damaged",
            f"{root / name}.npz: delete it, and it is made anew",
        )
        with pytest.raises(DataError, match=rf"{name}\.npz.*made here: delete it"):
            source_of(name).fetch()


def test_a_set_that_decodes_to_unfit_data_is_not_kept(root: Path) -> None:
    write_both(root / "shakespeare", {"a": ([[0.5], [1.0]], [0, 2])})

    refused("shakespeare", "no training sample of the classes")
    assert (root / "shakespeare.npz").exists()  # classes may be stated in the settings, so gaps are no fault of its own
    (root / "shakespeare.npz").unlink()
    write_leaf(root / "shakespeare", "test", {"a": ([[0.5, 1.0]], [0])})
    refused("shakespeare", "samples of the two parts differ in shape or dtype")
    assert not (root / "shakespeare.npz").exists()


@pytest.mark.parametrize(
    ("name", "partition", "dealt", "of_each"),
    [
        ("digits", "iid", "iid", False),
        ("digits", "file", "file", True),
        ("a.npz", "dirichlet", "dirichlet", False),
        ("mine:parts", "iid", "own function", True),
        ("mine:parts", "file", "own function", True),
        ("torchvision:mnist", "iid", "iid", False),
    ],
)
def test_a_function_deals_out_what_it_gives_whatever_the_partition(
    name: str, partition: str, dealt: str, of_each: bool
) -> None:
    source = source_of(name)
    assert (source.dealt_by(partition), source.is_of_each(partition)) == (dealt, of_each)
    assert source.is_code == (dealt == "own function")


@pytest.mark.parametrize("call", [load_dataset, lambda name: source_of(name).fetch(), lambda name: list(catalogue())])
def test_folders_that_may_not_be_read_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[str], object]
) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(DataError, match=rf"{root}/.* cannot be read \(Permission denied\); let this user read it"):
        call("femnist")


@pytest.mark.parametrize("name", ["digits", "mine:data", "a.npz"])
def test_what_is_never_fetched_says_so(root: Path, name: str) -> None:
    with pytest.raises(DataError, match="nothing to fetch or decode; allowed: cifar10"):
        source_of(name).fetch()


def _make_slowly(target: Path, log: Path) -> None:
    def make(scratch: Path) -> Arrays:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        (scratch / "large").touch()
        time.sleep(0.3)
        return {"x": np.arange(3)}

    kept(target, make)


def test_one_of_several_processes_makes_a_file(tmp_path: Path) -> None:
    target, log = tmp_path / "root" / "set.npz", tmp_path / "log"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_make_slowly, args=(target, log)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)

    assert [process.exitcode for process in processes] == [0] * 4
    assert len(log.read_text().split()) == 1
    assert [path.name for path in target.parent.iterdir()] == ["set.npz"]


def test_a_place_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DataError, match=r"set\.npz cannot be made .*set DQNFED_DATA to another folder"):
        kept(tmp_path / "file" / "set.npz", lambda _: {})


def test_a_failure_in_the_making_leaves_nothing_behind(tmp_path: Path) -> None:
    def make(scratch: Path) -> Arrays:
        (scratch / "half").write_text("done")
        raise DataError("no good")

    with pytest.raises(DataError, match="no good"):
        store.kept(tmp_path / "set.npz", make)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", []),
        ("package.module:function", []),
        ("mine.npz", ["mine.npz"]),
        ("libsvm:/data/a.txt,b.txt", ["/data/a.txt", "b.txt"]),
        ("folder:/data/pictures,size=32", ["/data/pictures"]),
        ("tff:a=b/x_train.h5,users=3", ["a=b/x_train.h5"]),
        ("libsvm:/d/x=1.txt,/d/y=1.txt", ["/d/x=1.txt", "/d/y=1.txt"]),
    ],
)
def test_paths_are_found_in_names(name: str, expected: list[str]) -> None:
    assert source_of(name).paths == [Path(path) for path in expected]
    if source_of(name).is_decoded:
        assert list(source_of(name).files().paths) == [Path(path).absolute() for path in expected]


def arrays() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {"x_train": draw.integers(0, 255, (60, 8, 8), dtype=np.uint8), "y_train": np.arange(60) % 3}


def test_place_time_order_and_compression_do_not_count(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    np.savez_compressed(tmp_path / "b.npz", **dict(reversed(arrays().items())))
    first, second = (source_of(str(tmp_path / name)).fingerprint() for name in ("a.npz", "b.npz"))
    assert first == second
    assert first is not None
    assert len(first) == 16


@pytest.mark.parametrize("change", ["one label", "one pixel", "order", "part", "dtype"])
def test_any_change_of_the_contents_counts(tmp_path: Path, change: str) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **arrays())
    before = source_of(str(path)).fingerprint()
    found = arrays()
    match change:
        case "one label":
            found["y_train"][59] = 0
        case "one pixel":
            found["x_train"][30, 4, 4] += 1
        case "order":
            found["y_train"] = found["y_train"][::-1]
        case "part":
            found |= {"x_test": found["x_train"][:5], "y_test": found["y_train"][:5]}
        case "dtype":
            found["x_train"] = found["x_train"].astype(np.float32)
    np.savez(path, **found)
    assert source_of(str(path)).fingerprint() != before


def test_a_set_by_name_is_that_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    shrink(monkeypatch, "cifar10", Size(60, 60, (8, 8), 3))
    test = {key.replace("train", "test"): values for key, values in arrays().items()}
    np.savez(tmp_path / "cifar10.npz", **arrays(), **test)
    assert (
        source_of("cifar10").fingerprint()
        == source_of("torchvision:cifar10").fingerprint()
        == source_of(str(tmp_path / "cifar10.npz")).fingerprint()
    )


def test_digits_have_one_and_a_function_has_none() -> None:
    assert source_of("digits").fingerprint() == source_of("digits").fingerprint()
    assert source_of("digits").fingerprint() is not None
    assert source_of("my_data:client").fingerprint() is None


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        source_of(str(tmp_path / "d.npz")).fingerprint()
    with pytest.raises(DataError, match="unknown set 'no-such-set'"):
        source_of("no-such-set").fingerprint()
