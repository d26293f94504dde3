"""Labels that look wrong, and what a model would put in their place.

Xu, Chen, Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022, stages 1, 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.linalg.mixture import upper_component
from dqnfed_flwr.types import Float64Array

Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a model says of n samples.

    Attributes
    ----------
    probabilities : Float64Array
        Softmax of its outputs [n, classes].
    losses : Float64Array
        Cross-entropy of the outputs themselves with the labels [n].
    """

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

    Parameters
    ----------
    labels, suspicion, probabilities
        [n], [n] (the losses by which the noise was estimated), and [n, classes] of the model that corrects.
    count : int
        Labels that may change: relabel ratio * noise level * n.
    confidence : float
        Least probability of a new label.
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
