"""Pictures of how a comparison's rows treat their clients: a histogram a row, and the worst tenth against the mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dqnfed_flwr.compare.figures import Summary, corner
from dqnfed_flwr.compare.palette import GREY
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.plots import BINS, COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dqnfed_flwr.compare.labels import Label

MOST_COLUMNS = 6


def panels_of(rows: int) -> tuple[int, int]:
    """Lines and columns of a grid of so many histograms."""
    columns = min(MOST_COLUMNS, math.ceil(math.sqrt(rows)))
    return math.ceil(rows / columns), columns


def draw_clients(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """A histogram of the clients' accuracies a row, all seeds together, the reference's outline over each."""
    lines, columns = panels_of(len(colours))
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    inch = 1 / figure.get_figwidth(), 1 / figure.get_figheight()
    figure.subplots_adjust(
        left=0.6 * inch[0],
        right=1 - 0.1 * inch[0],
        bottom=0.5 * inch[1],
        top=1 - 0.6 * inch[1],
        hspace=0.35,
        wspace=0.1,
    )
    values = {place: comparison.rows[place].client_accuracies for place in colours}
    everything = np.concatenate(list(values.values()))
    low, high = float(everything.min()), float(everything.max())
    edges = np.linspace(*((low, high) if high > low else (low - 5, high + 5)), BINS + 1)
    outline = next((values[place] for place in values if comparison.rows[place] is comparison.reference), None)
    for axes, (place, found) in zip(panels.flat, values.items(), strict=False):
        colour = colours[place]
        shares = np.full(found.size, 100 / found.size)
        axes.hist(found, edges.tolist(), weights=shares, color=colour, alpha=0.75, rwidth=0.92)
        axes.axvline(float(found.mean()), color=colour, ls=":", lw=1.4)
        if outline is not None and outline is not found:
            weights = np.full(outline.size, 100 / outline.size)
            axes.hist(outline, edges.tolist(), weights=weights, histtype="step", color=COLOURS[0], lw=1.0)
        bold = "bold" if colour != GREY else "normal"
        axes.set_title(comparison.rows[place].label, fontsize=8, color=colour, fontweight=bold)
        axes.tick_params(labelsize=7)
    for axes in list(panels.flat)[len(values) :]:
        axes.set_visible(False)
    shown = f"; outline: {comparison.reference.label}" if outline is not None and comparison.reference else ""
    figure.suptitle(f"Clients by final test accuracy (dotted: mean{shown})", fontsize=10)
    figure.supxlabel("accuracy, %", fontsize=9, y=0.1 * inch[1], va="bottom")
    figure.supylabel("share of clients, %", fontsize=9, x=0.1 * inch[0], ha="left")


def draw_fairness(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """Worst 10 % of the clients against their mean, a point a row."""
    from dqnfed_flwr.compare.labels import label_points

    axes = figure.subplots()
    figures, shown = comparison.figures, comparison.comparable(colours)
    places = {place: (figures[place]["mean"], figures[place]["worst10"]) for place in shown}
    floors = [corner([100 * pair[axis].mean for pair in places.values()]) for axis in (0, 1)]
    labels: list[Label] = []
    outside = []
    for place, (mean, worst) in places.items():
        x, y, label, bold = 100 * mean.mean, 100 * worst.mean, comparison.rows[place].label, colours[place] != GREY
        if x < floors[0] or y < floors[1]:
            outside.append(f"{label} ({x:.1f}, {y:.1f})")
            continue
        axes.errorbar(
            x, y, xerr=_bar(mean), yerr=_bar(worst), fmt="o", color=colours[place], ms=7 if bold else 4.5,
            elinewidth=1.2 if bold else 0.5, alpha=1 if bold else 0.8, zorder=3 if bold else 2,
        )  # fmt: skip
        labels.append((x, y, label, colours[place], bold))
    axes.set(
        title="Fairness against accuracy (bars: standard deviation over seeds)",
        xlabel="mean over clients, %",
        ylabel="worst 10 % of clients, %",
    )
    axes.margins(0.12)
    if outside:
        note = "outside, at (mean, worst 10 %): " + ", ".join(outside)
        figure.supxlabel(_wrapped(note), fontsize=7, color=GREY)
    label_points(axes, labels)


def _bar(summary: Summary) -> float:
    return 0.0 if math.isnan(summary.std) else 100 * summary.std


def _wrapped(text: str, width: int = 130) -> str:
    from textwrap import fill

    return fill(text, width)
