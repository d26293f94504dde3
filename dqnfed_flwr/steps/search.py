"""The line search of FedMDFG: every participant reports its loss at every rung of a ladder, and the server picks one.

Pan, Wang, Li, Wang, Tang and Zhao, "FedMDFG: Federated Learning with Multi-Gradient Descent and Fair Guidance",
AAAI 2023, Algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dqnfed_flwr.schema.group import Group
from dqnfed_flwr.schema.groups import of_rule
from dqnfed_flwr.schema.plan import RuleProfile
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale, Verdict
from dqnfed_flwr.types import Float64Array, Probe, ladder_rungs

BETA = 1e-4
"""Of the Armijo test: the usual small share of the fall that the slope promises."""


class SearchSettings(Group):
    """The line search; keys of the method that is made for it."""

    search: int = of_rule(
        "search", 5, "s, the line search spans 2^s to 2^-s", about="method", level="expert", ge=0, le=20
    )


class Search(StepRule):
    """The largest rung that suits all participants, from 2^s by halves down to 2^-s / sigma.

    A rung suits where every participant's loss fell by the Armijo amount, f_k(a) <= f_k(0) - beta a (g_k . step), and,
    while the method pursues fairness, the angle between the losses and equal ones fell. If none does: the largest rung
    that lowers the sum of the losses; if there is none either, the rung with the smallest sum. If a client of the
    round before is absent, the search begins at 1. The factor 1 is the method's eta.

    The candidate of a new step is the rung chosen last, so that the losses at all rungs come with the exchange that
    may settle the round. Another choice goes out with a further exchange, which searches no more.

    Deviations from published code: the Armijo term has its sign (there a small rise passes), and the angle before the
    step is taken with the norm of the losses (there their sum).
    """

    def __init__(self, settings: SearchSettings) -> None:
        self._reach = settings.search
        self._factor = 1.0

    def propose(self, scale: StepScale) -> Ladder:
        """The rung chosen last, within the ladder of this step."""
        top = 0 if scale.hints.lost else self._reach
        bottom = -math.floor(self._reach + math.log2(max(scale.hints.stretch, 1.0)))
        power = min(max(round(math.log2(self._factor)), bottom), top)
        return Ladder(2.0**power, rungs_above=top - power, rungs_below=power - bottom)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Pick a rung; one alone was picked before, or is the only one there is: accepted if its losses are finite."""
        rungs = np.array(ladder_rungs(ladder.factor, ladder.rungs_above, ladder.rungs_below))
        if not rungs.size:
            finite = all(math.isfinite(probe.loss) for probe in probes.values())
            return Verdict(accepted=finite, factor=ladder.factor if finite else 0.0, stationary=not finite)
        losses = np.array([probe.losses for probe in probes.values()])
        before = np.array([scale.losses[client] for client in probes])
        slopes = np.array([scale.slopes[client] for client in probes])
        chosen = choose_rung(rungs, losses, before, slopes, beta=BETA, fair=scale.hints.fair)
        if chosen is None:
            self._factor = 1.0
            return Verdict(accepted=False, factor=0.0, stationary=True)
        self._factor = float(rungs[chosen])
        return Verdict(accepted=self._factor == ladder.factor, factor=self._factor)

    def export_state(self) -> dict[str, float]:
        """The rung chosen last."""
        return {"factor": self._factor}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up what `export_state` gave."""
        self._factor = state["factor"]


def choose_rung(
    rungs: Float64Array, losses: Float64Array, before: Float64Array, slopes: Float64Array, *, beta: float, fair: bool
) -> int | None:
    """Index of the rung that the search ends at; None if the losses are finite at none.

    `rungs` are factors a, falling [R], `losses` f_k(a) [K, R], infinite where the model diverges, `before` f_k(0) [K],
    `slopes` g_k . step [K], `beta` is that of the Armijo test. With `fair` the angle between the losses and equal ones
    must fall too.
    """
    finite = np.isfinite(losses).all(axis=0)
    with np.errstate(invalid="ignore"):
        suits = finite & (losses <= before[:, None] - beta * rungs * slopes[:, None]).all(axis=0)
        if fair:
            suits &= np.array([cosine(column) > cosine(before) for column in losses.T])
        sums = np.where(finite, losses.sum(axis=0), np.inf)
    for good in (suits, sums < before.sum()):
        if good.any():
            return int(np.argmax(good))
    return int(np.argmin(sums)) if finite.any() else None


def cosine(losses: Float64Array) -> float:
    """Of the angle between the losses [K] and the all-ones vector; 1 where all are 0."""
    norm = float(np.linalg.norm(losses))
    return float(losses.sum()) / (norm * math.sqrt(losses.size)) if norm > 0 else 1.0


RULES = (RuleProfile("search", lambda run: Search(run.group_of(SearchSettings)), judged_by="losses", reads_hints=True),)
