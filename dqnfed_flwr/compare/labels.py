"""Labels that keep out of each other's way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from dqnfed_flwr.compare.spreading import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Label = tuple[float, float, str, str, bool]
"""Where it belongs in data, its text, its colour, and whether it stands out."""
SIZES = {True: 8.5, False: 6.5}
DISTANCES, DIRECTIONS = (7, 14, 22, 32, 44, 58), 12


def label_ends(axes: Axes, labels: Sequence[Label]) -> None:
    """Name lines at the right of the axes, each with a thin thread to its end."""
    low, high = axes.get_ylim()
    wanted = [(y - low) / (high - low) for _, y, *_ in labels]
    height = axes.get_window_extent().height * 72 / axes.figure.dpi
    for (x, y, text, colour, bold), place in zip(
        labels, spread(wanted, 1.15 * SIZES[False] / height, 0.0, 1.0), strict=True
    ):
        axes.annotate(
            text,
            (x, y),
            xytext=(1.04, place),
            textcoords="axes fraction",
            color=colour,
            fontsize=SIZES[bold] - bold,
            fontweight="bold" if bold else "normal",
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.4, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


def label_points(axes: Axes, labels: Sequence[Label]) -> None:
    """Name points, each where its label covers least; those that stand out choose first."""
    if (figure := axes.get_figure(root=True)) is not None:
        figure.draw_without_rendering()
    to_pixels = axes.figure.dpi / 72
    points = [_pixels(axes, (x, y)) for x, y, *_ in labels]
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in points]
    inside = axes.get_window_extent()
    for index in sorted(range(len(labels)), key=lambda index: not labels[index][4]):
        x, y, text, colour, bold = labels[index]
        note = axes.annotate(
            text,
            (x, y),
            xytext=(0, 0),
            textcoords="offset points",
            color=colour,
            fontsize=SIZES[bold],
            fontweight="bold" if bold else "normal",
            ha="center",
            va="center",
            zorder=5,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
        )
        box = note.get_window_extent()
        size = box.width, box.height
        dx, dy = _best_offset(points[index], size, taken, inside, to_pixels)
        note.set_position((dx / to_pixels, dy / to_pixels))
        taken.append(_box(points[index], size, (dx, dy)))
        _thread(axes, note, (x, y), (dx, dy), size)


def _thread(
    axes: Axes, note: Annotation, point: tuple[float, float], offset: tuple[float, float], size: tuple[float, float]
) -> None:
    """A line from a label that stands off to its point."""
    if math.hypot(max(0.0, abs(offset[0]) - size[0] / 2), max(0.0, abs(offset[1]) - size[1] / 2)) > 16:
        start = _pixels(axes, point)
        end = axes.transData.inverted().transform((start[0] + offset[0], start[1] + offset[1]))
        axes.plot([point[0], end[0]], [point[1], end[1]], color=str(note.get_color()), lw=0.4, alpha=0.6, zorder=1)


def _pixels(axes: Axes, point: tuple[float, float]) -> tuple[float, float]:
    x, y = axes.transData.transform(point)
    return float(x), float(y)


def _best_offset(
    point: tuple[float, float], size: tuple[float, float], taken: Sequence[Bbox], inside: Bbox, scale: float
) -> tuple[float, float]:
    """The offset in pixels whose box overlaps least; of equal ones the nearest."""
    best, cheapest = (0.0, 0.0), math.inf
    for distance, turn in product(DISTANCES, range(DIRECTIONS)):
        angle = 2 * math.pi * turn / DIRECTIONS
        reach = distance * scale
        offset = (
            math.cos(angle) * (reach + size[0] / 2),
            math.sin(angle) * (reach + size[1] / 2),
        )
        box = _box(point, size, offset)
        cost = sum(_overlap(box, other) for other in taken) + 3 * (size[0] * size[1] - _overlap(box, inside))
        cost += 0.2 * distance * size[1]
        if cost < cheapest:
            best, cheapest = offset, cost
    return best


def _box(point: tuple[float, float], size: tuple[float, float], offset: tuple[float, float]) -> Bbox:
    return Bbox.from_bounds(point[0] + offset[0] - size[0] / 2, point[1] + offset[1] - size[1] / 2, size[0], size[1])


def _overlap(one: Bbox, other: Bbox) -> float:
    width = min(one.x1, other.x1) - max(one.x0, other.x0)
    height = min(one.y1, other.y1) - max(one.y0, other.y0)
    return float(max(0.0, width) * max(0.0, height))
