"""The one-exchange round on quadratics, whose every figure can be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.grid import InProcessGrid
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.strategy.dqnfed import DQNFed
from dqnfed_flwr.strategy.orders import needs_step
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import ClientReply, ClientTask
from tests.helpers.grids import ShuffledGrid
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.transport import TransportGrid

RULES = ["newton", "fixed", "clipped", "probed"]


class Run:
    """A finished run of quadratics from 0, with the model after every round."""

    def __init__(self, federation: Federation, settings: Mapping[str, Any] | None = None) -> None:
        self.federation, self.models = federation, [np.zeros(6)]
        clients = len(federation.objectives)
        self.strategy: DQNFed = strategy(clients, settings)
        self.result = self.strategy.start(
            InProcessGrid(federation.app(), clients, {}), start_at(self.models[0]), evaluate_fn=self._evaluate
        )
        assert self.strategy.outcome is not None
        self.outcome = self.strategy.outcome

    def _evaluate(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            self.models.append(np.array(wire.decode_model(arrays)[0]))
        return MetricRecord({"round": number})

    @property
    def events(self) -> list[RoundEvent]:
        return self.outcome.events

    def losses(self, number: int) -> list[float]:
        return [objective.loss(self.models[number]) for objective in self.federation.objectives]


@pytest.mark.parametrize("rule", RULES)
def test_losses_and_ratio_are_those_of_the_models_before_and_after(rule: str) -> None:
    run = Run(Federation(spread_out(5)), {"step-rule": rule, "rounds": 5, "step.lr": 0.3})
    for number, event in enumerate(run.events, start=1):
        assert event.round == number
        assert event.losses_before == run.losses(number - 1)
        assert event.losses_after == run.losses(number)
        fallen = [after <= before for before, after in zip(run.losses(number - 1), run.losses(number), strict=True)]
        assert event.improved_ratio == sum(fallen) / 5
        assert set(event.seconds) == {"exchange", "solve", "step", "total"}


def test_the_ratio_counts_those_whose_loss_did_not_rise() -> None:
    # Newton's length with rates eight times too high: most overshoot, and are counted as what they are.
    class Boastful(Federation):
        def reply(self, client: int, given: wire.Assignment) -> ClientReply:
            reply = super().reply(client, given)
            return replace(reply, rate=8 * reply.rate)

    run = Run(Boastful(spread_out(5)), {"step-rule": "newton", "rounds": 1})
    assert run.events[0].improved_ratio < 1
    assert run.events[0].misses == 0


def test_the_step_is_taken_at_its_factor() -> None:
    run = Run(Federation(spread_out(4)), {"rounds": 4})
    for before, after, event in zip(run.models[:-1], run.models[1:], run.events, strict=True):
        gradients = np.array([objective.gradient(before) for objective in run.federation.objectives])
        step = np.array(event.weights) @ gradients
        np.testing.assert_allclose(after, before - event.factor * step, rtol=1e-12)
        assert event.step_norm_squared == pytest.approx(float(step @ step))
        assert event.rates == [2 * loss for loss in event.losses_before]


def test_every_round_is_one_exchange_and_every_miss_another() -> None:
    federation = Federation(spread_out(4))
    run = Run(federation, {"rounds": 8, "step.grow-every": 1})
    misses = sum(event.misses for event in run.events)
    assert misses > 0  # growing every round overshoots now and then
    exchanges = sum(event.exchanges for event in run.events)
    assert exchanges == 8 + 1 + misses  # one more, for the first gradients
    assert len(federation.asked) == 4 * exchanges
    assert [given.task.exchange for client, given in federation.asked if client == 0] == list(range(1, exchanges + 1))
    assert [event.exchanges for event in run.events][1:] == [1 + event.misses for event in run.events][1:]


def test_rules_without_a_safeguard_never_miss() -> None:
    run = Run(Federation(spread_out(4)), {"step-rule": "clipped", "rounds": 5})
    assert [event.exchanges for event in run.events] == [2, 1, 1, 1, 1]
    assert not any(event.misses for event in run.events)


def test_clients_are_asked_for_what_is_due_and_no_more() -> None:
    federation = Federation(spread_out(3))
    Run(federation, {"rounds": 3, "evaluate-every": 2})
    tasks = [given.task for client, given in federation.asked if client == 1]
    first, last = tasks[0], tasks[-1]
    assert (first.train, first.probe, first.evaluate, first.factor) == (True, False, False, 0.0)
    assert (last.train, last.probe, last.evaluate) == (False, True, True)  # nothing to train for after the last round
    assert {task.round for task in tasks if task.evaluate} == {3, 4}  # settling rounds 2 and 3


@pytest.mark.parametrize(
    ("task", "curvature", "needed"),
    [
        (ClientTask(3, 3, factor=0.5), {}, False),
        (ClientTask(3, 3, factor=0.5, probe=True), {}, False),  # the candidate's own loss is enough
        (ClientTask(3, 3, factor=0.5, probe=True, grow=True), {}, True),
        (ClientTask(3, 3, factor=0.5, probe=True, halvings=2), {}, True),
        (ClientTask(3, 3, factor=0.0, probe=True, halvings=2), {}, False),  # there is no line
        (ClientTask(3, 3, factor=0.5), {"kind": "secant"}, False),
        (ClientTask(3, 3, factor=0.5), {"kind": "secant", "previous": "recomputed"}, True),
        (ClientTask(3, 3, factor=0.5), {"kind": "hvp", "previous": "recomputed"}, False),
        (ClientTask(3, 3, factor=0.5, train=False), {"kind": "secant", "previous": "recomputed"}, False),
    ],
)
def test_what_a_task_needs_the_line_for(task: ClientTask, curvature: dict[str, str], needed: bool) -> None:
    assert needs_step(task, Settings.from_mapping({"curvature": curvature})) is needed


@pytest.mark.parametrize(("rule", "lines"), [("probed", [False, True, True]), ("clipped", [False, False, False])])
def test_the_line_is_sent_to_those_who_need_it(rule: str, lines: list[bool]) -> None:
    federation = Federation([Quadratic(np.ones(6)), Quadratic(np.ones(6))])
    Run(federation, {"rounds": 2, "step-rule": rule})
    assert [given.step is not None for client, given in federation.asked if client == 1] == lines


@pytest.mark.parametrize("seed", range(3))
def test_replies_in_any_order_give_the_same_bits(seed: int) -> None:
    def final(grid: InProcessGrid) -> tuple[bytes, list[list[float]]]:
        server = strategy(7, {"participation": 0.6, "rounds": 6, "dqn-fed.form": "anchored"})
        server.start(grid, start_at(np.zeros(6)))
        assert server.outcome is not None
        return server.outcome.theta.numpy().tobytes(), [event.weights for event in server.outcome.events]

    straight = final(InProcessGrid(Federation(spread_out(7)).app(), 7, {}))
    assert final(ShuffledGrid(Federation(spread_out(7)).app(), 7, seed)) == straight
    assert final(TransportGrid(Federation(spread_out(7)).app(), 7, {})) == straight


def test_flowers_result_holds_model_and_figures() -> None:
    run = Run(Federation(spread_out(3)), {"rounds": 2})
    theta, _, _ = wire.decode_model(run.result.arrays)
    np.testing.assert_array_equal(theta, run.models[-1])
    assert set(run.result.train_metrics_clientapp) == set(run.result.evaluate_metrics_clientapp) == {1, 2}
    assert run.result.train_metrics_clientapp[2]["improved-ratio"] == 1.0
    assert run.result.evaluate_metrics_serverapp == {n: MetricRecord({"round": n}) for n in range(3)}
    assert run.events[-1].accuracy is not None
    assert run.result.evaluate_metrics_clientapp[2]["mean"] == pytest.approx(
        np.mean(list(run.events[-1].accuracy.values()))
    )


def test_the_final_model_is_evaluated_even_if_no_round_was() -> None:
    run = Run(Federation(spread_out(3)), {"rounds": 2, "evaluate-every": 0})
    assert run.outcome.accuracy == {k: round(100 * math.exp(-loss)) / 100 for k, loss in enumerate(run.losses(2))}


def test_num_rounds_and_timeout_of_the_call_take_precedence() -> None:
    federation = Federation(spread_out(2))
    server = strategy(2, {"rounds": 9})
    server.start(InProcessGrid(federation.app(), 2, {}), start_at(np.zeros(6)), num_rounds=2, timeout=7)
    assert server.settings.rounds == 2
    assert server.settings.deadline == 7


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


def test_one_client_alone_is_gradient_descent_with_a_line_search() -> None:
    only = Quadratic(np.ones(6))
    run = Run(Federation([only]), {"rounds": 1})
    np.testing.assert_allclose(
        run.models[1], np.ones(6), rtol=1e-12
    )  # Newton's step of a quadratic ends at its minimum


def test_all_fall_in_every_round_until_no_common_step_is_left() -> None:
    run = Run(Federation(spread_out(4)), {"rounds": 15})
    assert all(event.improved_ratio == 1.0 for event in run.events)
    totals = [sum(run.losses(number)) for number in range(len(run.models))]
    assert all(later <= earlier for earlier, later in pairwise(totals))
