"""What every client of a run holds: samples of each class, natural groups, wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.apportion import IntArray
from dqnfed_flwr.data.client_part import ClientPart, find_part
from dqnfed_flwr.data.clients import check_features


@dataclass(frozen=True)
class ClientSummary:
    """One client in figures.

    Attributes
    ----------
    train, test : IntArray
        Samples of each class [C]; training labels are counted as they are given, with noise.
    validation : int
        Samples kept apart.
    wrong : int
        Training labels that differ from the right ones.
    groups : tuple[str, ...]
        Natural groups it holds, by name where the set has names.
    """

    train: IntArray
    test: IntArray
    validation: int
    wrong: int
    groups: tuple[str, ...]

    @property
    def samples(self) -> int:
        """Training samples."""
        return int(self.train.sum())

    @property
    def lacking(self) -> IntArray:
        """Classes without a training sample."""
        return np.flatnonzero(self.train == 0)


def summarise(settings: Settings) -> list[ClientSummary]:
    """Figures of every client of a run, in their order. Of the samples only features are read, to check them.

    Raises
    ------
    DataError
        As `load_client`.
    """
    parts = [find_part(settings, partition) for partition in range(settings.clients)]
    for part in parts:
        check_features(part)
    classes = max(part.data.num_classes for part in parts)
    return [_summary(part, classes) for part in parts]


def _summary(part: ClientPart, classes: int) -> ClientSummary:
    return ClientSummary(
        train=np.bincount(part.given, minlength=classes),
        test=np.bincount(part.y_test[part.test], minlength=classes),
        validation=len(part.validation),
        wrong=int(np.count_nonzero(part.given != part.data.y_train[part.train])),
        groups=_groups(part),
    )


def _groups(part: ClientPart) -> tuple[str, ...]:
    groups, names = part.data.groups_train, part.data.group_names
    if groups is None:
        return ()
    held = np.unique(groups[part.train])
    return tuple(str(group) if names is None else str(names[group]) for group in held)
