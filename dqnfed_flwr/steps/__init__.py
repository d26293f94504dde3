"""Step rules: how far to go along a method's step, and all of them by name.

Every module of this package with `RULES` is looked at. `newton`, `fixed` and `clipped` accept what they propose;
`probed` accepts a candidate at which the participants' losses fell, and names a smaller factor otherwise; `search`
picks a factor from a ladder of losses that every participant reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from dqnfed_flwr.schema.plan import Profile, RuleProfile, RunPlan
from dqnfed_flwr.schema.work import GRADIENT
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale, Verdict, hardly_moves, mean_loss_falls
from dqnfed_flwr.types import Probe

__all__ = [
    "RULES",
    "Ladder",
    "Staged",
    "StepRule",
    "StepScale",
    "Verdict",
    "hardly_moves",
    "make_rule",
    "mean_loss_falls",
    "rules_for",
]


def _declared() -> dict[str, RuleProfile]:
    """The declarations by name."""
    modules = (import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__))
    rules = [rule for module in modules for rule in getattr(module, "RULES", ())]
    found = {rule.name: rule for rule in rules}
    if len(found) < len(rules):
        raise TypeError(f"two files declare a step rule of one name, found {[rule.name for rule in rules]}; rename one")
    return found


RULES: Mapping[str, RuleProfile] = _declared()


def rules_for(method: Profile) -> tuple[str, ...]:
    """The rules that suit a method, its own first.

    A rule that compares slopes needs rows that may be gradients, and one that reads hints a method made for it.
    """
    gradients = GRADIENT in method.works
    others = (rule for rule in RULES.values() if not rule.reads_hints and (gradients or not rule.compares_slopes))
    return (method.rule, *(rule.name for rule in others if rule.name != method.rule))


def make_rule(run: RunPlan) -> StepRule:
    """The rule of a run; for a method with stages it is that of the last one, after `newton`."""
    rule: StepRule = run.rule.build(run)
    return Staged(rule, run.before) if run.stage else rule


class Staged(StepRule):
    """The whole step, as with `newton`, up to and including round `switch`; `last` from the round after."""

    def __init__(self, last: StepRule, switch: int) -> None:
        self._last, self._switch = last, switch

    def propose(self, scale: StepScale) -> Ladder:
        """Factor 1, or as `last` does."""
        return self._last.propose(scale) if self.asks(scale.round) else Ladder(1.0)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept it, or as `last` does."""
        if self.asks(scale.round):
            return self._last.judge(ladder, probes, scale)
        return super().judge(ladder, probes, scale)

    def asks(self, round_number: int) -> bool:
        """Not before the last stage."""
        return round_number > self._switch

    def retry(self, factor: float) -> Ladder:
        """As `last` does, which alone refuses."""
        return self._last.retry(factor)

    def export_state(self) -> dict[str, float]:
        """The state of `last`."""
        return self._last.export_state()

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up the state of `last`."""
        self._last.restore_state(state)
