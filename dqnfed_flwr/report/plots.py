"""One picture of a run, or of several over each other: accuracy, rho_t and the spread over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dqnfed_flwr.errors import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dqnfed_flwr.engine.result import RunResult

# Okabe and Ito's colours, told apart under every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
STYLE: dict[Any, float] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "figure.dpi": 140,
}
SMOOTH_FROM = 100  # rounds from which rho_t is drawn as a running mean over a twentieth of them
BINS = 12


def plot_runs(results: Mapping[str, RunResult], path: Path) -> Path:
    """Draw runs over each other into one PNG.

    Parameters
    ----------
    results : Mapping[str, RunResult]
        Runs by the name in the legend.
    path : Path
        The file to write.

    Raises
    ------
    RunError
        If matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("the plot needs matplotlib: pip install 'dqnfed-flwr[plots]'") from None
    with rc_context(STYLE):
        figure = Figure(figsize=(13, 3.9), layout="constrained")
        FigureCanvasAgg(figure)
        accuracy, rho, spread = figure.subplots(1, 3)
        for colour, (name, result) in zip(_colours(len(results)), results.items(), strict=True):
            _draw_accuracy(accuracy, name, result, colour)
            _draw_rho(rho, name, result, colour)
        _draw_spread(spread, results)
        accuracy.set(title="Test accuracy: mean and worst client", xlabel="round", ylabel="accuracy, %")
        accuracy.legend(loc="lower right", fontsize=9)
        rho.set(title="Clients whose training loss did not rise", xlabel="round", ylabel="ρ", ylim=(-0.03, 1.06))
        rho.legend(loc="lower right", fontsize=9)
        try:
            figure.savefig(path)
        except OSError as error:
            raise RunError(f"{path}: the plot cannot be written ({error.strerror})") from None
    return path


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _draw_accuracy(axes: Axes, name: str, result: RunResult, colour: str) -> None:
    known = [
        (event.round, [100 * value for value in event.accuracy.values()]) for event in result.events if event.accuracy
    ]
    rounds = [round_ for round_, _ in known]
    marker = "o" if len(known) == 1 else ""
    axes.plot(rounds, [float(np.mean(each)) for _, each in known], color=colour, marker=marker, label=f"{name}, mean")
    faint: dict[str, Any] = {"lw": 0.8, "alpha": 0.7} if len(known) > SMOOTH_FROM else {"lw": 1.3, "alpha": 0.9}
    axes.plot(
        rounds, [min(each) for _, each in known], "--", color=colour, marker=marker, label=f"{name}, worst", **faint
    )


def _draw_rho(axes: Axes, name: str, result: RunResult, colour: str) -> None:
    known = [(event.round, event.improved_ratio) for event in result.events if not math.isnan(event.improved_ratio)]
    rounds = np.array([round_ for round_, _ in known], dtype=float)
    ratios = np.array([ratio for _, ratio in known], dtype=float)
    mean = f" (mean {ratios.mean():.2f})" if ratios.size else ""
    if ratios.size < SMOOTH_FROM:
        axes.plot(rounds, ratios, color=colour, marker="o", ms=3, lw=1.2, label=name + mean)
        return
    window = ratios.size // 20
    smooth = np.convolve(ratios, np.ones(window) / window, mode="valid")
    axes.plot(rounds, ratios, color=colour, lw=0.5, alpha=0.25)
    axes.plot(rounds[window - 1 :], smooth, color=colour, label=f"{name}{mean}, over {window} rounds")


def _draw_spread(axes: Axes, results: Mapping[str, RunResult]) -> None:
    values = [100 * np.array(list(result.accuracies.values()), dtype=float) for result in results.values()]
    axes.set(title="Clients by final test accuracy (dotted: mean)", xlabel="accuracy, %", ylabel="clients")
    from matplotlib.ticker import MaxNLocator

    everything = np.concatenate([*values, np.empty(0)])
    if not everything.size:
        return
    low, high = float(everything.min()), float(everything.max())
    edges = np.linspace(*((low, high) if high > low else (low - 5, high + 5)), BINS + 1)
    colours = _colours(len(results))
    labels = [f"{name} (σ {each.std():.1f} %)" for name, each in zip(results, values, strict=True)]
    counts, _, _ = axes.hist(values, edges.tolist(), color=colours, rwidth=0.85, label=labels)
    for colour, each in zip(colours, values, strict=True):
        axes.axvline(float(each.mean()), color=colour, ls=":", lw=1.6)
    axes.set_ylim(0, 1.3 * float(np.max(counts)))  # room for the legend
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper left", fontsize=9)
