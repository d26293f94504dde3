"""Charts of a comparison, each drawn by one function: for the PNG files next to its tables and for a report's page.

A few rows stand out in colour, the others are thin and grey, and all are named. Sizes are in points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from dqnfed_flwr.compare.results import Comparison, Summary, mean_figure
from dqnfed_flwr.report.drawing import (
    INK,
    POINT,
    SOFT,
    STYLE,
    bin_edges,
    mark,
    padded,
    running_mean,
    save,
    shortened,
    smallest_spread,
    ticks,
)
from dqnfed_flwr.report.labels import (
    LABEL_GAP,
    LETTERS,
    Curve,
    End,
    Look,
    back_to_front,
    bright_names,
    curves_of,
    look_of,
    name_ends,
    thinned,
)
from dqnfed_flwr.types import ACCURACY, Float64Array, decimals
from dqnfed_flwr.types import Figure as Measured

CHART = {**STYLE, "font.size": 12}
FAR = 2.0
"""A run that takes so many times longer than half of the others makes the axis logarithmic."""
OUTLYING, MANY = 3.0, 8
"""Of so many points, those farther below the lower quartile than so many interquartile ranges stand at the edge."""
WIDTH, HEIGHT = 560.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 178.0, 14.0, 42.0
"""Room around the axes of a chart; the names of the rows stand on the right."""
TITLE = 24.0
"""Room above for the title of a picture; a page has headings."""
SMALL_WIDTH, SMALL_HEIGHT, MOST_COLUMNS = 220.0, 136.0, 6
"""A histogram, and how many stand side by side in a picture."""


AGAINST: dict[str, tuple[str, Callable[[Curve], Float64Array]]] = {
    "traffic": ("traffic, both ways, MB", lambda curve: curve.megabytes),
    "seconds": ("seconds since the beginning", lambda curve: curve.seconds),
    "rounds": ("round", lambda curve: curve.rounds),
}
"""What the mean figure is drawn against."""


@rc_context(CHART)
def plot_comparison(comparison: Comparison, directory: Path) -> list[Path]:
    """Draw `accuracy.png`, `clients.png`, `rho.png` and `fairness.png`; nothing where no run came to its end.

    The first is `figure.png` where clients are evaluated by another figure.

    Raises
    ------
    RunError
        If a file cannot be written.
    """
    look = look_of(comparison, bright_names([comparison]))
    if not look:
        return []
    over = "Clients whose training loss did not rise"
    bars = f"Fairness against {comparison.figure.name} (bars: standard deviation over seeds)"
    first = "accuracy.png" if comparison.figure == ACCURACY else "figure.png"
    figures = {
        first: _three_means(comparison, look),
        "clients.png": _all_clients(comparison, look),
        "rho.png": rho_chart(comparison, look, over),
        "fairness.png": fairness_chart(comparison, look, bars),
    }
    return [save(figure, directory / name) for name, figure in figures.items()]


@rc_context(CHART)
def mean_chart(comparison: Comparison, look: Look, against: str) -> Figure:
    """Mean of the clients' figures with its band over seeds, against one of `AGAINST`."""
    figure, axes = _one_panel(len(look))
    name_ends(axes, _draw_mean(axes, comparison, look, against))
    return figure


@rc_context(CHART)
def rho_chart(comparison: Comparison, look: Look, title: str = "") -> Figure:
    """rho_t over the rounds, as a running mean."""
    curves, longest = curves_of(comparison, look, lambda event: event.improved_of_asked), 1
    for place, curve in curves.items():
        (mean, window), (std, _) = running_mean(curve.mean), running_mean(curve.std)
        start, longest = window - 1, max(longest, window)
        curves[place] = Curve(curve.rounds[start:], curve.megabytes[start:], curve.seconds[start:], mean, std)
    over = f", running mean over {longest} rounds" if title and longest > 1 else ""
    figure, axes = _one_panel(len(look), title + over)
    axes.set(ylabel="ρ", ylim=(0, 1))
    name_ends(axes, _draw_curves(axes, curves, look, AGAINST["rounds"], band_limit=0.0))
    return figure


@rc_context(CHART)
def fairness_chart(comparison: Comparison, look: Look, title: str = "") -> Figure:
    """Worst 10 % of the clients against the mean, a point a row, bars for the seeds.

    Rows far below the others stand at the edge, without bars, and their figures stand behind their names.
    """
    figure, axes = _one_panel(len(look), title)
    look = comparison.comparable(look)
    of, figures = comparison.figure, comparison.figures
    found = {place: tuple(figures[place][key].times(of.scale) for key in ("mean", "worst10")) for place in look}
    edges = _edges(list(found.values()), of)
    unit = ", %" if of.percent else f", {of.name}"
    axes.set(xlim=edges[0], ylim=edges[1], xlabel=f"mean over clients{unit}", ylabel=f"worst 10 % of clients{unit}")
    ends: list[End] = []
    names = {}
    for style, ((mean, _), (worst, _)) in back_to_front(found, look):
        inner = [min(max(value, low), high) for value, (low, high) in zip((mean, worst), edges, strict=True)]
        at = inner[0], inner[1]
        shapes = axes.plot(*at, "o", clip_on=False, ms=11 if style.bright else 7, mew=0, color=style.colour)
        if at == (mean, worst):
            bars = [np.clip(_reach(found[style.key][axis]), *edges[axis]) for axis in (0, 1)]
            across, up = [*bars[0], math.nan, mean, mean], [worst, worst, math.nan, *bars[1]]
            shapes += axes.plot(across, up, color=style.colour, lw=1.4 if style.bright else 0.7)
        else:
            far = ", ".join(of.label(value, 0).removesuffix(of.unit) for value in (mean, worst))
            names[style.key] = f"{shortened(style.short, LETTERS - 8)} ({far})"
        tip = f"{style.name}: mean {of.label(mean)}, worst 10 % {of.label(worst)}"
        mark(shapes, style.key, style.kind, tip)
        ends.append((style, *at))
    name_ends(axes, ends, names)
    return figure


@rc_context(CHART)
def client_chart(comparison: Comparison, look: Look, place: int) -> Figure:
    """Histogram of a row's clients."""
    figure = Figure(figsize=(SMALL_WIDTH / POINT, SMALL_HEIGHT / POINT))
    _draw_clients(_client_axes(figure, 0, SMALL_HEIGHT), comparison, look, place)
    return figure


def _three_means(comparison: Comparison, look: Look) -> Figure:
    gap, width = 22.0, WIDTH - LEFT - RIGHT
    height = _height(len(look)) + TITLE
    figure = Figure(figsize=((LEFT + 3 * width + 2 * gap + RIGHT) / POINT, height / POINT))
    for number, against in enumerate(AGAINST):
        axes = _axes_at(figure, LEFT + number * (width + gap), BOTTOM, width, height - BOTTOM - TOP - TITLE)
        ends = _draw_mean(axes, comparison, look, against)
        if number:
            axes.set(ylabel="")
            axes.tick_params(labelleft=False)
        if number == 1:
            axes.set_title(
                f"Test {comparison.figure.name}: mean over clients (band: standard deviation over seeds)", pad=12
            )
    name_ends(axes, ends)
    return figure


def _all_clients(comparison: Comparison, look: Look) -> Figure:
    columns = min(MOST_COLUMNS, math.ceil(math.sqrt(len(look))))
    lines = math.ceil(len(look) / columns)
    width, height = max(2, columns) * SMALL_WIDTH + 16, lines * SMALL_HEIGHT + TITLE + 16
    figure = Figure(figsize=(width / POINT, height / POINT))
    for number, place in enumerate(look):
        line, column = divmod(number, columns)
        axes = _client_axes(figure, 16 + column * SMALL_WIDTH, height - TITLE - line * SMALL_HEIGHT)
        _draw_clients(axes, comparison, look, place)
    reference = comparison.reference
    outline = f"; outline: {reference.label}" if reference and reference.good and len(look) > 1 else ""
    title = f"Clients by final test {comparison.figure.name} (dotted: mean{outline})"
    figure.suptitle(title, fontsize=12, y=1 - 6 / height, va="top")
    figure.supxlabel(axis_label(comparison.figure), y=4 / height, va="bottom", color=SOFT)
    figure.supylabel("share of clients, %", x=4 / width, ha="left", color=SOFT)
    return figure


def _draw_mean(axes: Axes, comparison: Comparison, look: Look, against: str) -> list[End]:
    of = comparison.figure
    curves = curves_of(comparison, comparison.comparable(look), lambda event: of.scale * mean_figure(event))
    edges = [c.mean + side * c.std * look[place].bright for place, c in curves.items() for side in (-1, 1)]
    if edges:
        values = np.concatenate(edges)
        low, high = padded(values.tolist(), smallest_spread(of, values))
        axes.set_ylim(low, min(high, 102.0) if of.percent else high)
    axes.set(ylabel=f"test {axis_label(of)}")
    return _draw_curves(axes, curves, look, AGAINST[against], band_limit=100.0 if of.percent else math.inf)


def _draw_curves(
    axes: Axes,
    curves: dict[int, Curve],
    look: Look,
    against: tuple[str, Callable[[Curve], Float64Array]],
    *,
    band_limit: float,
) -> list[End]:
    """Lines, and bands up to a limit, in `axes` whose vertical limits are set; where the lines end."""
    label, x_of = against
    _set_x(axes, [x_of(curve) for curve in curves.values()])
    axes.set(xlabel=label)
    ends = []
    for style, curve in back_to_front(curves, look):
        x, mean, std = (thinned(part) for part in (x_of(curve), curve.mean, curve.std))
        marker, width = "o" if x.size == 1 else "", (2.6 if style.number == 0 else 1.9) if style.bright else 1.0
        shapes: list[Artist] = [
            *axes.plot(x, mean, marker=marker, color=style.colour, lw=width, ls=style.dashes, clip_on=False)
        ]
        if style.bright and band_limit and std.any():
            low, high = np.maximum(mean - std, axes.get_ylim()[0]), np.minimum(mean + std, band_limit)
            shapes += axes.fill([*x, *x[::-1]], [*low, *high[::-1]], color=style.colour, alpha=0.13, lw=0)
        digits = 2 if math.isfinite(band_limit) else decimals(float(mean[-1]))
        mark(shapes, style.key, style.kind, f"{style.name}: {mean[-1]:.{digits}f} at the end")
        ends.append((style, float(x[-1]), float(mean[-1])))
    return ends


def _set_x(axes: Axes, lines: Sequence[Float64Array]) -> None:
    """Limits and ticks that suit all lines: from 0, or logarithmic where one of them is far longer than the others."""
    if not lines:
        return
    first, lasts = min(float(line[0]) for line in lines), [float(line[-1]) for line in lines]
    axes.xaxis.set_major_locator(ticks(whole=all((line == line.round()).all() for line in lines)))
    if first > 0 and max(lasts) > FAR * float(np.median(lasts)):
        decades = math.log10(max(lasts) / first)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if decades > 3 else (1, 3) if decades > 1 else (1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlim(first, max(lasts))
    else:
        axes.set_xlim(0, max(lasts) or 1.0)


def _draw_clients(axes: Axes, comparison: Comparison, look: Look, place: int) -> None:
    """Shares of a row's clients by their figure, all seeds together, their mean, and the outline of the reference."""
    style, of = look[place], comparison.figure
    values = {each: comparison.rows[each].client_figures for each in look}
    everything = np.concatenate(list(values.values()))
    edges = bin_edges(everything, smallest_spread(of, everything), of.scaled_limits)
    shares = {each: 100 * np.histogram(found, edges)[0] / found.size for each, found in values.items()}
    width = edges[1] - edges[0]
    centres = np.array(edges[:-1]) + width / 2
    filled = shares[place] > 0
    bars = axes.bar(centres[filled], shares[place][filled], 0.92 * width, color=style.colour, alpha=0.85)
    mean = float(values[place].mean())
    mark(bars.patches, style.key, style.kind, f"{style.name}: mean {of.label(mean)}")
    outline = next((each for each in look if comparison.rows[each] is comparison.reference and each != place), None)
    if outline is not None:
        axes.stairs(shares[outline], edges, color=look[outline].colour, lw=1.3)
    top = max(float(found.max()) for found in shares.values())
    axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.04 * top))
    axes.plot([mean, mean], [0, 1.04 * top], color=INK, lw=1.2, ls=(0, (2, 2)))
    axes.xaxis.set_major_locator(ticks(4))
    axes.yaxis.set_major_locator(ticks(3))
    bold, colour = ("bold", INK) if style.bright else ("normal", SOFT)
    axes.set_title(shortened(style.name, 31), loc="left", fontsize=12, fontweight=bold, color=colour)


def axis_label(figure: Measured) -> str:
    """The figure, with its unit, at an axis."""
    return f"{figure.name}, %" if figure.percent else figure.name


def _edges(found: Sequence[Sequence[Summary]], figure: Measured) -> list[tuple[float, float]]:
    """Limits of the two axes around the points that are not far worse than the others, with their bars."""
    spread = smallest_spread(figure, np.array([mean for pair in found for mean, _ in pair]))
    corners = [_corner([pair[axis].mean for pair in found], figure.sign, spread) for axis in (0, 1)]
    inside = [pair for pair in found if all(_within(pair[axis].mean, corners[axis], figure.sign) for axis in (0, 1))]
    return [padded([edge for pair in inside for edge in _reach(pair[axis])], spread) for axis in (0, 1)]


def _corner(values: Sequence[float], sign: int, spread: float) -> float:
    """What is worse would squeeze all other points of a picture into a corner; infinite where they are few.

    `sign` is -1 where less is better.
    """
    if len(values) < MANY:
        return -sign * math.inf
    low, high = np.quantile(values, [0.25, 0.75])
    worse = low if sign > 0 else high
    return float(worse - sign * OUTLYING * max(high - low, spread))


def _within(value: float, corner: float, sign: int) -> bool:
    return sign * value >= sign * corner


def _reach(figure: Summary) -> tuple[float, float]:
    """Both ends of the bar of a mean and its deviation."""
    spread = 0.0 if math.isnan(figure.std) else figure.std
    return figure.mean - spread, figure.mean + spread


def _height(rows: int) -> float:
    """Of a chart in which so many rows are named."""
    return max(HEIGHT, TOP + BOTTOM + LABEL_GAP * rows)


def _one_panel(rows: int, title: str = "") -> tuple[Figure, Axes]:
    height = _height(rows) + TITLE * bool(title)
    figure = Figure(figsize=(WIDTH / POINT, height / POINT))
    axes = _axes_at(figure, LEFT, BOTTOM, WIDTH - LEFT - RIGHT, _height(rows) - BOTTOM - TOP)
    axes.set_title(title, pad=12, loc="left")
    return figure, axes


def _client_axes(figure: Figure, left: float, top: float) -> Axes:
    return _axes_at(figure, left + 26, top - SMALL_HEIGHT + 22, SMALL_WIDTH - 38, SMALL_HEIGHT - 44)


def _axes_at(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    across, up = (size * POINT for size in figure.get_size_inches())
    axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    axes.grid(visible=False, axis="x")
    axes.xaxis.set_major_locator(ticks())
    axes.yaxis.set_major_locator(ticks())
    return axes
