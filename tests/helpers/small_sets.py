"""Public image sets with fewer and smaller images, and what is in those that were loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dqnfed_flwr.data.dataset import Array, DataSet, TargetForm
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.data.torchvision_sets import TORCHVISION_SETS, Size
from dqnfed_flwr.errors import DataError


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, size: Size) -> None:
    """Let the torchvision set `name` be of this size."""
    monkeypatch.setitem(TORCHVISION_SETS, name, replace(TORCHVISION_SETS[name], size=size))


def load_dataset(data: str, num_classes: int = 0, targets: TargetForm = "classes") -> DataSet:
    """A whole set, by its name."""
    return source_of(data).load(num_classes, targets)


def as_list(array: Array | None) -> Any:
    """What an array holds; None where there is none."""
    return None if array is None else array.tolist()


def refused(data: str, words: str, targets: TargetForm = "classes") -> None:
    """Check that a set cannot be loaded, for a reason that the regular expression `words` finds."""
    with pytest.raises(DataError, match=words):
        load_dataset(data, targets=targets)
