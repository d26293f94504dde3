"""The figures of a reply: numbers, probes along the step and evaluations, read with their range checked."""

from __future__ import annotations

import math
from dataclasses import replace

from flwr.app import MetricRecord, RecordDict

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientTask, Evaluation, Probe
from dqnfed_flwr.wire.records import FIGURES, VECTORS, of_kind

MAX_EXAMPLES = 10**9
FigureValues = dict[str, int | float | list[int] | list[float]]
"""Figures as they are written."""


class Figures:
    """Reads the figures of one reply; each method checks one range and raises `WireError` outside it.

    Parameters
    ----------
    record : MetricRecord
        As received.
    """

    def __init__(self, record: MetricRecord) -> None:
        self._record = record

    def __contains__(self, key: str) -> bool:
        """Whether there is such a figure."""
        return key in self._record

    def scalar(self, key: str) -> float:
        """Any one number, NaN and Inf among them."""
        value = self._value(key)
        if isinstance(value, list):
            raise WireError("bad-shape", f"{key} is a list of {len(value)}; need one number")
        return float(value)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.scalar(key)
        if not math.isfinite(value):
            raise WireError("not-finite", f"{key} is {value}")
        return value

    def within(self, key: str, limits: tuple[float, float] | None) -> float:
        """A finite number between two limits, which are allowed; None for any."""
        value = self.number(key)
        if limits is not None and not limits[0] <= value <= limits[1]:
            raise WireError("bad-figure", f"{key} is {value}; need {limits[0]:g} to {limits[1]:g}")
        return value

    def loss(self, key: str) -> float:
        """A finite loss."""
        return _not_negative(key, self.number(key))

    def any_loss(self, key: str) -> float:
        """A loss; infinite where the model diverges."""
        value = self.scalar(key)
        return _not_negative(key, value) if math.isfinite(value) else math.inf

    def losses(self, key: str) -> list[float]:
        """One loss or more; infinite where the model diverges."""
        value = self._value(key)
        found = [float(number) for number in value] if isinstance(value, list) else [float(value)]
        return [_not_negative(key, number) if math.isfinite(number) else math.inf for number in found]

    def count(self, key: str, least: int = 0) -> int:
        """A whole number from `least` to `MAX_EXAMPLES`."""
        value = self.number(key)
        if value != int(value) or not least <= value <= MAX_EXAMPLES:
            raise WireError("bad-count", f"{key} is {value}; need a whole number from {least} to {MAX_EXAMPLES}")
        return int(value)

    def flag(self, key: str) -> bool:
        """0 or 1."""
        value = self.number(key)
        if value not in (0, 1):
            raise WireError("bad-count", f"{key} is {value}; need 0 or 1")
        return value == 1

    def _value(self, key: str) -> int | float | list[int] | list[float]:
        if key not in self._record:
            raise WireError("missing-key", f"figures {sorted(self._record)[:20]}; need {key!r}")
        return self._record[key]


def figures_of(content: RecordDict) -> Figures:
    """The figures of a reply.

    Raises
    ------
    WireError
        If it has none.
    """
    figures = of_kind(content, MetricRecord).get(FIGURES)
    if figures is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {VECTORS!r} and {FIGURES!r}")
    return Figures(figures)


def write_probe(probe: Probe) -> FigureValues:
    """Figures of a probe."""
    figures: FigureValues = {"probe-loss": probe.loss, "probe-holds": int(probe.holds)}
    if probe.grown_holds is not None:
        figures["probe-grown-holds"] = int(probe.grown_holds)
    if probe.back_factor is not None and probe.back_loss is not None:
        figures |= {"probe-back-factor": probe.back_factor, "probe-back-loss": probe.back_loss}
    if probe.behind_loss is not None:
        figures["probe-behind-loss"] = probe.behind_loss
    if probe.losses:
        figures["probe-losses"] = list(probe.losses)
    return figures


def read_probe(figures: Figures, task: ClientTask) -> Probe:
    """Inverse of `write_probe`, held against what `task` asked for.

    Raises
    ------
    WireError
        If a figure is missing or out of its range.
    """
    probe = _read_test(figures, task)
    wanted = len(task.rungs)
    if not wanted:
        return probe
    losses = figures.losses("probe-losses")
    if len(losses) != wanted:
        raise WireError("bad-probe", f"probe-losses are {len(losses)}; the task asks for {wanted} rungs")
    return replace(probe, losses=tuple(losses))


def _read_test(figures: Figures, task: ClientTask) -> Probe:
    if figures.flag("probe-holds"):
        grown = figures.flag("probe-grown-holds") if "probe-grown-holds" in figures else None
        return Probe(figures.loss("probe-loss"), True, grown)
    loss = figures.any_loss("probe-loss")
    behind = figures.any_loss("probe-behind-loss") if "probe-behind-loss" in figures else None
    if "probe-back-factor" not in figures:
        return Probe(loss, False, behind_loss=behind)
    back = figures.number("probe-back-factor")
    if back not in [task.factor * 0.5**rung for rung in range(1, task.halvings + 1)]:
        raise WireError("bad-probe", f"probe-back-factor {back} is none of {task.halvings} halvings of {task.factor}")
    back_loss = figures.loss("probe-back-loss")
    return Probe(loss, False, back_factor=back, back_loss=back_loss, behind_loss=behind)


def write_evaluation(counts: Evaluation, part: str) -> FigureValues:
    """Figures of an evaluation on `part`, `test` or `validation`."""
    return {f"{part}-correct": counts.correct, f"{part}-examples": counts.examples, f"{part}-loss": counts.loss}


def read_evaluation(figures: Figures, part: str) -> Evaluation:
    """Inverse of `write_evaluation`.

    Raises
    ------
    WireError
        If a figure is missing or out of its range, or more is right than there is.
    """
    examples = figures.count(f"{part}-examples")
    correct = figures.count(f"{part}-correct")
    if correct > examples:
        raise WireError("bad-count", f"{part}: {correct} right of {examples}")
    return Evaluation(correct, examples, figures.loss(f"{part}-loss"))


def _not_negative(key: str, loss: float) -> float:
    if loss < 0:
        raise WireError("bad-loss", f"{key} is {loss}; cross-entropy and ridge are not negative")
    return loss
