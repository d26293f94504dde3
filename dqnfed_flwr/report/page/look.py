"""How the rows of a report are drawn: a colour, a name, an order, in all charts the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.compare.spreading import spread
from dqnfed_flwr.report.page.document import name_of
from dqnfed_flwr.report.page.svg import Frame, Scale, group, line, path, text

Drawn = TypeVar("Drawn")
GREY = -1
NAMED = Frame(560, 340, left=52, right=154)
"""A chart with names at its right margin."""
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


def names(ends: Sequence[tuple[int, float, float]], look: dict[int, Style], right: float, y: Scale) -> list[str]:
    """Names at the right margin, each with a thread to its place."""
    places = spread([at for _, _, at in ends], LABEL_GAP, y.end + 4, y.start - 2)
    parts = []
    for (place, x, at), beside in zip(ends, places, strict=True):
        name = look[place].short
        shapes = [
            path([(x + 2, at), (right + 8, beside)], "thread"),
            line((right + 9, beside), (right + 19, beside), "line"),
            text(right + 23, beside + 4, shortened(name, 18), "label"),
        ]
        parts.append(group(shapes, look[place].kind, name, place))
    return parts


def back_to_front(found: dict[int, Drawn], look: dict[int, Style]) -> list[tuple[int, Drawn]]:
    """In the order of drawing: grey first, the reference last."""
    return sorted(found.items(), key=lambda item: -math.inf if look[item[0]].colour == GREY else -look[item[0]].colour)


def shortened(name: str, letters: int) -> str:
    """A name of at most so many letters."""
    return name if len(name) <= letters else name[: letters - 1] + "…"


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis with some room around `values`, from 0."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 1.0
    return max(0.0, low - room), high + room
