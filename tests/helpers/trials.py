"""Settings of runs whose participants make their model, and how fast this machine goes through their rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._federation import RUN_SECONDS, Loopback
from dqnfed_flwr.engine.result import read_result
from tests.helpers.devices import DIGITS

NODES = 2
SETTINGS: dict[str, Any] = {
    "clients": NODES,
    "model": "logistic",
    "partition": "file",
    "data": DIGITS,
    "num-classes": 10,
    "local.batch-size": 32,  # as the experiment that is submitted has it
    "local.threads": 1,
    "evaluate-every": 0,
    "step.grow-every": 0,  # hardly a candidate is turned down
    "retries": 30,
}
PATIENT = 300.0
"""A deadline that no round meets."""


def usual_seconds(federation: Loopback, output: Path) -> float:
    """The longest exchange of a short run that nobody disturbs."""
    with federation.submitted({**SETTINGS, "rounds": 3, "deadline": PATIENT}, output) as submit:
        federation.await_exit(submit, RUN_SECONDS)
        assert submit.status == 0, submit.text() + federation.texts()
    return max(event.cost.seconds["exchange"] / event.cost.exchanges for event in read_result(output).events)
