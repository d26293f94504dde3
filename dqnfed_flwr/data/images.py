"""Sets of image files: one folder a class, or the key files of Clothing1M.

In the form `folder`, images lie in one folder a class, below train/ and test/: CINIC-10, Tiny-ImageNet and many others.
Classes are numbered in the order of their names. Where val/val_annotations.txt lies (Tiny-ImageNet, whose test/ has no
labels), val/ is the test part, with its labels from there. Otherwise test/, val/ or valid/ is, the first that exists;
`test=valid` names another, `train=train+valid` joins several for training.

Clothing1M has noisy labels to train on, clean ones to test on, 14 classes: Xiao et al., "Learning from massive noisy
labeled data for image classification" (2015). Images are scaled to `size` pixels a side (64); `samples` takes the first
so many of the training list, balanced over the classes as far as they go.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.data.reading import FormOptions, need, number, text_lines
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

DEEP = ("I", "F")
"""Pillow's modes of grey images whose values do not fit into 8 bits, and would be cut off."""
BEGINNINGS = (b"\x89PNG", b"\xff\xd8", b"BM", b"RIFF")
"""First bytes of the images in `SUFFIXES`."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
ANNOTATIONS = Path("val", "val_annotations.txt")
TEST_FOLDERS = ("test", "val", "valid")
Labelled = list[tuple[Path, str]]
CLOTHES = 14
TRAIN_LISTS = ("noisy_train_key_list.txt", "noisy_label_kv.txt")
TEST_LISTS = ("clean_test_key_list.txt", "clean_label_kv.txt")


def decode(files: Sequence[Path], size: int, target: Path) -> NDArray[np.uint8]:
    """Decode N images to [N, H, W, 3], mapped in the file `target`, so that large sets need no memory.

    Grey images become colour. Each is scaled to the side `size`, 0 where all have one size already. DataError if Pillow
    is not installed, a file is no whole image of 8 bits, or sizes differ.
    """
    width, height = (size, size) if size else _open(files[0], 0).size
    images = np.lib.format.open_memmap(target, "w+", dtype=np.uint8, shape=(len(files), height, width, 3))
    for place, file in enumerate(files):
        image = _open(file, size)
        if image.size != (width, height):
            raise DataError(
                f"data: {file} has {image.size[0]}x{image.size[1]} pixels, {files[0]} {width}x{height}; scale them "
                "alike with the option size, such as size=64"
            )
        images[place] = np.asarray(image)
    return images


def _open(file: Path, size: int) -> Image:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError("data: images are read by Pillow: pip install 'dqnfed-flwr[datasets]'") from None
    try:
        with Image.open(file) as image:
            mode, colours = image.mode, image.convert("RGB")
    except Exception as error:  # whatever a damaged image makes Pillow raise
        if isinstance(error, UnidentifiedImageError) and not _begins_as_image(file):
            raise DataError(f"data: {file} is no image that Pillow reads; allowed: {', '.join(SUFFIXES)}") from error
        raise DataError(f"data: {file} is no whole image ({error}); unpack or fetch it again") from error
    if mode.startswith(DEEP):
        raise DataError(f"data: {file} has more than 8 bits a pixel (mode {mode}); scale the images to 8 bits first")
    if not size or colours.size == (size, size):
        return colours
    return colours.resize((size, size), Image.Resampling.BILINEAR)


def _begins_as_image(file: Path) -> bool:
    """Whether a file that Pillow does not know is the beginning of one, or of nothing."""
    with file.open("rb") as content:
        begin = content.read(4)
    return not begin or begin.startswith(BEGINNINGS)


def folder_files(paths: Sequence[Path]) -> list[Path]:
    """All folders that images may lie in: those that come or go change the time of their folder."""
    root = paths[0]
    need([root / "train"], f"a folder of images for each class in {root}/train")
    parts = _folders(root)
    classes = [folder for part in parts for folder in _folders(part)]
    places = sorted(Path(place) for folder in classes for place, _, _ in os.walk(folder))  # asks no image for its kind
    return [*parts, *places, *([root / ANNOTATIONS] if (root / ANNOTATIONS).exists() else [])]


def read_folder(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Images of both parts, class by class, in the order of their names."""
    root, size = paths[0], number(options, "size", 0)
    trained, tested = _parts(root, options)
    train = [pair for part in trained for pair in _by_class(part)]
    test = _by_class(tested) if tested else _annotated(root)
    names = sorted({name for _, name in train})
    unknown = sorted({name for _, name in test} - set(names))
    if unknown:
        raise DataError(f"data: {root}: classes {unknown[:5]} are tested and not trained; unpack train/ again")
    numbers = {name: place for place, name in enumerate(names)}
    return {
        "x_train": decode([file for file, _ in train], size, scratch / "train.npy"),
        "y_train": np.array([numbers[name] for _, name in train]),
        "x_test": decode([file for file, _ in test], size, scratch / "test.npy"),
        "y_test": np.array([numbers[name] for _, name in test]),
    }


def _by_class(part: Path) -> Labelled:
    need([part], "a folder of images for each class in it")
    found = [
        (file, folder.name)
        for folder in _folders(part)
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES and not any(_hidden(name) for name in file.relative_to(part).parts)
    ]
    if not found:
        raise DataError(f"data: no image in a folder of a class in {part}; unpack the set again")
    return found


def _folders(place: Path) -> list[Path]:
    """Folders in `place`, by name; those that tools leave behind are none of the set's."""
    return sorted(folder for folder in place.iterdir() if folder.is_dir() and not _hidden(folder.name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _parts(root: Path, options: FormOptions) -> tuple[list[Path], Path | None]:
    """Folders that are trained on, and the one that is tested on; None where annotations name the test part."""
    names, wanted = options.get("train", "train").split("+"), options.get("test", "")
    annotated = wanted in ("", ANNOTATIONS.parent.name) and (root / ANNOTATIONS).exists()
    places = [ANNOTATIONS.parent] if annotated else [Path(part) for part in ([wanted] if wanted else TEST_FOLDERS)]
    tested = next((root / part for part in places if (root / part).is_dir()), None)
    if tested is None:
        raise DataError(f"data: {root} has no {wanted or ', '.join(TEST_FOLDERS)}; name the test part with test=FOLDER")
    trained = [root / name for name in names]
    if not all(names) or len({place.resolve() for place in [*trained, tested]}) < len(trained) + 1:
        raise DataError(
            f"data: {root}: train={'+'.join(names)} where {tested.name}/ is the test part; train takes different "
            "folders, none of them that one, such as train=train+valid"
        )
    return trained, None if annotated else tested


def _annotated(root: Path) -> Labelled:
    """File and class of each line: name, class, and the corners of a box, with tabs between them."""
    lines = [line.split("\t") for line in text_lines(root / ANNOTATIONS)]
    if not lines or any(len(line) < 2 for line in lines):
        raise DataError(f"data: {root / ANNOTATIONS} has lines without a class; unpack it again")
    return [(root / "val" / "images" / line[0], line[1]) for line in lines]


def clothing1m_files(paths: Sequence[Path]) -> list[Path]:
    """The key files, which may lie in a folder annotations/."""
    return need(
        [_key_file(paths[0], name) for name in (*TRAIN_LISTS, *TEST_LISTS)], "the key files of Clothing1M, as published"
    )


def read_clothing1m(paths: Sequence[Path], options: FormOptions, scratch: Path) -> Arrays:
    """Noisy training part and clean test part, in the order of the key lists."""
    root, size, samples = paths[0], number(options, "size", 64, least=1), number(options, "samples", 0)
    train, y_train = _labelled(root, *TRAIN_LISTS)
    if samples:
        chosen = _balanced(y_train, samples)
        train, y_train = [train[place] for place in chosen], y_train[chosen]
    test, y_test = _labelled(root, *TEST_LISTS)
    return {
        "x_train": decode(train, size, scratch / "train.npy"),
        "y_train": y_train,
        "x_test": decode(test, size, scratch / "test.npy"),
        "y_test": y_test,
        "num_classes": np.array(CLOTHES),
    }


def _key_file(root: Path, name: str) -> Path:
    inner = root / "annotations" / name
    return inner if inner.exists() else root / name


def _labelled(root: Path, keys: str, labels: str) -> tuple[list[Path], IntArray]:
    by_key: dict[str, int] = {}
    for line in text_lines(_key_file(root, labels)):
        key, _, label = line.rpartition(" ")
        if not label.isdecimal() or int(label) >= CLOTHES:
            raise DataError(f"data: {labels}: line {line!r}; each is a key and a class from 0 to {CLOTHES - 1}")
        by_key[key] = int(label)
    listed = text_lines(_key_file(root, keys))
    bare = [key for key in listed if key not in by_key]
    if bare or not listed:
        raise DataError(
            f"data: {len(bare)} of {len(listed)} keys of {keys} have no label in {labels}"
            f"{f', first {bare[0]}' if bare else ''}; put the two that belong together there, as published"
        )
    return [root / key for key in listed], np.array([by_key[key] for key in listed])


def _balanced(labels: IntArray, samples: int) -> IntArray:
    """Rising places of `samples` labels: classes take turns, each with its next in the list."""
    turn = np.empty(len(labels), dtype=np.int64)
    for label in range(CLOTHES):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    return np.sort(np.lexsort((labels, turn))[:samples])
