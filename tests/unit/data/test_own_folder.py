from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import own_folder
from dqnfed_flwr.data.own_folder import absolute, import_again, import_from, load_own, module_folders
from dqnfed_flwr.data.user import call_function
from dqnfed_flwr.errors import DataError


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The import path, modules and working directory as they were."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_folder, "_used", [])
    yield
    for name in [name for name in sys.modules if name.startswith("foldertest")]:
        del sys.modules[name]


def written(folder: Path, text: str, **modules: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in modules.items():
        (folder / f"{name}.py").write_text(content)
    (folder / "mine.yaml").write_text(text)
    return folder / "mine.yaml"


def test_relative_paths_of_a_file_begin_in_its_folder(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a", "data: set.npz\noutput: out\nmetrics: ''\nstart: {model: ~/m.npz}\nmodel: mlp\nrounds: 2\n"
    )
    assert load_own(file) == {
        "data": str(tmp_path / "a" / "set.npz"),
        "output": str(tmp_path / "a" / "out"),
        "metrics": "",
        "start.model": str(Path.home() / "m.npz"),
        "model": "mlp",
        "rounds": 2,
    }
    assert load_own("../a/mine.yaml")["data"] == str(tmp_path / "a" / "set.npz")


def test_a_path_that_exists_in_the_working_directory_alone_is_taken_from_there(tmp_path: Path) -> None:
    file = written(tmp_path / "a", "data: set.npz\n")
    (tmp_path / "here" / "set.npz").touch()
    assert load_own(file)["data"] == str(tmp_path / "here" / "set.npz")
    (tmp_path / "a" / "set.npz").touch()
    assert load_own(file)["data"] == str(tmp_path / "a" / "set.npz")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("set.npz", "/base/set.npz"),
        ("/data/set.npz", "/data/set.npz"),
        ("leaf:femnist", "leaf:/base/femnist"),
        ("libsvm:a.txt,sub/b.txt", "libsvm:/base/a.txt,/base/sub/b.txt"),
        ("folder:pictures,size=32,train=train+valid", "folder:/base/pictures,size=32,train=train+valid"),
        ("csv:a.csv,label=y, test = b.csv", "csv:/base/a.csv,label=y,test=/base/b.csv"),
        ("csv:a.csv,test=/data/b.csv", "csv:/base/a.csv,test=/data/b.csv"),
        ("libsvm:a,/data/k=v/b", "libsvm:/base/a,/data/k=v/b"),
        ("digits", "digits"),
        ("torchvision:mnist", "torchvision:mnist"),
        ("mine:data", "mine:data"),
        ("leaf:", "leaf:"),
        ("", ""),
    ],
)
def test_the_paths_within_a_name_of_data_become_absolute(name: str, expected: str) -> None:
    assert absolute({"data": name}, [Path("/base")]) == {"data": expected}


def test_what_is_no_path_stays_for_the_check_of_the_settings() -> None:
    faulty = {"data": 3, "output": False, "no.such": "a/b", "local.lr": 0.1}
    assert absolute(faulty, [Path("/base")]) == faulty


def test_shipped_experiments_have_no_folder(tmp_path: Path) -> None:
    before = list(sys.path)
    assert load_own("digits")["data"] == "digits"
    assert sys.path == before


def test_modules_beside_the_file_are_imported_and_those_of_another_file_do_not_stand_in_for_them(
    tmp_path: Path,
) -> None:
    first = written(tmp_path / "a", "", foldertest_one="def data(): return 'a'")
    second = written(tmp_path / "b", "", foldertest_one="def data(): return 'b'")
    for file, answer in ((first, "a"), (second, "b"), (first, "a")):
        load_own(file)
        assert call_function("foldertest_one:data", "data", DataError) == answer
    places = [at for at, entry in enumerate(sys.path) if Path(entry).name in own_folder.INSTALLED]
    standard = [at for at, entry in enumerate(sys.path) if Path(entry).name == "lib-dynload"]
    assert standard[0] < sys.path.index(str(tmp_path / "a")) < places[0]
    assert sys.path.count(str(tmp_path / "a")) == 1
    kept = sys.modules["foldertest_one"]
    load_own(first)
    assert sys.modules["foldertest_one"] is kept


def test_modules_that_came_from_elsewhere_stay(tmp_path: Path) -> None:
    json = sys.modules["json"]
    import_from(written(tmp_path / "a", "", json="1/0").parent)
    import_from(written(tmp_path / "b", "", json="1/0").parent)
    assert sys.modules["json"] is json


def test_the_folders_of_a_runs_modules_are_known_and_can_be_imported_from_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "foldertest_package").mkdir()
    (tmp_path / "a" / "foldertest_package" / "__init__.py").touch()
    (tmp_path / "a" / "foldertest_package" / "inner.py").write_text("def model(): return 1")
    written(tmp_path / "a", "", foldertest_two="def data(): return 2")
    settings = Settings.from_mapping({"data": "foldertest_two:data", "model": "foldertest_package.inner:model"})
    assert module_folders(settings) == ()
    before = list(sys.path)
    import_again(settings, [str(tmp_path / "gone"), str(tmp_path / "a")])
    assert sys.path == [*before, str(tmp_path / "a")]
    assert call_function("foldertest_package.inner:model", "model", DataError) == 1
    assert call_function("foldertest_two:data", "data", DataError) == 2
    assert module_folders(settings) == (str(tmp_path / "a"),)
    assert module_folders(Settings()) == ()
    sys.path[:] = before
    import_again(settings, [str(tmp_path / "a")])  # they are there
    import_again(Settings(), [str(tmp_path / "a")])
    assert sys.path == before
