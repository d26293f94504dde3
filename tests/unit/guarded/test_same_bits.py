"""A strategy whose steps need no change is taken over bit for bit, in one exchange a round."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)
from torch import nn

from dqnfed_flwr import Guaranteed
from dqnfed_flwr.guarded.wrapped import CHANGED
from tests.helpers.grids import TogetherGrid
from tests.helpers.guarded_app import CountingGrid, alike, app_on, bits, linear, trained

CLIENTS, ROUNDS = 7, 4


class HalfWay(Strategy):
    """A user's own: goes half the way to the plain mean, and sends more than the model."""

    def summary(self) -> None:
        """Nothing to say."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.arrays = arrays
        for node in grid.get_node_ids():
            yield Message(RecordDict({"arrays": arrays, "hint": ConfigRecord({"round": server_round})}), node, "train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        records = [record for reply in replies for record in reply.content.array_records.values()]
        found = {}
        for name, array in self.arrays.items():
            mean = np.mean([record[name].numpy() for record in records], axis=0)
            found[name] = (array.numpy() + mean) / 2
        return ArrayRecord({name: Array(values) for name, values in found.items()}), MetricRecord({"n": len(records)})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return None


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedAdam": lambda: FedAdam(eta=0.05),
    "FedYogi": lambda: FedYogi(eta=0.05),
    "FedAdagrad": lambda: FedAdagrad(eta=0.05),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.5, server_learning_rate=0.5),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(num_malicious_nodes=1),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.2),
    "FedMedian": FedMedian,
    "a user's own": HalfWay,
}


def small() -> nn.Module:
    return linear(4, 2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_the_bits_and_figures_that_it_has_by_itself(name: str) -> None:
    parts = alike(CLIENTS)
    guarded = Guaranteed(STRATEGIES[name]())
    grid = CountingGrid(app_on(parts, small, lr=0.1), CLIENTS)

    def server_side(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"round": number, "first": float(next(iter(arrays.values())).numpy().flat[0])})

    found = trained(guarded, app_on(parts, small), CLIENTS, ROUNDS, model=small, grid=grid, evaluate=server_side)
    plain_app = app_on(parts, small, guarded=False, lr=0.1)
    plain = trained(STRATEGIES[name](), plain_app, CLIENTS, ROUNDS, model=small, evaluate=server_side)
    assert [event.factor for event in guarded.events] == [1.0] * ROUNDS
    assert [event.notes[CHANGED] for event in guarded.events] == [0.0] * ROUNDS
    assert bits(found.arrays) == bits(plain.arrays)
    assert found.train_metrics_clientapp == plain.train_metrics_clientapp
    assert found.evaluate_metrics_clientapp == plain.evaluate_metrics_clientapp
    assert found.evaluate_metrics_serverapp == plain.evaluate_metrics_serverapp
    assert len(grid.exchanges) == ROUNDS + 1


def test_a_round_is_one_message_to_train_and_one_to_evaluate_for_each_client() -> None:
    grid = CountingGrid(app_on(alike(3), small, lr=0.1), 3)
    guarded = Guaranteed(FedAvg(fraction_evaluate=1.0))
    trained(guarded, app_on(alike(3), small), 3, 2, model=small, grid=grid)
    train, evaluate = [MessageType.TRAIN] * 3, [MessageType.EVALUATE] * 3
    assert grid.pushes == [train, evaluate, train, evaluate, train]  # the last one trains nobody: it is the test alone


def masked() -> nn.Module:
    """With a buffer of infinities, as attention has in its mask."""
    module = small()
    module.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    return module


def test_infinities_that_the_model_holds_are_no_fault_of_an_update() -> None:
    guarded = Guaranteed(FedAvg(fraction_evaluate=0.0))
    found = trained(guarded, app_on(alike(3), masked, lr=0.1), 3, 2, model=masked)
    plain = trained(FedAvg(fraction_evaluate=0.0), app_on(alike(3), masked, guarded=False, lr=0.1), 3, 2, model=masked)
    assert [event.factor for event in guarded.events] == [1.0, 1.0]
    assert [event.dropped for event in guarded.events] == [[], []]
    assert bits(found.arrays) == bits(plain.arrays)


class Remembering(ClientApp):
    """Counts in `context.state` what it did, by type; notes how often a node had trained before each evaluation."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app
        self.trained_before: list[int] = []

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, and count."""
        trains, evaluations, kind = MessageType.TRAIN, MessageType.EVALUATE, message.metadata.message_type
        counts = context.state.metric_records
        done = counts["done"] if "done" in counts else MetricRecord({trains: 0, evaluations: 0})
        before = {trains: int(str(done[trains])), evaluations: int(str(done[evaluations]))}
        if kind == evaluations:
            self.trained_before.append(before[trains])
        context.state["done"] = MetricRecord({**before, kind: before[kind] + 1})
        return self._app(message, context)


def test_no_state_of_a_client_is_lost_where_what_is_sent_together_is_done_at_once() -> None:
    app = Remembering(app_on(alike(3), small, lr=0.1))
    grid = TogetherGrid(app, 3, {})
    guarded = Guaranteed(FedAvg(fraction_evaluate=1.0))
    trained(guarded, app, 3, 2, model=small, grid=grid)
    assert [event.cost.misses for event in guarded.events] == [0, 0]
    done = {MessageType.TRAIN: 2 + 1, MessageType.EVALUATE: 2}  # the last to train is the test alone
    assert [dict(context.state.metric_records["done"]) for context in grid._contexts.values()] == [done] * 3
    plain = Remembering(app_on(alike(3), small, lr=0.1, guarded=False))
    trained(FedAvg(fraction_evaluate=1.0), plain, 3, 2, model=small, grid=TogetherGrid(plain, 3, {}))
    assert app.trained_before == plain.trained_before == [1, 1, 1, 2, 2, 2]


class Twice(FedAvg):
    """Has every node evaluate twice."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = [super(Twice, self).configure_evaluate(server_round, arrays, config, grid) for _ in range(2)]
        return [message for each in messages for message in each]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = list(replies)
        return MetricRecord({"replies": len(replies)})


def test_a_node_may_be_asked_to_evaluate_several_times() -> None:
    result = trained(Guaranteed(Twice()), app_on(alike(3), lambda: linear(4, 2)), 3, 2, model=lambda: linear(4, 2))
    assert [dict(found) for found in result.evaluate_metrics_clientapp.values()] == [{"replies": 6}] * 2


def test_bytes_up_count_the_replies_to_evaluate() -> None:
    sent = {}
    for share in (0.0, 1.0):
        guarded = Guaranteed(FedAvg(fraction_evaluate=share))
        trained(guarded, app_on(alike(3), small, lr=0.1), 3, 2, model=small)
        sent[share] = [event.cost.bytes_up for event in guarded.events]
    figures = 2 * 8
    assert np.subtract(sent[1.0], sent[0.0]).tolist() == [3 * figures] * 2


def test_with_sampling_those_who_took_part_test_the_step_and_train_no_more_than_without() -> None:
    trains: list[int] = []

    def count(message, context, call_next):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        trains.append(context.node_id)
        return call_next(message, context)

    def run(strategy: Strategy, *, guarded: bool) -> tuple[dict[str, bytes], list[int]]:
        trains.clear()
        app = app_on(alike(6), small, lr=0.1, guarded=guarded, mods=[count])
        result = trained(strategy, app, 6, 5, model=small, grid=(grid := CountingGrid(app, 6)))
        if guarded:
            assert len(grid.exchanges) == 6
        return bits(result.arrays), list(trains)

    guarded = Guaranteed(FedAvg(fraction_train=0.5))
    assert run(guarded, guarded=True) == run(FedAvg(fraction_train=0.5), guarded=False)
    assert [len(event.participants) for event in guarded.events] == [3] * 5
    assert all(not np.isnan(event.losses_after).any() for event in guarded.events)


def test_the_mod_lets_messages_of_a_plain_strategy_through() -> None:
    guarded_client = trained(FedAvg(), app_on(alike(3), small), 3, 2, model=small)
    plain = trained(FedAvg(), app_on(alike(3), small, guarded=False), 3, 2, model=small)
    assert bits(guarded_client.arrays) == bits(plain.arrays)


def test_the_generators_of_the_users_program_are_left_alone() -> None:
    app = app_on(alike(2), small, lr=0.1)
    states = []
    for guarded in (False, True):
        strategy = FedAvg(fraction_evaluate=0.0)
        trained(Guaranteed(strategy) if guarded else strategy, app, 2, 2, model=small)
        states.append((random.random(), np.random.random(), torch.rand(1).item()))  # noqa: NPY002
    assert states[0] == states[1]
