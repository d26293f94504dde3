"""`published.csv`: figures as the papers print them."""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib import resources

SHIPPED = resources.files("dqnfed_flwr.experiments").joinpath("paper")
"""Where the manifests and the published figures of this package lie."""

Place = tuple[str, str, str]
"""Paper, table and experiment."""


@lru_cache(maxsize=1)
def printed_figures() -> dict[Place, dict[str, dict[str, float]]]:
    """By place: figures of every algorithm, by metric, in the paper's units."""
    found: dict[Place, dict[str, dict[str, float]]] = {}
    with SHIPPED.joinpath("published.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            place = line["paper"], line["table"], line["experiment"]
            found.setdefault(place, {}).setdefault(line["algorithm"], {})[line["metric"]] = float(line["value"])
    return found
