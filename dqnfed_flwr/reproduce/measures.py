"""The figures that the papers print: as they print them, and each made from our runs."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from dqnfed_flwr.compare.figures import Summary, paired, summarise, value_of
from dqnfed_flwr.compare.record import Record
from dqnfed_flwr.compare.results import Comparison, baseline_of

SHIPPED = resources.files("dqnfed_flwr.experiments").joinpath("paper")
"""Where the manifests and the published figures of this package lie."""

Place = tuple[str, str, str]
"""Paper, table and experiment."""

UNKNOWN = Summary(math.nan, math.nan)


@dataclass(frozen=True, slots=True)
class Measure:
    """A column: heading, digits, whether higher is better (None: neither), and ours of a row."""

    heading: str
    digits: int
    higher: bool | None
    ours: Callable[[Comparison, int], Summary]


@lru_cache(maxsize=1)
def printed_figures() -> dict[Place, dict[str, dict[str, float]]]:
    """By place: figures of every algorithm, by metric, in the paper's units."""
    found: dict[Place, dict[str, dict[str, float]]] = {}
    with SHIPPED.joinpath("published.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            place = line["paper"], line["table"], line["experiment"]
            found.setdefault(place, {}).setdefault(line["algorithm"], {})[line["metric"]] = float(line["value"])
    return found


def _figure(key: str, scale: float = 1.0) -> Callable[[Comparison, int], Summary]:
    def ours(comparison: Comparison, place: int) -> Summary:
        found = value_of(comparison.figures[place], key)
        return Summary(scale * found.mean, scale * found.std)

    return ours


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
        return Summary(100 * found[which].mean, 100 * found[which].std) if found else UNKNOWN

    return ours


def _mean_change(comparison: Comparison, place: int) -> Summary:
    baseline = baseline_of(comparison.rows)
    row = comparison.rows[place]
    if baseline is None or row is baseline:
        return UNKNOWN
    return summarise([100 * float((a - b).mean()) for a, b in paired(row.records, baseline.records)])


MEASURES: dict[str, Measure] = {
    "mean": Measure("mean", 2, True, _figure("mean", 100)),
    "std": Measure("σ", 2, False, _figure("std", 100)),
    "worst": Measure("worst", 2, True, _figure("worst", 100)),
    "best": Measure("best", 2, True, _of_runs(_best)),
    "worst5": Measure("worst 5 %", 2, True, _figure("worst5", 100)),
    "worst10": Measure("worst 10 %", 2, True, _figure("worst10", 100)),
    "worst20": Measure("worst 20 %", 2, True, _figure("worst20", 100)),
    "best5": Measure("best 5 %", 2, True, _figure("best5", 100)),
    "best10": Measure("best 10 %", 2, True, _figure("best10", 100)),
    "angle_deg": Measure("angle °", 2, False, _figure("angle_deg")),
    "angle_rad": Measure("angle, rad", 3, False, _figure("angle_rad")),
    "kl_uniform": Measure("KL", 4, False, _figure("kl_uniform")),
    "rho": Measure("ρ mean", 3, True, _figure("rho_mean")),
    "rounds": Measure("rounds", 0, None, _figure("rounds")),
    "wall_clock_s": Measure("seconds", 0, False, _figure("seconds")),
    "tshirt": Measure("T-shirt", 2, True, _of_runs(_client(0))),
    "pullover": Measure("pullover", 2, True, _of_runs(_client(1))),
    "shirt": Measure("shirt", 2, True, _of_runs(_client(2))),
    "improved_suffering_pct": Measure("suffering, improved %", 1, True, _shift(0)),
    "degraded_well_performing_pct": Measure("well-performing, degraded %", 1, False, _shift(1)),
    "mean_change": Measure("mean change", 2, True, _mean_change),
}
"""Table 9's clients hold one class each, in the order T-shirt, pullover, shirt."""
