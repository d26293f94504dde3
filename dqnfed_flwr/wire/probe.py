"""What a client says of a candidate and of a model: losses along the step, and counts of what was right."""

from __future__ import annotations

from dataclasses import replace

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import ClientTask, Evaluation, Probe
from dqnfed_flwr.wire.figures import Figures, FigureValues


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
