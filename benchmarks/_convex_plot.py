"""Errors over rounds of the convex check, beside the shapes that theory gives them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks._convex import Trace, minimiser, smoothness
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.types import Float64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 5
"""Rounds over which the contraction is averaged."""


def draw(traces: Mapping[str, Mapping[str, Trace]], loss: LocalLoss, path: Path) -> None:
    """Draw all problems in `traces` into one PNG.

    Parameters
    ----------
    traces : Mapping[str, Mapping[str, Trace]]
        By problem and form; `copies` gets two panels, error and contraction, the others one each.
    loss : LocalLoss
        That of all data, for the optimum of `copies`.
    path : Path
        Of the picture.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = len(traces) + ("copies" in traces)
    lines, columns = (panels + 1) // 2, min(panels, 2)
    figure, axes = plt.subplots(lines, columns, figsize=(7 * columns, 5 * lines), squeeze=False, layout="constrained")
    free = iter(axes.flat)
    for problem, runs in traces.items():
        if problem == "copies":
            errors = errors_of(runs, loss)
            _draw_errors(next(free), errors, loss)
            _draw_contraction(next(free), errors)
        else:
            _draw_stationarity(next(free), problem, runs)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def errors_of(runs: Mapping[str, Trace], loss: LocalLoss) -> dict[str, Float64Array]:
    """|theta_t - theta*| / |theta_0 - theta*| of each run."""
    best = min(runs.values(), key=lambda run: run.measures[-1])
    optimum = minimiser(loss, best.models[-1])
    return {
        name: np.array([float((model - optimum).norm()) for model in run.models]) / float(optimum.norm())
        for name, run in runs.items()
    }


def linear_shape(errors: Float64Array) -> Float64Array:
    """e_t = r^t from the first to the last of `errors`: a constant contraction r."""
    rounds = np.arange(len(errors))
    return np.asarray(errors[0] * (errors[-1] / errors[0]) ** (rounds / max(len(errors) - 1, 1)))


def superlinear_shape(errors: Float64Array) -> Float64Array:
    """e_t = min(1, (c / sqrt(t))^t), ending at the last of `errors`: a contraction that tends to 0.

    The rate of BFGS with its full memory near an optimum (Rodomanov and Nesterov 2021; Jin and Mokhtari 2023).
    """
    rounds = np.arange(len(errors))
    last = max(len(errors) - 1, 1)
    log_c = math.log(errors[-1] / errors[0]) / last + 0.5 * math.log(last)
    logs = rounds * (log_c - 0.5 * np.log(np.maximum(rounds, 1)))
    return np.asarray(errors[0] * np.minimum(np.exp(logs), 1.0))


def contraction(errors: Float64Array) -> Float64Array:
    """(e_{t+W} / e_t)^(1/W)."""
    return np.asarray((errors[WINDOW:] / errors[:-WINDOW]) ** (1 / WINDOW))


def _draw_errors(axes: Axes, errors: Mapping[str, Float64Array], loss: LocalLoss) -> None:
    for name, values in errors.items():
        axes.semilogy(values, label=name)
    fastest = min(errors.values(), key=len)
    size = smoothness(loss)
    first_order = (size - loss.ridge) / (size + loss.ridge)
    widest = 3 * len(fastest)
    axes.semilogy(first_order ** np.arange(widest), "k-.", label="gradient descent's best rate, by theory")
    axes.semilogy(linear_shape(fastest), "k:", label="linear (4.7), through the ends of the fastest")
    axes.semilogy(superlinear_shape(fastest), "k--", label="superlinear (4.8), through its end")
    axes.set(title="clients with the same data", xlabel="round", ylabel="distance to the optimum, share of the start")
    axes.set(xlim=(0, widest * 2), ylim=(1e-12, 3))
    axes.legend(fontsize=7)


def _draw_contraction(axes: Axes, errors: Mapping[str, Float64Array]) -> None:
    for name, values in errors.items():
        if len(values) > WINDOW:
            axes.plot(contraction(values), label=name)
    axes.axhline(1.0, color="black", linestyle=":")
    axes.set(
        title=f"contraction of the error, mean of {WINDOW} rounds", xlabel="round", ylabel="error over the one before"
    )
    axes.set(xlim=(0, 6 * min(map(len, errors.values()))), ylim=(0, 1.5))


def _draw_stationarity(axes: Axes, problem: str, runs: Mapping[str, Trace]) -> None:
    for name, run in runs.items():
        measures: Sequence[float] = run.measures
        axes.semilogy(np.array(measures) / measures[0], label=f"{name} ({run.rounds} rounds)")
    axes.axhline(1e-6, color="black", linestyle=":")
    axes.set(title=f"ten clients, {problem}", xlabel="round", ylabel="minimum-norm point, share of the start")
    axes.legend(fontsize=7)
