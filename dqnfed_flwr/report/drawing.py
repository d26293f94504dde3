"""How charts and pages look: PNG files, SVG inside a page, and HTML from templates in the same colours."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dqnfed_flwr.errors import RunError
from dqnfed_flwr.types import Figure as Measured
from dqnfed_flwr.types import Float64Array

THEME = {
    "ink": ("#1a2029", "#e8ecf2"),
    "soft": ("#5a6472", "#9ba7b7"),
    "rule": ("#e2e0da", "#2b3441"),
    "grid": ("#efede8", "#232b36"),
    "mute": ("#b4b8be", "#4d5866"),
    "c0": ("#0072b2", "#58b0f5"),
    "c1": ("#d55e00", "#ff8a3d"),
    "c2": ("#009e73", "#37d0a4"),
    "c3": ("#b5568f", "#f09bd0"),
    "c4": ("#3f9fd8", "#a9dcff"),
    "c5": ("#cf8a00", "#ffcb4d"),
}
"""Colours by name, on a light and on a dark page. c0 to c5 follow Okabe and Ito, for the colour-blind."""
INK, SOFT, RULE, GRID, MUTE, *COLOURS = (light for light, _ in THEME.values())
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.edgecolor": RULE,
    "axes.labelcolor": SOFT,
    "axes.titlecolor": INK,
    "axes.titlesize": "large",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": GRID,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "ytick.major.size": 0,
    "text.color": INK,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "legend.frameon": False,
    "figure.dpi": 140,
}
BINS = 16
"""Bars of a histogram at most."""
PARTS = 20
"""A running mean takes in one of so many parts of the rounds."""
POINT = 72.0
"""Points in an inch."""
ROW = re.compile(r"row (\d+) (\S+) (.*)")
_PLACE = re.compile(r"-?\d+\.\d+")
SHARED = "dqnfed_flwr.report"
"""The package whose templates any page may include."""


def mark(artists: Sequence[Artist], key: int, colour: str, tip: str) -> None:
    """Give shapes to a row: on a page they are highlighted together, and `tip` says what they are."""
    for artist in artists:
        artist.set_gid(f"row {key} {colour} {tip}")


def bin_edges(values: Float64Array, spread: float = 1.0, limits: tuple[float, float] | None = None) -> list[float]:
    """Round edges of at most `BINS` bins around values; those that span less than `spread` stand in the middle.

    No bin lies beyond the `limits` of the values.
    """
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 100.0)
    low, high = (low, high) if high - low >= spread else (low - 5 * spread, high + 5 * spread)
    if limits is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
    return [float(edge) for edge in ticks(BINS).tick_values(low, high)]


def ticks(most: int = 5, *, whole: bool = False) -> MaxNLocator:
    """Round values along an axis; whole numbers where it counts something."""
    return MaxNLocator(most, integer=whole, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)


def save(figure: Figure, path: Path) -> Path:
    """Write a chart as a file.

    Raises
    ------
    RunError
        If it cannot be written.
    """
    try:
        figure.savefig(path)
    except OSError as error:
        raise RunError(f"{path}: the plot cannot be written ({error.strerror})") from None
    return path


def inline_svg(figure: Figure, key: str, label: str) -> str:
    """A chart as an element of a page whose theme decides its colours and its font.

    Shapes that `mark` gave to a row become `<g data-k=ROW>` with their tip as title. No other chart of the page has the
    `key`, so that ids are unique; the same key and chart give the same text. `label` says what the chart shows, for
    those who cannot see it.
    """
    for artist in figure.findobj():
        artist.set_clip_on(False)  # nothing is drawn outside, and a page need not name clip paths
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": key, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    width, height = (size * POINT for size in figure.get_size_inches())
    shapes = _markup(ElementTree.fromstring(buffer.getvalue()))
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">{shapes}</svg>'


def _markup(node: ElementTree.Element) -> str:
    """An element of matplotlib's SVG without groups that say nothing, and with colours of the theme."""
    tag = node.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return ""
    inner = escape((node.text or "").strip()) + "".join(map(_markup, node))
    if row := ROW.fullmatch(node.get("id", "")):
        return f'<g class="s {row[2]}" data-k="{row[1]}"><title>{escape(row[3])}</title>{inner}</g>'
    if tag in ("svg", "g") or not (inner or node.attrib):
        return inner
    words = "".join(f' {name}="{escape(text)}"' for name, text in _attributes(node).items())
    return f"<{tag}{words}>{inner}</{tag}>" if inner else f"<{tag}{words}/>"


def _attributes(node: ElementTree.Element) -> dict[str, str]:
    found = {name.rpartition("}")[2]: " ".join(text.split()) for name, text in node.attrib.items()}
    if found.get("transform", "").startswith("rotate(-0 "):
        del found["transform"]
    for name in found.keys() & {"d", "x", "y", "transform"}:
        found[name] = _PLACE.sub(lambda place: f"{float(place[0]):.1f}".removesuffix(".0"), found[name])
    if "style" in found:
        style = re.sub("'DejaVu Sans'[^;]*", "var(--sans)", found["style"])
        for name, (light, _) in THEME.items():
            style = style.replace(light, f"var(--{name})")
        found["style"] = style
    return found


def running_mean(values: Float64Array) -> tuple[Float64Array, int]:
    """Mean over each one of `PARTS` parts of the rounds, and how many rounds that is."""
    window = max(1, values.size // PARTS)
    return np.convolve(values, np.ones(window) / window, mode="valid"), window


def shortened(name: str, letters: int) -> str:
    """A name of at most so many letters: its beginning and its end, in which rows often differ."""
    half = letters // 2
    return name if len(name) <= letters else f"{name[: letters - half - 1]}…{name[-half:]}"


def padded(values: Sequence[float], spread: float = 1.0) -> tuple[float, float]:
    """Limits of an axis with some room around `values`, `spread` where they are equal; from 0 where none is below."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or spread
    return (low - room if low < 0 else max(0.0, low - room)), high + room


def smallest_spread(figure: Measured, values: Float64Array) -> float:
    """What counts as no spread of the clients' figures as they are shown: a percentage point, or a hundredth of all."""
    if figure.percent or not values.size:
        return 1.0
    return 0.01 * float(np.abs(values).max()) or 1.0


def render_page(template: str, names: Mapping[str, Any], *, package: str = SHARED) -> str:
    """The HTML of a page.

    Parameters
    ----------
    template : str
        A file in the folder `templates` of `package`, or of `SHARED`.
    names : Mapping[str, Any]
        What the template, and those that it includes, may use, besides `theme`.
    package : str
        Looked in first.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, SHARED))]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"theme": THEME, **names}
    return environment.get_template(template).render().lstrip()
