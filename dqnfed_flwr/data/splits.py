"""Parts of a client's samples apart from training, with the class mix of its training samples."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.data.apportion import IntArray, apportion, deal, fill_empty
from dqnfed_flwr.errors import DataError


def like_train(y_train: IntArray, parts: list[IntArray], y_test: IntArray, rng: Generator) -> list[IntArray]:
    """Deal test samples so that a client holds the share of each class that it holds of the training samples.

    Each count is its exact quota rounded up or down, but for single samples moved to clients who would have none.
    Test samples of classes that nobody trains on are left out.

    Parameters
    ----------
    y_train, y_test : IntArray
        Labels [N], [M].
    parts : list[IntArray]
        Training samples of each client.

    Returns
    -------
    list[IntArray]
        Test samples of each client, rising.

    Raises
    ------
    DataError
        If a client is left without a test sample of its classes.
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
    """Split samples into those kept and those set apart, class by class in the same proportion.

    Parameters
    ----------
    labels : IntArray
        [N].
    fraction : float
        Share set apart, below 1; above 0 sets at least one sample apart.

    Returns
    -------
    kept, apart : IntArray
        Rising positions; of each class `fraction` is set apart, rounded up or down, and at least one sample is kept.

    Raises
    ------
    DataError
        If there are fewer than two samples to split.
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
