"""The audit of one client: models on its test samples, and of each pair what counts, without a sample.

The same function serves the in-process command and a node of a deployed run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.audit.answers import Answers, answers_of, bound_of
from dqnfed_flwr.audit.local_models import local_settings
from dqnfed_flwr.audit.statistics import PairedTest, mcnemar, mean_difference, resamples_for, smallest_of_mean
from dqnfed_flwr.audit.weights import FEDERATED, AuditedRun, Weights
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import ClientSource, naming_client
from dqnfed_flwr.types import Figure, Float64Array

LEVEL = 0.05
"""Probability, in each comparison, that a client is called worse off that is not."""
DIGITS = 9
"""Significant digits of a figure."""
_STREAM = 8
"""Of the seed: draws of the bootstrap."""


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model on the samples of a client.

    Attributes
    ----------
    digest : str
        Its hash.
    correct : int | None
        Right answers; None where there are none to count.
    loss : float
        Mean loss, that of each sample cut off at `ClientAudit.bound`; 0 without a sample.
    figure : float | None
        Value of `ClientAudit.figure`, if the client has one.
    """

    digest: str
    correct: int | None
    loss: float
    figure: float | None = None


@dataclass(frozen=True, slots=True)
class PairFigures:
    """The federated model beside another one.

    Attributes
    ----------
    only_federated, only_other : int | None
        Samples that only the one, or only the other, answers rightly; None where answers are neither.
    difference, low, high : float
        Mean loss of the federated model less that of the other, and a 95 % interval.
    worse, better : float
        One-sided p-values of a mean loss that is higher, or lower, than the other's.
    """

    only_federated: int | None
    only_other: int | None
    difference: float
    low: float
    high: float
    worse: float
    better: float

    @property
    def accuracy(self) -> PairedTest | None:
        """McNemar's test; None where there are no right answers."""
        if self.only_federated is None or self.only_other is None:
            return None
        return mcnemar(self.only_federated, self.only_other)


@dataclass(frozen=True, slots=True)
class Fields:
    """Which fields a client fills for a model and for a pair."""

    model: tuple[str, ...]
    pair: tuple[str, ...]


_LOSSES = ("difference", "low", "high", "worse", "better")
COUNTED = Fields(("digest", "correct", "loss"), ("only_federated", "only_other", *_LOSSES))
"""Where answers are right or wrong."""
MEASURED = Fields(("digest", "loss", "figure"), _LOSSES)
"""Where they are neither."""


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
    figure : Figure | None
        The task's own figure, which is shown and not tested; None where answers are right or wrong.
    """

    run: str
    partition: int
    examples: int
    resamples: int
    bound: float
    models: Mapping[str, ModelFigures]
    pairs: Mapping[str, PairFigures]
    figure: Figure | None = None

    @property
    def fields(self) -> Fields:
        """Which fields of models and pairs are filled."""
        return COUNTED if self.figure is None else MEASURED

    def loss_test(self, other: str) -> PairedTest:
        """The test of the mean loss against another model."""
        pair = self.pairs[other]
        return PairedTest(pair.worse, pair.better, smallest_of_mean(self.examples, self.resamples))


def audit_client(run: AuditedRun, partition: int, data: ClientSource, models: Mapping[str, Weights]) -> ClientAudit:
    """Compare the federated model with each of the others on the test samples of one client.

    A pure function: equal arguments give equal figures, on one machine to the last digit. `answers_of` says what is
    compared.

    Parameters
    ----------
    run : AuditedRun
        Of which settings, form and name count.
    partition : int
        The client.
    data : ClientSource
        Its samples.
    models : Mapping[str, Weights]
        By name; `federated` and at least one other.

    Raises
    ------
    ConfigError, DataError, ModelError, ShapeError
        If data and models do not go together, or nothing says where losses are to be cut off.
    """
    client, bound = DQNFedClient(local_settings(run.settings), partition, data), bound_of(run)
    with naming_client(partition):
        found = {name: answers_of(run, client, weights, bound) for name, weights in models.items()}
    resamples = resamples_for((2 if run.figure is None else 1) * run.settings.clients, LEVEL)

    def pair(other: str) -> PairFigures:
        seed = np.random.SeedSequence(run.settings.seed, spawn_key=(_STREAM, partition))  # the same draws for each pair
        differences = found[FEDERATED].losses - found[other].losses
        figures = _loss_figures(differences, bound, resamples, np.random.default_rng(seed))
        return PairFigures(*_only(found[FEDERATED], found[other]), *figures)

    return ClientAudit(
        run=run.name,
        partition=partition,
        examples=data.count("test"),
        resamples=resamples,
        bound=rounded(bound),
        models={name: _figures(models[name], found[name]) for name in models},
        pairs={name: pair(name) for name in models if name != FEDERATED},
        figure=run.figure,
    )


def _figures(weights: Weights, answers: Answers) -> ModelFigures:
    right, losses, figure = answers.right, answers.losses, answers.figure
    return ModelFigures(
        weights.digest,
        None if right is None else int(right.sum()),
        rounded(losses.mean()) if len(losses) else 0.0,
        None if figure is None else rounded(figure),
    )


def _only(mine: Answers, theirs: Answers) -> tuple[int | None, int | None]:
    """Samples that the one model alone has right, and the other alone."""
    if mine.right is None or theirs.right is None:
        return None, None
    return int(np.count_nonzero(mine.right & ~theirs.right)), int(np.count_nonzero(theirs.right & ~mine.right))


def _loss_figures(differences: Float64Array, bound: float, resamples: int, rng: Generator) -> list[float]:
    """Difference, bounds and p-values; without a sample anything is possible."""
    if not len(differences):
        return [0.0, rounded(-bound), rounded(bound), 1.0, 1.0]
    found = mean_difference(differences, bound, resamples, rng)
    return [rounded(value) for value in (found.mean, found.low, found.high, found.worse, found.better)]


def picked(found: ClientAudit | ModelFigures | PairFigures, fields: Iterable[str]) -> dict[str, Any]:
    """Some fields of a record, by name."""
    return {name: getattr(found, name) for name in fields}


def rounded(value: float) -> float:
    """To the digits that are sent, so that a figure is the same before and after."""
    return float(f"{value:.{DIGITS}g}")
