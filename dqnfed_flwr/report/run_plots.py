"""Pictures of runs: one of how they went, over each other, and one of the classes that each client of a run holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dqnfed_flwr.report.drawing import COLOURS, PARTS, STYLE, bin_edges, running_mean, save, smallest_spread, ticks

if TYPE_CHECKING:
    from dqnfed_flwr.data.clients import ClientSummary
    from dqnfed_flwr.engine.result import RunResult

LONG = 100
"""Rounds from which the worst client's line is thin."""
WIDEST_TITLE = 80
"""Characters above the picture of the classes."""
FEW, MANY = 20, 25
"""Clients up to which that picture names each, and writes counts into its cells, where there are so few classes."""
_BLUES = ("#f3f7fb", COLOURS[0], "#00263d")


@rc_context(STYLE)
def plot_runs(results: Mapping[str, RunResult], path: Path) -> Path:
    """Draw runs, by their names in the legend, over each other into one PNG: figure, rho_t, spread over clients.

    The figure is accuracy, or what the runs, one or more, are evaluated by.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    means, rho, spread = figure.subplots(1, 3)
    of = next(iter(results.values())).figure
    for colour, (name, result) in zip(_colours(len(results)), results.items(), strict=True):
        _draw_mean(means, name, result, colour)
        _draw_rho(rho, name, result, colour)
    _draw_spread(spread, results)
    label = f"{of.name}, %" if of.percent else of.name
    means.set(title=f"Test {of.name}: mean and worst client", xlabel="round", ylabel=label)
    rho.set(title="Clients whose training loss did not rise", xlabel="round", ylabel="ρ", ylim=(-0.03, 1.06))
    for axes in (means, rho):
        axes.xaxis.set_major_locator(ticks(whole=True))
    means.legend(loc="lower right" if of.higher else "upper right", fontsize=9)
    rho.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize=8)  # its words are longer than the axes
    return save(figure, path)


def _colours(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _draw_mean(axes: Axes, name: str, result: RunResult, colour: str) -> None:
    of = result.figure
    found = [
        (event.round, [of.scale * value for value in event.evaluated.test.values()])
        for event in result.events
        if event.evaluated.test
    ]
    rounds = [round_ for round_, _ in found]
    marker = "o" if len(found) == 1 else ""
    axes.plot(rounds, [float(np.mean(each)) for _, each in found], color=colour, marker=marker, label=f"{name}, mean")
    faint: dict[str, Any] = {"lw": 0.8, "alpha": 0.7} if len(found) > LONG else {"lw": 1.3, "alpha": 0.9}
    worst = [min(each) if of.higher else max(each) for _, each in found]
    axes.plot(rounds, worst, "--", color=colour, marker=marker, label=f"{name}, worst", **faint)


def _draw_rho(axes: Axes, name: str, result: RunResult, colour: str) -> None:
    found = [(event.round, event.improved_of_asked) for event in result.events if not math.isnan(event.improved_ratio)]
    rounds = np.array([round_ for round_, _ in found], dtype=float)
    ratios = np.array([ratio for _, ratio in found], dtype=float)
    totals = result.totals
    there = "" if math.isnan(totals.improved_of_asked) else f": {totals.improved_of_asked:.2f}"
    moved = f"; moved {totals.moved} of {totals.rounds}{there}"
    mean = f" (mean {ratios.mean():.2f}{moved})" if ratios.size else ""
    if ratios.size < 2 * PARTS:
        axes.plot(rounds, ratios, color=colour, marker="o", ms=3, lw=1.2, label=name + mean)
        return
    smooth, window = running_mean(ratios)
    axes.plot(rounds, ratios, color=colour, lw=0.5, alpha=0.25)
    axes.plot(rounds[window - 1 :], smooth, color=colour, label=f"{name}{mean}, over {window} rounds")


def _draw_spread(axes: Axes, results: Mapping[str, RunResult]) -> None:
    of = next(iter(results.values())).figure
    values = [of.scale * np.array(list(result.accuracies.values()), dtype=float) for result in results.values()]
    label = f"{of.name}, %" if of.percent else of.name
    axes.set(title=f"Clients by final test {of.name} (dotted: mean)", xlabel=label, ylabel="clients")
    everything = np.concatenate([*values, np.empty(0)])
    if not everything.size:
        return
    colours = _colours(len(results))
    deviations = [of.label(float(each.std())) if each.size else "–" for each in values]
    labels = [f"{name} (σ {deviation})" for name, deviation in zip(results, deviations, strict=True)]
    edges = bin_edges(everything, smallest_spread(of, everything), of.scaled_limits)
    counts, _, _ = axes.hist(values, edges, color=colours, rwidth=0.85, label=labels)
    for colour, each in zip(colours, values, strict=True):
        axes.axvline(float(each.mean()), color=colour, ls=":", lw=1.6)
    axes.set_ylim(0, 1.3 * float(np.max(counts)))  # room for the legend
    axes.yaxis.set_major_locator(ticks(whole=True))
    axes.legend(loc="upper left", fontsize=9)


@rc_context({**STYLE, "axes.grid": False})
def plot_classes(clients: Sequence[ClientSummary], title: str, path: Path) -> Path:
    """Draw classes against clients as shades, and next to them the samples of each client.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    counts = np.stack([client.train for client in clients])
    figure = Figure(figsize=_size(*counts.shape), layout="constrained")
    shades, sizes = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    _draw_shades(shades, counts)
    _draw_sizes(sizes, clients)
    figure.suptitle(_fitting(title), fontsize=12)
    return save(figure, path)


def _fitting(title: str) -> str:
    """Beginning and end of a title that is wider than the picture, such as one with a long path."""
    third = WIDEST_TITLE // 3
    return title if len(title) <= WIDEST_TITLE else f"{title[:third]} … {title[-2 * third :]}"


def _size(clients: int, classes: int) -> tuple[float, float]:
    return float(np.clip(4 + 0.45 * classes, 8, 14)), float(np.clip(1.9 + 0.3 * clients, 3, 11))


def _draw_shades(axes: Axes, counts: NDArray[np.int64]) -> None:
    """Share of each class in a client's training samples; white where it has none."""
    colours: LinearSegmentedColormap = LinearSegmentedColormap.from_list("shares", _BLUES)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    shown = np.ma.masked_equal(shares, 0)
    image = axes.imshow(shown, aspect="auto", cmap=colours, vmin=0, vmax=float(shares.max()), interpolation="nearest")
    axes.set(xlabel="class", ylabel="client")
    for axis, many in ((axes.xaxis, counts.shape[1] > MANY), (axes.yaxis, counts.shape[0] > MANY)):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=20 if many else MANY, min_n_ticks=1))
    if counts.shape[0] <= FEW and counts.shape[1] <= FEW:
        for (client, label), count in np.ndenumerate(counts):
            if count:
                dark = shares[client, label] > 0.45 * shares.max()
                axes.text(label, client, f"{count:,}", ha="center", va="center", fontsize=8, color="wk"[not dark])
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, fraction=0.04)
    bar.set_label("% of the client's samples")
    bar.outline.set_visible(False)


def _draw_sizes(axes: Axes, clients: Sequence[ClientSummary]) -> None:
    """Training samples of each client, those with wrong labels apart."""
    places: Any = np.arange(len(clients))
    right = np.array([client.samples - client.wrong for client in clients])
    wrong = np.array([client.wrong for client in clients])
    axes.barh(places, right, color=COLOURS[0], height=0.85, label="right labels")
    if wrong.any():
        axes.barh(places, wrong, left=right, color=COLOURS[1], height=0.85, label="wrong labels")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=8, borderaxespad=0.2)
    axes.set(xlabel="training samples")
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(axis="y", left=False, labelleft=False)
