"""Train a task with several methods and seeds, and put their figures side by side.

Every run keeps its own directory and is not run again once it is finished, so a long comparison can be interrupted.

    python -m benchmarks.training digits --output runs/digits
    python -m benchmarks.training cifar10-full --data cifar10.npz --output runs/full
    python -m benchmarks.training cifar10-setup1 --data cifar10.npz --output runs/setup1 --rounds 2000
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks._common import Figures, arguments, report
from dqnfed_flwr import RunResult, Settings, fairness_report, run
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.run_files import RUN

Config = dict[str, Any]

MOMENTUM: Config = {"dqn-fed.anchor": "momentum"}
ANCHORED: dict[str, Config] = {
    "lbfgs": {"dqn-fed.anchor": "server-lbfgs"},
    "momentum": MOMENTUM,
    "update": {"dqn-fed.anchor": "fedavg", "local.batch-size": 32},
}
FEDAVG: dict[str, Config] = {
    f"fedavg-{lr}": {"method": "fedavg", "local.batch-size": 32, "local.lr": lr} for lr in (0.03, 0.1, 0.3, 1.0)
}
SECANT: Config = {"curvature.kind": "secant", "curvature.previous": "recomputed"}
TASKS: dict[str, tuple[Config, dict[str, Config]]] = {
    "digits": ({"data": "digits", "partition": "dirichlet", "clients": 10, "rounds": 60}, {**ANCHORED, **FEDAVG}),
    "cifar10-full": (
        {
            "partition": "dirichlet",
            "clients": 10,
            "rounds": 60,
            "split.samples": 4000,
            "split.validation-fraction": 0.1,
        },
        {**ANCHORED, **FEDAVG},
    ),
    "cifar10-setup1": (
        {"partition": "shards", "clients": 100, "participation": 0.1, "rounds": 2000, "evaluate-every": 10},
        {
            "fedavg": {"method": "fedavg", "local.batch-size": 64},
            "two-sided": {"dqn-fed.form": "two-sided", **SECANT},
            "one-sided": {"dqn-fed.form": "one-sided", **SECANT},
            "momentum": MOMENTUM,
        },
    ),
}
TAIL = 100
"""Rounds at the end over which accuracies are averaged."""


def main(words: list[str] | None = None) -> None:
    """Run the comparison that the command line asks for."""
    options = parser().parse_args(words)
    base, methods = TASKS[options.task]
    wanted = options.methods.split(",") if options.methods else list(methods)
    figures: dict[str, Figures] = {}
    for name in wanted:
        for seed in map(int, options.seeds.split(",")):
            changes: Config = {"seed": seed, "checkpoint-every": 0, "local.threads": options.threads}
            if options.data:
                changes["data"] = options.data
            if options.rounds:
                changes["rounds"] = options.rounds
            config = {**base, **methods[name], **changes}
            figures[f"{name} seed {seed}"] = summary(finished(config, options.output / f"{name}-{seed}"))
    if not options.json:
        Console(width=max(160, Console().width)).print(
            table(f"{options.task}: accuracies in %, means over the last {TAIL} rounds", figures)
        )
        return
    report(options.task, figures, [], options.json)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = arguments(__doc__)
    made.add_argument("task", choices=list(TASKS))
    made.add_argument("--data", help="an .npz file or a data set by name; needed for the CIFAR-10 tasks")
    made.add_argument("--output", type=Path, required=True, help="directory of the runs")
    made.add_argument("--methods", help="comma-separated; all of the task's by default")
    made.add_argument("--seeds", default="0,1,2", help="comma-separated (default: %(default)s)")
    made.add_argument("--rounds", type=int, default=0, help="rounds; the task's own by default")
    made.add_argument("--threads", type=int, default=0, help="torch threads, 0 for all cores")
    return made


def finished(config: Config, output: Path) -> RunResult:
    """The result of a run, run now unless it is there."""
    settings = Settings.from_mapping({**config, "output": str(output)})
    if (output / RUN).exists():
        result = read_result(output)
        if result.settings == settings:
            return result
    return run(settings, overwrite=True)


def summary(result: RunResult) -> dict[str, float]:
    """Figures of one run; accuracies in percent."""
    tail = [e for e in result.events if e.evaluated.test and e.round > len(result.events) - TAIL]
    reports = [fairness_report(event.evaluated.test) for event in tail if event.evaluated.test]
    keys = ("mean", "std", "worst5", "best5")
    means = {key: 100 * float(np.mean([figures[key] for figures in reports])) for key in keys}
    return {
        **means,
        "worst": 100 * result.final["worst"],
        "final_mean": 100 * result.final["mean"],
        "rho_mean": float(np.mean(result.improved_ratio)),
        "rho_min": float(np.min(result.improved_ratio)),
        "train_loss": float(np.nanmean(result.events[-1].losses_after)),
        "rounds": len(result.events),
        "exchanges_per_round": result.exchanges / len(result.events),
        "seconds": result.seconds,
    }


def table(title: str, figures: dict[str, Figures]) -> Table:
    """A row a run."""
    made = Table(title=title)
    made.add_column("run")
    for key in next(iter(figures.values())):
        made.add_column(key, justify="right")
    for name, row in figures.items():
        made.add_row(name, *(f"{value:.4g}" for value in row.values() if isinstance(value, float | int)))
    return made


if __name__ == "__main__":
    main()
