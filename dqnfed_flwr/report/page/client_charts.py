"""Charts of how rows treat their clients: the worst tenth against the mean, and a histogram a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dqnfed_flwr.compare.figures import corner
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.page.look import GREY, NAMED, Style, back_to_front, names, padded, shortened
from dqnfed_flwr.report.page.svg import Frame, box, dot, group, line, path, text
from dqnfed_flwr.types import Float64Array

BINS = 10
SMALL = Frame(220, 128, left=8, right=8, top=24, bottom=22)


def fairness_chart(comparison: Comparison, look: dict[int, Style]) -> str:
    """Worst 10 % of the clients against the mean, a point a method, bars for the seeds."""
    look = comparison.comparable(look)
    points = {place: _mean_and_worst(comparison, place) for place in look}
    if not points:
        return ""
    frame = NAMED
    limits = [_limits([pair[axis] for pair in points.values()]) for axis in (0, 1)]
    x, y = frame.x(*limits[0]), frame.y(*limits[1])
    parts = frame.axes(x, y, "mean over clients, %", "worst 10 % of clients, %")
    ends = []
    for place, ((mean, mean_std), (worst, worst_std)) in back_to_front(points, look):
        at = max(x(mean), x.start), min(y(worst), y.start)
        shapes = []
        if mean >= x.low and worst >= y.low:
            across, up = (mean - mean_std, mean + mean_std), (worst - worst_std, worst + worst_std)
            shapes.append(path([(x(x.inside(value)), at[1]) for value in across], "bar"))
            shapes.append(path([(at[0], y(y.inside(value))) for value in up], "bar"))
        shapes.append(dot(*at, 6 if look[place].colour != GREY else 3.5, "dot"))
        tip = f"{look[place].name}: mean {mean:.1f} %, worst 10 % {worst:.1f} %"
        parts.append(group(shapes, look[place].kind, tip, place))
        if look[place].colour != GREY:
            ends.append((place, at[0] + 7, at[1]))
    parts += names(ends, look, x.end, y)
    return frame.draw(parts, "worst 10 % of the clients against their mean")


def client_chart(comparison: Comparison, look: dict[int, Style], place: int, edges: Float64Array, top: float) -> str:
    """Histogram of a row's clients, all seeds together, with the reference's outline."""
    frame, style = SMALL, look[place]
    x, y = frame.x(float(edges[0]), float(edges[-1])), frame.y(0, top)
    shares = _shares(comparison.rows[place].client_accuracies, edges)
    bars = [
        box(x(low) + 0.7, y(share), x(high) - x(low) - 1.4, y.start - y(share), "area")
        for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
        if share
    ]
    mean = float(comparison.rows[place].client_accuracies.mean())
    parts = [line((x.start, y.start), (x.end, y.start), "axis")]
    parts.append(group(bars, style.kind, style.name, place))
    outline = next((p for p in look if comparison.rows[p] is comparison.reference and p != place), None)
    if outline is not None:
        steps = _shares(comparison.rows[outline].client_accuracies, edges)
        points = [(x(float(edges[0])), y.start)]
        for low, high, share in zip(edges[:-1], edges[1:], steps, strict=True):
            points += [(x(float(low)), y(share)), (x(float(high)), y(share))]
        points.append((x(float(edges[-1])), y.start))
        parts.append(f'<g class="s c{look[outline].colour} outline">{path(points, "thin")}</g>')
    parts.append(line((x(mean), y.end - 3), (x(mean), y.start), "mean"))
    parts.append(text(x.start, y.start + 15, f"{edges[0]:.0f} %", "tick"))
    parts.append(text(x.end, y.start + 15, f"{edges[-1]:.0f} %", "tick end"))
    kind = "name strong" if style.colour != GREY else "name"
    parts.append(text(x.start, 14, shortened(style.name, 31), kind))
    return frame.draw(parts, f"clients of {style.name} by accuracy; mean {mean:.1f} %")


def histogram_limits(comparison: Comparison, look: dict[int, Style]) -> tuple[Float64Array, float]:
    """Edges from 0 to 100 per cent, and the largest share of any row."""
    edges = np.linspace(0.0, 100.0, BINS + 1)
    return edges, max(float(_shares(comparison.rows[place].client_accuracies, edges).max()) for place in look)


def _mean_and_worst(comparison: Comparison, place: int) -> tuple[tuple[float, float], tuple[float, float]]:
    mean, worst = (comparison.figures[place][key] for key in ("mean", "worst10"))
    return (100 * mean.mean, _known(100 * mean.std)), (100 * worst.mean, _known(100 * worst.std))


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _shares(values: Float64Array, edges: Float64Array) -> Float64Array:
    return np.asarray(100 * np.histogram(values, edges)[0] / max(1, values.size))


def _limits(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Room for means with their bars, but for those far below the others."""
    floor = corner([mean for mean, _ in found])
    return padded([value for mean, std in found if mean >= floor for value in (mean - std, mean + std)])
