"""Pictures of a comparison. A few rows stand out in colour, the others are thin and grey, and all are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dqnfed_flwr.compare.figures import Curve, Summary, curve, mean_accuracy
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.report.plots import BINS, COLOURS, STYLE
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dqnfed_flwr.compare.labels import Label

GREY = "#8a8a8a"
STAND_OUT = len(COLOURS)
"""Rows in colour: the reference, and the best of the others by their worst 10 % of clients."""
FAR = 3.0
"""Points farther below the lower quartile than so many interquartile ranges are named in the margin."""
SHARE_SMOOTHED = 10


def plot_comparison(comparison: Comparison, directory: Path) -> list[Path]:
    """Draw `accuracy.png`, `clients.png`, `rho.png` and `fairness.png`.

    Raises
    ------
    RunError
        If matplotlib is missing or a file cannot be written.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("the plots need matplotlib: pip install 'dqnfed-flwr[plots]'") from None
    colours = colours_of(comparison)
    if not colours:
        return []
    height = 4.2 + 0.09 * max(0, len(colours) - 12)
    columns = min(6, math.ceil(math.sqrt(len(colours))))
    lines = math.ceil(len(colours) / columns)
    kinds: dict[str, tuple[tuple[float, float], Callable[[Comparison, dict[int, str], Figure], None]]] = {
        "accuracy.png": ((15, height), draw_accuracy),
        "clients.png": ((2.4 * columns + 1.4, 1.7 * lines + 1.2), draw_clients),
        "rho.png": ((8.5, height), draw_rho),
        "fairness.png": ((9, 6.5), draw_fairness),
    }
    paths = []
    for name, (size, draw) in kinds.items():
        with rc_context(STYLE):
            figure = Figure(figsize=size, layout=None if draw is draw_clients else "constrained")
            FigureCanvasAgg(figure)
            draw(comparison, colours, figure)
            try:
                figure.savefig(directory / name)
            except OSError as error:
                raise RunError(f"{directory / name}: the plot cannot be written ({error.strerror})") from None
        paths.append(directory / name)
    return paths


def colours_of(comparison: Comparison) -> dict[int, str]:
    """A colour for each row that has a finished run, by its place: the reference's first, grey for the many."""
    good = [place for place, figures in enumerate(comparison.figures) if figures]
    best = sorted(good, key=lambda place: -comparison.figures[place]["worst10"].mean)
    first = [place for place in good if comparison.rows[place] is comparison.reference]
    bright = (first + [place for place in best if place not in first])[:STAND_OUT]
    named = dict(zip(bright, COLOURS, strict=False))
    return {place: named.get(place, GREY) for place in good}


def draw_accuracy(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """Mean accuracy against rounds, traffic and time."""
    panels = figure.subplots(1, 3, sharey=True)
    curves = _curves(comparison, comparison.comparable(colours), mean_accuracy)
    kinds: tuple[tuple[str, Callable[[Curve], Float64Array]], ...] = (
        ("traffic, both ways, MB", lambda found: found.megabytes),
        ("seconds", lambda found: found.seconds),
        ("round", lambda found: found.rounds),
    )
    for axes, (unit, x_of) in zip(panels, kinds, strict=True):
        _draw_curves(axes, curves, colours, x_of)
        axes.set(xlabel=unit)
        ends = [float(x_of(found)[-1]) for found in curves.values()]
        if ends and min(ends) > 0 and max(ends) > 10 * min(ends):
            axes.set_xscale("log")
        elif unit == "round":
            axes.locator_params(axis="x", integer=True)
    panels[0].set(ylabel="test accuracy, %")
    panels[1].set_title("Test accuracy: mean over clients (band: standard deviation over seeds)")
    _label_lines(figure, panels[2], comparison, curves, colours)


def draw_rho(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """rho_t over the rounds."""
    axes = figure.subplots()
    curves = _curves(comparison, colours, lambda event: event.improved_ratio / 100)
    smooth = {place: _smoothed(found) for place, found in curves.items()}
    _draw_curves(axes, smooth, colours, lambda found: found.rounds, bands=False)
    window = max((_window(found) for found in curves.values()), default=1)
    over = f", running mean over {window} rounds" if window > 1 else ""
    axes.set(title=f"Clients whose training loss did not rise{over}", xlabel="round", ylabel="ρ", ylim=(-0.03, 1.04))
    axes.locator_params(axis="x", integer=True)
    _label_lines(figure, axes, comparison, smooth, colours)


def draw_clients(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """A histogram of the clients' accuracies a row, all seeds together, the reference's outline over each."""
    columns = min(6, math.ceil(math.sqrt(len(colours))))
    lines = math.ceil(len(colours) / columns)
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
    floors = [_floor([100 * pair[axis].mean for pair in places.values()]) for axis in (0, 1)]
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


def _curves(comparison: Comparison, colours: dict[int, str], figure: Callable[[RoundEvent], float]) -> dict[int, Curve]:
    found = {place: curve(comparison.rows[place].records, figure) for place in colours}
    return {place: each for place, each in found.items() if each is not None}


def _draw_curves(
    axes: Axes,
    curves: dict[int, Curve],
    colours: dict[int, str],
    x_of: Callable[[Curve], Float64Array],
    *,
    bands: bool = True,
) -> None:
    for place, found in curves.items():
        colour = colours[place]
        above = 2 if colour == GREY else 3 + len(COLOURS) - COLOURS.index(colour)
        style: dict[str, Any] = {"lw": 0.7, "alpha": 0.7} if colour == GREY else {"lw": 1.8}
        marker = "o" if found.rounds.size == 1 else ""
        x, y, spread = x_of(found), 100 * found.mean, 100 * found.std
        axes.plot(x, y, color=colour, marker=marker, zorder=above, **style)
        if bands and colour != GREY:
            axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.12, lw=0)


def _label_lines(
    figure: Figure,
    axes: Axes,
    comparison: Comparison,
    curves: dict[int, Curve],
    colours: dict[int, str],
) -> None:
    from dqnfed_flwr.compare.labels import label_ends

    figure.draw_without_rendering()
    label_ends(
        axes,
        [
            (
                float(found.rounds[-1]),
                100 * float(found.mean[-1]),
                comparison.rows[place].label,
                colours[place],
                colours[place] != GREY,
            )
            for place, found in curves.items()
        ],
    )


def _window(found: Curve) -> int:
    return max(1, found.rounds.size // SHARE_SMOOTHED)


def _smoothed(found: Curve) -> Curve:
    """A running mean over a tenth of the rounds."""
    window = _window(found)

    def smooth(values: Float64Array) -> Float64Array:
        return np.convolve(values, np.ones(window) / window, mode="valid")

    start = window - 1
    x = found.rounds[start:], found.megabytes[start:], found.seconds[start:]
    return Curve(*x, smooth(found.mean), smooth(found.std))


def _bar(summary: Summary) -> float:
    return 0.0 if math.isnan(summary.std) else 100 * summary.std


def _floor(values: list[float]) -> float:
    """Below it a point would squeeze all others into a corner."""
    if len(values) < 2 * STAND_OUT:
        return -math.inf
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - FAR * max(high - low, 1.0))


def _wrapped(text: str, width: int = 130) -> str:
    from textwrap import fill

    return fill(text, width)
