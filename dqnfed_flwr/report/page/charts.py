"""The charts of a report. A method has one colour in all of them; those that do not stand out are thin and grey."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dqnfed_flwr.compare.claims import Claim, Finding
from dqnfed_flwr.compare.figures import Curve, curve, mean_accuracy
from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.spreading import spread
from dqnfed_flwr.report.page.document import name_of
from dqnfed_flwr.report.page.svg import Frame, Scale, box, dot, group, line, path, text
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

Drawn = TypeVar("Drawn")
GREY = -1
POINTS = 160
"""Points of a line at most; more are averaged."""
BINS = 10
WINDOW_SHARE = 20
FAR = 2.0
"""A run that takes so many times longer than half of the others makes the axis logarithmic."""
NAMED = Frame(560, 340, left=52, right=154)
SMALL = Frame(220, 128, left=8, right=8, top=24, bottom=22)
LABEL_GAP = 15.0


@dataclass(frozen=True, slots=True)
class Style:
    """How a row is drawn: its number, its colour (-1: grey), its name, and that without what a grid chose."""

    key: int
    colour: int
    name: str
    short: str

    @property
    def kind(self) -> str:
        """Class of its shapes."""
        return f"s c{self.colour}" if self.colour != GREY else "s mute"


def styles(comparison: Comparison, bright: Sequence[str]) -> dict[int, Style]:
    """Of every row with a finished run, by its place."""
    return {
        place: Style(place, bright.index(name_of(row)) if name_of(row) in bright else GREY, row.label, name_of(row))
        for place, row in enumerate(comparison.rows)
        if row.good
    }


def accuracy_chart(comparison: Comparison, look: dict[int, Style], against: str) -> str:
    """Mean accuracy with its band over seeds, against `rounds` or `seconds`."""
    look = comparison.comparable(look)
    curves = _curves(comparison, look, mean_accuracy)
    x_of: Callable[[Curve], Float64Array] = (
        (lambda found: found.rounds) if against == "rounds" else (lambda found: found.seconds)
    )
    name = "round" if against == "rounds" else "seconds since the beginning"
    return _lines(curves, look, x_of, name, "test accuracy, %", bands=True, limits=None)


def rho_chart(comparison: Comparison, look: dict[int, Style]) -> str:
    """rho_t, as a running mean."""
    curves = {
        place: _smooth(found)
        for place, found in _curves(comparison, look, lambda event: event.improved_ratio / 100).items()
    }
    return _lines(curves, look, lambda found: found.rounds, "round", "ρ", bands=False, limits=(0.0, 1.0))


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
    for place, ((mean, mean_std), (worst, worst_std)) in _back_to_front(points, look):
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
    parts += _names(ends, look, x.end, y)
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
    parts.append(text(x.start, 14, _cut(style.name, 31), kind))
    return frame.draw(parts, f"clients of {style.name} by accuracy; mean {mean:.1f} %")


def histogram_limits(comparison: Comparison, look: dict[int, Style]) -> tuple[Float64Array, float]:
    """Edges from 0 to 100 per cent, and the largest share of any row."""
    edges = np.linspace(0.0, 100.0, BINS + 1)
    return edges, max(float(_shares(comparison.rows[place].client_accuracies, edges).max()) for place in look)


def interval_chart(finding: Finding, reach: float) -> str:
    """An interval against 0, drawn so that to the right is always good for the reference."""
    frame = Frame(120, 18, left=4, right=4, top=0, bottom=0)
    scale = Scale(-reach, reach, frame.left, frame.width - frame.right)
    parts = [line((scale(0), 1), (scale(0), 17), "zero")]
    if finding.interval:
        low, at, high = (scale(scale.inside(_towards(finding) * value)) for value in finding.interval)
        if not math.isnan(finding.interval.low):
            parts.append(line((min(low, high), 9), (max(low, high), 9), "span"))
        parts.append(dot(at, 9, 3.6, "dot"))
    return frame.draw(parts, finding.text)


def _towards(finding: Finding) -> float:
    """From a difference to the claim's unit, positive where it speaks for the reference."""
    return finding.claim.sign * finding.claim.scale


def reach_of(claim: Claim, found: Sequence[Finding]) -> float:
    """The largest bound of a claim's intervals, but at most three times their median."""
    bounds = [
        max(abs(claim.scale * value) for value in finding.interval if not math.isnan(value))
        for finding in found
        if finding.interval
    ]
    known = [bound for bound in bounds if bound > 0]
    return min(max(known), 3 * float(np.median(known))) if known else 1.0


def _curves(comparison: Comparison, look: dict[int, Style], figure: Callable[[RoundEvent], float]) -> dict[int, Curve]:
    found = {place: curve(comparison.rows[place].records, figure) for place in look}
    return {place: each for place, each in found.items() if each is not None}


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
    y = frame.y(*(limits or _padded([float(values.min()), float(values.max())])))
    parts = frame.axes(x, y, x_label, y_label)
    ends = []
    for place, found in _back_to_front(curves, look):
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
    parts += _names(ends, look, x.end, y)
    return frame.draw(parts, f"{y_label} against {x_label}")


def _edges(found: Curve, style: Style) -> tuple[Float64Array, ...]:
    """What of a curve is drawn: the band too, where it stands out."""
    return (found.mean,) if style.colour == GREY else (found.mean - found.std, found.mean + found.std)


def _names(ends: Sequence[tuple[int, float, float]], look: dict[int, Style], right: float, y: Scale) -> list[str]:
    """Names at the right margin, each with a thread to its place."""
    places = spread([at for _, _, at in ends], LABEL_GAP, y.end + 4, y.start - 2)
    parts = []
    for (place, x, at), beside in zip(ends, places, strict=True):
        name = look[place].short
        shapes = [
            path([(x + 2, at), (right + 8, beside)], "thread"),
            line((right + 9, beside), (right + 19, beside), "line"),
            text(right + 23, beside + 4, _cut(name, 18), "label"),
        ]
        parts.append(group(shapes, look[place].kind, name, place))
    return parts


def _back_to_front(found: dict[int, Drawn], look: dict[int, Style]) -> list[tuple[int, Drawn]]:
    """Grey first, the reference last."""
    return sorted(found.items(), key=lambda item: -math.inf if look[item[0]].colour == GREY else -look[item[0]].colour)


def _mean_and_worst(comparison: Comparison, place: int) -> tuple[tuple[float, float], tuple[float, float]]:
    mean, worst = (comparison.figures[place][key] for key in ("mean", "worst10"))
    return (100 * mean.mean, _known(100 * mean.std)), (100 * worst.mean, _known(100 * worst.std))


def _cut(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _shares(values: Float64Array, edges: Float64Array) -> Float64Array:
    return np.asarray(100 * np.histogram(values, edges)[0] / max(1, values.size))


def _floor(values: Sequence[float]) -> float:
    """Below it a point would squeeze all others into a corner."""
    if len(values) < 8:
        return -math.inf
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - 3.0 * max(high - low, 1.0))


def _limits(found: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Room for means with their bars, but for those far below the others."""
    floor = _floor([mean for mean, _ in found])
    return _padded([value for mean, std in found if mean >= floor for value in (mean - std, mean + std)])


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 1.0
    return max(0.0, low - room), high + room


def _thinned(values: Float64Array) -> list[float]:
    """At most so many values, each the mean of its neighbours; the first and last as they are."""
    if values.size <= POINTS:
        return [float(value) for value in values]
    inner = [float(part.mean()) for part in np.array_split(values[1:-1], POINTS - 2)]
    return [float(values[0]), *inner, float(values[-1])]


def _smooth(found: Curve) -> Curve:
    """A running mean over a twentieth of the rounds."""
    window = max(1, found.rounds.size // WINDOW_SHARE)
    kernel, start = np.ones(window) / window, window - 1
    return Curve(
        found.rounds[start:],
        found.megabytes[start:],
        found.seconds[start:],
        np.convolve(found.mean, kernel, mode="valid"),
        np.convolve(found.std, kernel, mode="valid"),
    )
