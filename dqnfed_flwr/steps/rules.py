"""What a step rule is and what it knows, the rules that accept what they propose, and one rule after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dqnfed_flwr.config import StepSettings
from dqnfed_flwr.types import Probe, SearchHints, under

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
        By participant: f_k at the model it starts from, and g_k . step. Empty in Flower's inherited loop.
    dim : int
        D, of the model; 0 where that is not known.
    contested : bool
        Whether a client that was overruled the last time has a vote on it, which cannot be overruled again.
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
    """How far to go."""

    @abstractmethod
    def propose(self, scale: StepScale) -> Ladder:
        """The first candidate for a new step."""

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept the candidate of `ladder`, or say what to try next.

        `probes` are those of the participants that answered, by client; at least one. `scale` is as for `propose`.
        """
        return Verdict(accepted=True, factor=ladder.factor)

    def asks(self, round_number: int) -> bool:
        """Whether what the participants say of the steps of a round decides on them."""
        del round_number
        return False

    def retry(self, factor: float) -> Ladder:
        """The candidate of a further exchange for the same step."""
        return Ladder(factor)

    def export_state(self) -> dict[str, float]:
        """What the rule remembers between rounds."""
        return {}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up what `export_state` gave."""
        del state


class Newton(StepRule):
    """alpha = 1: the method's own length, for DQN-Fed eta^t of (17). Diverges where curvature is misjudged."""

    def propose(self, scale: StepScale) -> Ladder:
        """Factor 1."""
        return Ladder(1.0)


class Fixed(StepRule):
    """The length of Algorithm 1: lr * decay^(t-1) times the method's direction d^t = step / eta^t."""

    def __init__(self, settings: StepSettings) -> None:
        self._lr, self._decay = settings.lr, settings.decay

    def propose(self, scale: StepScale) -> Ladder:
        """lr * decay^(t-1) / eta^t."""
        rate = self._lr * self._decay ** (scale.round - 1)
        return Ladder(rate / scale.length if scale.length > 0 else 0.0)


class Clipped(StepRule):
    """alpha = min(1, radius / |step|), a trust radius on the move of the model."""

    def __init__(self, settings: StepSettings) -> None:
        self._radius = settings.radius

    def propose(self, scale: StepScale) -> Ladder:
        """min(1, radius / |step|)."""
        return Ladder(min(1.0, self._radius / scale.norm) if scale.norm > 0 else 1.0)


class Staged(StepRule):
    """`first` up to and including round `switch`, `last` from the round after; each has a state of its own."""

    def __init__(self, first: StepRule, last: StepRule, switch: int) -> None:
        self._parts, self._switch = {"first": first, "last": last}, switch
        self._judging = first

    def propose(self, scale: StepScale) -> Ladder:
        """As the rule of the round does."""
        return self._of(scale.round).propose(scale)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """As the rule of the round does."""
        self._judging = self._of(scale.round)
        return self._judging.judge(ladder, probes, scale)

    def asks(self, round_number: int) -> bool:
        """As the rule of the round does."""
        return self._of(round_number).asks(round_number)

    def retry(self, factor: float) -> Ladder:
        """As the rule that judged last does."""
        return self._judging.retry(factor)

    def export_state(self) -> dict[str, float]:
        """The state of both."""
        return {
            f"{part}.{key}": value for part, rule in self._parts.items() for key, value in rule.export_state().items()
        }

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up the state of both."""
        for part, rule in self._parts.items():
            rule.restore_state(under(f"{part}.", state))

    def _of(self, round_number: int) -> StepRule:
        return self._parts["first" if round_number <= self._switch else "last"]
