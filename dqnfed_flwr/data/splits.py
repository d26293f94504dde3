"""Whole samples from shares: how many of each class a client gets, and which; parts set apart with the same classes."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dqnfed_flwr.data.dataset import IntArray
from dqnfed_flwr.errors import DataError

_ROUNDING = 1e-9  # a quota this close below a whole number counts as that number


def apportion(totals: IntArray, shares: NDArray[np.float64]) -> IntArray:
    """Round the quotas `shares` * `totals` to whole numbers.

    Every entry is rounded up or down, every column keeps its sum. Class by class, the units left after rounding down go
    to those who are owed most over the classes so far, so that the sums of the rows stay near their quotas as well. The
    samples of each class [C] and the shares of each client in it [K, C] give counts [K, C]. Columns of `shares` sum to
    1, or to 0 where a class is left out.
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
    """Deal shuffled samples, of labels [N], so that client k gets `counts[k, c]` of class c; their rising numbers.

    Counts [K, C] are at most as many of each class as there are. Samples beyond them are left out.
    """
    parts: list[list[IntArray]] = [[] for _ in counts]
    for label, ends in enumerate(np.cumsum(counts, axis=0).T.tolist()):
        members = rng.permutation(np.flatnonzero(labels == label))
        for part, start, end in zip(parts, [0, *ends], ends, strict=False):
            part.append(members[start:end])
    return [np.sort(np.concatenate(part)) for part in parts]


def like_train(y_train: IntArray, parts: list[IntArray], y_test: IntArray, rng: Generator) -> list[IntArray]:
    """Deal test samples so that a client holds the share of each class that it holds of the training samples.

    Each count is its exact quota rounded up or down, but for single samples moved to clients who would have none.
    Test samples of classes that no client trains on are left out. Labels are [N] and [M]; `parts` are the training
    samples of each client, the answer its test samples, rising. DataError if a client is left without any.
    """
    classes = 1 + int(max(y_train.max(), y_test.max()))
    trained = np.stack([np.bincount(y_train[part], minlength=classes) for part in parts])
    shares = trained / np.maximum(trained.sum(axis=0), 1)
    counts = fill_empty(apportion(np.bincount(y_test, minlength=classes), shares), shares)
    empty = np.flatnonzero(counts.sum(axis=1) == 0)
    if len(empty):
        raise DataError(
            f"partition: no test sample of their classes is left for the clients {empty[:10].tolist()}; lower clients, "
            "use fewer and larger parts, or leave x_test out so that each client's own samples are split"
        )
    return deal(y_test, counts, rng)


def stratified(labels: IntArray, fraction: float, rng: Generator) -> tuple[IntArray, IntArray]:
    """Split samples, of labels [N], into those kept and those set apart, by their rising positions.

    Of each class `fraction`, below 1, is set apart, rounded up or down. At least one sample is kept, and one set apart
    unless `fraction` is 0. DataError if there are fewer than two samples to split.
    """
    if fraction == 0:
        return np.arange(len(labels)), np.arange(0)
    if len(labels) < 2:
        raise DataError(
            f"split: a client has {len(labels)} sample(s), which cannot be divided; lower clients or "
            "split.validation-fraction, or raise split.samples, with dirichlet also split.min-samples"
        )
    totals = np.bincount(labels)
    shares = np.outer([1 - fraction, fraction], np.ones(len(totals)))
    order = rng.permutation(len(totals))  # what is owed goes from class to class, and none comes first everywhere
    counts = np.empty(shares.shape, dtype=np.int64)
    counts[:, order] = fill_empty(apportion(totals[order], shares), shares)
    kept, apart = deal(labels, counts, rng)
    return kept, apart
