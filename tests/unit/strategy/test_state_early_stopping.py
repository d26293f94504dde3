"""The model of best validation accuracy is kept, with its buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.strategy.own_clients import mean_buffers
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import ClientReply, Evaluation
from tests.helpers.quadratics import Federation, spread_out

COUNT = {"count": np.array(0)}


class Validated(Federation):
    """Clients whose validation accuracy after round t is `right[t - 1]` in 10, and whose buffer counts exchanges."""

    right: tuple[int, ...] = ()

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """Add the accuracy, and one to the buffer."""
        reply = super().reply(client, given)
        counted = {"count": np.asarray(given.buffers["count"] + 1)}
        if given.task.evaluate:
            settled = given.task.round - 2
            reply = replace(reply, validation=Evaluation(self.right[settled], 10, 0.0))
        return replace(reply, buffers=counted if given.task.train else {})


def started(right: tuple[int, ...], patience: int, rounds: int, more: Mapping[str, Any] | None = None) -> DQNFed:
    federation = Validated(spread_out(3))
    federation.right = right
    settings = {
        "clients": 3,
        "rounds": rounds,
        "early-stopping": patience,
        "split.validation-fraction": 0.2,
        "method": "fedavg",
        "step-rule": "clipped",
        "dtype": "float64",
        **(more or {}),
    }
    server = DQNFed(Settings.from_mapping(settings))
    server.start(InProcessGrid(federation.app(), 3, {}), wire.encode_model(np.zeros(6), COUNT))
    return server


def test_the_run_ends_when_the_accuracy_has_not_risen_for_long_enough() -> None:
    full = started((3, 6, 6, 5, 4, 9), patience=9, rounds=2)
    stopped = started((3, 6, 6, 5, 4, 9), patience=3, rounds=6)
    assert stopped.outcome is not None
    assert full.outcome is not None
    assert stopped.outcome.status == "early-stopped"
    assert len(stopped.outcome.events) == 5
    assert np.array_equal(stopped.outcome.theta, full.outcome.theta)
    assert stopped.outcome.accuracy == stopped.outcome.events[1].evaluated.test
    assert stopped.outcome.buffers["count"] == full.outcome.buffers["count"] == 2


@pytest.mark.parametrize(("right", "patience", "best"), [((3, 2, 2, 4, 4, 4), 3, 4), ((9, 1, 1), 0, 3)])
def test_a_later_rise_begins_the_count_anew_and_without_patience_the_last_model_counts(
    right: tuple[int, ...], patience: int, best: int
) -> None:
    server = started(right, patience=patience, rounds=len(right))
    assert server.outcome is not None
    assert server.outcome.status == "finished"
    assert server.outcome.accuracy == server.outcome.events[best - 1].evaluated.test


def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path: Path) -> None:
    right = (3, 6, 6, 5, 4, 9)
    whole = started(right, patience=9, rounds=6)
    assert whole.outcome is not None
    for patience, status in ((2, "early-stopped"), (3, "early-stopped"), (9, "finished")):
        server = started(right, patience, 6, {"output": str(tmp_path), "resume": patience > 2})
        assert server.outcome is not None
        assert server.outcome.status == status
    assert server.outcome is not None
    assert np.array_equal(server.outcome.theta, whole.outcome.theta)
    assert server.outcome.buffers == whole.outcome.buffers


@pytest.mark.parametrize("rounds", [6, 5])
def test_a_run_that_stopped_early_goes_on_without_patience_to_its_last_model(tmp_path: Path, rounds: int) -> None:
    right = (3, 6, 6, 5, 4, 5)
    stopped = started(right, 3, 6, {"output": str(tmp_path)}).outcome
    again = started(right, 0, rounds, {"output": str(tmp_path), "resume": True}).outcome
    whole = started(right, 0, rounds).outcome
    assert stopped is not None
    assert again is not None
    assert whole is not None
    assert (stopped.status, len(stopped.events)) == ("early-stopped", 5)
    assert again.status == "finished"
    assert np.array_equal(again.theta, whole.theta)
    assert not np.array_equal(again.theta, stopped.theta)
    assert again.accuracy == whole.accuracy
    assert again.buffers == whole.buffers


def test_the_best_model_is_evaluated_where_its_accuracies_are_lost(tmp_path: Path) -> None:
    right = (3, 6, 6, 5, 4, 9)
    stopped = started(right, 3, 6, {"output": str(tmp_path)}).outcome
    again = started(right, 3, 6, {"output": str(tmp_path), "resume": True}).outcome
    assert stopped is not None
    assert again is not None
    assert np.array_equal(again.theta, stopped.theta)
    assert again.accuracy == stopped.accuracy


def reply(examples: int, **buffers: object) -> ClientReply:
    return ClientReply(num_examples=examples, buffers={name: np.asarray(value) for name, value in buffers.items()})


def test_buffers_are_averaged_by_samples() -> None:
    current = {"mean": np.zeros(2, np.float32), "count": np.array(3), "on": np.array(True)}
    averaged = mean_buffers(
        {4: reply(10, mean=[0.0, 1.0], count=4, on=True), 7: reply(30, mean=[4.0, 1.0], count=9, on=False)}, current
    )
    np.testing.assert_array_equal(averaged["mean"], [3.0, 1.0])
    assert averaged["count"] == 8  # 7.75, rounded
    assert not averaged["on"]
    assert [value.dtype for value in averaged.values()] == [value.dtype for value in current.values()]
    assert [value.shape for value in averaged.values()] == [(2,), (), ()]


@pytest.mark.parametrize("value", [1e-30, 0.1, 12345.678])
def test_buffers_that_agree_stay_as_they_are(value: float) -> None:
    current = {"mean": np.array([value], np.float32)}
    replies = {client: reply(examples, mean=current["mean"]) for client, examples in enumerate((3, 5, 11, 2, 7))}
    assert np.array_equal(mean_buffers(replies, current)["mean"], current["mean"])


def test_buffers_of_any_kind_are_averaged_as_they_are() -> None:
    current = {
        "phase": np.zeros((), np.complex64),
        "large": np.array(2**62 + 1),
        "flag": np.array([True, False]),
        "mask": np.array([-np.inf, 0.1]),
    }
    sent = {"large": current["large"], "mask": current["mask"]}
    replies = {
        0: ClientReply(3, buffers={**sent, "phase": np.array(1 + 1j, np.complex64), "flag": np.array([True, True])}),
        1: ClientReply(1, buffers={**sent, "phase": np.array(1 - 1j, np.complex64), "flag": np.array([False, True])}),
    }
    averaged = mean_buffers(replies, current)
    assert averaged["phase"].item() == 1 + 0.5j
    assert averaged["phase"].dtype == np.complex64
    assert averaged["large"].item() == 2**62 + 1  # float64 ends at 2^53
    assert averaged["flag"].tolist() == [True, True]
    assert averaged["mask"].tobytes() == current["mask"].tobytes()
