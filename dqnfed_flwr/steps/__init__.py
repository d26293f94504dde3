"""Step rules: how far to go along a method's step, theta^{t+1} = theta^t - alpha * step.

A rule proposes the factor alpha of the next candidate before anybody has seen it, and judges it when the clients have
reported their losses there. `newton`, `fixed` and `clipped` accept what they propose; `probed` accepts a candidate at
which the participants' losses fell, and names a smaller factor otherwise; `search` picks a factor from a ladder of
losses that every participant reports.
"""

from __future__ import annotations

from dqnfed_flwr.config import Settings
from dqnfed_flwr.methods.fedmdfg import FedMdfgSettings
from dqnfed_flwr.steps.probed import Probed
from dqnfed_flwr.steps.rules import (
    Clipped,
    Fixed,
    Ladder,
    Newton,
    Staged,
    StepRule,
    StepScale,
    Verdict,
    hardly_moves,
    mean_loss_falls,
)
from dqnfed_flwr.steps.search import Search

__all__ = ["Ladder", "StepRule", "StepScale", "Verdict", "hardly_moves", "make_rule", "mean_loss_falls"]


def make_rule(settings: Settings) -> StepRule:
    """The rule that `settings.rule` names; for a method with stages it is that of the last one, after `newton`."""
    if (last := settings.stage_settings) is not settings:
        return Staged(Newton(), make_rule(last), settings.profile.rounds_before_last(settings))
    if settings.rule == "search":
        return Search(settings.group_of(FedMdfgSettings))
    if settings.rule == "probed":
        return Probed(settings.step, max_fall=settings.max_fall)
    if settings.rule == "clipped":
        return Clipped(settings.step)
    if settings.rule == "fixed":
        return Fixed(settings.step)
    return Newton()
