"""What FedCorr reads from numbers: two groups of values, the dimension of predictions, which labels look wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array

SMALLEST_SPREAD = 1e-12
"""Values that differ by no more than this share of the largest count as one."""
NEIGHBOURS = 20
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Split:
    """Whether each value more probably belongs to the component of the larger mean: `upper` [n].

    The status is `converged`; `unconverged`, where the fit stopped early and counts all the same; or `degenerate`,
    where there are not two different values and nothing is called upper.
    """

    upper: NDArray[np.bool_]
    status: str


def upper_component(values: Float64Array, seed: int) -> Split:
    """Fit two Gaussians to `values` [n] by expectation maximisation, and say which values belong to the upper one.

    The values are shifted and scaled to mean 0 and variance 1 first, so that scikit-learn's floor on a component's
    variance (1e-6) means the same for values of any size. They are finite; the seed is that of the starting point.
    """
    spread = float(np.ptp(values)) if len(values) else 0.0
    if spread <= SMALLEST_SPREAD * float(np.abs(values).max(initial=0.0)):
        return Split(np.zeros(len(values), dtype=np.bool_), "degenerate")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    points = ((values - values.mean()) / values.std())[:, None]
    mixture = GaussianMixture(n_components=2, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status says so
        members = mixture.fit(points).predict(points)
    upper = members == int(np.argmax(mixture.means_[:, 0]))
    return Split(np.asarray(upper, dtype=np.bool_), "converged" if mixture.converged_ else "unconverged")


def local_intrinsic_dimensions(points: Float64Array, neighbours: int = NEIGHBOURS) -> Float64Array:
    """LID of each of the points [n, dim] among the others: [n], above 0.

    With r_1 <= ... <= r_k the distances to its k nearest neighbours (n - 1 where there are no more),

        LID = - 1 / mean_i log(r_i / r_k)

    It is NaN where nothing can be said: no neighbour, or all at one distance. Neighbours at distance 0, copies of the
    point, are left out of the mean.
    """
    count = min(neighbours, len(points) - 1)
    if count < 1:
        return np.full(len(points), np.nan)
    from scipy.spatial import cKDTree

    distances = np.asarray(cKDTree(points).query(points, k=count + 1)[0], dtype=np.float64)[:, 1:]
    apart = distances > 0
    farthest = np.where(apart[:, -1:], distances[:, -1:], 1.0)
    logs = np.log(np.where(apart, distances / farthest, 1.0)).sum(axis=1)
    return np.asarray(np.where(logs < 0, -apart.sum(axis=1) / np.where(logs < 0, logs, 1.0), np.nan))


@dataclass(frozen=True, slots=True)
class Outputs:
    """Softmax of a model's outputs [n, classes], and cross-entropy of the outputs themselves with the labels [n]."""

    probabilities: Float64Array
    losses: Float64Array

    @classmethod
    def of(cls, logits: Float64Array, labels: Labels) -> Outputs:
        """From logits [n, classes] and labels [n]."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return cls(np.exp(logs), -logs[np.arange(len(labels)), labels])


def noise_level(losses: Float64Array, seed: int) -> tuple[float, str]:
    """Share of the samples whose loss [n] belongs to the upper of two Gaussians, and the status of their fit."""
    split = upper_component(losses, seed)
    return float(split.upper.mean()) if len(losses) else 0.0, split.status


def correct_suspects(
    labels: Labels, suspicion: Float64Array, probabilities: Float64Array, *, count: int, confidence: float
) -> Labels:
    """Put the model's prediction in the place of the `count` most suspect labels where it is sure enough.

    `suspicion` [n] are the losses by which the noise was estimated, `probabilities` [n, classes] those of the model
    that corrects. `count` is relabel ratio * noise level * n, and `confidence` the least probability of a new label.
    """
    suspects = np.argsort(-suspicion, kind="stable")[:count]
    return _predicted(labels, suspects, probabilities, confidence)


def correct_confident(labels: Labels, probabilities: Float64Array, *, confidence: float) -> Labels:
    """Put the model's prediction in the place of every label where it is sure enough."""
    return _predicted(labels, np.arange(len(labels)), probabilities, confidence)


def _predicted(labels: Labels, samples: NDArray[np.intp], probabilities: Float64Array, confidence: float) -> Labels:
    sure = samples[probabilities[samples].max(axis=1) >= confidence]
    corrected = labels.copy()
    corrected[sure] = probabilities[sure].argmax(axis=1)
    return corrected
