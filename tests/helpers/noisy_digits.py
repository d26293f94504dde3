"""Digits of which some clients have wrong labels: a data source named `tests.helpers.noisy_digits:digits`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

NOISY = (1, 4)
SHARE = 0.5
CLASSES = 10
Labels = NDArray[np.int64]


def true_labels(partition: int, clients: int) -> tuple[NDArray[Any], Labels, NDArray[Any], Labels]:
    """Samples and right labels of a client, to train and to test on: the set dealt out evenly at random."""
    x, y = load_digits(return_X_y=True)
    part = np.array_split(np.random.default_rng(7).permutation(len(y)), clients)[partition]
    train, test = part[:240], part[240:]
    x = (x / 16).astype(np.float32)
    return x[train], y[train].astype(np.int64), x[test], y[test].astype(np.int64)


def digits(settings: Mapping[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """A client's arrays; noisy ones have the share `SHARE` of their training labels turned into another class."""
    x_train, y_train, x_test, y_test = true_labels(partition, clients)
    if partition in NOISY:
        rng = np.random.default_rng((11, partition))
        wrong = rng.choice(len(y_train), int(SHARE * len(y_train)), replace=False)
        y_train[wrong] = (y_train[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, "num_classes": np.array(10)}
