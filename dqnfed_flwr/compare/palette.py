"""Who stands out in the pictures of a comparison: a few rows in colour, the others grey."""

from __future__ import annotations

from dqnfed_flwr.compare.results import Comparison
from dqnfed_flwr.report.plots import COLOURS

GREY = "#8a8a8a"
STAND_OUT = len(COLOURS)
"""Rows in colour: the reference, and the best of the others by their worst 10 % of clients."""


def colours_of(comparison: Comparison) -> dict[int, str]:
    """A colour for each row that has a finished run, by its place: the reference's first, grey for the many."""
    good = [place for place, figures in enumerate(comparison.figures) if figures]
    best = sorted(good, key=lambda place: -comparison.figures[place]["worst10"].mean)
    first = [place for place in good if comparison.rows[place] is comparison.reference]
    bright = (first + [place for place in best if place not in first])[:STAND_OUT]
    named = dict(zip(bright, COLOURS, strict=False))
    return {place: named.get(place, GREY) for place in good}
