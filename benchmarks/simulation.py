"""Seconds of a simulated round: this package's engine, Flower's, a plain loop over clients, and pfl-research.

Each round takes a full gradient of every client (MLP 3072-200-200-10 on images of noise) and a server step: the
one-sided DQN-Fed step, a mean in pfl-research. `many` is the same with ten times the clients and a tenth of the
samples each, against the loop: each client by itself, and several together (`local.together`). Ratios are of median
rounds; peers that are not installed are left out (`pip install dqnfed-flwr[simulation] pfl`). The loop and pfl-research
use torch's threads, all cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks._common import Bar, Json, arguments, median, quiet, report, settings_of
from benchmarks._peers import Client, loop_seconds, pfl_seconds
from benchmarks.engine import write_images
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.engine.flower import run_flower
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run_in_process, usable_cores

BARS = (
    Bar("flower_over_ours", ">=", 3.5),
    Bar("ours_over_pfl", "<=", 1.0),
    Bar("many_loop_over_together", ">=", 2.0),
)


def round_seconds(result: RunResult) -> float:
    """Median seconds of a round, without the first two."""
    return median(
        [sum(event.cost.seconds[phase] for phase in ("exchange", "solve", "step")) for event in result.events[2:]]
    )


def samples_of(settings: Settings) -> list[Client]:
    """Every client's samples as the model sees them."""
    data = [load_client(settings, client) for client in range(settings.clients)]
    return [(to_model_input(one.x_train, torch.float32).numpy(), np.asarray(one.y_train)) for one in data]


def few(settings: Settings) -> dict[str, Json]:
    """Few clients with many samples, against all peers."""
    ours = round_seconds(run_in_process(settings))
    clients = samples_of(settings)
    figures: dict[str, Json] = {"seconds": ours, "loop_seconds": loop_seconds(clients, settings.rounds)}
    if (pfl := pfl_seconds(clients, settings.rounds)) is not None:
        figures |= {"pfl_seconds": pfl, "ours_over_pfl": ours / pfl}
    if find_spec("ray") is not None:
        flower = round_seconds(run_flower(settings))
        figures |= {"flower_seconds": flower, "flower_over_ours": flower / ours}
    return figures


def many(settings: Settings, together: int) -> dict[str, Json]:
    """Many clients with few samples, each by itself and so many together, against the loop."""
    ours = round_seconds(run_in_process(settings))
    joint = round_seconds(run_in_process(Settings.from_mapping({**settings.flat(), "local.together": together})))
    loop = loop_seconds(samples_of(settings), settings.rounds)
    return {
        "many_seconds": ours,
        "many_together_seconds": joint,
        "many_loop_seconds": loop,
        "many_loop_over_ours": loop / ours,
        "many_loop_over_together": loop / joint,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=10, metavar="K")
    parser.add_argument("--samples", type=int, default=500, metavar="N", help="training samples of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--together", type=int, default=25, metavar="N", help="clients computed together in `many`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the runs")
    options = parser.parse_args(argv)
    torch.set_num_threads(usable_cores())
    with quiet(), tempfile.TemporaryDirectory() as place:
        data = Path(place) / "noise.npz"
        write_images(data, options.clients * options.samples)
        shared = {
            "data": str(data),
            "partition": "iid",
            "rounds": options.rounds + 2,
            "evaluate-every": 0,
            "checkpoint-every": 0,
            "local.threads": 1,
            "dqn-fed.form": "one-sided",
            "step-rule": "fixed",
            "step.lr": 0.01,
            **settings_of(options.set),
        }
        figures = {
            **few(Settings.from_mapping({**shared, "clients": options.clients})),
            **many(Settings.from_mapping({**shared, "clients": 10 * options.clients}), options.together),
        }
    report("simulation", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
