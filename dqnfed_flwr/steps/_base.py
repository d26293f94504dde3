"""What a step rule is, and what it knows.

A rule proposes the factor alpha of the next candidate, theta^{t+1} = theta^t - alpha * step, before anybody has seen
it, and judges it when the clients have reported their losses there.

The file of a rule ends with `RULES`, a `RuleProfile` for each rule in it; the package finds them there. Such a file
imports no torch, because reading settings must not load it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dqnfed_flwr.types import Probe, SearchHints

SMALLEST_FACTOR = 2.0**-60
"""Where the model is 0 every move is large in comparison; this bounds the search there."""


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
        By participant: f_k at the model it starts from, and g_k . step.
    dim : int
        D, of the model; 0 where that is not known.
    contested : bool
        Whether a client that was overruled the last time has a vote on it, which cannot be overruled again.
    doubters : int
        Clients whose doubts about a larger factor do not keep it from being tried: as many as may lie.
    floor : float | None
        The least value of a loss; None where that is not known.
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
    floor: float | None = 0.0


@dataclass(frozen=True, slots=True)
class Ladder:
    """A candidate factor, and which other rungs clients report: see `ClientTask`.

    Nobody trains at a candidate that goes out `alone`, before it is accepted.
    """

    factor: float
    grow: bool = False
    halvings: int = 0
    rungs_above: int = 0
    rungs_below: int = 0
    alone: bool = False

    @property
    def asked(self) -> dict[str, Any]:
        """What a client is asked for, as fields of its `ClientTask`."""
        found = asdict(self)
        del found["alone"]
        return found

    @property
    def lowest(self) -> float:
        """The factor after all `halvings`."""
        return self.factor * 0.5**self.halvings


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a candidate: it is `accepted` as the new model, or `factor` is the one to try next.

    Where it is `stationary` no factor worth trying is left: it is neither accepted nor to be tried again.
    """

    accepted: bool
    factor: float
    stationary: bool = False


def hardly_moves(factor: float, scale: StepScale, min_move: float) -> bool:
    """Whether `factor` is too small to be worth trying: it moves the model by no more than `min_move` of its norm."""
    return factor < SMALLEST_FACTOR or factor * scale.norm <= min_move * scale.theta_norm


def smallest_factor(scale: StepScale, min_move: float) -> float:
    """The factor of a step (not 0) below which it hardly moves the model."""
    return max(SMALLEST_FACTOR, min_move * scale.theta_norm / scale.norm)


def mean_loss_falls(probes: Mapping[int, Probe], losses: Mapping[int, float], shares: Mapping[int, float]) -> bool:
    """Whether the mean loss by shares over the clients in `probes` is below that of the `losses` before."""
    weights = np.array([shares[client] for client in probes])
    before = np.array([losses[client] for client in probes])
    after = np.array([probe.loss for probe in probes.values()])
    return bool(weights @ after < weights @ before)


class StepRule(ABC):
    """How far to go: without `judge`, as far as it proposes."""

    @abstractmethod
    def propose(self, scale: StepScale) -> Ladder:
        """The first candidate for a new step."""

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept the candidate of `ladder`, or say what to try next.

        `probes` are those of the participants that answered, by client; at least one. `scale` is as for `propose`.
        """
        return Verdict(accepted=True, factor=ladder.factor)

    def asks(self, round_number: int) -> bool:
        """Whether what the participants say of the steps of a round may decide on them."""
        del round_number
        return True

    def retry(self, factor: float) -> Ladder:
        """The candidate of a further exchange for the same step."""
        return Ladder(factor)

    def export_state(self) -> dict[str, float]:
        """What the rule remembers between rounds."""
        return {}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up what `export_state` gave."""
        del state
