"""The probed rule: a candidate counts if the participants' losses fell, by the test of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from dqnfed_flwr.config import StepSettings
from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale, Verdict, hardly_moves, smallest_factor
from dqnfed_flwr.types import Probe

LARGE = 2_000_000
"""Parameters of a model whose step costs more to send along each time than an exchange more now and then."""


class Probed(StepRule):
    """Accept a candidate where the loss of (a share of) all participants fell, by the Armijo test of each.

    The first candidate of a round is the factor last accepted. It is doubled when the test would have held there as
    well (asked every `grow_every` rounds), and drawn back to what was accepted after a miss. A single round can ask for
    a very short step; so after a miss that cost more than a halving, doubling is asked for in every round until the
    candidate is half of the one that missed.

    With a finite `max_fall` c no candidate is larger than c sum_k f_k / sum_k (g_k . step): to first order, the
    participants' mean loss falls by no more than the share c. Where few take part the test says nothing about the
    others, and without a bound the step goes as far as those few losses fall. Of the mean, because one loss that is
    nearly 0 shall not hold everybody. The bound holds for its round alone: a factor that nothing else held back is the
    next round's candidate again. It is never below the smallest move worth trying, `min_move`.

    With the ladder `after-miss`, and with `auto` after round 1 where the model has `LARGE` parameters or more, the
    first candidate goes out by itself, and a miss halves it unseen. From then on its rungs are asked for, so that a
    client which refuses them all is found out as before.

    Parameters
    ----------
    settings : StepSettings
        All but `max_fall`.
    max_fall : Callable[[int], float]
        c for so many participants, `Settings.max_fall`; infinite for no bound.
    """

    def __init__(self, settings: StepSettings, *, max_fall: Callable[[int], float] = lambda _: math.inf) -> None:
        self._settings, self._max_fall = settings, max_fall
        self._factor = self._first = self._missed = settings.start

    def propose(self, scale: StepScale) -> Ladder:
        """The factor accepted last, or the largest allowed, with the rungs around it."""
        every = self._settings.grow_every
        most = min(self._settings.max_factor, self._bound(scale))
        factor = min(self._factor, most)
        due = bool(every) and (scale.round % every == 0 or 2 * factor < self._missed)
        self._first = factor
        return Ladder(factor, due and 2 * factor <= most, self._settings.halvings if self._at_once(scale) else 0)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """Accept if the tests of `acceptance` of the participants hold; else the largest rung at which they would."""
        needed = math.ceil(self._settings.acceptance * len(probes) - 1e-9)
        if sum(probe.holds for probe in probes.values()) >= needed:
            grown = sum(bool(probe.grown_holds) for probe in probes.values())
            reached = 2 * ladder.factor if ladder.grow and grown >= needed else ladder.factor
            self._factor = max(self._factor, reached)  # a miss lowers it, so only the bound keeps them apart
            return Verdict(accepted=True, factor=ladder.factor)
        lowest = ladder.factor * 0.5 ** (ladder.halvings + 1)
        reach = sorted((_reach(probe, ladder.factor, lowest) for probe in probes.values()), reverse=True)
        factor = reach[needed - 1]
        self._factor, self._missed = factor, self._first
        if hardly_moves(factor, scale, self._settings.min_move):
            self._factor = self._missed = self._settings.start
            return Verdict(accepted=False, factor=0.0, stationary=True)
        return Verdict(accepted=False, factor=factor)

    def retry(self, factor: float) -> Ladder:
        """A smaller factor, with the rungs below it."""
        return Ladder(factor, halvings=self._settings.halvings)

    def _bound(self, scale: StepScale) -> float:
        """The largest factor that `max_fall` allows this step; infinite where it allows any."""
        most = _most(scale, self._max_fall(len(scale.losses)))
        return most if math.isinf(most) else max(most, smallest_factor(scale, self._settings.min_move))

    def _at_once(self, scale: StepScale) -> bool:
        """Whether the rungs are asked for with the first candidate; in round 1 nobody knows what factor will do."""
        if self._settings.ladder == "auto":
            return scale.dim < LARGE or scale.round == 1
        return self._settings.ladder == "always"

    def export_state(self) -> dict[str, float]:
        """The factor of the next candidate, the first of this round and that of the round that last had a miss."""
        return {"factor": self._factor, "first": self._first, "missed": self._missed}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take them up; earlier versions had the factor alone."""
        self._factor = state["factor"]
        self._first, self._missed = (state.get(key, self._factor) for key in ("first", "missed"))


def _most(scale: StepScale, max_fall: float) -> float:
    """The largest a with a sum_k (g_k . step) <= `max_fall` sum_k f_k, no loss counted as less than 0."""
    promised = sum(scale.slopes.values())
    if promised <= 0 or math.isinf(max_fall):
        return math.inf
    return max_fall * sum(max(loss, 0.0) for loss in scale.losses.values()) / promised


def _reach(probe: Probe, factor: float, lowest: float) -> float:
    if probe.holds:
        return factor
    return lowest if probe.back_factor is None else probe.back_factor
