"""The call that runs a federation: its arguments, and who hears of it."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg, Strategy

import dqnfed_flwr
from benchmarks._clock import Clock
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.strategy import Guaranteed
from dqnfed_flwr.strategy import client_registry
from dqnfed_flwr.strategy.strategy import DQNFed, GradientStrategy
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy


def test_num_rounds_and_timeout_of_the_call_take_precedence() -> None:
    federation = Federation(spread_out(2))
    server = strategy(2, {"rounds": 9})
    server.start(InProcessGrid(federation.app(), 2, {}), start_at(np.zeros(6)), num_rounds=2, timeout=7)
    assert server.settings.rounds == 2
    assert server.settings.deadline == 7


def test_without_a_timeout_the_deadline_is_that_of_the_settings() -> None:
    server = strategy(2, {"rounds": 1, "deadline": 7200})
    server.start(InProcessGrid(Federation(spread_out(2)).app(), 2, {}), start_at(np.zeros(6)))
    assert server.settings.deadline == server.registry.stragglers.deadline == 7200


def test_the_timeout_holds_for_members_and_for_what_they_owe(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(client_registry, "time", clock)
    server = strategy(3, {"deadline": 600})
    server.start(InProcessGrid(Federation(spread_out(2)).app(), 2, {}), start_at(np.zeros(6)), timeout=7)
    assert 7 <= clock.slept < 8  # for the third client, which never comes
    assert server.registry.stragglers.deadline == 7


def test_no_round_asks_nobody() -> None:
    federation = Federation(spread_out(2))
    first = start_at(np.arange(6.0))
    result = strategy(2).start(
        InProcessGrid(federation.app(), 2, {}),
        first,
        num_rounds=0,
        evaluate_fn=lambda number, arrays: MetricRecord({"round": number}),
    )
    assert not federation.asked
    assert result.arrays is first
    assert result.evaluate_metrics_serverapp == {0: MetricRecord({"round": 0})}


def test_configs_that_clients_would_never_see_are_refused() -> None:
    with pytest.raises(ConfigError, match="use the run config"):
        strategy(2).start(
            InProcessGrid(Federation(spread_out(2)).app(), 2, {}),
            start_at(np.zeros(6)),
            train_config=ConfigRecord({"lr": 1}),
        )


def test_listeners_hear_of_a_failed_run_too() -> None:
    heard: list[str] = []

    class Listener:
        def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
            heard.append(f"start {rounds} {len(done)}")

        def on_round(self, event: RoundEvent) -> None:
            heard.append(f"round {event.round}")
            raise KeyboardInterrupt

        def on_end(self) -> None:
            heard.append("end")

    server = DQNFed(strategy(2).settings, listeners=[Listener()])
    with pytest.raises(KeyboardInterrupt):
        server.start(InProcessGrid(Federation(spread_out(2)).app(), 2, {}), start_at(np.zeros(6)))
    assert heard == ["start 3 0", "round 1", "end"]


def test_the_strategy_has_two_public_names() -> None:
    assert dqnfed_flwr.DQNFed is dqnfed_flwr.GradientStrategy is GradientStrategy


@pytest.mark.parametrize("own", [strategy(2, {}), Guaranteed(FedAvg())])
def test_flowers_inherited_loop_is_refused(own: Strategy) -> None:
    """It would end a round before its step could be tested."""
    grid = InProcessGrid(Federation(spread_out(2)).app(), 2, {})
    with pytest.raises(ConfigError, match=f"{type(own).__name__} runs its own loop: call its start"):
        Strategy.start(own, grid, start_at(np.zeros(6)), num_rounds=1)


def test_a_strategy_with_a_loop_and_a_guarantee_of_its_own_is_not_wrapped() -> None:
    with pytest.raises(ConfigError, match="GradientStrategy runs its own loop; its step rule probed"):
        Guaranteed(strategy(2, {}))
