"""A run of very many clients of which ten are asked in a round: seconds before round 1, and memory at the peak.

Each client has ten samples of 64 numbers; the model has a million parameters. Everybody registers, ten train in each
round, and all are evaluated once, after the last. The peak is that of the resident memory, less what was resident
after the imports. Linux only (/proc/self/status).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks._common import Bar, Json, arguments, median, quiet, report, settings_of
from benchmarks.server_memory import resident
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.telemetry.events import RoundEvent

BARS = (Bar("start_seconds", "<=", 5.0), Bar("peak_memory_bytes", "<=", 1e9))
FEATURES, WIDTH, CLASSES, SAMPLES = 64, 962, 10, 10


def net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """64-962-962-10: 998,566 parameters."""
    return nn.Sequential(
        nn.Linear(input_shape[0], WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, num_classes),
    )


class Clock:
    """A listener that notes when round 1 could begin."""

    def __init__(self) -> None:
        self.since, self.start = time.perf_counter(), 0.0

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """All clients are registered."""
        del rounds, done
        self.start = time.perf_counter() - self.since

    def on_round(self, event: RoundEvent) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""


def write_samples(path: Path, clients: int) -> None:
    """Samples of noise, of which each client splits off some to be tested on."""
    count = clients * SAMPLES
    x = np.random.default_rng(0).standard_normal((count, FEATURES), dtype=np.float32)
    np.savez(path, x_train=x, y_train=np.arange(count) % CLASSES)


def measure(settings: Settings) -> dict[str, Json]:
    """Seconds and bytes of one run."""
    before, clock = resident("VmRSS"), Clock()
    result = run_in_process(settings, listeners=[clock])
    return {
        "clients": settings.clients,
        "parameters": result.theta.size,
        "start_seconds": clock.start,
        "seconds": result.seconds,
        "round_seconds": median([event.cost.seconds["total"] for event in result.events]),
        "peak_memory_bytes": resident("VmHWM") - before,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=1000, metavar="K")
    parser.add_argument("--sampled", type=int, default=10, metavar="N", help="clients asked in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the run")
    options = parser.parse_args(argv)
    with quiet(), tempfile.TemporaryDirectory() as place:
        data = Path(place) / "noise.npz"
        write_samples(data, options.clients)
        settings = Settings.from_mapping(
            {
                "data": str(data),
                "model": "benchmarks.many_clients:net",
                "partition": "iid",
                "clients": options.clients,
                "participation": options.sampled / options.clients,
                "rounds": options.rounds,
                "evaluate-every": 0,
                "local.threads": 1,
                **settings_of(options.set),
            }
        )
        figures = measure(settings)
    report("many clients", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
