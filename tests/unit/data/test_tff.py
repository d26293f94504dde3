from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.data import tff
from tests.helpers.published import write_h5
from tests.helpers.small_sets import as_list, load_dataset, refused


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("h5py")
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    return tmp_path


def pixels(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.stack([np.full((28, 28), value, np.float32) for value in values])


def test_femnist_by_writer(root: Path) -> None:
    (root / "femnist").mkdir()
    train = {
        "f1_b": {"pixels": pixels(1, 0.5), "label": np.array([61, 2], np.int32)},
        "f0_a": {"pixels": pixels(0), "label": np.array([7], np.int32)},
    }
    test = {"f0_a": {"pixels": pixels(1), "label": np.array([7], np.int32)}}
    write_h5(root / "femnist" / "fed_emnist_train.h5", train)
    write_h5(root / "femnist" / "fed_emnist_test.h5", test)

    data = load_dataset("femnist")

    assert data.x_train.dtype == np.uint8
    assert (data.x_train.shape, data.num_classes) == ((3, 28, 28), 62)
    assert data.x_train[:, 0, 0].tolist() == [0, 255, 128]
    np.testing.assert_array_equal(data.y_train, [7, 61, 2])
    assert as_list(data.y_test) == [7]
    assert as_list(data.groups_train) == [0, 1, 1]
    assert as_list(data.groups_test) == [0]
    assert as_list(data.group_names) == ["f0_a", "f1_b"]


def test_digits_only_has_ten_classes(root: Path) -> None:
    clients = {"a": {"pixels": pixels(1), "label": np.array([3], np.int32)}}
    for part in ("train", "test"):
        write_h5(root / f"fed_emnist_digitsonly_{part}.h5", clients)

    assert load_dataset(f"tff:{root}").num_classes == 10


def stackoverflow(root: Path) -> str:
    train = {"7": {"tokens": [b"how do i do", b"do it"]}, "9": {"tokens": [b"i do", b"left out"]}}
    write_h5(root / "so_train.h5", train)
    write_h5(root / "so_test.h5", {"7": {"tokens": [b"how now"]}, "8": {"tokens": [b"not asked for"]}})
    return f"tff:{root / 'so_train.h5'},{root / 'so_test.h5'}"


def test_next_words_of_sentences(root: Path) -> None:
    data = load_dataset(f"{stackoverflow(root)},vocabulary=3,length=3,sentences=1")

    # of the first sentence of each: do 3, i 2, how 1. So do 1, i 2, how 3, unknown 4, begin 5, end 6
    assert data.num_classes == 7
    first = [[0, 0, 5], [0, 5, 3], [5, 3, 1], [3, 1, 2], [1, 2, 1]]
    assert data.x_train.tolist() == [*first, [0, 0, 5], [0, 5, 2], [5, 2, 1]]
    assert data.y_train.tolist() == [3, 1, 2, 1, 6, 2, 1, 6]
    assert as_list(data.groups_train) == [0] * 5 + [1] * 3
    assert as_list(data.x_test) == [[0, 0, 5], [0, 5, 3], [5, 3, 4]]
    assert as_list(data.y_test) == [3, 4, 6]


def test_published_word_counts_come_first(root: Path) -> None:
    name = stackoverflow(root)
    (root / "stackoverflow.word_count").write_text("it 900\nnow 800\ndo 700\n")

    data = load_dataset(f"{name},vocabulary=2,length=2,users=1")

    assert data.num_classes == 6  # it 1, now 2, unknown 3, begin 4, end 5
    assert data.y_train.tolist() == [3, 3, 3, 3, 5, 3, 1, 5]
    assert as_list(data.group_names) == ["7"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"word_count has 0 words, where vocabulary=2 are asked for; put a count of more words there"),
        (b"it 900\n\n \n", "word_count has 1 words, .* lower vocabulary to 1, or put a count"),
        (b"it 900\n\xff 7\n", "word_count is no UTF-8 text .*save it as UTF-8"),
    ],
)
def test_word_counts_that_are_cut_short_or_damaged_are_refused(root: Path, content: bytes, message: str) -> None:
    name = stackoverflow(root)
    (root / "stackoverflow.word_count").write_bytes(content)
    refused(f"{name},vocabulary=2", message)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"pixels": pixels(255), "label": np.array([3], np.int32)}, r"client b: pixels from 255\.0 to 255\.0"),
        ({"pixels": pixels(np.nan), "label": np.array([3], np.int32)}, "client b: pixels from nan to nan"),
        ({"pixels": pixels(1)}, "client b cannot be read .*label.*each client has arrays named pixels and label"),
        ({"pixels": pixels(1, 1), "label": np.array([3], np.int32)}, "client b: 2 images and 1 labels"),
        ({"pixels": pixels(1), "label": np.array([0.5])}, "client b: 1 images and 1 labels of dtype float64"),
    ],
)
def test_clients_whose_images_are_none_are_refused(
    root: Path, client: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]], message: str
) -> None:
    good = {"a": {"pixels": pixels(1), "label": np.array([3], np.int32)}}
    write_h5(root / "a_test.h5", good)
    write_h5(root / "a_train.h5", {**good, "b": client})
    refused(f"tff:{root}", rf"a_train\.h5: {message}")


def test_what_does_not_fit_is_refused(root: Path) -> None:
    refused(f"tff:{root}", r"holds 0 files \*train\*\.h5")
    (root / "a_train.h5").write_bytes(b"\x89HDF\r\n\x1a\n cut short")
    refused(f"tff:{root}", r"missing .*a_test\.h5")
    write_h5(root / "a_test.h5", {"b": {"tokens": [b"x"]}})
    whole = (root / "a_test.h5").read_bytes()
    for content, found in (
        (b"client,label\n", r"is no HDF5 .*allowed is"),
        (whole[:-900], "is no whole .*fetch it again"),
    ):
        (root / "b_train.h5").write_bytes(content)
        refused(f"tff:{root / 'b_train.h5'},{root / 'a_test.h5'}", rf"b_train\.h5 {found}")
    (root / "b_train.h5").unlink()
    refused(f"tff:{root}", r"a_train\.h5 is no whole \.h5 file .*fetch it again")
    write_h5(root / "a_train.h5", {"a": {"snippets": [b"x"]}})
    refused(f"tff:{root}", r"fields \['snippets'\]; known are")
    write_h5(root / "a_train.h5", {"a": {"tokens": [b"x"]}})
    refused(f"tff:{root}", "do not belong together")
    write_h5(root / "a_train.h5", {})
    refused(f"tff:{root}", "no clients under 'examples'")


def test_a_file_is_not_its_own_test_part(root: Path) -> None:
    write_h5(root / "all.h5", {"a": {"pixels": pixels(1), "label": np.array([3], np.int32)}})
    refused(f"tff:{root / 'all.h5'}", r"all\.h5 would be its own test part; .*tff:TRAIN\.h5,TEST\.h5")


def test_the_number_of_classes_is_that_of_the_whole_file(root: Path) -> None:
    digit = {"pixels": pixels(1), "label": np.array([3], np.int32)}
    letter = {"pixels": pixels(1), "label": np.array([61], np.int32)}
    for part in ("train", "test"):
        write_h5(root / f"em_{part}.h5", {"a": digit, "b": letter})
    assert [load_dataset(f"tff:{root},users={users}").num_classes for users in (1, 2)] == [62, 62]


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"tokens": [b"a b"]}, {"tokens": []}, r"a_test\.h5 has no sample of the clients"),
        ({"tokens": np.arange(3)}, {"tokens": [b"a"]}, r"client a: tokens of dtype int64, where sentences"),
        (
            {"pixels": np.zeros((1, 28, 28), np.float32), "label": np.zeros(1, np.int32)},
            {"pixels": np.zeros((0, 28, 28), np.float32), "label": np.zeros(0, np.int32)},
            r"a_test\.h5 has no sample of the clients",
        ),
    ],
)
def test_parts_without_fit_samples_are_refused(
    root: Path, train: dict[str, Any], test: dict[str, Any], message: str
) -> None:
    write_h5(root / "a_train.h5", {"a": train})
    write_h5(root / "a_test.h5", {"a": test})
    refused(f"tff:{root}", message)


def test_images_of_several_sizes_are_refused(root: Path) -> None:
    small = {"pixels": np.zeros((1, 8, 8), np.float32), "label": np.zeros(1, np.int32)}
    for part in ("train", "test"):
        write_h5(root / f"a_{part}.h5", {"a": {"pixels": pixels(1), "label": np.zeros(1, np.int32)}, "b": small})
    refused(f"tff:{root}", r"images of the shapes \[\(8, 8\), \(28, 28\)\] in one part")


def test_more_sentences_than_fit_are_counted_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test"):
        write_h5(root / f"a_{part}.h5", {"a": {"tokens": [b"one", b"two three"]}})
    monkeypatch.setattr(tff, "MOST_SENTENCES", 1)
    refused(f"tff:{root}", r"a_train\.h5: 2 sentences, of which at most 1 fit .* users= and sentences=")
    assert load_dataset(f"tff:{root},sentences=1").x_train.shape == (2, 20)
    monkeypatch.setattr(tff, "MOST_SENTENCES", 2)
    monkeypatch.setattr(tff, "MOST_VALUES", 5 * 21 - 1)
    refused(f"tff:{root}", r"the train part: the windows of these sentences are .* GiB")


def test_a_window_has_a_sensible_length(root: Path) -> None:
    refused(stackoverflow(root) + ",length=99999999999", r"length='99999999999'; give a whole number from 1 to 1000")


def test_clients_that_are_no_groups_are_refused(root: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for part in ("train", "test"):
        with h5py.File(root / f"a_{part}.h5", "w") as file:
            file["examples"] = np.zeros(3)
    refused(f"tff:{root}", "no clients under 'examples'")


def test_without_h5py_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "test"):
        (tmp_path / f"a_{part}.h5").touch()
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "h5py", None)

    refused(f"tff:{tmp_path}", r"pip install 'dqnfed-flwr\[datasets\]'")
