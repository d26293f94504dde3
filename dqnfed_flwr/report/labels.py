"""The rows of a comparison in its charts: which stand out, in which colours, where their names are, and their lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import Affine2D
from scipy.optimize import isotonic_regression

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import BASELINE, Comparison
from dqnfed_flwr.report.drawing import COLOURS, INK, MUTE, POINT, SOFT, mark, shortened
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

Drawn = TypeVar("Drawn")
GREY = -1
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), "-", (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2.5, 2)))
"""One a colour, so that rows differ without it."""
LABEL_GAP, LETTERS = 15.0, 20
"""Points between two names, and how long a name is at most."""
POINTS = 240
"""Points of a line at most; more are averaged."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a row is drawn: its number, its colour (-1: grey), its name, and that without what a grid chose."""

    key: int
    number: int
    name: str
    short: str

    @property
    def bright(self) -> bool:
        """Whether it stands out."""
        return self.number != GREY

    @property
    def colour(self) -> str:
        """On a light ground."""
        return COLOURS[self.number] if self.bright else MUTE

    @property
    def kind(self) -> str:
        """Name of its colour."""
        return f"c{self.number}" if self.bright else "mute"

    @property
    def dashes(self) -> Any:
        """Of its line."""
        return DASHES[self.number] if self.bright else "-"


Look = dict[int, Style]
"""The rows that are drawn, by their place."""
End = tuple[Style, float, float]
"""A row, and the place in data to which its name belongs."""


def bright_names(comparisons: Sequence[Comparison]) -> list[str]:
    """Titles of the rows that stand out, in the order of their colours; what a grid chose is not in a title.

    These are the reference, FedAvg, and those whose worst 10 % are best, on average over the comparisons by rank.
    """
    first: dict[str, None] = {}
    places: dict[str, list[int]] = {}
    for comparison in comparisons:
        good = comparison.comparable({place: figures for place, figures in enumerate(comparison.figures) if figures})
        sign = comparison.figure.sign
        for rank, place in enumerate(sorted(good, key=lambda place: -sign * good[place]["worst10"].mean)):
            places.setdefault(comparison.rows[place].spec.title, []).append(rank)
        if comparison.reference:
            first[comparison.reference.spec.title] = None
    for comparison in comparisons:
        first |= {row.spec.title: None for row in comparison.rows if row.spec.method == BASELINE}
    ordered = sorted(places, key=lambda name: sum(places[name]) / len(places[name]))
    return list(dict.fromkeys([*(name for name in first if name in places), *ordered]))[: len(COLOURS)]


def look_of(comparison: Comparison, bright: Sequence[str]) -> Look:
    """Styles of the rows that have a finished run."""
    numbers = {title: number for number, title in enumerate(bright)}
    return {
        place: Style(place, numbers.get(row.spec.title, GREY), row.label, row.spec.title)
        for place, row in enumerate(comparison.rows)
        if row.good
    }


def back_to_front(found: Mapping[int, Drawn], look: Look) -> Iterable[tuple[Style, Drawn]]:
    """In the order of drawing: grey first, the reference last."""
    order = sorted(found, key=lambda place: -look[place].number if look[place].bright else -math.inf)
    return [(look[place], found[place]) for place in order]


def name_ends(axes: Axes, ends: Sequence[End], names: Mapping[int, str] | None = None) -> None:
    """Names at the right of the axes, each with a thread to its place and a piece of its line.

    `names` replaces some of them, by the number of the row. Limits of the axes must be set.
    """
    points = Affine2D().scale(1 / POINT) + axes.figure.dpi_scale_trans
    (_, low), (right, high) = points.inverted().transform(axes.get_window_extent().get_points())
    at = [points.inverted().transform(axes.transData.transform(end[1:])) for end in ends]
    places = spread([y for _, y in at], LABEL_GAP, low + 2, high - 2)
    for (style, *_), (x, y), height in zip(ends, at, places, strict=True):
        line: dict[str, Any] = {"color": style.colour, "transform": points, "clip_on": False}
        name = (names or {}).get(style.key) or shortened(style.short, LETTERS)
        weight = "bold" if style.number == 0 else "normal"
        ink = INK if style.bright else SOFT
        shapes = [
            *axes.plot([x, right + 8], [y, height], lw=0.7, alpha=0.7, **line),
            *axes.plot([right + 8, right + 20], [height] * 2, lw=2, ls=style.dashes, **line),
            axes.text(right + 24, height, name, transform=points, va="center_baseline", color=ink, fontweight=weight),
        ]
        mark(shapes, style.key, style.kind, style.name)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near as possible to the wanted ones (least squares), in their order, within [low, high].

    They are at least `gap` apart, or evenly spaced where there is no room for that.
    """
    if not len(wanted):
        return []
    count = len(wanted)
    gap = min(gap, (high - low) / max(1, count - 1))
    order = np.argsort(np.asarray(wanted), kind="stable")
    steps = gap * np.arange(count)
    free = isotonic_regression(np.asarray(wanted, dtype=float)[order] - steps).x
    places = np.empty(count)
    places[order] = np.clip(free, low, max(low, high - steps[-1])) + steps
    return [float(value) for value in places]


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure of all seeds of a row over the rounds that know it: arrays [T], means over seeds.

    Megabytes and seconds count from the beginning; `std`, the deviation over seeds, is 0 with one seed.
    """

    rounds: Float64Array
    megabytes: Float64Array
    seconds: Float64Array
    mean: Float64Array
    std: Float64Array


def curve_of(records: Sequence[Record], figure: Callable[[RoundEvent], float]) -> Curve | None:
    """A figure over the rounds, from the first round in which all seeds know it.

    Where seeds know it in different rounds, the latest known value stands; a run that ended early keeps its last one.
    None if no run knows it.
    """
    known = [found for record in records if record.good and (found := _known(record.events, figure)).size]
    if not known:
        return None
    rounds = np.unique(np.concatenate([found[0] for found in known]))
    rounds = rounds[rounds >= max(found[0, 0] for found in known)]
    latest = np.stack([found[:, np.searchsorted(found[0], rounds, side="right") - 1] for found in known])
    mean = latest.mean(axis=0)
    std = latest[:, 3].std(axis=0, ddof=1) if len(known) > 1 else np.zeros_like(rounds)
    return Curve(rounds, mean[1], mean[2], mean[3], std)


def curves_of(comparison: Comparison, look: Look, figure: Callable[[RoundEvent], float]) -> dict[int, Curve]:
    """A figure over the rounds for the rows of `look`, by place; without those whose runs do not know it."""
    found = {place: curve_of(comparison.rows[place].records, figure) for place in look}
    return {place: curve for place, curve in found.items() if curve is not None}


def thinned(values: Float64Array) -> Float64Array:
    """At most so many values, each the mean of its neighbours; the first and last as they are."""
    if values.size <= POINTS:
        return values
    inner = [float(part.mean()) for part in np.array_split(values[1:-1], POINTS - 2)]
    return np.array([values[0], *inner, values[-1]])


def _known(events: Sequence[RoundEvent], figure: Callable[[RoundEvent], float]) -> Float64Array:
    """Round, megabytes so far, seconds so far and figure [4, T] of the rounds that know it."""
    traffic = np.cumsum([event.cost.bytes_up + event.cost.bytes_down for event in events]) / 1e6
    seconds = np.cumsum([event.cost.seconds.get("total", 0.0) for event in events])
    rows = np.array(
        [(event.round, *place, figure(event)) for event, *place in zip(events, traffic, seconds, strict=True)],
        dtype=np.float64,
    ).reshape(-1, 4)
    return rows[~np.isnan(rows[:, 3])].T
