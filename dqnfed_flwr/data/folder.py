"""Images in one folder a class, below train/ and test/: CINIC-10, Tiny-ImageNet and many others.

Classes are numbered in the order of their names. Where val/val_annotations.txt lies (Tiny-ImageNet, whose test/ has no
labels), val/ is the test part, with its labels from there. Otherwise test/, val/ or valid/ is, the first that exists;
`test=valid` names another, `train=train+valid` joins several for training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dqnfed_flwr.data.forms import Options, need, number
from dqnfed_flwr.data.images import decode, is_image
from dqnfed_flwr.data.packed import text_lines
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError

ANNOTATIONS = Path("val", "val_annotations.txt")
TESTS = ("test", "val", "valid")
Labelled = list[tuple[Path, str]]


def files(paths: Sequence[Path]) -> list[Path]:
    """All folders that images may lie in: those that come or go change the time of their folder."""
    root = paths[0]
    need([root / "train"], f"a folder of images for each class in {root}/train")
    parts = _folders(root)
    classes = [folder for part in parts for folder in _folders(part)]
    places = sorted(Path(place) for folder in classes for place, _, _ in os.walk(folder))  # asks no image for its kind
    return [*parts, *places, *([root / ANNOTATIONS] if (root / ANNOTATIONS).exists() else [])]


def read(paths: Sequence[Path], options: Options, scratch: Path) -> Arrays:
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
        if is_image(file) and not any(_hidden(name) for name in file.relative_to(part).parts)
    ]
    if not found:
        raise DataError(f"data: no image in a folder of a class in {part}; unpack the set again")
    return found


def _folders(place: Path) -> list[Path]:
    """Folders in `place`, by name; those that tools leave behind are none of the set's."""
    return sorted(folder for folder in place.iterdir() if folder.is_dir() and not _hidden(folder.name))


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _parts(root: Path, options: Options) -> tuple[list[Path], Path | None]:
    """Folders that are trained on, and the one that is tested on; None where annotations name the test part."""
    names, wanted = options.get("train", "train").split("+"), options.get("test", "")
    annotated = not wanted and (root / ANNOTATIONS).exists()
    places = [ANNOTATIONS.parent] if annotated else [Path(part) for part in ([wanted] if wanted else TESTS)]
    tested = next((root / part for part in places if (root / part).is_dir()), None)
    if tested is None:
        raise DataError(f"data: {root} has no {wanted or ', '.join(TESTS)}; name the test part with test=FOLDER")
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
