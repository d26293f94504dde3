"""The figures that the papers print: as they print them, and each made from our runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

import numpy as np

from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, Summary, paired, summarise
from dqnfed_flwr.compare.tables import Column, figure_of

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


def _of_runs(figure: Callable[[Record], float]) -> Callable[[Comparison, int], Summary]:
    def ours(comparison: Comparison, place: int) -> Summary:
        return summarise([figure(record) for record in comparison.rows[place].good])

    return ours


def _client(number: int) -> Callable[[Record], float]:
    return lambda record: 100 * record.accuracies.get(number, math.nan)


def _best(record: Record) -> float:
    return 100 * float(np.mean([max(each.values()) for each in record.evaluations]))


def _shift(which: int) -> Callable[[Comparison, int], Summary]:
    def ours(comparison: Comparison, place: int) -> Summary:
        found = comparison.shifts[place]
        return found[which].times(100) if found else Summary()

    return ours


def _mean_change(comparison: Comparison, place: int) -> Summary:
    row, baseline = comparison.rows[place], comparison.baseline
    if baseline is None or row is baseline:
        return Summary()
    return summarise([100 * float((a - b).mean()) for a, b in paired(row.records, baseline.records)])


MEASURES: dict[str, Column] = {
    "mean": Column("mean", 2, True, figure_of("mean", 100)),
    "std": Column("σ", 2, False, figure_of("std", 100)),
    "worst": Column("worst", 2, True, figure_of("worst", 100)),
    "best": Column("best", 2, True, _of_runs(_best)),
    "worst5": Column("worst 5 %", 2, True, figure_of("worst5", 100)),
    "worst10": Column("worst 10 %", 2, True, figure_of("worst10", 100)),
    "worst20": Column("worst 20 %", 2, True, figure_of("worst20", 100)),
    "best5": Column("best 5 %", 2, True, figure_of("best5", 100)),
    "best10": Column("best 10 %", 2, True, figure_of("best10", 100)),
    "angle_deg": Column("angle °", 2, False, figure_of("angle_deg")),
    "angle_rad": Column("angle, rad", 3, False, figure_of("angle_rad")),
    "kl_uniform": Column("KL", 4, False, figure_of("kl_uniform")),
    "rho": Column("ρ mean", 3, True, figure_of("rho_mean")),
    "rounds": Column("rounds", 0, None, figure_of("rounds")),
    "wall_clock_s": Column("seconds", 0, False, figure_of("seconds")),
    "tshirt": Column("T-shirt", 2, True, _of_runs(_client(0))),
    "pullover": Column("pullover", 2, True, _of_runs(_client(1))),
    "shirt": Column("shirt", 2, True, _of_runs(_client(2))),
    "improved_suffering_pct": Column("suffering, improved %", 1, True, _shift(0)),
    "degraded_well_performing_pct": Column("well-performing, degraded %", 1, False, _shift(1)),
    "mean_change": Column("mean change", 2, True, _mean_change),
}
"""Table 9's clients hold one class each, in the order T-shirt, pullover, shirt."""
