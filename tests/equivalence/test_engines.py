"""Both engines give the same bits for the same seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.run_files import MODEL
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.runs import TINY, WHOLE, changed

pytest.importorskip("ray", reason="Flower's simulation engine needs the extra `simulation`")

SETTINGS: dict[str, Any] = {
    **TINY,
    "clients": 2,
    "rounds": 4,
    "curvature.kind": "secant",
    "curvature.memory": 2,
    "dqn-fed.anchor": "server-lbfgs",
}


class Rounds:
    """A listener that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Note."""
        self.heard.append(f"start {rounds} {len(done)}")

    def on_round(self, event: RoundEvent) -> None:
        """Note."""
        self.heard.append(f"round {event.round}")

    def on_end(self) -> None:
        """Note."""
        self.heard.append("end")


def figures(result: RunResult) -> list[str]:
    return [changed(event, seconds={}).to_json() for event in result.events]


HELD_OUT: dict[str, Any] = {
    "rounds": 8,
    "seed": 3,
    "step.judge": "held-out",
    "split.validation-fraction": 0.4,
    "guarantee.held-out-level": 0.9,
    "noise.kind": "pair",
    "noise.clients": 1.0,
}


MASKED: dict[str, Any] = {
    **{"privacy.mode": "masked", "privacy.min-samples": 100, "clients": 4},
    **{"dqn-fed.anchor": "auto", "curvature.kind": "none"},
}
MASKED_SHORT: dict[str, Any] = {**MASKED, "messages.row": 16, "messages.step": 8}


@pytest.mark.parametrize(
    "more",
    [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in (WHOLE, HELD_OUT, MASKED, MASKED_SHORT))],
    ids=["training", "whole messages", "held-out", "masked", "masked, short messages"],
)
def test_flowers_simulation_gives_the_bits_of_the_in_process_engine(tmp_path: Path, more: dict[str, Any]) -> None:
    listener, settings = Rounds(), {**SETTINGS, **more}
    straight = run({**settings, "output": str(tmp_path / "straight")})
    simulated = run({**settings, "output": str(tmp_path / "flower")}, engine="flower", listeners=[listener])
    assert np.array_equal(simulated.theta, straight.theta)
    assert figures(simulated) == figures(straight)
    assert simulated.accuracies == straight.accuracies
    assert (tmp_path / "flower" / MODEL).read_bytes() == (tmp_path / "straight" / MODEL).read_bytes()
    assert listener.heard == [f"start {settings['rounds']} 0", *(f"round {e.round}" for e in straight.events), "end"]
    assert any(event.votes.refused_held_out for event in straight.events) == (more is HELD_OUT)
