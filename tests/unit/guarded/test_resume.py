"""A guarded run that was cut off goes on from its last round, with what its strategy remembered."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Krum, Result, Strategy
from torch import nn

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.errors import CheckpointError, ConfigError
from dqnfed_flwr.guarded.memory import StrategyMemory
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.guarded_app import (
    CountingGrid,
    app_on,
    bits,
    initial,
    layered,
    linear,
    normed,
    skewed_digits,
    trained,
)

CLIENTS, ROUNDS = 4, 5
PARTS = skewed_digits(CLIENTS)


class Cut(Exception):
    """The server is killed."""


class CutIn:
    """A listener that ends the process in a round, before its checkpoint is written."""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None: ...

    def on_round(self, event: RoundEvent) -> None:
        if event.round == self.number:
            raise Cut

    def on_end(self) -> None: ...


def in_order(kind: type[FedAvg]) -> type[FedAvg]:
    """The strategy, which asks its nodes in rising order: Flower's draws them with a generator of the process."""

    class Ordered(kind):  # type: ignore[misc, valid-type]
        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            messages = super().configure_train(server_round, arrays, config, grid)
            return sorted(messages, key=lambda message: message.metadata.dst_node_id)

    return Ordered


def run(strategy: Guaranteed) -> Result:
    app = app_on(PARTS, layered, lr=0.2, shuffle=False)
    return trained(strategy, app, CLIENTS, ROUNDS, model=layered, evaluate=_norm)


def _norm(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"norm": float(sum(np.square(array.numpy()).sum() for array in arrays.values()))})


def made(kind: type[FedAvg], **settings: Any) -> FedAvg:
    return in_order(kind)(fraction_evaluate=0.5, **settings)


STRATEGIES: dict[str, Callable[[], FedAvg]] = {
    "adam": lambda: made(FedAdam, eta=0.02),
    "momentum": lambda: made(FedAvgM, server_momentum=0.5),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("cut", [2, 4])
@pytest.mark.parametrize("more", [{}, {"window": 3, "entitlement": "0", "probe_first": True}])
def test_a_run_that_was_cut_off_comes_to_the_same_model(
    name: str, cut: int, more: dict[str, Any], tmp_path: Path
) -> None:
    make = STRATEGIES[name]
    whole = run(plain := Guaranteed(make(), **more))
    with pytest.raises(Cut):
        run(Guaranteed(make(), output=tmp_path, listeners=[CutIn(cut)], **more))
    again = run(resumed := Guaranteed(make(), output=tmp_path, resume=True, **more))
    assert bits(again.arrays) == bits(whole.arrays)
    assert [event.losses_after for event in resumed.events] == [event.losses_after for event in plain.events]
    assert again.evaluate_metrics_serverapp == whole.evaluate_metrics_serverapp
    assert again.train_metrics_clientapp.keys() == whole.train_metrics_clientapp.keys()
    assert again.evaluate_metrics_clientapp.keys() == whole.evaluate_metrics_clientapp.keys()


def test_a_run_that_is_over_goes_on_where_it_is_given_more_rounds(tmp_path: Path) -> None:
    app = app_on(PARTS, layered, lr=0.2, shuffle=False)
    trained(Guaranteed(made(FedAvg), output=tmp_path), app, CLIENTS, 2, model=layered)
    resumed = Guaranteed(made(FedAvg), output=tmp_path, resume=True)
    trained(resumed, app, CLIENTS, 4, model=layered)
    assert [event.round for event in resumed.events] == [1, 2, 3, 4]
    assert len((tmp_path / "events.jsonl").read_text("utf-8").splitlines()) == 4


class Decaying(FedAvg):
    """Halves its own rate and the one that clients are sent in each round."""

    rate = 1.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.rate, config["lr"] = self.rate / 2, config.get("lr", 1.0) / 2  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)


def test_what_changes_in_each_round_is_changed_once_in_the_round_that_is_made_again(tmp_path: Path) -> None:
    def rates(strategy: Decaying, **given: Any) -> tuple[float, ConfigRecord]:
        config = ConfigRecord()
        app = app_on(PARTS, normed, lr=0.1, shuffle=False)
        guarded = Guaranteed(strategy, **given)
        random.seed(0)
        guarded.start(CountingGrid(app, CLIENTS), initial(normed), num_rounds=4, train_config=config)
        return strategy.rate, config

    whole = rates(Decaying())
    with pytest.raises(Cut):
        rates(Decaying(), output=tmp_path, listeners=[CutIn(3)])
    assert rates(Decaying(), output=tmp_path, resume=True) == whole


def test_a_run_that_was_cut_off_before_its_first_checkpoint_begins_anew(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(Cut):
        run(Guaranteed(made(FedAvg), output=tmp_path, listeners=[CutIn(1)]))
    begun = Guaranteed(made(FedAvg), output=tmp_path, resume=True)
    run(begun)
    assert f"{tmp_path} holds no checkpoint: the run begins" in said
    assert [event.round for event in begun.events] == list(range(1, ROUNDS + 1))
    assert len((tmp_path / "events.jsonl").read_text("utf-8").splitlines()) == ROUNDS


def test_a_run_without_its_checkpoint_is_not_written_over(tmp_path: Path) -> None:
    app = app_on(PARTS, linear)
    trained(Guaranteed(made(FedAvg), output=tmp_path), app, CLIENTS, 2)
    kept = (tmp_path / "events.jsonl").read_bytes()
    (tmp_path / "checkpoint.npz").unlink()
    with pytest.raises(ConfigError, match="holds a run, without a checkpoint"):
        trained(Guaranteed(made(FedAvg), output=tmp_path, resume=True), app, CLIENTS, 3)
    assert (tmp_path / "events.jsonl").read_bytes() == kept


def test_without_output_nothing_is_said_of_a_checkpoint(said: list[str]) -> None:
    class Drawing(FedAvg):
        rng = None

    strategy = Drawing()
    vars(strategy)["rng"] = np.random.default_rng(0)
    trained(Guaranteed(strategy), app_on(PARTS, linear), CLIENTS, 1)
    assert not [line for line in said if "checkpoint" in line]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    trained(Guaranteed(made(FedAvg), output=tmp_path), app_on(PARTS, layered), CLIENTS, 2, model=layered)
    with pytest.raises(CheckpointError, match="another model"):
        trained(Guaranteed(made(FedAvg), output=tmp_path, resume=True), app_on(PARTS, linear), CLIENTS, 3)


def test_figures_that_json_does_not_know_are_kept_all_the_same(tmp_path: Path) -> None:
    def norm(number: int, arrays: ArrayRecord) -> Any:
        return {"norm": np.float32(number), "each": np.arange(2.0)}

    app = app_on(PARTS, linear)
    result = trained(Guaranteed(made(FedAvg), output=tmp_path), app, CLIENTS, 2, evaluate=norm)
    again = trained(Guaranteed(made(FedAvg), output=tmp_path, resume=True), app, CLIENTS, 3, evaluate=norm)
    assert again.evaluate_metrics_serverapp[2]["norm"] == result.evaluate_metrics_serverapp[2]["norm"] == 2


def test_what_does_not_fit_the_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="resume"):
        run(Guaranteed(made(FedAvg), resume=True))
    with pytest.raises(Cut):
        run(Guaranteed(made(FedAvg), output=tmp_path, listeners=[CutIn(2)]))
    with pytest.raises(ConfigError, match="holds a run"):
        run(Guaranteed(made(FedAvg), output=tmp_path))
    with pytest.raises(CheckpointError, match="belongs to a run of Ordered, this is Krum"):
        run(Guaranteed(Krum(), output=tmp_path, resume=True))
    with pytest.raises(CheckpointError, match=r"guarantee\.entitlement"):
        run(Guaranteed(made(FedAvg), output=tmp_path, resume=True, entitlement="10%"))
    with pytest.raises(CheckpointError, match="demand"):
        run(Guaranteed(made(FedAvg), output=tmp_path, resume=True, demand=0.5))


class Odd(FedAvg):
    """Keeps things of many kinds."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.layer, self.counts, self.nothing = nn.Linear(2, 1), defaultdict[str, int](int), np.array(2)
        self.values: dict[Any, Any] = {3: [1.5, None, (2, "two")], "t": torch.arange(3), "b": b"\0\1", "s": {1, 2}}
        self.record = ArrayRecord({"w": torch.ones(2)})
        self.scalar = np.float64(0.25)
        self.rng = np.random.default_rng(0)


class Says(FedAvg):
    """Says itself what it remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.rng.bit_generator.state["state"]["state"] % 7}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


class Around(FedAvg):
    """Wraps another one."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self.inner = strategy


def test_memory_of_any_kind_comes_back_and_what_does_not_is_named_once(said: list[str]) -> None:
    def change(odd: Odd, config: ConfigRecord) -> None:
        odd.values["t"] += 1
        odd.values["b"], odd.scalar, odd.nothing = b"\0\1", np.float64(1), np.array(3)
        odd.record = ArrayRecord({"n": torch.tensor(7)})
        odd.layer.weight.data += 1
        config["lr"] = 0.5

    before = StrategyMemory(Around(odd := Odd()), {"train": (config := ConfigRecord({"lr": 1.0}))})
    change(odd, config)
    kept = before.export_state()
    after = StrategyMemory(Around(new := Odd(min_train_nodes=3)), {"train": (given := ConfigRecord({"lr": 1.0}))})
    after.restore_state(kept)
    assert new.values["t"].tolist() == [1, 2, 3]
    assert {key: value for key, value in new.values.items() if key != "t"} == {
        3: [1.5, None, (2, "two")],
        "b": b"\0\1",
        "s": {1, 2},
    }
    assert (new.record, new.scalar, new.nothing, given["lr"]) == (odd.record, 1.0, np.array(3), 0.5)
    assert torch.equal(new.layer.weight, odd.layer.weight)
    assert new.min_train_nodes == 3  # what never changed is as it is now
    assert said == [line for line in said if "rng (Generator) of Odd" in line or "counts (defaultdict) of Odd" in line]
    assert len(said) == 4


def test_a_strategy_may_say_itself_what_it_remembers() -> None:
    strategy = Says()
    memory = StrategyMemory(strategy, {})
    strategy.rng.random()
    memory.restore_state(memory.export_state())
    assert strategy.loaded == strategy.state_dict()
