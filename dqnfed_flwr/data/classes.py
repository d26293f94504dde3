"""A data set with some of its classes only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dqnfed_flwr.data.apportion import IntArray
from dqnfed_flwr.data.dataset import DataSet
from dqnfed_flwr.errors import DataError

LEFT_OUT = -1
"""Label of a sample whose class is not among those kept."""


def only_classes(data: DataSet, wanted: str) -> DataSet:
    """Number the classes in `wanted` anew from 0, in the order given, and mark the samples of all others `LEFT_OUT`.

    Parameters
    ----------
    data : DataSet
        Its samples stay where they are.
    wanted : str
        Class numbers between commas, such as `0,2,6`; empty keeps every class and number.

    Raises
    ------
    DataError
        If a number is none of the set's classes, or stands twice, or fewer than two are left.
    """
    kept = numbers("split.only-classes", wanted, "0,2,6")
    if not kept:
        return data
    if len(set(kept)) != len(kept) or len(kept) < 2 or not 0 <= min(kept) <= max(kept) < data.num_classes:
        raise DataError(
            f"split.only-classes: found {wanted!r}; give two or more different numbers from 0 to {data.num_classes - 1}"
        )
    renumbered = np.full(data.num_classes, LEFT_OUT, dtype=np.int64)
    renumbered[kept] = np.arange(len(kept))
    y_test = None if data.y_test is None else renumbered[data.y_test]
    return replace(data, y_train=renumbered[data.y_train], y_test=y_test, num_classes=len(kept))


def numbers(key: str, text: str, example: str) -> list[int]:
    """Whole numbers between commas; none in empty text.

    Raises
    ------
    DataError
        If there is anything else.
    """
    try:
        return [int(number) for number in text.split(",")] if text.strip() else []
    except ValueError:
        raise DataError(f"{key}: found {text!r}; give numbers between commas: {example}") from None


def present(labels: IntArray) -> IntArray:
    """Rising positions of the samples that are not `LEFT_OUT`."""
    return np.flatnonzero(labels != LEFT_OUT)
