"""Rules that accept what they propose."""

from __future__ import annotations

from dqnfed_flwr.config import StepSettings
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale


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
