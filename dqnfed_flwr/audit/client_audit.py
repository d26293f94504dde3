"""The audit of one client: models on its test samples, and of each pair what counts, without a sample.

The same function serves the in-process command and a node of a deployed run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dqnfed_flwr.audit.local_models import local_settings
from dqnfed_flwr.audit.statistics import PairedTest, mcnemar, mean_difference, resamples_for, smallest_of_mean
from dqnfed_flwr.audit.weights import FEDERATED, AuditedRun, Weights
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.types import Float64Array

LEVEL = 0.05
"""Probability, in each comparison, that a client is called worse off that is not."""
DIGITS = 9
"""Significant digits of a figure."""
_STREAM = 8
"""Of the seed: draws of the bootstrap."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model on the samples of a client: its hash, right answers, and mean loss, each cut off at `ClientAudit.bound`.

    Without a sample the loss is 0.
    """

    digest: str
    correct: int
    loss: float


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The federated model beside another one.

    Attributes
    ----------
    only_federated, only_other : int
        Samples that only the one, or only the other, answers rightly.
    difference, low, high : float
        Mean loss of the federated model less that of the other, and a 95 % interval.
    worse, better : float
        One-sided p-values of a mean loss that is higher, or lower, than the other's.
    """

    only_federated: int
    only_other: int
    difference: float
    low: float
    high: float
    worse: float
    better: float

    @property
    def accuracy(self) -> PairedTest:
        """McNemar's test."""
        return mcnemar(self.only_federated, self.only_other)


@dataclass(frozen=True, slots=True)
class ClientAudit:
    """What a client says of itself: counts and figures, no sample.

    Attributes
    ----------
    run : str
        Name of the run.
    partition, examples : int
        The client, and its test samples.
    resamples : int
        Draws of the bootstrap.
    bound : float
        Where losses are cut off, for the mean as for the test.
    models : Mapping[str, ModelFigures]
        By name, the federated one among them.
    pairs : Mapping[str, PairFigures]
        By the name of the other model.
    """

    run: str
    partition: int
    examples: int
    resamples: int
    bound: float
    models: Mapping[str, ModelFigures]
    pairs: Mapping[str, PairFigures]

    def loss_test(self, other: str) -> PairedTest:
        """The test of the mean loss against another model."""
        pair = self.pairs[other]
        return PairedTest(pair.worse, pair.better, smallest_of_mean(self.examples, self.resamples))


def loss_bound(num_classes: int) -> float:
    """Where a sample's loss is cut off: twice the loss of a guess among the classes, 2 ln C."""
    return 2 * math.log(max(num_classes, 2))


def audit_client(run: AuditedRun, partition: int, data: ClientData, models: Mapping[str, Weights]) -> ClientAudit:
    """Compare the federated model with each of the others on the test samples of one client.

    A pure function: equal arguments give equal figures, on one machine to the last digit. A loss that is no number
    counts as the bound.

    Parameters
    ----------
    run : AuditedRun
        Of which settings, form and name count.
    partition : int
        The client.
    data : ClientData
        Its samples.
    models : Mapping[str, Weights]
        By name; `federated` and at least one other.

    Raises
    ------
    DataError, ModelError, ShapeError
        If data and models do not go together.
    """
    client = DQNFedClient(local_settings(run.settings), partition, data)
    classes, bound = run.form.num_classes, loss_bound(run.form.num_classes)
    found = {name: client.scores(classes, weights.theta, weights.buffers) for name, weights in models.items()}
    right = {name: scores.right for name, scores in found.items()}
    losses = {name: np.fmin(np.nan_to_num(scores.losses, nan=bound), bound) for name, scores in found.items()}
    resamples = resamples_for(2 * run.settings.clients, LEVEL)

    def pair(other: str) -> PairFigures:
        seed = np.random.SeedSequence(run.settings.seed, spawn_key=(_STREAM, partition))  # the same draws for each pair
        return PairFigures(
            int(np.count_nonzero(right[FEDERATED] & ~right[other])),
            int(np.count_nonzero(right[other] & ~right[FEDERATED])),
            *_loss_figures(losses[FEDERATED] - losses[other], bound, resamples, np.random.default_rng(seed)),
        )

    return ClientAudit(
        run=run.name,
        partition=partition,
        examples=len(data.y_test),
        resamples=resamples,
        bound=rounded(bound),
        models={name: _figures(models[name], right[name], losses[name]) for name in models},
        pairs={name: pair(name) for name in models if name != FEDERATED},
    )


def _figures(weights: Weights, right: NDArray[np.bool_], losses: Float64Array) -> ModelFigures:
    return ModelFigures(weights.digest, int(right.sum()), rounded(losses.mean()) if len(losses) else 0.0)


def _loss_figures(differences: Float64Array, bound: float, resamples: int, rng: Generator) -> list[float]:
    """Difference, bounds and p-values; without a sample anything is possible."""
    if not len(differences):
        return [0.0, rounded(-bound), rounded(bound), 1.0, 1.0]
    found = mean_difference(differences, bound, resamples, rng)
    return [rounded(value) for value in (found.mean, found.low, found.high, found.worse, found.better)]


def rounded(value: float) -> float:
    """To the digits that are sent, so that a figure is the same before and after."""
    return float(f"{value:.{DIGITS}g}")
