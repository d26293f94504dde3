"""Axes and shapes of a chart as SVG text. Colours are classes, so that the page's theme decides them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """A straight or logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = (math.log10(x) if self.log else x for x in (self.low, self.high, max(value, self._floor)))
        return self.start + (self.end - self.start) * (at - low) / ((high - low) or 1.0)

    def inside(self, value: float) -> float:
        """The nearest value that the scale has."""
        return min(max(value, self.low), self.high)

    @property
    def _floor(self) -> float:
        return self.low if self.log else -math.inf

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside."""
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            factors = (1,) if len(powers) >= count - 1 else (1, 3)
            found = [factor * 10.0**power for power in range(powers.start - 1, powers.stop) for factor in factors]
            return [value for value in found if self.low <= value <= self.high]
        raw = (self.high - self.low) / count or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * unit for factor in STEPS if factor * unit >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(place * step, 10) for place in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Frame:
    """A chart's size, and the room for its axes."""

    width: float
    height: float
    left: float = 46.0
    right: float = 16.0
    top: float = 14.0
    bottom: float = 42.0

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        """The horizontal scale."""
        return Scale(low, high if high > low else low + 1, self.left, self.width - self.right, log)

    def y(self, low: float, high: float) -> Scale:
        """The vertical scale, upwards."""
        return Scale(low, high if high > low else low + 1, self.height - self.bottom, self.top)

    def draw(self, parts: Sequence[str], label: str) -> str:
        """The whole chart."""
        body = "".join(parts)
        return (
            f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label, quote=True)}">'
            f"{body}</svg>"
        )

    def axes(self, x: Scale, y: Scale, x_label: str, y_label: str) -> list[str]:
        """Grid, tick labels and names of the axes."""
        parts = []
        for value in y.ticks():
            parts.append(line((x.start, y(value)), (x.end, y(value)), "grid"))
            parts.append(text(x.start - 7, y(value) + 4, number(value), "tick end"))
        for value in x.ticks():
            parts.append(line((x(value), y.start), (x(value), y.start + 4), "axis"))
            parts.append(text(x(value), y.start + 17, number(value), "tick mid"))
        parts.append(line((x.start, y.start), (x.end, y.start), "axis"))
        parts.append(text((x.start + x.end) / 2, self.height - 6, x_label, "name mid"))
        centre = (y.start + y.end) / 2
        parts.append(text(12, centre, y_label, "name mid", f'transform="rotate(-90 12 {centre:.1f})"'))
        return parts


def path(points: Sequence[tuple[float, float]], kind: str, *, closed: bool = False) -> str:
    """A line through points, or the area that they enclose."""
    words = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return f'<path class="{kind}" d="{words}{"Z" if closed else ""}"/>'


def line(start: tuple[float, float], end: tuple[float, float], kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"/>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle."""
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"/>'


def dot(x: float, y: float, radius: float, kind: str) -> str:
    """A disc."""
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'


def text(x: float, y: float, words: str, kind: str, more: str = "") -> str:
    """A line of text."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{" " + more if more else ""}>{escape(words)}</text>'


def group(parts: Sequence[str], kind: str, title: str, key: int) -> str:
    """Shapes of one method, with its name as a tip."""
    return f'<g class="{kind}" data-k="{key}"><title>{escape(title)}</title>{"".join(parts)}</g>'


def number(value: float) -> str:
    """A tick's label."""
    if value and (abs(value) >= 10_000 or abs(value) < 0.001):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:g}"
