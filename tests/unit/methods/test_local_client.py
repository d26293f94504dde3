from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.client.work import RngKey, sgd
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.methods.local.client import own_model
from dqnfed_flwr.types import ClientTask
from tests.helpers.clients import local_loss
from tests.helpers.runs import TINY

LOCAL: dict[str, Any] = {**TINY, "method": "local", "local.batch-size": 16, "local.epochs": 2, "rounds": 4}
KEEPING = {"split.validation-fraction": 0.3}
NORM = "tests.helpers.models:norm_mlp"


def local(**changes: Any) -> Settings:
    return Settings.from_mapping({**LOCAL, **changes})


def client_of(settings: Settings, number: int = 0) -> DQNFedClient:
    return DQNFedClient(settings, number, load_client(settings, number))


def start_of(settings: Settings) -> NDArray[Any]:
    theta: NDArray[Any] = local_loss(settings).model.theta.numpy().copy()
    return theta


def validation_losses(settings: Settings, rounds: int) -> tuple[list[float], list[NDArray[Any]]]:
    """The models of a client that trains on and on, round by round, and their losses on what it kept apart."""
    loss, data = local_loss(settings), load_client(settings, 0)
    inputs = to_model_input(data.x_validation, DTYPES[settings.dtype])
    kept_apart = HeldSamples((inputs, torch.tensor(data.y_validation)))
    own, losses, models = torch.tensor(start_of(settings)), [], []
    for number in range(1, rounds + 1):
        own = own - sgd(loss, own, settings.local, RngKey(settings.seed, number, 0))
        losses.append(loss.evaluate(own, kept_apart).loss)
        models.append(own.numpy())
    return losses, models


def test_it_is_local_sgd_from_the_start_and_sends_nothing() -> None:
    settings = local(dtype="float64")
    loss, client, start = local_loss(settings), client_of(settings), start_of(local(dtype="float64"))
    alone = torch.tensor(start)
    for number in range(1, 4):
        reply = client.work(ClientTask(number, number), start)
        assert reply.row is not None
        assert not reply.row.any()
        assert reply.loss == loss.loss(torch.tensor(start))
        alone = alone - sgd(loss, alone, settings.local, RngKey(settings.seed, number, 0))
    assert np.array_equal(own_model(client.export_state())["model"], alone.numpy())


def test_one_full_batch_step_is_the_gradient_step() -> None:
    settings = local(dtype="float64", **{"local.batch-size": 0, "local.epochs": 1})
    client, start = client_of(settings), start_of(settings)
    client.work(ClientTask(1, 1), start)
    expected = start - 0.1 * local_loss(settings).loss_and_gradient(torch.tensor(start))[1].numpy()
    np.testing.assert_allclose(own_model(client.export_state())["model"], expected, rtol=1e-12, atol=1e-14)


def test_whatever_model_is_received_later_makes_no_difference() -> None:
    settings = local()
    one, other, start = client_of(settings), client_of(settings), start_of(settings)
    for number in range(1, 4):
        one.work(ClientTask(number, number), start)
        other.work(ClientTask(number, number), start if number == 1 else start + np.float32(number))
    assert np.array_equal(own_model(one.export_state())["model"], own_model(other.export_state())["model"])


def test_the_best_model_by_validation_loss_is_reported() -> None:
    settings = local(**KEEPING, **{"local.lr": 10.0, "local.batch-size": 4, "rounds": 8})
    losses, models = validation_losses(settings, 8)
    best = int(np.argmin(losses))
    assert best < 7, "the case is about a model that gets worse"
    client, start = client_of(settings), start_of(settings)
    for number in range(1, 9):
        client.work(ClientTask(number, number), start)
    assert np.array_equal(own_model(client.export_state())["model"], models[best])
    reported = client.work(ClientTask(9, 9, train=False, evaluate=True), start).test
    plain = client_of(local(method="fedavg", **KEEPING))
    assert reported == plain.work(ClientTask(9, 9, train=False, evaluate=True), models[best]).test


@pytest.mark.parametrize(
    ("lr", "batch", "patience", "stop"),
    [(10.0, 4, 1, 4), (10.0, 4, 2, 5), (10.0, 4, 3, 6), (1.0, 16, 1, 7), (1.0, 16, 2, 12)],
)
def test_it_stops_after_so_many_rounds_without_a_lower_loss(lr: float, batch: int, patience: int, stop: int) -> None:
    """The validation losses fall until round 3 in the first case, and in all rounds but 7 in the second."""
    changes = {"local.lr": lr, "local.batch-size": batch, "rounds": 12, "early-stopping": patience}
    settings = local(**KEEPING, **changes)
    losses, models = validation_losses(settings, 12)
    rises = [number for number in range(2, 13) if min(losses[:number]) < losses[number - 1]]
    assert rises == (list(range(4, 13)) if batch == 4 else [7])
    client, start = client_of(settings), start_of(settings)
    for number in range(1, 13):
        client.work(ClientTask(number, number), start)
    state = client.export_state()
    assert np.array_equal(state["work/after/last/model"], models[stop - 1])
    assert np.array_equal(own_model(state)["model"], models[int(np.argmin(losses[:stop]))])


def test_a_client_that_never_took_part_reports_the_start() -> None:
    settings, start = local(), start_of(local())
    asked = ClientTask(4, 4, train=False, evaluate=True)
    assert client_of(settings).work(asked, start).test == client_of(local(method="fedavg")).work(asked, start).test
    assert own_model(client_of(settings).export_state()) == {}


@pytest.mark.parametrize("model", ["logistic", NORM])
def test_the_server_stays_at_the_start_through_all_rounds(model: str) -> None:
    result = run({**LOCAL, "model": model, "evaluate-every": 1})
    assert result.status == "finished"
    assert len(result.events) == 4
    assert np.array_equal(result.theta, start_of(local(model=model)))
    fresh = local_loss(local(model=model)).model
    for name, value in fresh.spec.read_buffers(fresh.module).items():
        assert np.array_equal(result.buffers[name], value.numpy())
    assert [event.moved for event in result.events] == [False] * 4
    assert all(event.evaluated.test for event in result.events)
    assert len({tuple(event.evaluated.test.values()) for event in result.events if event.evaluated.test}) > 1


def test_one_client_stopping_does_not_stop_the_others() -> None:
    result = run({**LOCAL, **KEEPING, "early-stopping": 1, "rounds": 6})
    assert (result.status, len(result.events)) == ("finished", 6)


def test_a_round_that_comes_again_has_the_same_bits() -> None:
    settings, start = local(**KEEPING), start_of(local())
    straight, again = client_of(settings), client_of(settings)
    for number in range(1, 4):
        straight.work(ClientTask(number, number), start)
        for _ in range(2):
            again.work(ClientTask(number, number), start)
    one, other = straight.export_state(), again.export_state()
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
