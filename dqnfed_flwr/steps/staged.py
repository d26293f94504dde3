"""One step rule up to some round, another after it."""

from __future__ import annotations

from collections.abc import Mapping

from dqnfed_flwr.steps._base import Ladder, StepRule, StepScale, Verdict
from dqnfed_flwr.types import Probe

_FIRST, _LAST = "first.", "last."


class Staged(StepRule):
    """`first` up to and including round `switch`, `last` from the round after.

    Parameters
    ----------
    first, last : StepRule
        Each with its own state, which the other's rounds leave alone.
    switch : int
        Last round of `first`.
    """

    def __init__(self, first: StepRule, last: StepRule, switch: int) -> None:
        self._first, self._last, self._switch = first, last, switch
        self._judging = first

    def propose(self, scale: StepScale) -> Ladder:
        """As the rule of the round does."""
        return self._of(scale).propose(scale)

    def judge(self, ladder: Ladder, probes: Mapping[int, Probe], scale: StepScale) -> Verdict:
        """As the rule of the round does."""
        self._judging = self._of(scale)
        return self._judging.judge(ladder, probes, scale)

    def retry(self, factor: float) -> Ladder:
        """As the rule that judged last does."""
        return self._judging.retry(factor)

    def export_state(self) -> dict[str, float]:
        """The state of both."""
        first = {_FIRST + name: value for name, value in self._first.export_state().items()}
        return first | {_LAST + name: value for name, value in self._last.export_state().items()}

    def restore_state(self, state: Mapping[str, float]) -> None:
        """Take up the state of both."""
        for rule, prefix in ((self._first, _FIRST), (self._last, _LAST)):
            rule.restore_state({k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)})

    def _of(self, scale: StepScale) -> StepRule:
        return self._first if scale.round <= self._switch else self._last
