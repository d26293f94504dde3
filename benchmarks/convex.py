"""Convex check: logistic regression with ridge, float64, where the optimum is known and rates can be seen.

`copies`: clients that all hold the same data. Rounds until the gradient's norm is at most 1e-8, against FedSGD at the
best of five rates, 1/4 to 1.9 over the smoothness constant L (beyond 2 / L it diverges). `--plot` draws the error
|theta_t - theta*| over rounds.

`iid`, `shards`: ten clients with parts of the data, evenly drawn or sorted by class. How far the model is from
Pareto-stationary is the norm of the minimum-norm point of the clients' gradients, as a share of that at the start;
runs end at 1e-6. Beside DQN-Fed with curvature stand the same method with rates in proportion to |g_k|^2
(`curvature.kind = none`) and MGDA's direction, both probed.

The data are a LIBSVM file or an .npz with x_train and y_train, two or more classes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks._common import Bar, Json, arguments, quiet, report, settings_of
from benchmarks._convex import (
    COMMON,
    RIDGE,
    Trace,
    follow,
    gradient_descent,
    local_losses,
    mean_gradient_norm,
    pareto_measure,
    smoothness,
    write_problem,
)
from benchmarks._convex_plot import draw
from dqnfed_flwr.config import Settings

BARS = (
    Bar("fedsgd_rounds_over_dqn_fed", ">=", 10),
    Bar("iid_share_of_start", "<=", 1e-6),
    Bar("shards_share_of_start", "<=", 1e-6),
)
GRADIENT_LIMIT, SHARE_LIMIT = 1e-8, 1e-6
COPIES, PARTS = 5, 10
RATES = (1.9, 1.5, 1.0, 0.5, 0.25)
"""FedSGD's rates times L."""
PROBLEMS = ("copies", "iid", "shards")
Overrides = Mapping[str, Any]

SHORT = {"step.max-factor": 1.0, "step.grow-every": 1}
TWO_SIDED = {"dqn-fed.form": "two-sided", "curvature.kind": "secant"}
ONE_SIDED = {"dqn-fed.form": "one-sided", "curvature.kind": "secant"}
ON_COPIES: Mapping[str, Overrides] = {
    "anchored by lbfgs": {},
    "anchored by lbfgs, factor at most 1": SHORT,
    "anchored by lbfgs, memory 100, factor at most 1": {**SHORT, "server-lbfgs.memory": 100},
    "two-sided, secant, newton step": {**TWO_SIDED, "step-rule": "newton"},
    "two-sided, secant, memory 10, newton step": {**TWO_SIDED, "step-rule": "newton", "curvature.memory": 10},
    "two-sided, secant, probed": TWO_SIDED,
    "one-sided, secant, probed": ONE_SIDED,
    "two-sided, hvp, newton step": {**TWO_SIDED, "curvature.kind": "hvp", "step-rule": "newton"},
    "two-sided, no curvature, probed": {**TWO_SIDED, "curvature.kind": "none"},
}
MAIN = "anchored by lbfgs, secant"
ON_PARTS: Mapping[str, Overrides] = {
    MAIN: {"curvature.kind": "secant"},
    "anchored by lbfgs, no curvature": {},
    "one-sided, secant": ONE_SIDED,
    "one-sided, no curvature": {**ONE_SIDED, "curvature.kind": "none"},
    "two-sided, secant": TWO_SIDED,
    "mgda": {"method": "mgda", "step-rule": "probed", "local.lr": 1.0},
}


def on_copies(
    base: Overrides, extra: Overrides, most_rounds: int, most_descents: int
) -> tuple[dict[str, Json], dict[str, Trace]]:
    """FedSGD at its rates, and every form of DQN-Fed, on clients with the same data."""
    shared = {**base, "partition": "file", "clients": COPIES, "rounds": most_rounds}
    losses = local_losses(Settings.from_mapping({**shared, **extra}))
    size = smoothness(losses[0])
    descents: list[dict[str, Json]] = []
    best = most_descents
    for rate in RATES:
        rounds, norm = gradient_descent(losses[0], rate / size, GRADIENT_LIMIT, best)
        descents.append({"rate_times_smoothness": rate, "rounds": rounds, "gradient_norm": norm})
        best = min(best, rounds)

    def measure(theta: Tensor) -> float:
        return mean_gradient_norm(losses, theta)

    traces = {
        name: follow(
            Settings.from_mapping({**shared, **form, **extra}), measure, lambda norms: norms[-1] <= GRADIENT_LIMIT
        )
        for name, form in ON_COPIES.items()
    }
    reached = [trace.rounds for trace in traces.values() if trace.status == "reached"]
    figures: dict[str, Json] = {
        "smoothness": size,
        "condition": size / RIDGE,
        "fedsgd_rounds": best,
        "dqn_fed_rounds": min(reached, default=None),
        "fedsgd_rounds_over_dqn_fed": best / min(reached) if reached else 0.0,
        "fedsgd": descents,
        "copies": [
            {**_row(name, trace), "gradient_norm": trace.measures[-1], "fedsgd_rounds_over": best / trace.rounds}
            for name, trace in traces.items()
        ],
    }
    return figures, traces


def on_parts(
    partition: str, base: Overrides, extra: Overrides, most_rounds: int
) -> tuple[dict[str, Json], dict[str, Trace]]:
    """Every form on clients with different parts of the data."""
    shared = {**base, "partition": partition, "clients": PARTS, "rounds": most_rounds}
    losses = local_losses(Settings.from_mapping({**shared, **extra}))

    def measure(theta: Tensor) -> float:
        return pareto_measure(losses, theta)

    traces = {
        name: follow(
            Settings.from_mapping({**shared, **form, **extra}),
            measure,
            lambda norms: norms[-1] <= SHARE_LIMIT * norms[0],
        )
        for name, form in ON_PARTS.items()
    }
    main = traces[MAIN]
    figures: dict[str, Json] = {
        f"{partition}_share_of_start": main.measures[-1] / main.measures[0],
        f"{partition}_all_fell": main.all_fell,
        f"{partition}_rounds": main.rounds,
        partition: [
            {**_row(name, trace), "share_of_start": trace.measures[-1] / trace.measures[0]}
            for name, trace in traces.items()
        ],
    }
    return figures, traces


def _row(name: str, trace: Trace) -> dict[str, Json]:
    return {
        "form": name,
        "rounds": trace.rounds,
        "exchanges": sum(event.cost.exchanges for event in trace.events),
        "seconds": trace.seconds,
        "status": trace.status,
        "all_fell": trace.all_fell,
        "factor": trace.events[-1].factor if trace.events else 0.0,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help=".npz, or LIBSVM text")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="use the first N samples; 0 for all")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS)
    parser.add_argument("--copies-rounds", type=int, default=1500, metavar="N", help="most rounds of a run on copies")
    parser.add_argument("--fedsgd-rounds", type=int, default=50_000, metavar="N", help="most rounds of FedSGD there")
    parser.add_argument("--parts-rounds", type=int, default=400, metavar="N", help="most rounds of a run on parts")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw errors over rounds (needs the extra plots)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of all runs")
    options = parser.parse_args(argv)
    figures: dict[str, Json] = {"data": options.data.name, "ridge": RIDGE}
    traces: dict[str, dict[str, Trace]] = {}
    extra = settings_of(options.set)
    with quiet(), tempfile.TemporaryDirectory() as place:
        data = Path(place) / "problem.npz"
        write_problem(options.data, data, options.samples)
        base = {**COMMON, "data": str(data)}
        for problem in options.problems:
            if problem == "copies":
                found, traces[problem] = on_copies(base, extra, options.copies_rounds, options.fedsgd_rounds)
            else:
                found, traces[problem] = on_parts(problem, base, extra, options.parts_rounds)
            figures |= found
        if options.plot:
            losses = local_losses(Settings.from_mapping({**base, "partition": "file", "clients": COPIES}))
            draw(traces, losses[0], options.plot)
    report("convex", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
