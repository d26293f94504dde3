"""The rules that accept what they propose: they ask clients for nothing."""

from __future__ import annotations

from dqnfed_flwr.schema.group import Group
from dqnfed_flwr.schema.groups import of_rule
from dqnfed_flwr.schema.plan import RuleProfile
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale


class FixedSettings(Group):
    """The rule `fixed`."""

    lr: float = of_rule("fixed", 1.0, "eta of the rule fixed", gt=0)
    decay: float = of_rule("fixed", 1.0, "eta_t = lr * decay^(t-1) (fixed)", gt=0, le=1)


class ClippedSettings(Group):
    """The rule `clipped`."""

    radius: float = of_rule("clipped", 1.0, "longest step |theta^{t+1} - theta^t| (clipped)", level="expert", gt=0)


class Newton(StepRule):
    """alpha = 1: the method's own length, for DQN-Fed eta^t of (17). Diverges where curvature is misjudged."""

    def propose(self, scale: StepScale) -> Ladder:
        """Factor 1."""
        return Ladder(1.0)


class Fixed(StepRule):
    """The length of Algorithm 1: lr * decay^(t-1) times the method's direction d^t = step / eta^t."""

    def __init__(self, settings: FixedSettings) -> None:
        self._lr, self._decay = settings.lr, settings.decay

    def propose(self, scale: StepScale) -> Ladder:
        """lr * decay^(t-1) / eta^t."""
        rate = self._lr * self._decay ** (scale.round - 1)
        return Ladder(rate / scale.length if scale.length > 0 else 0.0)


class Clipped(StepRule):
    """alpha = min(1, radius / |step|), a trust radius on the move of the model."""

    def __init__(self, settings: ClippedSettings) -> None:
        self._radius = settings.radius

    def propose(self, scale: StepScale) -> Ladder:
        """min(1, radius / |step|)."""
        return Ladder(min(1.0, self._radius / scale.norm) if scale.norm > 0 else 1.0)


RULES = (
    RuleProfile("newton", lambda run: Newton()),
    RuleProfile("fixed", lambda run: Fixed(run.group_of(FixedSettings)), FixedSettings),
    RuleProfile("clipped", lambda run: Clipped(run.group_of(ClippedSettings)), ClippedSettings),
)
