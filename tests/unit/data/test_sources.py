from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.data import load_dataset, store
from dqnfed_flwr.data.dataset import sample_shape
from dqnfed_flwr.data.forms import FORMS, NAMED
from dqnfed_flwr.data.sets import catalogue, is_function, npz_of
from dqnfed_flwr.data.sources import is_source, parse, paths_in
from dqnfed_flwr.data.store import Arrays, kept
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS
from dqnfed_flwr.errors import DataError
from tests.helpers.published import write_leaf


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    return tmp_path


def test_a_name_is_taken_apart() -> None:
    source = parse("libsvm:/data/a.txt,b.txt")
    assert (source.form, source.paths) == ("libsvm", (Path("/data/a.txt"), Path("b.txt").absolute()))
    source = parse("folder:~/x y,size=64, train=train+valid")
    assert (source.paths, source.options) == ((Path.home() / "x y",), (("size", "64"), ("train", "train+valid")))


@pytest.mark.parametrize("name", [*NAMED, "femnist,users=3", "leaf:x", "roles:/a/b.json.xz"])
def test_names_and_forms_are_sources(name: str) -> None:
    assert is_source(name)
    assert not is_function(name)


@pytest.mark.parametrize("name", ["digits", "cifar10", "mine:data", "leaf", "torchvision:mnist", "/data/leaf.npz"])
def test_other_names_are_none(name: str) -> None:
    assert not is_source(name)
    assert is_function(name) == (name == "mine:data")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leaf:", "names no file; write leaf:PATH"),
        ("leaf:a,b", "leaf takes 1 path.*must hold no comma"),
        ("tff:a,b,c", "takes 2 path"),
        ("leaf:a,size=3", "unknown option size; leaf knows none"),
        ("folder:a,size=16,size=4", "size is given twice"),
        ("libsvm:a.txt,./a.txt", "names a file twice; what is tested on must not be trained on"),
        ("folder:a,sise=3", "unknown option sise; folder knows size, train, test"),
        ("cinic10,there", r"behind cinic10 come options, key=value; found \['there'\]"),
        ("no-such-set", "FORM:PATH with one of the forms leaf, tff, roles, folder, clothing1m, libsvm"),
    ],
)
def test_a_faulty_name_says_what_is_allowed(root: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(name)


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
    assert npz_of(name) == root / f"{name}.npz"


def test_a_decoded_set_that_is_corrupt_says_to_delete_it(root: Path) -> None:
    (root / "femnist.npz").write_bytes(b"PK\x03\x04 cut short")

    with pytest.raises(DataError, match=r"femnist\.npz.*made here: delete it"):
        load_dataset("femnist")


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
            npz_of(name)


def test_a_set_that_decodes_to_unfit_data_is_not_kept(root: Path) -> None:
    for part in ("train", "test"):
        write_leaf(root / "shakespeare", part, {"a": ([[0.5], [1.0]], [0, 2])})

    with pytest.raises(DataError, match="no training sample of the classes"):
        load_dataset("shakespeare")
    assert (root / "shakespeare.npz").exists()  # classes may be stated in the settings, so gaps are no fault of its own
    (root / "shakespeare.npz").unlink()
    write_leaf(root / "shakespeare", "test", {"a": ([[0.5, 1.0]], [0])})
    with pytest.raises(DataError, match="samples of the two parts differ in shape or dtype"):
        load_dataset("shakespeare")
    assert not (root / "shakespeare.npz").exists()


@pytest.mark.parametrize("call", [load_dataset, npz_of, lambda name: list(catalogue())])
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
        npz_of(name)


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
    assert paths_in(name) == [Path(path) for path in expected]
    if is_source(name):
        assert list(parse(name).paths) == [Path(path).absolute() for path in expected]
