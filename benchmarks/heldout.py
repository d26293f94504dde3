"""What the test on held-out samples is worth: how often it errs, what rise it finds, and what training gains by it.

`error` plays a client that is never harmed: the losses of its samples wander from model to model around means that do
not rise. Counted are runs of 200 answers in which it refuses, by the test as it is and by one that compares with the
best model so far alone, at the same level. `power` finds the rise, in standard deviations of the paired differences,
that is refused half of the time by the 20th and the 200th answer. `runs` trains with each `step.judge`.

    DQNFED_DATA=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.heldout error power runs

`FOLDER` has CIFAR-10, of which one federation of `runs` takes 4,000 images; `--only digits` goes without.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy.stats import nct
from scipy.stats import t as student
from sklearn.datasets import make_classification

from benchmarks._common import Bar, Json, arguments, quiet, report
from dqnfed_flwr import run
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.guarantee.held_out import block, level, rises, rises_above_any
from dqnfed_flwr.strategy import step_search
from dqnfed_flwr.strategy.round_event import round_event
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

ALPHA, ANSWERS = 0.1, 200
BARS = (Bar("error_normal", "<=", ALPHA),)
WANDERS = (0.0, 0.9, 0.99, 0.999)
"""Correlation of a sample's losses at one model and the next; 0: each model has nothing to do with the last."""
Values = Mapping[str, Any]
PLAIN: Values = {"model": "mlp", "local.threads": 1, "split.validation-fraction": 0.25, "evaluate-every": 1}
JUDGES = ("training", "both", "held-out")


def losses_of(samples: int, wander: float, skew: float, rng: np.random.Generator) -> Float64Array:
    """Losses of some samples at successive models of equal mean loss [models, samples]; normal, or skewed to a side."""

    def draw() -> Float64Array:
        normal = rng.standard_normal((ANSWERS + 1, samples))
        return skew * (np.exp(normal) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e) if skew else normal

    losses = draw()
    for before, after in pairwise(losses):
        after *= math.sqrt(1 - wander**2)
        after += wander * before
    return losses


def ever_refuses(losses: Float64Array, *, best: bool) -> bool:
    """Whether a client with these losses at its models refuses one of them, by the test or against the `best` alone."""
    earlier: dict[int, int] = {}
    lowest = 0
    for answer in range(1, len(losses)):
        start, at_level = answer - 1, level(ALPHA, answer)
        if best:
            lowest = start if losses[start].mean() < losses[lowest].mean() else lowest
            refused = rises(losses[answer], losses[lowest], at_level)
        else:
            models = [losses[model] for model in {*earlier.values(), start}]
            refused = rises_above_any(losses[answer], models, at_level)
            earlier.setdefault(block(answer), start)
        if refused:
            return True
    return False


def error(repeats: int) -> dict[str, Json]:
    """Shares of runs in which a client that is never harmed refuses."""
    rows: list[Json] = []
    worst = 0.0
    for samples, skew, wander in ((n, s, w) for n in (50, 200) for s in (0.0, 1.0, -1.0) for w in WANDERS):
        rng = np.random.default_rng([samples, int(skew) + 1, int(1000 * wander)])
        found = [losses_of(samples, wander, skew, rng) for _ in range(repeats)]
        shares = {best: float(np.mean([ever_refuses(each, best=best) for each in found])) for best in (False, True)}
        worst = max(worst, shares[False]) if not skew else worst
        kind = {0.0: "normal", 1.0: "rises rare and large", -1.0: "falls rare and large"}[skew]
        rows.append(
            {"samples": samples, "losses": kind, "wander": wander, "refuses": shares[False], "best alone": shares[True]}
        )
    return {"alpha": ALPHA, "repeats": repeats, "error_normal": worst, "error": rows}


def detected(samples: int, at_level: float) -> float:
    """The rise of normal differences, in their standard deviations, that is refused half of the time."""
    threshold, low, high = float(student.isf(at_level, samples - 1)), 0.0, 10.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        refused = float(nct.sf(threshold, samples - 1, middle * math.sqrt(samples)))
        low, high = (low, middle) if refused > 0.5 else (middle, high)
    return high


def power() -> dict[str, Json]:
    """The rises found, without correction and by the 20th and the 200th answer."""
    rows: list[Json] = []
    for samples in (20, 50, 200, 1000):
        row: dict[str, Json] = {"samples": samples, "one answer": detected(samples, ALPHA)}
        for answer in (20, 200):
            at_level = level(ALPHA, answer) / (block(answer) + 2)
            row |= {f"answer {answer}": detected(samples, at_level)}
        rows.append(row)
    return {"power": rows}


@contextmanager
def tests_noted() -> Iterator[list[dict[int, float]]]:
    """Within, the test losses by client are noted at the end of each round that moved the model."""
    noted: list[dict[int, float]] = []

    def note(pending: Any, factor: float, losses: Any, status: str, evaluated: Any, *rest: Any) -> RoundEvent:
        if tests := {client: reply.test.loss for client, reply in evaluated.items() if reply.test is not None}:
            noted.append(tests)
        return round_event(pending, factor, losses, status, evaluated, *rest)

    with patch.object(step_search, "round_event", note):
        yield noted


def settings_of_runs(folder: Path, rounds: int) -> dict[str, Values]:
    """The federations, by name; their set of overlapping classes is made in `folder`."""
    x, y = make_classification(6000, 64, n_informative=20, n_classes=10, class_sep=2.0, flip_y=0.1, random_state=0)
    x = x.astype(np.float32)
    np.savez(folder / "overlapping.npz", x_train=x[:4000], y_train=y[:4000], x_test=x[4000:], y_test=y[4000:])
    digits = {**PLAIN, "data": "digits", "rounds": rounds}
    overlapping = {**PLAIN, "data": str(folder / "overlapping.npz"), "partition": "dirichlet", "rounds": rounds}
    images = {**PLAIN, "data": "cifar10", "partition": "dirichlet", "split.samples": 4000, "rounds": rounds}
    noise = {"noise.kind": "symmetric", "noise.clients": 0.5, "noise.level": 0.4}
    return {
        "digits, 10 clients": {**digits, "partition": "dirichlet", "clients": 10},
        "digits, 4 clients": {**digits, "partition": "dirichlet", "clients": 4},
        "digits, 10 clients, half with wrong labels": {**digits, "partition": "iid", "clients": 10, **noise},
        "digits, 4 clients, half with wrong labels": {**digits, "partition": "iid", "clients": 4, **noise},
        "overlapping, 10 clients": {**overlapping, "clients": 10},
        "overlapping, 4 clients": {**overlapping, "clients": 4},
        "CIFAR-10, 10 clients": {**images, "clients": 10},
    }


def row_of(name: str, judge: str, seed: int, result: RunResult, tests: Sequence[dict[int, float]]) -> Json:
    """The figures of one run, from the test losses by client after each round that moved the model."""
    means = [float(np.mean([*losses.values()])) for losses in tests]
    calm = [not_above([after[c] for c in before], [*before.values()]) for before, after in pairwise(tests)]
    accuracies = [*result.accuracies.values()]
    return {
        "federation": name,
        "judge": judge,
        "seed": seed,
        "rounds": len(result.events),
        "ended": result.status,
        "test loss": means[-1],
        "its best": min(means),
        "worst client": max(tests[-1].values()),
        "accuracy": 100 * float(np.mean(accuracies)),
        "worst accuracy": 100 * min(accuracies),
        "fell or stayed": 100 * float(np.mean(np.concatenate(calm))) if calm else math.nan,
        "refused by held-out": sum(len(event.votes.refused_held_out) for event in result.events),
        "exchanges": sum(event.cost.exchanges for event in result.events),
    }


def runs(rounds: int, seeds: int, only: str) -> dict[str, Json]:
    """One run for each federation, judge and seed."""
    rows: list[Json] = []
    with tempfile.TemporaryDirectory() as folder, quiet():
        for name, values in settings_of_runs(Path(folder), rounds).items():
            for judge, seed in ((judge, seed) for judge in JUDGES for seed in range(seeds) if only in name):
                with tests_noted() as tests:
                    result = run({**values, "step.judge": judge, "seed": seed})
                rows.append(row_of(name, judge, seed, result, tests))
    return {"runs": rows}


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument(
        "parts", nargs="+", metavar="PART", choices=("error", "power", "runs"), help="error, power, runs"
    )
    parser.add_argument("--repeats", type=int, default=200, metavar="N", help="simulated runs of `error`")
    parser.add_argument("--rounds", type=int, default=150, metavar="N", help="of a run")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="of each federation")
    parser.add_argument("--only", default="", metavar="TEXT", help="federations whose name has this in it")
    options = parser.parse_args(argv)
    figures: dict[str, Json] = {}
    if "error" in options.parts:
        figures |= error(options.repeats)
    if "power" in options.parts:
        figures |= power()
    if "runs" in options.parts:
        figures |= runs(options.rounds, options.seeds, options.only)
    report("held-out test", figures, BARS if "error" in options.parts else (), options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
