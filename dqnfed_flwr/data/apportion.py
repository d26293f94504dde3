"""Whole numbers from shares: how many samples of each class each client gets, and which."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
_ROUNDING = 1e-9  # a quota this close below a whole number counts as that number


def apportion(totals: IntArray, shares: NDArray[np.float64]) -> IntArray:
    """Round the quotas `shares` * `totals` to whole numbers.

    Every entry is rounded up or down, every column keeps its sum. Class by class, the units left after rounding down go
    to those who are owed most over the classes so far, so that the sums of the rows stay near their quotas as well.

    Parameters
    ----------
    totals : IntArray
        Samples of each class [C].
    shares : NDArray[np.float64]
        Of each client in each class [K, C]; the columns sum to 1, or to 0 where a class is left out.

    Returns
    -------
    IntArray
        Counts [K, C].
    """
    quotas = shares * totals
    counts = np.floor(quotas + _ROUNDING).astype(np.int64)
    left = np.rint(quotas.sum(axis=0)).astype(np.int64) - counts.sum(axis=0)
    owed = np.zeros(len(shares))
    for label in np.flatnonzero(quotas.sum(axis=0)):
        remainder = quotas[:, label] - counts[:, label]
        owed += remainder
        if left[label]:
            claims = np.where(remainder > _ROUNDING, owed, -np.inf)
            lucky = np.argsort(-claims, kind="stable")[: left[label]]
            counts[lucky, label] += 1
            owed[lucky] -= 1
    return counts


def fill_empty(counts: IntArray, shares: NDArray[np.float64]) -> IntArray:
    """Move single samples so that no row is empty, if that can be done within the classes of the row.

    A row without a sample takes one of the class it has the largest share of, from the row with most of that class
    among those with a sample to spare. Rows stay empty where there is none.
    """
    counts = counts.copy()
    for row in np.flatnonzero(counts.sum(axis=1) == 0):
        for label in np.argsort(-shares[row], kind="stable"):
            spare = np.where(counts.sum(axis=1) > 1, counts[:, label], 0)
            donor = int(np.argmax(spare))
            if shares[row, label] > 0 and spare[donor] > 0:
                counts[donor, label] -= 1
                counts[row, label] += 1
                break
    return counts


def deal(labels: IntArray, counts: IntArray, rng: Generator) -> list[IntArray]:
    """Deal shuffled samples so that client k gets `counts[k, c]` of class c.

    Parameters
    ----------
    labels : IntArray
        [N].
    counts : IntArray
        [K, C]; at most as many of each class as there are. Samples beyond them are left out.

    Returns
    -------
    list[IntArray]
        Rising sample numbers of each client.
    """
    parts: list[list[IntArray]] = [[] for _ in counts]
    for label, column in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        for part, piece in zip(parts, np.split(members, np.cumsum(column)), strict=False):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]
