from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.data import columns, reading
from tests.helpers.small_sets import as_list, load_dataset, refused

TRAIN, TEST = "-1 3:1 1:0.5\n+1 2:2\n-1\n", "+1 4:1\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path / "root"))
    (tmp_path / "a.txt").write_text(TRAIN.replace("3:1 1:0.5", "1:0.5 3:1"))
    (tmp_path / "a.t.xz").write_bytes(lzma.compress(TEST.encode()))
    return tmp_path


def test_one_file_has_no_test_part(root: Path) -> None:
    data = load_dataset(f"libsvm:{root / 'a.txt'}")

    np.testing.assert_array_equal(data.x_train, np.array([[0.5, 0, 1], [0, 2, 0], [0, 0, 0]], np.float32))
    assert (data.y_train.tolist(), data.x_test, data.num_classes) == ([0, 1, 0], None, 2)
    assert as_list(data.class_names) == ["-1", "1"]


def test_two_files_share_features_and_classes(root: Path) -> None:
    data = load_dataset(f"libsvm:{root / 'a.txt'},{root / 'a.t.xz'}")

    assert (data.x_train.shape, as_list(data.x_test), as_list(data.y_test)) == ((3, 4), [[0, 0, 0, 1]], [1])


@pytest.mark.parametrize(("suffix", "pack"), [(".xz", lzma.compress), (".gz", gzip.compress), (".bz2", bz2.compress)])
def test_a_packed_file_unpacks_to_no_more_than_the_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    file = root / f"b.txt{suffix}"
    file.write_bytes(pack(b"1 1:1\n" * 10))
    monkeypatch.setattr(reading, "MOST_UNPACKED", 60)
    assert reading.unpacked(file) == b"1 1:1\n" * 10
    monkeypatch.setattr(reading, "MOST_UNPACKED", 59)
    refused(f"libsvm:{file}", r"b\.txt.* unpacks to more than 59 bytes; if it is right, unpack it yourself")


def test_what_does_not_fit_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(f"libsvm:{root / 'b.txt'}", r"missing .*b\.txt; needed is LIBSVM text")
    (root / "b.txt").write_text("1 4000000000:1\n")
    refused(f"libsvm:{root / 'b.txt'}", "not LIBSVM text")
    (root / "b.txt").write_text("1 2:x\n")
    refused(f"libsvm:{root / 'b.txt'}", "not LIBSVM text")
    (root / "b.txt").write_text("1 1:2\nnan 1:3\n")
    refused(f"libsvm:{root / 'b.txt'}", "a label is no finite number")
    monkeypatch.setattr(columns, "MOST_BYTES", 30)
    refused(f"libsvm:{root / 'a.txt'}", "3 samples of 3 features are 0 GiB as dense rows")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ("25.8 6.9 1361.8", None),
        ("7 672 7", [0, 1, 0]),
        ("-1 +1 +1", [0, 1, 1]),
        ("1 2 3", [0, 1, 2]),
        ("0 1 2", [0, 1, 2]),
    ],
)
def test_targets_are_the_numbers_themselves_for_a_task_of_numbers(
    root: Path, labels: str, classes: list[int] | None
) -> None:
    (root / "b.txt").write_text("".join(f"{label} 1:0.5\n" for label in labels.split()))
    name = f"libsvm:{root / 'b.txt'}"

    found = load_dataset(name, targets="values").y_train

    assert found.shape == (3, 1)
    np.testing.assert_array_equal(found[:, 0], np.array(labels.split(), np.float32))
    if classes is None:
        refused(name, r"y_train has dtype float32 .*; found 25.8: to learn numbers, set task to reg")
    else:
        assert load_dataset(name).y_train.tolist() == classes


def test_queries_of_ranking_sets_are_natural_groups(root: Path) -> None:
    (root / "b.txt").write_text("3 qid:1 1:0.5\n0 qid:2 1:1\n1 qid:1 1:2\n")
    data = load_dataset(f"libsvm:{root / 'b.txt'}", targets="values")
    assert (data.y_train[:, 0].tolist(), as_list(data.groups_train)) == ([3, 0, 1], [1, 2, 1])
    (root / "b.txt").write_text("3 qid:1 1:0.5\n0 1:1\n")
    refused(f"libsvm:{root / 'b.txt'}", "1 of 2 lines have a qid; give every line one, or none")


def test_what_is_no_target_or_feature_is_named(root: Path) -> None:
    (root / "b.txt").write_text("1,3 2:0.5\n0 1:1\n")
    refused(f"libsvm:{root / 'b.txt'}", r"not LIBSVM text .*; found several labels a line, where one is allowed")
    (root / "b.txt").write_text("".join(f"{row % 2} 1:0.5 2:{row}\n" for row in range(12)))
    refused(
        f"libsvm:{root / 'b.txt'}", r"a feature counts the rows from 0, as an index does \(column 1 of the dense rows"
    )
    (root / "b.txt").write_text("1e39 1:0.5\n2 1:1\n")
    refused(f"libsvm:{root / 'b.txt'}", "a label is no finite number of float32")
