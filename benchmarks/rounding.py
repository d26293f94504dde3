"""What bfloat16 would do to the losses by which clients judge a step: its error beside what the step changes.

Trains with `local.autocast: bf16`. Every few rounds each client's mean loss is taken before the step and at multiples
of it, under autocast and in float32, of the same weights and the same samples. The error of the loss is their
difference; the error of the change is that of the two paired, sample by sample, which is what a test would suffer from.
A decision is turned where the loss rises in one and not in the other.

    OMP_NUM_THREADS=1 python -m benchmarks.rounding digits rounds=40
    OMP_NUM_THREADS=1 python -m benchmarks.rounding runs/deep/deep.yaml rounds=25
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import Json, arguments, quiet, report, settings_of
from dqnfed_flwr import run
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.config.loading import load_config
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.guarantee.harm import not_above
from dqnfed_flwr.types import Float64Array, FloatArray

MULTIPLES = tuple(2.0**-k for k in range(-2, 9))
"""Of the step that was taken."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a multiple of a step does to a client's samples [n]: losses before and after, rounded and in float32."""

    multiple: float
    rounded: tuple[Float64Array, Float64Array]
    exact: tuple[Float64Array, Float64Array]

    @property
    def changes(self) -> tuple[float, float]:
        """Of the mean loss, over the loss: rounded and in float32."""
        rounded, exact = (float((after - before).mean()) for before, after in (self.rounded, self.exact))
        loss = float(self.exact[0].mean())
        return rounded / loss, exact / loss

    @property
    def error(self) -> float:
        """Of the mean loss after the step, over the loss."""
        return abs(float((self.rounded[1] - self.exact[1]).mean())) / float(self.exact[0].mean())

    @property
    def turned(self) -> bool:
        """Whether the rounded losses tell a rise that is none, or hide one."""
        told, true = (not_above([after.mean()], [before.mean()])[0] for before, after in (self.rounded, self.exact))
        return bool(told != true)


class Measured:
    """The clients of a federation, each with and without autocast."""

    def __init__(self, settings: Settings) -> None:
        plain = settings.model_copy(update={"local": settings.local.model_copy(update={"autocast": "none"})})
        self._clients = [
            (DQNFedClient(settings, k, open_client(settings, k)), DQNFedClient(plain, k, open_client(plain, k)))
            for k in range(settings.clients)
        ]

    def changes(self, before: RunResult, after: RunResult) -> list[Change]:
        """Those of every client at each multiple of the step between two models."""
        step = before.theta - after.theta
        found: list[Change] = []
        for client in range(len(self._clients)):
            start = self._losses(client, before, before.theta)
            for multiple in MULTIPLES:
                end = self._losses(client, before, before.theta - np.float32(multiple) * step)
                found.append(Change(multiple, (start[0], end[0]), (start[1], end[1])))
        return found

    def _losses(self, client: int, model: RunResult, theta: FloatArray) -> tuple[Float64Array, Float64Array]:
        """Of each sample [n], under autocast and in float32."""
        half, full = self._clients[client]
        classes, buffers = model.form.num_classes, model.buffers
        return half.scores(classes, theta, buffers, "train").losses, full.sample_losses(
            classes, theta, buffers, "train"
        )


def measure(values: Mapping[str, Any], every: int) -> list[Change]:
    """The changes of every so many rounds of a run with these settings."""
    found: list[Change] = []
    with tempfile.TemporaryDirectory() as folder, quiet():
        settings = Settings.from_mapping({**values, "local.autocast": "bf16", "output": str(Path(folder, "run"))})
        measured, rounds = Measured(settings), settings.rounds
        for last in range(every, rounds + 1, every):
            before = run(settings.model_copy(update={"rounds": last - 1}), resume=last > every)
            after = run(settings.model_copy(update={"rounds": last}), resume=True)
            found += measured.changes(before, after) if after.events[-1].moved else []
    return found


def figures(changes: Sequence[Change]) -> dict[str, Json]:
    """Of all changes, and by multiple."""
    rows: list[Json] = [
        {"times the step": each, **_figures([c for c in changes if c.multiple == each])} for each in MULTIPLES
    ]
    return {**_figures(changes), "by_multiple": rows}


def _figures(changes: Sequence[Change]) -> dict[str, Json]:
    rounded, exact = np.array([each.changes for each in changes]).T
    errors = abs(rounded - exact)
    return {
        "pairs": len(changes),
        "change": float(np.median(abs(exact))),
        "error_of_loss": float(np.median([each.error for each in changes])),
        "error_of_change": float(np.median(errors)),
        "error_of_change_90": float(np.quantile(errors, 0.9)),
        "turned": float(np.mean([each.turned for each in changes])),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and report."""
    parser = arguments(__doc__)
    parser.add_argument("config", help="a YAML file, or the name of a shipped experiment")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--every", type=int, default=5, help="rounds between two that are measured")
    given = parser.parse_args(argv)
    values = {**load_config(given.config), **settings_of(given.settings)}
    report("rounding", figures(measure(values, given.every)), (), given.json)


if __name__ == "__main__":
    main(sys.argv[1:])
