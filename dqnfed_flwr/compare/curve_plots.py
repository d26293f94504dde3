"""Curves of a comparison: mean accuracy and rho_t over the rounds of its rows, each named at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.compare.curves import Curve, curves_of
from dqnfed_flwr.compare.figures import mean_accuracy
from dqnfed_flwr.compare.palette import GREY
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.plots import COLOURS
from dqnfed_flwr.types import Float64Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = 10
"""A running mean takes in one of so many parts of the rounds."""


def draw_accuracy(comparison: Comparison, colours: dict[int, str], figure: Figure) -> None:
    """Mean accuracy against rounds, traffic and time."""
    panels = figure.subplots(1, 3, sharey=True)
    curves = curves_of(comparison, comparison.comparable(colours), mean_accuracy)
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
    curves = curves_of(comparison, colours, lambda event: event.improved_ratio / 100)
    smooth = {place: found.smoothed(PARTS) for place, found in curves.items()}
    _draw_curves(axes, smooth, colours, lambda found: found.rounds, bands=False)
    window = max((found.window(PARTS) for found in curves.values()), default=1)
    over = f", running mean over {window} rounds" if window > 1 else ""
    axes.set(title=f"Clients whose training loss did not rise{over}", xlabel="round", ylabel="ρ", ylim=(-0.03, 1.04))
    axes.locator_params(axis="x", integer=True)
    _label_lines(figure, axes, comparison, smooth, colours)


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
