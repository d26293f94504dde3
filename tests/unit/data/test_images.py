from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.data.images import _balanced
from tests.helpers.published import write_image
from tests.helpers.small_sets import as_list, load_dataset, refused

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("PIL")
    monkeypatch.setenv("DQNFED_DATA", str(tmp_path))
    return tmp_path


def cinic(root: Path) -> None:
    for part, sizes in (("train", (2, 1)), ("valid", (1, 1)), ("test", (1, 2))):
        for name, colour, count in zip(("bird", "frog"), (RED, GREEN), sizes, strict=True):
            for number in range(count):
                write_image(root / part / name / f"{part}-{number}.png", colour)


def test_cinic10_by_its_name(root: Path) -> None:
    cinic(root / "cinic-10")

    data = load_dataset("cinic10")

    assert data.x_train.dtype == np.uint8
    assert (data.x_train.shape, data.num_classes) == ((3, 4, 4, 3), 2)
    assert data.x_train[:, 0, 0].tolist() == [[255, 0, 0], [255, 0, 0], [0, 255, 0]]
    np.testing.assert_array_equal(data.y_train, [0, 0, 1])
    assert as_list(data.y_test) == [0, 1, 1]
    assert isinstance(data.x_train, np.memmap)
    assert sorted(path.name for path in root.iterdir()) == ["cinic-10", "cinic10.npz"]


def test_parts_may_be_joined_and_images_scaled(root: Path) -> None:
    cinic(root / "images")

    data = load_dataset(f"folder:{root / 'images'},train=train+valid,size=2")

    assert (data.x_train.shape, data.y_train.tolist()) == ((5, 2, 2, 3), [0, 0, 1, 0, 1])


@pytest.mark.parametrize("options", ["train=train+test", "train=train+train", "train=train+", "train=train+./test"])
def test_what_is_tested_is_not_trained(root: Path, options: str) -> None:
    cinic(root / "images")
    refused(f"folder:{root / 'images'},{options}", r"where test/ is the test part; train takes different folders")


def test_folders_that_tools_leave_behind_are_no_classes(root: Path) -> None:
    place = root / "images"
    cinic(place)
    for left in (".ipynb_checkpoints", "__MACOSX", "bird/.cache"):
        write_image(place / "train" / left / "0.png", BLUE)
    write_image(place / "train" / "bird" / "._train-0.png", BLUE)
    write_image(place / ".hidden" / "bird" / "0.png", BLUE)

    data = load_dataset(f"folder:{place}")

    assert (data.y_train.tolist(), data.num_classes) == ([0, 0, 1], 2)


def test_images_that_come_in_a_folder_of_a_class_are_seen(root: Path) -> None:
    place = root / "images"
    for part in ("train", "test"):
        write_image(place / part / "a" / "2020" / "0.png", RED)
    assert len(load_dataset(f"folder:{place}").y_train) == 1
    folder = place / "train" / "a" / "2020"
    write_image(folder / "1.png", RED)
    os.utime(folder, (2e9, 2e9))  # whatever the clock of the file system
    assert len(load_dataset(f"folder:{place}").y_train) == 2


def test_tiny_imagenet_reads_its_annotations(root: Path) -> None:
    place = root / "tiny-imagenet-200"
    write_image(place / "train" / "n02" / "images" / "n02_0.JPEG", RED)
    write_image(place / "train" / "n01" / "images" / "n01_0.JPEG", GREEN, mode="L")  # some are grey
    for number in range(3):
        write_image(place / "val" / "images" / f"val_{number}.JPEG", BLUE)
    write_image(place / "test" / "images" / "test_0.JPEG", BLUE)
    lines = [f"val_{number}.JPEG\t{name}\t0\t0\t3\t3\n" for number, name in ((1, "n02"), (0, "n01"), (2, "n01"))]
    (place / "val" / "val_annotations.txt").write_text("".join(lines))

    data = load_dataset("tiny-imagenet")

    assert (data.x_train.shape, data.y_train.tolist()) == ((2, 4, 4, 3), [0, 1])
    assert as_list(data.y_test) == [1, 0, 0]
    assert np.ptp(data.x_train[0], axis=-1).max() == 0
    named = load_dataset(f"folder:{place},test=val")
    assert as_list(named.y_test) == [1, 0, 0]


def test_what_does_not_fit_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = root / "images"
    refused(f"folder:{place}", r"missing .*images/train")
    (place / "train" / "a").mkdir(parents=True)
    refused(f"folder:{place}", "has no test, val, valid")
    write_image(place / "test" / "b" / "0.png", RED)
    refused(f"folder:{place}", "no image in a folder of a class")
    write_image(place / "train" / "a" / "0.png", RED)
    refused(f"folder:{place}", r"classes \['b'\] are tested and not trained")
    write_image(place / "train" / "b" / "1.png", RED, size=6)
    refused(f"folder:{place}", r"1\.png has 6x6 pixels, .*0\.png 4x4; .* size=64")
    whole = (place / "train" / "b" / "1.png").read_bytes()
    (place / "train" / "b" / "1.png").write_bytes(whole[:40])
    refused(f"folder:{place},size=4", r"1\.png is no whole image .*unpack or fetch it again")
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused(f"folder:{place},size=4", r"pip install 'dqnfed-flwr\[datasets\]'")
    assert [path.name for path in root.iterdir()] == ["images", "decoded"]
    assert list((root / "decoded").iterdir()) == []


def clothing(root: Path, *, labels: str = "images/0/1.jpg 13\nimages/0/2.jpg 0\nimages/0/3.jpg 0\n") -> Path:
    place = root / "clothing1m"
    for number in range(1, 5):
        write_image(place / "images" / "0" / f"{number}.jpg", RED, size=6)
    (place / "noisy_train_key_list.txt").write_text("images/0/3.jpg\nimages/0/2.jpg\nimages/0/1.jpg\n")
    (place / "noisy_label_kv.txt").write_text(labels)
    (place / "clean_test_key_list.txt").write_text("images/0/4.jpg\n")
    (place / "clean_label_kv.txt").write_text("images/0/4.jpg 2\nimages/0/1.jpg 5\n")
    return place


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\x03IHDR\0\0\0", "is no whole image .*fetch it again"),
        (b"\xff\xd8\xff", "is no whole image .*fetch it again"),
        (b"", "is no whole image .*fetch it again"),
        (b"no image", r"is no image that Pillow reads; allowed: \.png, .*\.webp$"),
    ],
)
def test_a_damaged_image_is_named(root: Path, content: bytes, message: str) -> None:
    for part in ("train", "test"):
        write_image(root / "images" / part / "a" / "0.png", RED)
    (root / "images" / "train" / "a" / "1.png").write_bytes(content)
    refused(f"folder:{root / 'images'}", rf"train/a/1\.png {message}")


def test_images_of_more_than_eight_bits_are_refused(root: Path) -> None:
    from PIL import Image

    for part in ("train", "test"):
        (root / "images" / part / "a").mkdir(parents=True)
        Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(root / "images" / part / "a" / "0.png")
    refused(f"folder:{root / 'images'}", r"0\.png has more than 8 bits a pixel .*scale the images to 8 bits first")


def test_clothing1m_by_its_key_files(root: Path) -> None:
    clothing(root)

    data = load_dataset("clothing1m,size=3")

    assert (data.x_train.shape, data.num_classes) == ((3, 3, 3, 3), 14)
    assert data.y_train.tolist() == [0, 0, 13]
    assert as_list(data.y_test) == [2]
    assert load_dataset("clothing1m,size=3,samples=2").y_train.tolist() == [0, 13]


def test_clothing1m_takes_classes_in_turns() -> None:
    assert _balanced(np.array([1, 1, 1, 0, 0, 5]), 4).tolist() == [0, 3, 4, 5]


def test_clothing1m_whose_files_do_not_fit_is_refused(root: Path) -> None:
    place = clothing(root, labels="images/0/1.jpg 13\n")
    refused("clothing1m", r"2 of 3 keys of noisy_train_key_list\.txt have no label")
    clothing(root, labels="images/0/1.jpg 14\n")
    refused("clothing1m", r"noisy_label_kv\.txt: line 'images/0/1\.jpg 14'; .*from 0 to 13")
    clothing(root, labels="images/0/1.jpg ²\n")
    refused("clothing1m", r"line 'images/0/1\.jpg ²'; .*from 0 to 13")
    (place / "noisy_label_kv.txt").write_bytes(b"images/0/1.jpg 1\n\xff")
    refused("clothing1m", r"noisy_label_kv\.txt is no UTF-8 text")
    (place / "clean_label_kv.txt").unlink()
    refused("clothing1m", r"missing .*clean_label_kv\.txt")
