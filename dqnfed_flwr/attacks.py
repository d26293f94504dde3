"""What a hostile client sends in place of its row: the attacks of FedMDFG's Table 4, for experiments.

Pan and others, "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance", AAAI 2023, Table 4, whose
published code says what its words mean. With g the honest row and theta the model received:

| kind | what is sent |
|---|---|
| `enlarged` | c g, c = `attack.factor` |
| `zero` | 0 |
| `random` | theta - w, the way to a model w ~ N(0, I) of pure noise; where rows are gradients, cut to the length of g |

Loss, rate, sample count, buffers, test figures and the word on a candidate stay honest.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from dqnfed_flwr.config import AttackSettings, Settings
from dqnfed_flwr.types import FloatArray

_WHO, _NOISE = 7, 3
"""Streams of the seed: beside those of the data, and beside those of a client's turn."""


def hostile_clients(settings: Settings) -> frozenset[int]:
    """The hostile clients of a run: those that `attack.clients` names, else `attack.share` of all, at least one.

    A function of seed, number of clients and share alone, so that every method of a comparison meets the same.
    """
    attack, clients = settings.attack, settings.clients
    if attack.kind == "none":
        return frozenset()
    if attack.listed:
        return frozenset(attack.listed)
    order = np.random.default_rng((settings.seed, _WHO)).permutation(clients)
    return frozenset(order[: max(1, round(attack.share * clients))].tolist())


def noise_of(seed: int, round_number: int, node: int) -> Generator:
    """The noise of a hostile node in a round; the same each time that it is asked in this round."""
    return np.random.default_rng((seed, round_number, node, _NOISE))


def tampered(
    row: FloatArray, theta: FloatArray, attack: AttackSettings, rng: Generator, *, displacement: bool
) -> FloatArray:
    """What is sent for `row`, a new array of its dtype.

    Parameters
    ----------
    row, theta : FloatArray
        The honest row and the model received [D].
    attack : AttackSettings
        Kind and factor.
    rng : Generator
        For `random`.
    displacement : bool
        Whether rows are the way to a model of the client's own, else gradients.
    """
    if attack.kind == "enlarged":
        return scaled(row, attack.factor)
    if attack.kind == "zero":
        return np.zeros_like(row)
    if attack.kind == "random":
        away = theta - rng.standard_normal(theta.shape)
        length = 1.0 if displacement else np.linalg.norm(row) / np.linalg.norm(away)
        return (away * length).astype(row.dtype)
    return row


def scaled(row: FloatArray, factor: float) -> FloatArray:
    """`row` times `factor`, in its dtype."""
    return (row * factor).astype(row.dtype)
