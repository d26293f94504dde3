"""Charts of the rounds: mean accuracy and rho_t. Rows that do not stand out are thin and grey."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dqnfed_flwr.compare.curves import Curve, curves_of
from dqnfed_flwr.compare.figures import mean_accuracy
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.page.look import GREY, NAMED, Style, back_to_front, names, padded
from dqnfed_flwr.report.page.svg import dot, group, path
from dqnfed_flwr.types import Float64Array

POINTS = 160
"""Points of a line at most; more are averaged."""
PARTS = 20
"""A running mean takes in one of so many parts of the rounds."""
FAR = 2.0
"""A run that takes so many times longer than half of the others makes the axis logarithmic."""


def accuracy_chart(comparison: Comparison, look: dict[int, Style], against: str) -> str:
    """Mean accuracy with its band over seeds, against `rounds` or `seconds`."""
    look = comparison.comparable(look)
    curves = curves_of(comparison, look, mean_accuracy)
    x_of: Callable[[Curve], Float64Array] = (
        (lambda found: found.rounds) if against == "rounds" else (lambda found: found.seconds)
    )
    name = "round" if against == "rounds" else "seconds since the beginning"
    return _lines(curves, look, x_of, name, "test accuracy, %", bands=True, limits=None)


def rho_chart(comparison: Comparison, look: dict[int, Style]) -> str:
    """rho_t, as a running mean."""
    curves = {
        place: found.smoothed(PARTS)
        for place, found in curves_of(comparison, look, lambda event: event.improved_ratio / 100).items()
    }
    return _lines(curves, look, lambda found: found.rounds, "round", "ρ", bands=False, limits=(0.0, 1.0))


def _lines(
    curves: dict[int, Curve],
    look: dict[int, Style],
    x_of: Callable[[Curve], Float64Array],
    x_label: str,
    y_label: str,
    *,
    bands: bool,
    limits: tuple[float, float] | None,
) -> str:
    if not curves:
        return ""
    frame, scale = NAMED, 100.0
    firsts, lasts = ([float(x_of(found)[at]) for found in curves.values()] for at in (0, -1))
    log = min(firsts) > 0 and max(lasts) > FAR * float(np.median(lasts))
    x = frame.x(min(firsts) if log else 0.0, max(lasts), log=log)
    values = np.concatenate([scale * edge for place, found in curves.items() for edge in _edges(found, look[place])])
    y = frame.y(*(limits or padded([float(values.min()), float(values.max())])))
    parts = frame.axes(x, y, x_label, y_label)
    ends = []
    for place, found in back_to_front(curves, look):
        across, up, spread_ = (_thinned(part) for part in (x_of(found), scale * found.mean, scale * found.std))
        line_points = [(x(a), y(b)) for a, b in zip(across, up, strict=True)]
        shapes = []
        if bands and look[place].colour != GREY:
            upper = [(x(a), y(y.inside(b + s))) for a, b, s in zip(across, up, spread_, strict=True)]
            lower = [(x(a), y(y.inside(b - s))) for a, b, s in zip(across, up, spread_, strict=True)]
            shapes.append(path([*upper, *reversed(lower)], "band", closed=True))
        shapes.append(path(line_points, "line") if len(line_points) > 1 else dot(*line_points[0], 4, "dot"))
        parts.append(group(shapes, look[place].kind, f"{look[place].name}: {up[-1]:.2f} at the end", place))
        if look[place].colour != GREY:
            ends.append((place, *line_points[-1]))
    parts += names(ends, look, x.end, y)
    return frame.draw(parts, f"{y_label} against {x_label}")


def _edges(found: Curve, style: Style) -> tuple[Float64Array, ...]:
    """What of a curve is drawn: the band too, where it stands out."""
    return (found.mean,) if style.colour == GREY else (found.mean - found.std, found.mean + found.std)


def _thinned(values: Float64Array) -> list[float]:
    """At most so many values, each the mean of its neighbours; the first and last as they are."""
    if values.size <= POINTS:
        return [float(value) for value in values]
    inner = [float(part.mean()) for part in np.array_split(values[1:-1], POINTS - 2)]
    return [float(values[0]), *inner, float(values[-1])]
