from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, load_dataset
from dqnfed_flwr.data.leaf import ALPHABET, LENGTH
from dqnfed_flwr.errors import DataError
from tests.helpers.published import write_leaf

BLANK, INK = [1.0] * 784, [0.0] * 783 + [0.5]
TEXT = "x" * (LENGTH - 3) + "Yea"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "root"))
    return tmp_path


def test_femnist_by_writer(root: Path) -> None:
    write_leaf(root / "set", "train", {"f2": ([BLANK, INK], [3, 61]), "f1": ([INK], [0])})
    write_leaf(root / "set", "train", {"f3": ([BLANK] * 2, [5, 5])}, "all_data_1.json")
    write_leaf(root / "set", "test", {"f1": ([BLANK], [0]), "f2": ([INK], [3]), "f3": ([INK], [5])})

    data = load_dataset(f"leaf:{root / 'set'}")

    assert data.x_train.dtype == np.uint8
    assert (data.x_train.shape, data.num_classes) == ((5, 28, 28), 62)
    assert data.x_train[0].min() == 255
    assert data.x_train[1, -1, -1] == 128  # 127.5 to the even number
    np.testing.assert_array_equal(data.y_train, [3, 61, 0, 5, 5])
    assert data.groups_train is not None
    np.testing.assert_array_equal(data.groups_train, [1, 1, 0, 2, 2])
    assert data.group_names is not None
    assert data.group_names.tolist() == ["f1", "f2", "f3"]
    settings = Settings.from_mapping({"data": f"leaf:{root / 'set'}", "partition": "groups", "clients": 3})
    writers = [load_client(settings, client) for client in range(3)]
    assert [writer.y_train.tolist() for writer in writers] == [[0], [3, 61], [5, 5]]
    assert [writer.y_test.tolist() for writer in writers] == [[0], [3], [5]]


def test_shakespeare_by_its_name(root: Path) -> None:
    users = {"ROMEO": ([TEXT, TEXT[1:] + "$"], ["!", "a"]), "JULIET": ([TEXT], ["}"])}
    for part in ("train", "test"):
        write_leaf(root / "root" / "shakespeare", part, users)

    data = load_dataset("shakespeare")

    assert data.x_train.dtype == np.int8
    assert (data.x_train.shape, data.num_classes) == ((3, LENGTH), 80)
    assert "".join(ALPHABET[token] for token in data.x_train[0]) == TEXT
    assert ALPHABET[data.x_train[1, -1]] == " "  # LEAF's alphabet has no $
    assert [ALPHABET[label] for label in data.y_train] == ["!", "a", "}"]
    assert (root / "root" / "shakespeare.npz").exists()


def test_features_of_any_other_length(root: Path) -> None:
    for part in ("train", "test"):
        write_leaf(root / "set", part, {"a": ([[0.5, -2.0], [1.0, 3.0]], [0, 1])})

    data = load_dataset(f"leaf:{root / 'set'}")

    np.testing.assert_array_equal(data.x_train, np.array([[0.5, -2], [1, 3]], np.float32))


def test_a_file_that_changes_is_decoded_anew(root: Path) -> None:
    for part in ("train", "test"):
        write_leaf(root / "set", part, {"a": ([[0.5], [1.0]], [0, 1])})
    before = load_dataset(f"leaf:{root / 'set'}").x_train.copy()
    write_leaf(root / "set", "train", {"a": ([[7.25], [1.0]], [0, 1])})

    after = load_dataset(f"leaf:{root / 'set'}").x_train

    assert (before[0, 0], after[0, 0]) == (0.5, 7.25)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[2.0] * 784], [1], "784 values from 2.0 to 2.0"),
        ([BLANK], [62], "labels up to 62"),
        ([TEXT[1:]], ["a"], "not windows of 80 characters"),
        ([BLANK], [1, 2], "1 samples and 2 labels"),
        ([[[1.0]]], [1], "samples of shape"),
        ([[math.nan] * 784], [1], "784 values from nan to nan"),
        ([BLANK], [0.5], "labels are not whole numbers from 0"),
        ([BLANK], [-1], "labels are not whole numbers from 0"),
        ([BLANK], [10**30], "labels are not whole numbers from 0"),
    ],
)
def test_samples_of_another_kind_are_refused(root: Path, x: list[object], y: list[object], message: str) -> None:
    for part in ("train", "test"):
        write_leaf(root / "set", part, {"a": (x, y)})

    with pytest.raises(DataError, match=message):
        load_dataset(f"leaf:{root / 'set'}")


def test_what_is_missing_or_cut_short_is_named(root: Path) -> None:
    with pytest.raises(DataError, match=r"missing .*set/train, .*set/test; needed is .*preprocess\.sh"):
        load_dataset(f"leaf:{root / 'set'}")
    file = write_leaf(root / "set", "train", {"a": ([[0.5]], [0])})
    (root / "set" / "test").mkdir()
    with pytest.raises(DataError, match=r"no \.json file in .*test"):
        load_dataset(f"leaf:{root / 'set'}")
    write_leaf(root / "set", "test", {"a": ([], [])})
    with pytest.raises(DataError, match=r"no sample in .*test"):
        load_dataset(f"leaf:{root / 'set'}")
    file.write_text(file.read_text()[:-20])
    with pytest.raises(DataError, match=r"all_data_0\.json is not of LEAF's form.*fetch or make it again"):
        load_dataset(f"leaf:{root / 'set'}")
    file.write_text(json.dumps({"users": ["a"], "user_data": {}}))
    with pytest.raises(DataError, match=r"KeyError\('a'\)"):
        load_dataset(f"leaf:{root / 'set'}")


def test_a_file_with_another_number_of_samples_than_it_says_is_refused(root: Path) -> None:
    for part in ("train", "test"):
        write_leaf(root / "set", part, {"a": ([[0.5], [1.0]], [0, 1]), "b": ([[0.5]], [0])})
    file = root / "set" / "train" / "all_data_0.json"
    content = json.loads(file.read_text())
    for counts, message in (
        ([3, 1], "user 'a' has 2 samples, num_samples says 3"),
        ([2], r"2 users, and num_samples of 1"),
    ):
        file.write_text(json.dumps({**content, "num_samples": counts}))
        with pytest.raises(DataError, match=rf"train/all_data_0\.json is not of LEAF's form.*{message}"):
            load_dataset(f"leaf:{root / 'set'}")


def test_a_file_that_counts_no_samples_is_taken(root: Path) -> None:
    for part in ("train", "test"):
        file = write_leaf(root / "set", part, {"a": ([[0.5], [1.0]], [0, 1])})
        content = json.loads(file.read_text())
        del content["num_samples"]
        file.write_text(json.dumps(content))

    assert len(load_dataset(f"leaf:{root / 'set'}").y_train) == 2


@pytest.mark.parametrize(("part", "count", "taken"), [("test", 80, True), ("test", 81, False), ("train", 80, False)])
def test_windows_between_the_parts_of_shakespeare_may_be_counted(
    root: Path, part: str, count: int, taken: bool
) -> None:
    files = {each: write_leaf(root / "set", each, {"ROMEO": ([TEXT], ["!"])}) for each in ("train", "test")}
    content = json.loads(files[part].read_text())
    files[part].write_text(json.dumps({**content, "num_samples": [count]}))

    if taken:
        assert len(load_dataset(f"leaf:{root / 'set'}").y_train) == 1
    else:
        with pytest.raises(DataError, match=f"has 1 samples, num_samples says {count}"):
            load_dataset(f"leaf:{root / 'set'}")


def test_a_user_who_is_twice_in_a_part_is_refused(root: Path) -> None:
    for part in ("train", "test"):
        write_leaf(root / "set", part, {"a": ([[0.5]], [0]), "b": ([[1.0]], [1])})
    copy = write_leaf(root / "set", "train", {"b": ([[1.0]], [1])}, "all_data_0 (copy).json")

    with pytest.raises(DataError, match=r"user 'b' is twice in .*: in .*\(copy\)\.json and in .*all_data_0\.json;"):
        load_dataset(f"leaf:{root / 'set'}")

    copy.unlink()
    assert load_dataset(f"leaf:{root / 'set'}").y_train.tolist() == [0, 1]


def test_what_was_decoded_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_leaf(root / "set", "train", {"a": ([[0.5], [1.0]], [0, 1]), "b": ([[0.5]], [0]), "none": ([], [])})
    write_leaf(root / "set", "test", {"a": ([[0.5]], [0])})

    load_dataset(f"leaf:{root / 'set'}")

    said = capsys.readouterr().err
    assert "set/train: users: 2, samples: 3" in said
    assert "set/test: users: 1, samples: 1" in said
