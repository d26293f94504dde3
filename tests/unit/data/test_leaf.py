from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr import run
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.leaf_samples import ALPHABET, LENGTH
from tests.helpers.published import write_both, write_image, write_leaf
from tests.helpers.small_sets import as_list, load_dataset, refused

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
    assert as_list(data.groups_train) == [1, 1, 0, 2, 2]
    assert as_list(data.group_names) == ["f1", "f2", "f3"]
    settings = Settings.from_mapping({"data": f"leaf:{root / 'set'}", "partition": "groups", "clients": 3})
    writers = [load_client(settings, client) for client in range(3)]
    assert [writer.y_train.tolist() for writer in writers] == [[0], [3, 61], [5, 5]]
    assert [writer.y_test.tolist() for writer in writers] == [[0], [3], [5]]


def test_shakespeare_by_its_name(root: Path) -> None:
    users = {"ROMEO": ([TEXT, TEXT[1:] + "$"], ["!", "a"]), "JULIET": ([TEXT], ["}"])}
    write_both(root / "root" / "shakespeare", users)

    data = load_dataset("shakespeare")

    assert data.x_train.dtype == np.int8
    assert (data.x_train.shape, data.num_classes) == ((3, LENGTH), 80)
    assert "".join(ALPHABET[token] for token in data.x_train[0]) == TEXT
    assert ALPHABET[data.x_train[1, -1]] == " "  # LEAF's alphabet has no $
    assert [ALPHABET[label] for label in data.y_train] == ["!", "a", "}"]
    assert (root / "root" / "shakespeare.npz").exists()


def test_features_of_any_other_length(root: Path) -> None:
    write_both(root / "set", {"a": ([[0.5, -2.0], [1.0, 3.0]], [0, 1])})

    data = load_dataset(f"leaf:{root / 'set'}")

    np.testing.assert_array_equal(data.x_train, np.array([[0.5, -2], [1, 3]], np.float32))


def test_a_file_that_changes_is_decoded_anew(root: Path) -> None:
    write_both(root / "set", {"a": ([[0.5], [1.0]], [0, 1])})
    before = load_dataset(f"leaf:{root / 'set'}").x_train.copy()
    write_leaf(root / "set", "train", {"a": ([[7.25], [1.0]], [0, 1])})

    after = load_dataset(f"leaf:{root / 'set'}").x_train

    assert (before[0, 0], after[0, 0]) == (0.5, 7.25)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([TEXT[1:]], ["a"], "found texts of 79 to 79 characters with labels such as 'a'; allowed are numbers"),
        ([BLANK], [1, 2], "1 samples and 2 labels"),
        ([[[1.0]]], [1], r"found samples of shape \(1, 1\); allowed are"),
        ([[math.nan] * 784], [1], "sample 0 holds NaN, null or infinite numbers"),
        ([[1.0], [None]], [1, 0], "sample 1 holds NaN, null or infinite numbers"),
        ([[1.0], [1.0, 2.0]], [1, 0], "samples of different lengths; allowed are"),
        ([{"a": 1}], [1], "found samples of type dict; allowed are"),
        ([3.5], [1], "found samples of type float; allowed are"),
        ([["a", "b"]], [1], "found rows of 2 values of type str; allowed are"),
        ([["a", 1.0]], [1], "found rows of 2 values of type float, str; allowed are"),
        ([[["<BOS>", "a"]]], [{"target_tokens": []}], "labels are not whole numbers from 0"),
        (["a comment", "another"], [{"score": 1}, {"score": 2}], "labels are not whole numbers from 0"),
        (["../1.jpg"], [1], "found names of images with folders, such as '../1.jpg'; give bare names"),
        ([BLANK], [0.5], "labels are not whole numbers from 0"),
        ([BLANK], [-1], "labels are not whole numbers from 0"),
        ([BLANK], [10**30], "labels are not whole numbers from 0"),
    ],
)
def test_samples_of_another_kind_are_refused(root: Path, x: list[object], y: list[object], message: str) -> None:
    write_both(root / "set", {"a": (x, y)})

    refused(f"leaf:{root / 'set'}", message)


def test_what_is_missing_or_cut_short_is_named(root: Path) -> None:
    refused(f"leaf:{root / 'set'}", r"missing .*set/train, .*set/test; needed is .*preprocess\.sh")
    file = write_leaf(root / "set", "train", {"a": ([[0.5]], [0])})
    (root / "set" / "test").mkdir()
    refused(f"leaf:{root / 'set'}", r"no \.json file in .*test")
    write_leaf(root / "set", "test", {"a": ([], [])})
    refused(f"leaf:{root / 'set'}", r"no sample in .*test")
    file.write_text(file.read_text()[:-20])
    refused(f"leaf:{root / 'set'}", r"all_data_0\.json is cut short, its json has no end .*fetch or make it again$")
    file.write_text(json.dumps({"users": ["a"], "user_data": {}}))
    refused(
        f"leaf:{root / 'set'}", r"not of LEAF's form: found no lists x and y of user 'a' in user_data; it has users"
    )
    for other, found in (([1], "a json list"), ({"x": [], "y": []}, "the keys x, y"), ({}, "the keys none")):
        file.write_text(json.dumps(other))
        refused(f"leaf:{root / 'set'}", rf"not of LEAF's form: found {found}; it has users.*hierarchies$")


def test_a_file_with_another_number_of_samples_than_it_says_is_refused(root: Path) -> None:
    write_both(root / "set", {"a": ([[0.5], [1.0]], [0, 1]), "b": ([[0.5]], [0])})
    file = root / "set" / "train" / "all_data_0.json"
    content = json.loads(file.read_text())
    for counts, message in (
        ([3, 1], "user 'a' has 2 samples, num_samples says 3"),
        ([2], r"2 users, and num_samples of 1"),
    ):
        file.write_text(json.dumps({**content, "num_samples": counts}))
        refused(f"leaf:{root / 'set'}", rf"train/all_data_0\.json does not hold what it says: {message}; fetch or")


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
        refused(f"leaf:{root / 'set'}", f"has 1 samples, num_samples says {count}")


def test_a_user_who_is_twice_in_a_part_is_refused(root: Path) -> None:
    write_both(root / "set", {"a": ([[0.5]], [0]), "b": ([[1.0]], [1])})
    copy = write_leaf(root / "set", "train", {"b": ([[1.0]], [1])}, "all_data_0 (copy).json")

    refused(f"leaf:{root / 'set'}", r"user 'b' is twice in .*: in .*\(copy\)\.json and in .*all_data_0\.json;")

    copy.unlink()
    assert load_dataset(f"leaf:{root / 'set'}").y_train.tolist() == [0, 1]


def test_what_was_decoded_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_leaf(root / "set", "train", {"a": ([[0.5], [1.0]], [0, 1]), "b": ([[0.5]], [0]), "none": ([], [])})
    write_leaf(root / "set", "test", {"a": ([[0.5]], [0])})

    load_dataset(f"leaf:{root / 'set'}")

    said = capsys.readouterr().err
    assert "set/train: users: 2, samples: 3, read as features" in said
    assert "set/test: users: 1, samples: 1" in said


def test_standardised_pixels_are_features_for_all_users(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FedProx's MNIST; the users before the first number out of place had pixels by chance."""
    standardised = [-0.45] * 783 + [2.63]
    write_both(root / "mnist", {"f_1": ([BLANK, INK], [0, 1]), "f_2": ([standardised, INK], [2, 0])})

    data = load_dataset(f"leaf:{root / 'mnist'}")

    assert data.x_train.dtype == np.float32
    assert (data.x_train.shape, data.num_classes) == ((4, 784), 3)
    np.testing.assert_array_equal(data.x_train, np.array([BLANK, INK, standardised, INK], np.float32))
    said = capsys.readouterr().err
    assert "user 'f_2' has 784 numbers from -0.45 to 2.63, and pixels lie from 0 to 1: all samples are read" in said


@pytest.mark.parametrize(("largest", "classes"), [(9, 10), (8, 10), (25, 26), (36, 47), (61, 62), (62, 63)])
def test_images_have_the_classes_of_the_smallest_split_that_holds_them(root: Path, largest: int, classes: int) -> None:
    write_both(root / "nist", {"f_1": ([BLANK, INK], [0, largest])})

    assert load_dataset(f"leaf:{root / 'nist'}").num_classes == classes


def test_femnist_by_its_name_has_all_of_its_classes(root: Path) -> None:
    write_both(root / "root" / "femnist", {"f_1": ([BLANK, INK], [0, 9])})

    assert load_dataset("femnist").num_classes == 62


@pytest.mark.parametrize("folder", ["raw/img_align_celeba", "img_align_celeba", "images"])
def test_images_that_are_named(root: Path, folder: str) -> None:
    place = root / "celeba"
    for part, name in (("train", "000001.jpg"), ("test", "000002.jpg")):
        write_leaf(place, part, {"7": ([name, "000003.jpg"], [0.0, 1.0])})
    refused(f"leaf:{place}", r"such as 000001\.jpg, and no folder of them; put the images into")
    for number, colour in enumerate([(250, 0, 0), (0, 250, 0)], 1):
        write_image(place / folder / f"{number:06}.jpg", colour, size=8)
    refused(f"leaf:{place}", rf"1 of 2 images that .* names are not in .*{folder}, first 000003\.jpg; put")
    write_image(place / folder / "000003.jpg", (0, 0, 250), size=8)

    data, small = load_dataset(f"leaf:{place}"), load_dataset(f"leaf:{place},size=4")

    assert data.x_train.dtype == np.uint8
    assert (data.x_train.shape, data.num_classes) == ((2, 84, 84, 3), 2)
    assert small.x_train.shape == (2, 4, 4, 3)
    assert data.y_train.tolist() == [0, 1]
    assert small.x_train[0, 0, 0].argmax() == 0
    assert small.x_train[1, 0, 0].argmax() == 2
    assert small.x_test is not None
    assert small.x_test[0, 0, 0].argmax() == 1


def tweet(text: str) -> list[str]:
    return ["1467810672", "Mon Apr 06", "NO_QUERY", "somebody", text, "training"]


@pytest.mark.parametrize(
    ("trained", "tested", "found", "names"),
    [
        ([0, 1, 1], [1, 0, 0], ([0, 1, 1], [1, 0, 0]), None),
        (["0", "4", "4"], ["4", "0", "0"], ([0, 1, 1], [1, 0, 0]), ["negative", "positive"]),
        ([0, 4, 2], [0, 0, 0], ([0, 2, 1], [0, 0, 0]), ["negative", "neutral", "positive"]),
        ([0, 0, 0], [0, 4, 4], ([0, 0, 0], [0, 1, 1]), ["negative", "positive"]),
    ],
)
def test_tweets_are_bags_of_words(
    root: Path, trained: list[Any], tested: list[Any], found: tuple[list[int], list[int]], names: list[str] | None
) -> None:
    texts = [tweet("Happy happy DAY!"), tweet("sad day..."), tweet("")]
    write_leaf(root / "sent140", "train", {"a": (texts, trained)})
    write_leaf(root / "sent140", "test", {"a": ([row[:5] for row in texts], tested)})
    if max(map(int, trained)) == 0:
        refused(f"leaf:{root / 'sent140'}", r"no training sample of the classes \[1\]")
        return

    data = load_dataset(f"leaf:{root / 'sent140'},words=50")

    assert data.x_train.dtype == np.float32
    assert data.x_train.shape == (3, 50)
    happy, day, mark, sad, stop = (zlib.crc32(word) % 50 for word in (b"happy", b"day", b"!", b"sad", b"."))
    assert len({happy, day, mark, sad, stop}) == 5
    assert (data.x_train[0, happy], data.x_train[0, day], data.x_train[0, mark]) == (2, 1, 1)
    assert (data.x_train[1, sad], data.x_train[1, day], data.x_train[1, stop]) == (1, 1, 3)
    assert data.x_train.sum(axis=1).tolist() == [4, 5, 0]
    np.testing.assert_array_equal(data.x_test, data.x_train)
    assert (data.y_train.tolist(), as_list(data.y_test)) == found
    assert as_list(data.class_names) == names


def test_words_of_tweets_can_be_learnt(root: Path) -> None:
    users = {
        f"user {number}": ([tweet(f"so {word} {number}") for word in ("glad", "sad")] * 6, ["4", "0"] * 6)
        for number in range(3)
    }
    write_both(root / "sent140", users)
    settings = {"data": f"leaf:{root / 'sent140'},words=64", "partition": "groups", "clients": 3, "model": "logistic"}

    result = run({**settings, "rounds": 10, "local.threads": 1})

    assert result.accuracies == {0: 1.0, 1: 1.0, 2: 1.0}


def test_samples_of_two_kinds_are_refused(root: Path) -> None:
    write_both(root / "set", {"a": ([[0.5]], [0]), "b": (["words"], [0])})

    refused(f"leaf:{root / 'set'}", "user 'b': found texts, where users before have numbers; keep one set a folder")


def test_a_user_who_only_trains_has_no_test_part(root: Path, said: list[str]) -> None:
    write_leaf(root / "set", "train", {"a": ([[0.5], [1.0]], [0, 1]), "b": ([[0.5]], [0])})
    write_leaf(root / "set", "test", {"a": ([[0.5]], [0])})
    settings = Settings.from_mapping({"data": f"leaf:{root / 'set'}", "partition": "groups", "clients": 2})

    assert [load_client(settings, client).count("test") for client in range(2)] == [1, 0]
    assert "client 1 (b; 1 to train on)" in said[0]
