"""Published figures of a part, in our units, and what cannot be true of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from functools import lru_cache

from dqnfed_flwr.reproduce.manifests import SHIPPED
from dqnfed_flwr.reproduce.schema import Part

Figures = dict[str, float]
SHARES = ("mean", "std", "worst", "best", "worst5", "worst10", "worst20", "best5", "best10", "best20")
TAILS = (5, 10, 20)
ROUNDING = 0.05
"""Percentage points by which a bound must be missed before anything is said."""


def published_figures(part: Part) -> dict[str, Figures]:
    """Of every row that the paper has: figures by our names, accuracies in per cent."""
    found: dict[str, Figures] = {}
    for row in part.rows:
        if not row.paper:
            continue
        figures = dict(row.figures)
        if part.published:
            where = part.published
            figures = {**_table().get((where.paper, where.table, where.experiment, row.paper), {}), **figures}
        if figures:
            found[row.paper] = {key: value * (part.scale if key in SHARES else 1) for key, value in figures.items()}
    return found


def impossible(figures: Mapping[str, float], clients: int) -> str:
    """Why the published spread cannot hold beside the published tails; empty where nothing is wrong.

    The worst and the best p per cent of the clients deviate from the mean by at least what their averages do, and the
    others by at least what keeps the mean. That bounds the population standard deviation from below.

    Parameters
    ----------
    figures : Mapping[str, float]
        `mean`, `std`, and `worst10` with `best10` or the like, in per cent.
    clients : int
        Their number.
    """
    if not {"mean", "std"} <= figures.keys():
        return ""
    for tail in TAILS:
        if {f"worst{tail}", f"best{tail}"} <= figures.keys():
            share = math.ceil(clients * tail / 100) / clients
            mean, low, high = figures["mean"], figures[f"worst{tail}"], figures[f"best{tail}"]
            rest = 1 - 2 * share
            if rest <= 0:
                return ""
            middle = (mean - share * (low + high)) / rest
            variance = share * ((mean - low) ** 2 + (high - mean) ** 2) + rest * (middle - mean) ** 2
            if figures["std"] < math.sqrt(variance) - ROUNDING:
                return (
                    f"σ {figures['std']:.2f} cannot hold beside worst {tail} % {low:.2f} and best {tail} % {high:.2f} "
                    f"over {clients} clients, which alone force {math.sqrt(variance):.1f}"
                )
    return ""


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str, str, str], Figures]:
    """Figures by paper, table, experiment and algorithm."""
    table: dict[tuple[str, str, str, str], Figures] = {}
    with SHIPPED.joinpath("published.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            key = line["paper"], line["table"], line["experiment"], line["algorithm"]
            table.setdefault(key, {})[line["metric"]] = float(line["value"])
    return table
