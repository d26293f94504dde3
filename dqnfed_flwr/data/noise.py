"""Wrong labels by client, as FedCorr's experiments make them.

Xu, Chen, Quek and Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction" (2022), section 4.1: a
client is noisy with probability rho; its level mu is uniform in (tau, 1); the share mu of its training labels, chosen
at random, is replaced. `symmetric` replaces a label by one drawn from all classes, its own among them, so that about
mu (C - 1) / C of the labels are wrong. `pair` replaces class c by c + 1, and the last by the first.
"""

from __future__ import annotations

from numpy.random import Generator

from dqnfed_flwr.config import NoiseSettings
from dqnfed_flwr.data.apportion import IntArray


def noise_level(settings: NoiseSettings, rng: Generator) -> float:
    """Draw a client's mu, 0 for a clean one; the first draws of the client's stream."""
    noisy, place = rng.random() < settings.clients, rng.random()
    return settings.level + (1 - settings.level) * float(place) if noisy and settings.kind != "none" else 0.0


def with_noise(labels: IntArray, settings: NoiseSettings, num_classes: int, rng: Generator) -> IntArray:
    """Labels [N] of one client as it gets to see them: a new array where there is noise, otherwise `labels`.

    Parameters
    ----------
    labels : IntArray
        Right ones.
    settings : NoiseSettings
        Kind, rho and tau.
    num_classes : int
        C, of the whole set.
    rng : Generator
        The client's stream; equal streams give equal noise.
    """
    level = noise_level(settings, rng)
    if not level:
        return labels
    replaced = rng.permutation(len(labels))[: round(level * len(labels))]
    noisy = labels.copy()
    if settings.kind == "symmetric":
        noisy[replaced] = rng.integers(num_classes, size=len(replaced))
    else:
        noisy[replaced] = (labels[replaced] + 1) % num_classes
    return noisy
