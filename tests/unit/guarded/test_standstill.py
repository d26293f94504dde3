"""Guarded runs that stand still end with an exception, after all was written; faults that stay are told once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp.strategy import FedAvg

from dqnfed_flwr import Guaranteed, StalledError
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.strategy.collect import TIMES
from tests.helpers.guarded_app import alike, app_on, linear

CLIENTS = 3


def small() -> torch.nn.Module:
    return linear(4, 2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is logged."""
    found: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("flwr")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "level", logging.INFO)  # which commands set, for as long as a process lives
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def failing(*clients: int, fails: Callable[[int], bool] = lambda call: True) -> Mod:
    """A mod of clients whose train function fails in those of its calls that `fails` says."""
    calls = dict.fromkeys(clients, 0)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        client = int(context.node_config["partition-id"])
        if client in calls:
            calls[client] += 1
            if fails(calls[client]):
                raise ValueError("no such file")
        return call_next(message, context)

    return mod


def nothing() -> ArrayRecord:
    """The start: means of zeros are exact."""
    return ArrayRecord({"weight": Array(np.zeros((2, 4), np.float32)), "bias": Array(np.zeros(2, np.float32))})


def start(guarded: Guaranteed, *mods: Mod, rounds: int = 12, lr: float = 0.1) -> None:
    app = app_on(alike(CLIENTS), small, lr=lr, mods=mods)
    guarded.start(InProcessGrid(app, CLIENTS, {}), nothing(), num_rounds=rounds)


def test_clients_that_learn_nothing_stall_the_run_after_all_was_written(tmp_path: Path) -> None:
    guarded = Guaranteed(
        FedAvg(fraction_evaluate=0.0), patience=4, output=tmp_path / "out", metrics=tmp_path / "metrics"
    )
    with pytest.raises(StalledError, match=r"stalled after round 4 of 12: its model never moved") as stalled:
        start(guarded, lr=0.0)
    assert "1. no-step: the method or strategy made no other model, in 4 rounds of 4" in str(stalled.value)
    arrays = stalled.value.result.arrays.to_numpy_ndarrays()
    assert not any(values.any() for values in arrays)
    assert isinstance(stalled.value, RunError)
    lines = (tmp_path / "out" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["factor"] for line in lines] == [0.0] * 4
    (file,) = (tmp_path / "metrics").glob("*.prom")
    assert 'dqnfed_run_state{state="stalled"} 1.0' in file.read_text()


@pytest.mark.rests
def test_with_patience_0_it_goes_on() -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0), patience=0)
    start(guarded, lr=0.0)
    assert len(guarded.events) == 12


def test_the_log_tells_of_the_rounds_that_moved(told: list[str]) -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    start(guarded, rounds=3)
    assert "3 of 3 rounds moved the model; over these ρ 1.000, not harmed 1.000" in told


def test_a_fault_that_stays_is_told_by_name_and_then_no_more(told: list[str]) -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    start(guarded, failing(1), rounds=8)
    lines = [line for line in told if line.startswith("Node ")]
    assert len(lines) == 2
    assert sum("no such file" in line for line in told) == 2 + TIMES  # so often Flower's own strategy says it, too
    assert lines[0].startswith("Node 3 is left out: client-error: ")
    assert lines[1].startswith("Node 3 fails each time, for good, and is not named again: client-error: ")
    assert all([drop.client for drop in event.dropped] == [3] for event in guarded.events)
    assert all(event.moved for event in guarded.events)


def test_a_fault_of_all_ends_the_run_in_one_line() -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    with pytest.raises(RunError) as failed:
        start(guarded, failing(*range(CLIENTS), fails=lambda call: call > 2), rounds=50)
    (words,) = str(failed.value).splitlines()
    assert words.startswith(f"each of the 3 nodes fails each time, {TIMES} times in a row; node 2: client-error: ")
    assert words.endswith("ValueError: no such file")
    assert len(guarded.events) < 6


@pytest.mark.parametrize("patience", [-1, 1.5])
def test_patience_is_a_whole_number_from_0(patience: int) -> None:
    with pytest.raises(ConfigError, match=r"step\.patience"):
        Guaranteed(FedAvg(), patience=patience)
