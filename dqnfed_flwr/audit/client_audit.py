"""The audit of one client: models on its test samples, and of each pair what counts, without a sample.

The same function serves the in-process command and a node of a deployed run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dqnfed_flwr.audit.local_models import local_settings
from dqnfed_flwr.audit.statistics import PairedTest, mcnemar, mean_difference, resamples_for, smallest_of_mean
from dqnfed_flwr.audit.weights import FEDERATED, AuditedRun, Weights
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import ClientSource, naming_client
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.guarantee.harm import below_floor
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.types import Figure, Float64Array

_NAME_THE_FLOOR = "Set the task's `floor` to the least value of its loss, or add a constant to the loss"
LEVEL = 0.05
"""Probability, in each comparison, that a client is called worse off that is not."""
DIGITS = 9
"""Significant digits of a figure."""
_STREAM = 8
"""Of the seed: draws of the bootstrap."""
_LOSSES = ("difference", "low", "high", "worse", "better")


@dataclass(frozen=True, slots=True)
class Answers:
    """A model on n test samples of a client.

    Attributes
    ----------
    losses : Float64Array
        [n], each in the range of the run.
    right : NDArray[np.bool_] | None
        Which samples are answered rightly, [n]; None where answers are neither right nor wrong.
    figure : float | None
        The task's own figure in that case; None where the client has none, such as an AUROC of one class.
    """

    losses: Float64Array
    right: NDArray[np.bool_] | None = None
    figure: float | None = None


class LossRange(NamedTuple):
    """Losses of samples count from `floor` to `bound`; one that is no number counts as the bound."""

    floor: float
    bound: float

    @property
    def span(self) -> float:
        """The largest difference of two losses."""
        return self.bound - self.floor

    def cut(self, losses: Float64Array) -> Float64Array:
        """Losses [n], cut off at both ends."""
        return np.clip(np.nan_to_num(losses, nan=self.bound), self.floor, self.bound)


def loss_bound(num_classes: int) -> float:
    """Where a sample's cross-entropy is cut off: twice the loss of a guess among the classes, 2 ln C."""
    return 2 * math.log(max(num_classes, 2))


def range_of(run: AuditedRun) -> LossRange:
    """Where the losses of a run's samples are cut off: at 2 ln C for classes, else b + 2 (F - b).

    b is the task's floor, 0 where it names none, and F the loss that the run began at: the mean over the participants
    of round 1 of their training losses before it. `ConfigError` where F is not on record, or not above b.
    """
    if run.figure is None:
        return LossRange(0.0, loss_bound(run.form.num_classes))
    if run.start_loss is None:
        raise ConfigError(
            f"{run.folder}: its run.json does not say what the training loss was before round 1; an audit cuts off the "
            "losses of samples at twice that. Run it anew"
        )
    declared = task_of(run.settings).floor
    floor = float(declared or 0.0)
    found = LossRange(floor, floor + 2 * (run.start_loss - floor))
    if not 0 < found.span <= np.finfo(np.float64).max:
        remedy = "Begin the run at another model" if declared is not None else _NAME_THE_FLOOR
        raise ConfigError(
            f"{run.folder}: the training loss before round 1 was {run.start_loss:g}; an audit cuts off the losses of "
            f"samples at twice as far above the floor, so it must be a number above {floor:g}. {remedy}"
        )
    return found


def answers_of(run: AuditedRun, client: DQNFedClient, weights: Weights, within: LossRange) -> Answers:
    """What a model gives for the client's test samples.

    Raises
    ------
    DataError
        If a loss is below the floor by more than rounding, or the figure out of its range.
    ConfigError, DataError, ModelError, ShapeError
        If settings, data and model do not go together.
    """
    classes = run.form.num_classes
    if run.figure is None:
        scores = client.scores(classes, weights.theta, weights.buffers)
        return Answers(within.cut(scores.losses), scores.right)
    losses = client.sample_losses(classes, weights.theta, weights.buffers)
    if least := [(place, loss) for place, loss in enumerate(losses.tolist()) if below_floor(loss, within.floor)]:
        place, loss = least[0]
        raise DataError(
            f"task: the loss of test sample {place} is {loss:g}, below the floor {within.floor:g} from which an audit "
            f"counts. {_NAME_THE_FLOOR}"
        )
    if not len(losses) or not np.isfinite(losses).all():  # a counter need not know what to do with either
        return Answers(within.cut(losses))
    found = client.evaluation(classes, weights.theta, weights.buffers)
    return Answers(within.cut(losses), figure=_figure(found.figure, run.figure))


def _figure(value: float, figure: Figure) -> float | None:
    """The value, None for what is no number; `DataError` where it is out of range."""
    if not math.isfinite(value):
        return None
    if figure.limits and not figure.limits[0] <= value <= figure.limits[1]:
        raise DataError(f"task: the figure {figure.name} is {value:g}, which is no share; set percent to False")
    return value


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
        Mean loss, that of each sample cut off as `ClientAudit` says; the floor without a sample.
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
    floor, bound : float
        Where losses are cut off, for the mean as for the test; the floor is 0 where answers are right or wrong.
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
    floor: float = 0.0

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
    client, within = DQNFedClient(local_settings(run.settings), partition, data), range_of(run)
    with naming_client(partition):
        found = {name: answers_of(run, client, weights, within) for name, weights in models.items()}
    resamples = resamples_for((2 if run.figure is None else 1) * run.settings.clients, LEVEL)

    def pair(other: str) -> PairFigures:
        seed = np.random.SeedSequence(run.settings.seed, spawn_key=(_STREAM, partition))  # the same draws for each pair
        differences = found[FEDERATED].losses - found[other].losses
        figures = _loss_figures(differences, within, resamples, np.random.default_rng(seed))
        return PairFigures(*_only(found[FEDERATED], found[other]), *figures)

    return ClientAudit(
        run=run.name,
        partition=partition,
        examples=data.count("test"),
        resamples=resamples,
        bound=rounded(within.bound),
        models={name: _figures(models[name], found[name], rounded(within.floor)) for name in models},
        pairs={name: pair(name) for name in models if name != FEDERATED},
        figure=run.figure,
        floor=rounded(within.floor),
    )


def _figures(weights: Weights, answers: Answers, floor: float) -> ModelFigures:
    right, losses, figure = answers.right, answers.losses, answers.figure
    return ModelFigures(
        weights.digest,
        None if right is None else int(right.sum()),
        rounded(losses.mean()) if len(losses) else floor,
        None if figure is None else rounded(figure),
    )


def _only(mine: Answers, theirs: Answers) -> tuple[int | None, int | None]:
    """Samples that the one model alone has right, and the other alone."""
    if mine.right is None or theirs.right is None:
        return None, None
    return int(np.count_nonzero(mine.right & ~theirs.right)), int(np.count_nonzero(theirs.right & ~mine.right))


def _loss_figures(differences: Float64Array, within: LossRange, resamples: int, rng: Generator) -> list[float]:
    """Difference, bounds and p-values; without a sample anything is possible."""
    if not len(differences):
        return [0.0, rounded(-within.span), rounded(within.span), 1.0, 1.0]
    found = mean_difference(differences, within.span, resamples, rng)
    return [rounded(value) for value in (found.mean, found.low, found.high, found.worse, found.better)]


def picked(found: ClientAudit | ModelFigures | PairFigures, fields: Iterable[str]) -> dict[str, Any]:
    """Some fields of a record, by name."""
    return {name: getattr(found, name) for name in fields}


def rounded(value: float) -> float:
    """To the digits that are sent, so that a figure is the same before and after."""
    return float(f"{value:.{DIGITS}g}")
