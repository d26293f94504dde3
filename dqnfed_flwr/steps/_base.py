"""What a step rule is, and what it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dqnfed_flwr.types import Probe, SearchHints

SMALLEST_FACTOR = 2.0**-60
"""Where the model is 0 every move is large beside it; this bounds the search there."""


@dataclass(frozen=True, slots=True)
class StepScale:
    """What a rule may know of a step before it is tried.

    Attributes
    ----------
    norm : float
        |step|.
    length : float
        The method's natural length eta^t (17), see `Combination.length`.
    theta_norm : float
        |theta|, of the model it starts from.
    round : int
        From 1.
    hints : SearchHints
        What the method says to the rule `search`.
    losses, slopes : Mapping[int, float]
        By participant: f_k at the model it starts from, and g_k . step. Empty in Flower's inherited loop.
    dim : int
        D, of the model; 0 where that is not known.
    contested : bool
        Whether a client that was overruled the last time has a vote on it, which nobody can take away.
    doubters : int
        Clients whose doubts about a larger factor do not keep it from being tried: as many as may lie.
    """

    norm: float
    length: float
    theta_norm: float
    round: int
    hints: SearchHints = field(default_factory=SearchHints)
    losses: Mapping[int, float] = field(default_factory=dict)
    slopes: Mapping[int, float] = field(default_factory=dict)
    dim: int = 0
    contested: bool = False
    doubters: int = 0


@dataclass(frozen=True, slots=True)
class Ladder:
    """A candidate factor, and which other rungs clients report: see `ClientTask`."""

    factor: float
    grow: bool = False
    halvings: int = 0
    rungs_above: int = 0
    rungs_below: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a candidate.

    Attributes
    ----------
    accepted : bool
        The candidate is the new model.
    factor : float
        The factor accepted, or the one to try next.
    stationary : bool
        No factor worth trying is left; neither accepted nor to be tried again.
    """

    accepted: bool
    factor: float
    stationary: bool = False


class StepRule(ABC):
    """How far to go."""

    @abstractmethod
    def propose(self, scale: StepScale) -> Ladder:
        """The first candidate for a new step."""

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept the candidate of `ladder`, or say what to try next.

        Parameters
        ----------
        ladder : Ladder
            The candidate that the clients saw.
        probes : Mapping[int, Probe]
            Losses of the participants that answered, by client; at least one.
        scale : StepScale
            As for `propose`.
        """
        del probes, scale
        return Verdict(accepted=True, factor=ladder.factor)

    def retry(self, factor: float) -> Ladder:
        """The candidate of a further exchange for the same step."""
        return Ladder(factor)

    def export_state(self) -> dict[str, float]:
        """What the rule remembers between rounds."""
        return {}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up what `export_state` gave."""
        del state


def hardly_moves(factor: float, scale: StepScale, min_move: float) -> bool:
    """Whether `factor` is too small to be worth trying: it moves the model by no more than `min_move` of its norm."""
    return factor < SMALLEST_FACTOR or factor * scale.norm <= min_move * scale.theta_norm


def smallest_factor(scale: StepScale, min_move: float) -> float:
    """The factor of a step (not 0) below which it hardly moves the model."""
    return max(SMALLEST_FACTOR, min_move * scale.theta_norm / scale.norm)


def mean_loss_falls(probes: Mapping[int, Probe], references: Mapping[int, float], shares: Mapping[int, float]) -> bool:
    """Whether the mean loss by shares over the clients in `probes` is below that of `references`."""
    clients = list(probes)
    weights = np.array([shares[client] for client in clients])
    before = np.array([references[client] for client in clients])
    after = np.array([probes[client].loss for client in clients])
    return bool(weights @ after < weights @ before)
