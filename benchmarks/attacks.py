"""What hostile clients do to a training on digits: DQN-Fed beside Flower's strategies and the package's robust ones.

Ten clients, of which some tamper with every reply. Flower's FedAvg, Krum and trimmed mean aggregate the very replies
of the package's clients (local SGD), driven round by round in this process. `--unseen` takes the lies that lie within
every limit, and shows beside DQN-Fed how it fares with `step.acceptance` at 0.6.

    OMP_NUM_THREADS=1 python benchmarks/attacks.py
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --hostile 2,5,8
    OMP_NUM_THREADS=1 python benchmarks/attacks.py --unseen
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._common import Bar, Figures, Json, arguments, quiet, report
from benchmarks._stock import STOCK, stock_run
from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.grid import InProcessGrid
from dqnfed_flwr.engine.hostile import Attack, Hostile
from dqnfed_flwr.engine.serve import serve
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.fairness import improved_ratio
from tests.helpers.attacks import ATTACKS, FURTHER, UNSEEN

SGD: dict[str, Any] = {"local.batch-size": 32, "local.lr": 0.1}
OURS: dict[str, dict[str, Any]] = {
    "dqn-fed": {},
    "fedavg": {"method": "fedavg"},
    "krum": {"method": "krum", "krum.byzantine": 3, "krum.keep": 1},
    "trimmed-mean": {"method": "trimmed-mean", "trimmed-mean.share": 0.3},
}
STRATEGIES = (*OURS, *STOCK)
LENIENT = "dqn-fed, acceptance 0.6"
OURS_OR_LENIENT = OURS | {LENIENT: {"step.acceptance": 0.6}}
BARS = (
    Bar("dqn_fed_runs_ended_early", "<=", 0),
    Bar("dqn_fed_models_not_finite", "<=", 0),
    Bar("dqn_fed_worst_difference", ">=", -2.0),
    Bar("dqn_fed_worst_ratio", ">=", 0.95),
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes
    ----------
    ended : str
        Why it ended before its time; empty if it did not.
    finite : bool
        Whether the model is.
    accuracy : float
        Mean test accuracy of the honest clients.
    ratio : float
        Their mean rho over rounds; NaN where losses are not reported twice.
    """

    ended: str
    finite: bool
    accuracy: float
    ratio: float


def main(words: Sequence[str] | None = None) -> None:
    """Run the table."""
    options = parser().parse_args(words)
    hostile = tuple(map(int, options.hostile.split(",")))
    base = {
        "partition": "dirichlet",
        "clients": 10,
        "local.threads": 1,
        "checkpoint-every": 0,
        "evaluate-every": 0,
        "rounds": options.rounds,
        "seed": options.seed,
    }
    attacks = UNSEEN if options.unseen else ATTACKS | FURTHER
    usual = ["dqn-fed", LENIENT] if options.unseen else list(STRATEGIES)
    wanted = options.strategies.split(",") if options.strategies else usual
    kinds = options.attacks.split(",") if options.attacks else list(attacks)
    rows: list[Figures] = []
    with quiet():
        for name in wanted:
            clean = ending(name, base, None, (), hostile)
            for kind in kinds:
                found = ending(name, base, attacks[kind][0], hostile, hostile)
                rows.append(row_of(name, kind, found, clean))
    bars = () if options.unseen else BARS
    report("attacks", {"hostile": len(hostile), **summary(rows), "rows": rows}, bars, options.json)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = arguments(__doc__)
    made.add_argument("--hostile", default="3", help="comma-separated clients (default: %(default)s)")
    made.add_argument("--strategies", help=f"comma-separated, of {', '.join(STRATEGIES)}; all by default")
    made.add_argument("--attacks", help="comma-separated; all by default")
    made.add_argument("--unseen", action="store_true", help="the attacks within every limit, on DQN-Fed alone")
    made.add_argument("--rounds", type=int, default=40, help="rounds (default: %(default)s)")
    made.add_argument("--seed", type=int, default=0, help="of partition and model (default: %(default)s)")
    return made


def ending(
    name: str, base: dict[str, Any], attack: Attack | None, hostile: Collection[int], judged: Collection[int]
) -> Ending:
    """Run one strategy; `judged` are the clients left out of the figures."""
    client_app = Hostile(app, hostile, attack) if attack else app
    if name in STOCK:
        settings = Settings.from_mapping({**base, **SGD, "method": "fedavg"})
        grid = InProcessGrid(client_app, settings.clients, settings.flat())
        stock = stock_run(name, settings, grid)
        kept = [value for client, value in stock.accuracies.items() if client not in judged]
        ratios = [stock.improved(judged, number) for number in range(len(stock.losses) - 1)] or [math.nan]
        ratio = float(np.mean(ratios))
        return Ending(stock.ended, bool(np.isfinite(stock.theta).all()), _mean(kept), ratio)
    settings = Settings.from_mapping({**base, **({} if name.startswith("dqn-fed") else SGD), **OURS_OR_LENIENT[name]})
    try:
        result = serve(InProcessGrid(client_app, settings.clients, settings.flat()), settings)
    except DQNFedError as error:
        return Ending(type(error).__name__, True, math.nan, math.nan)
    kept = [value for client, value in result.accuracies.items() if client not in judged]
    ratios = []
    for event in result.events:
        index = [k for k, client in enumerate(event.participants) if client not in judged]
        ratios.append(improved_ratio([event.losses_before[k] for k in index], [event.losses_after[k] for k in index]))
    ended = "" if result.status == "finished" else result.status
    return Ending(ended, bool(np.isfinite(result.theta).all()), _mean(kept), float(np.nanmean(ratios)))


def row_of(name: str, kind: str, found: Ending, clean: Ending) -> Figures:
    """A line of the table; the difference in points of accuracy."""
    return {
        "strategy": name,
        "attack": kind,
        "ended": found.ended or "no",
        "finite": found.finite,
        "difference": 100 * (found.accuracy - clean.accuracy),
        "ratio": found.ratio,
    }


def summary(rows: Sequence[Figures]) -> Figures:
    """Worst figures of each strategy over the attacks."""
    figures: dict[str, Json] = {}
    for name in dict.fromkeys(str(row["strategy"]) for row in rows):
        mine = [row for row in rows if row["strategy"] == name]
        key = re.sub(r"[^a-z0-9]+", "_", name.lower())
        figures[f"{key}_runs_ended_early"] = sum(row["ended"] != "no" for row in mine)
        figures[f"{key}_models_not_finite"] = sum(not row["finite"] for row in mine)
        figures[f"{key}_worst_difference"] = _least(mine, "difference")
        figures[f"{key}_worst_ratio"] = _least(mine, "ratio")
        figures[f"{key}_harmed"] = sum(
            row["ended"] != "no" or not row["finite"] or not _number(row["difference"]) >= -2.0 for row in mine
        )
    return figures


def _least(rows: Sequence[Figures], key: str) -> float:
    """The least of a column, over the runs that came to their end."""
    return min((value for row in rows if not math.isnan(value := _number(row[key]))), default=math.nan)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


if __name__ == "__main__":
    main()
