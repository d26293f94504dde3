"""What a model gives for the test samples of a client: losses, cut off, and right answers or the task's own figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.audit.weights import AuditedRun, Weights
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.errors import ConfigError, DataError
from dqnfed_flwr.types import Figure, Float64Array


@dataclass(frozen=True, slots=True)
class Answers:
    """A model on n test samples of a client.

    Attributes
    ----------
    losses : Float64Array
        [n], each from 0 to the bound.
    right : NDArray[np.bool_] | None
        Which samples are answered rightly, [n]; None where answers are neither right nor wrong.
    figure : float | None
        The task's own figure in that case; None where the client has none, such as an AUROC of one class.
    """

    losses: Float64Array
    right: NDArray[np.bool_] | None = None
    figure: float | None = None


def loss_bound(num_classes: int) -> float:
    """Where a sample's cross-entropy is cut off: twice the loss of a guess among the classes, 2 ln C."""
    return 2 * math.log(max(num_classes, 2))


def bound_of(run: AuditedRun) -> float:
    """Where the losses of a run's samples are cut off: 2 ln C for classes, else twice the loss that it began at.

    That is the mean over the participants of round 1 of their training losses before it. `ConfigError` where it is not
    on record, or is 0.
    """
    if run.figure is None:
        return loss_bound(run.form.num_classes)
    if run.start_loss is None:
        raise ConfigError(
            f"{run.folder}: neither run.json nor events.jsonl says what the training loss was before round 1; an audit "
            "cuts off the losses of samples at twice that. Run it anew"
        )
    if not 0 < run.start_loss <= np.finfo(np.float64).max / 2:
        raise ConfigError(
            f"{run.folder}: the training loss before round 1 was {run.start_loss:g}; an audit cuts off the losses of "
            "samples at twice that, so it must be a number above 0. Begin the run at another model"
        )
    return 2 * run.start_loss


def answers_of(run: AuditedRun, client: DQNFedClient, weights: Weights, bound: float) -> Answers:
    """What a model gives for the client's test samples. A loss that is no number counts as the bound.

    Raises
    ------
    DataError
        If a loss is below 0, or the figure out of its range.
    ConfigError, DataError, ModelError, ShapeError
        If settings, data and model do not go together.
    """
    classes = run.form.num_classes
    if run.figure is None:
        scores = client.scores(classes, weights.theta, weights.buffers)
        return Answers(_cut(scores.losses, bound), scores.right)
    losses = client.sample_losses(classes, weights.theta, weights.buffers)
    if least := [(place, loss) for place, loss in enumerate(losses.tolist()) if loss < 0]:
        place, loss = least[0]
        raise DataError(f"task: the loss of test sample {place} is {loss:g}; a loss is never negative")
    if not len(losses) or not np.isfinite(losses).all():  # a counter need not know what to do with either
        return Answers(_cut(losses, bound))
    found = client.evaluation(classes, weights.theta, weights.buffers)
    return Answers(_cut(losses, bound), figure=_figure(found.figure, run.figure))


def _cut(losses: Float64Array, bound: float) -> Float64Array:
    return np.fmin(np.nan_to_num(losses, nan=bound), bound)


def _figure(value: float, figure: Figure) -> float | None:
    """The value, None for what is no number; `DataError` where it is out of range."""
    if not math.isfinite(value):
        return None
    if figure.limits and not figure.limits[0] <= value <= figure.limits[1]:
        raise DataError(f"task: the figure {figure.name} is {value:g}, which is no share; set percent to False")
    return value
