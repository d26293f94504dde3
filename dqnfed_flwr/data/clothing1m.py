"""Clothing1M by its key files: noisy labels to train on, clean ones to test on, 14 classes.

Xiao et al., "Learning from massive noisy labeled data for image classification" (2015). Images are scaled to `size`
pixels a side (64); `samples` takes the first so many of the training list, balanced over the classes as far as they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dqnfed_flwr.data.apportion import IntArray
from dqnfed_flwr.data.forms import Options, need, number
from dqnfed_flwr.data.images import decode
from dqnfed_flwr.data.packed import text_lines
from dqnfed_flwr.data.store import Arrays
from dqnfed_flwr.errors import DataError

CLASSES = 14
TRAIN = ("noisy_train_key_list.txt", "noisy_label_kv.txt")
TEST = ("clean_test_key_list.txt", "clean_label_kv.txt")


def files(paths: Sequence[Path]) -> list[Path]:
    """The key files, which may lie in a folder annotations/."""
    return need([_key_file(paths[0], name) for name in (*TRAIN, *TEST)], "the key files of Clothing1M, as published")


def read(paths: Sequence[Path], options: Options, scratch: Path) -> Arrays:
    """Noisy training part and clean test part, in the order of the key lists."""
    root, size, samples = paths[0], number(options, "size", 64, least=1), number(options, "samples", 0)
    train, y_train = _labelled(root, *TRAIN)
    if samples:
        chosen = _balanced(y_train, samples)
        train, y_train = [train[place] for place in chosen], y_train[chosen]
    test, y_test = _labelled(root, *TEST)
    return {
        "x_train": decode(train, size, scratch / "train.npy"),
        "y_train": y_train,
        "x_test": decode(test, size, scratch / "test.npy"),
        "y_test": y_test,
        "num_classes": np.array(CLASSES),
    }


def _key_file(root: Path, name: str) -> Path:
    inner = root / "annotations" / name
    return inner if inner.exists() else root / name


def _labelled(root: Path, keys: str, labels: str) -> tuple[list[Path], IntArray]:
    by_key: dict[str, int] = {}
    for line in text_lines(_key_file(root, labels)):
        key, _, label = line.rpartition(" ")
        if not label.isdecimal() or int(label) >= CLASSES:
            raise DataError(f"data: {labels}: line {line!r}; each is a key and a class from 0 to {CLASSES - 1}")
        by_key[key] = int(label)
    listed = text_lines(_key_file(root, keys))
    bare = [key for key in listed if key not in by_key]
    if bare or not listed:
        raise DataError(
            f"data: {len(bare)} of {len(listed)} keys of {keys} have no label in {labels}"
            f"{f', first {bare[0]}' if bare else ''}; fetch both files again"
        )
    return [root / key for key in listed], np.array([by_key[key] for key in listed])


def _balanced(labels: IntArray, samples: int) -> IntArray:
    """Rising places of `samples` labels: classes take turns, each with its next in the list."""
    turn = np.empty(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        members = np.flatnonzero(labels == label)
        turn[members] = np.arange(len(members))
    return np.sort(np.lexsort((labels, turn))[:samples])
