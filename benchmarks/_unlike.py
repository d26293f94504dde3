"""Federations of digits in which one honest client is unlike the others: the form that `data: module:function` takes.

Eight clients. 0 to 6 hold the digits 0 to 4, dealt out evenly; client 7 is the other one, and the functions differ in
what it holds. The runs begin at a model trained on client 0 alone, so that client 7 has a large loss and the others
nearly none.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dqnfed_flwr.config import Settings

CLIENTS, OTHER = 8, 7
Arrays = dict[str, NDArray[Any]]


def other_digits(settings: Settings, partition: int, clients: int) -> Arrays:
    """Client 7 holds the digits 5 to 9."""
    del settings
    return _samples(np.isin(_labels(), range(5, 10))) if partition == OTHER else _usual(partition, clients)


def inverted(settings: Settings, partition: int, clients: int) -> Arrays:
    """Client 7 holds the digits 5 to 9 with black and white exchanged."""
    arrays = other_digits(settings, partition, clients)
    return arrays | {"x_train": 1 - arrays["x_train"]} if partition == OTHER else arrays


def large_features(settings: Settings, partition: int, clients: int) -> Arrays:
    """Client 7 holds the digits 5 to 9 with pixels from 0 to 60, where all others' lie in [0, 1]."""
    arrays = other_digits(settings, partition, clients)
    return arrays | {"x_train": 60 * arrays["x_train"]} if partition == OTHER else arrays


def one_class(settings: Settings, partition: int, clients: int) -> Arrays:
    """Every client holds one digit: client k the digit k."""
    del settings, clients
    return _samples(_labels() == partition)


UNLIKE = {each.__name__.replace("_", " "): each for each in (other_digits, inverted, large_features, one_class)}


@cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    digits = load_digits()
    return (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)


def _labels() -> NDArray[np.int64]:
    return _digits()[1]


def _samples(mask: NDArray[np.bool_]) -> Arrays:
    x, y = _digits()
    return {"x_train": x[mask], "y_train": y[mask], "num_classes": np.array(10)}


def _usual(partition: int, clients: int) -> Arrays:
    arrays = _samples(_labels() < 5)
    return arrays | {key: arrays[key][partition :: clients - 1] for key in ("x_train", "y_train")}
