"""Step rules: how far to go along a method's step, theta^{t+1} = theta^t - alpha * step.

A rule proposes the factor alpha of the next candidate before anybody has seen it, and judges it when the clients have
reported their losses there. `newton`, `fixed` and `clipped` accept what they propose; `probed` accepts a candidate at
which the participants' losses fell, and names a smaller factor otherwise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dqnfed_flwr.config import Settings, StepSettings
from dqnfed_flwr.types import Probe

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
    """

    norm: float
    length: float
    theta_norm: float
    round: int


@dataclass(frozen=True, slots=True)
class Ladder:
    """A candidate factor, and which other rungs clients report: see `ClientTask`."""

    factor: float
    grow: bool = False
    halvings: int = 0


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


class Newton(StepRule):
    """alpha = 1: the method's own length, for DQN-Fed eta^t of (17). Diverges where curvature is misjudged."""

    def propose(self, scale: StepScale) -> Ladder:
        """Factor 1."""
        del scale
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


class Probed(StepRule):
    """Accept a candidate where the loss of (a share of) all participants fell, by the Armijo test of each.

    The first candidate of a round is the factor last accepted. It is doubled when the test would have held there as
    well (asked every `grow_every` rounds), and drawn back to what was accepted after a miss.
    """

    def __init__(self, settings: StepSettings) -> None:
        self._settings = settings
        self._factor = settings.start

    def propose(self, scale: StepScale) -> Ladder:
        """The factor accepted last, with the rungs around it."""
        every = self._settings.grow_every
        grow = bool(every) and scale.round % every == 0 and 2 * self._factor <= self._settings.max_factor
        return Ladder(self._factor, grow, self._settings.halvings)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept if the tests of `acceptance` of the participants hold; else the largest rung at which they would."""
        needed = math.ceil(self._settings.acceptance * len(probes) - 1e-9)
        if sum(probe.holds for probe in probes.values()) >= needed:
            grown = sum(bool(probe.grown_holds) for probe in probes.values())
            self._factor = 2 * ladder.factor if ladder.grow and grown >= needed else ladder.factor
            return Verdict(accepted=True, factor=ladder.factor)
        lowest = ladder.factor * 0.5 ** (ladder.halvings + 1)
        reach = sorted((_reach(probe, ladder.factor, lowest) for probe in probes.values()), reverse=True)
        factor = reach[needed - 1]
        self._factor = factor
        if hardly_moves(factor, scale, self._settings.min_move):
            self._factor = self._settings.start
            return Verdict(accepted=False, factor=0.0, stationary=True)
        return Verdict(accepted=False, factor=factor)

    def retry(self, factor: float) -> Ladder:
        """A smaller factor, with rungs below it."""
        return Ladder(factor, halvings=self._settings.halvings)

    def export_state(self) -> dict[str, float]:
        """The factor of the next candidate."""
        return {"factor": self._factor}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up the factor."""
        self._factor = state["factor"]


def _reach(probe: Probe, factor: float, lowest: float) -> float:
    if probe.holds:
        return factor
    return lowest if probe.back_factor is None else probe.back_factor


def hardly_moves(factor: float, scale: StepScale, min_move: float) -> bool:
    """Whether `factor` is too small to be worth trying: it moves the model by no more than `min_move` of its norm."""
    return factor < SMALLEST_FACTOR or factor * scale.norm <= min_move * scale.theta_norm


def mean_loss_falls(probes: Mapping[int, Probe], references: Mapping[int, float], shares: Mapping[int, float]) -> bool:
    """Whether the mean loss by shares over the clients in `probes` is below that of `references`."""
    clients = list(probes)
    weights = np.array([shares[client] for client in clients])
    before = np.array([references[client] for client in clients])
    after = np.array([probes[client].loss for client in clients])
    return bool(weights @ after < weights @ before)


def make_rule(settings: Settings) -> StepRule:
    """The rule that `settings.rule` names."""
    if settings.rule == "probed":
        return Probed(settings.step)
    if settings.rule == "clipped":
        return Clipped(settings.step)
    if settings.rule == "fixed":
        return Fixed(settings.step)
    return Newton()
