from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from client_app.app import app
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.client.work import RngKey, sgd
from dqnfed_flwr.config import LocalSettings, Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.types import ClientTask
from tests.helpers.clients import local_loss
from tests.helpers.runs import TINY

PERSONAL = "work/after/model"
DITTO: dict[str, Any] = {**TINY, "method": "ditto", "local.batch-size": 16, "local.epochs": 2, "rounds": 3}
NORM = "tests.helpers.models:norm_mlp"


def ditto(**changes: Any) -> Settings:
    return Settings.from_mapping({**DITTO, **changes})


def client_of(settings: Settings, number: int = 0) -> DQNFedClient:
    return DQNFedClient(settings, number, load_client(settings, number))


def models(settings: Settings, count: int) -> list[NDArray[Any]]:
    """The first model and others near it."""
    first = local_loss(settings).model.theta.numpy().copy()
    rng = np.random.default_rng(0)
    return [first, *(first + 0.1 * rng.standard_normal(len(first)).astype(first.dtype) for _ in range(count - 1))]


def test_the_first_personal_step_is_the_rule_of_the_paper() -> None:
    """One full-batch step from v = theta: the pull is 0 there, so v = theta - 0.1 g; then one from v with theta moved.

    v' = v - 0.1 (g(v) + 2 (v - theta')).
    """
    settings = ditto(**{"local.batch-size": 0, "local.epochs": 1, "ditto.weight": 2.0, "dtype": "float64"})
    loss, client = local_loss(settings), client_of(settings)
    first, second = models(settings, 2)
    client.work(ClientTask(1, 1), first)
    v = first - 0.1 * loss.loss_and_gradient(torch.tensor(first))[1].numpy()
    np.testing.assert_allclose(client.export_state()[PERSONAL], v, rtol=1e-10, atol=1e-13)
    client.work(ClientTask(2, 2), second)
    v = v - 0.1 * (loss.loss_and_gradient(torch.tensor(v))[1].numpy() + 2 * (v - second))
    np.testing.assert_allclose(client.export_state()[PERSONAL], v, rtol=1e-10, atol=1e-13)


def test_the_statistics_of_the_personal_model_are_its_own() -> None:
    settings = ditto(model=NORM, **{"local.batch-size": 0, "local.epochs": 1})
    model, client = local_loss(settings).model, client_of(settings)
    fresh = {name: values.numpy() for name, values in model.spec.read_buffers(model.module).items()}
    for number, theta in enumerate(models(settings, 2), 1):
        reply = client.work(ClientTask(number, number), theta, None, fresh)
    counted = "2.num_batches_tracked"
    assert int(reply.buffers[counted]) == 1
    assert int(client.export_state()[f"work/after/buffer.{counted}"]) == 2


def test_without_a_pull_the_personal_model_is_local_sgd_from_its_start() -> None:
    settings = ditto(**{"ditto.weight": 0.0, "dtype": "float64"})
    loss, client = local_loss(settings), client_of(settings)
    given = models(settings, 3)
    alone = torch.tensor(given[0])
    for number, theta in enumerate(given, 1):
        client.work(ClientTask(number, number), theta)
        alone = alone - sgd(loss, alone, LocalSettings(epochs=2, batch_size=16), RngKey(settings.seed, number, 0))
    np.testing.assert_allclose(client.export_state()[PERSONAL], alone.numpy(), rtol=1e-12, atol=1e-13)


def test_a_strong_pull_holds_the_personal_model_at_the_global_one() -> None:
    """eta lambda = 1: every step ends at theta - eta grad F(v), whatever v was; with eta small that is theta."""
    theta = models(ditto(dtype="float64"), 2)
    distances = []
    for weight in (0.0, 1e2, 1e4):
        settings = ditto(**{"dtype": "float64", "local.lr": 1e-4, "ditto.weight": weight})
        client = client_of(settings)
        client.work(ClientTask(1, 1), theta[0])
        client.work(ClientTask(2, 2), theta[1])
        distances.append(float(np.linalg.norm(client.export_state()[PERSONAL] - theta[1])))
    assert distances[0] > distances[1] > 100 * distances[2]
    assert distances[2] < 1e-4 * 10


@pytest.mark.parametrize("model", ["logistic", NORM])
def test_the_global_model_is_that_of_fedavg_to_the_last_bit(model: str) -> None:
    mine = run({**DITTO, "model": model})
    plain = run({**DITTO, "model": model, "method": "fedavg"})
    assert np.array_equal(mine.theta, plain.theta)
    for name, value in plain.buffers.items():
        assert np.array_equal(mine.buffers[name], value)
    assert [event.losses_after for event in mine.events] == [event.losses_after for event in plain.events]


@pytest.mark.parametrize("model", ["logistic", NORM])
def test_the_accuracy_reported_is_that_of_the_personal_model_after_the_last_round(model: str) -> None:
    settings = ditto(model=model)
    data = load_client(settings, 0)
    grid = InProcessGrid(app, settings.clients, settings.flat())
    result = serve(grid, settings)
    memory = {name.removeprefix("2/"): v for name, v in grid.export_client_states().items() if name.startswith("2/")}
    loss = local_loss(settings)
    own = "work/after/buffer."
    after = {name.removeprefix(own): torch.tensor(v) for name, v in memory.items() if name.startswith(own)}
    loss.model.spec.write_buffers(after, loss.model.module)
    samples = to_model_input(data.x_test, torch.float32), torch.tensor(data.y_test)
    expected = loss.evaluate(torch.tensor(memory[PERSONAL]), HeldSamples(samples))
    assert result.accuracies[0] == expected.correct / expected.examples
    assert set(after) == set(result.buffers)


def test_a_client_that_never_took_part_reports_the_global_model() -> None:
    settings = ditto()
    theta = models(settings, 2)[1]
    asked = ClientTask(4, 4, train=False, evaluate=True)
    plain = client_of(ditto(method="fedavg"))
    assert client_of(settings).work(asked, theta).test == plain.work(asked, theta).test


def test_the_evaluation_of_a_round_does_not_see_the_training_of_the_next() -> None:
    settings = ditto()
    first, second = models(settings, 2)
    one, other = client_of(settings), client_of(settings)
    for client in (one, other):
        client.work(ClientTask(1, 1), first)
    together = one.work(ClientTask(2, 2, evaluate=True), second).test
    apart = other.work(ClientTask(2, 2, train=False, evaluate=True), second).test
    assert together == apart
    assert one.work(ClientTask(3, 3, train=False, evaluate=True), second).test != together


def test_a_client_brought_back_or_asked_again_goes_on_with_the_same_bits() -> None:
    settings = ditto()
    given = models(settings, 3)
    straight = client_of(settings)
    lives = client_of(settings)
    for number, theta in enumerate(given, 1):
        expected = straight.work(ClientTask(number, number, evaluate=True), theta)
        lives.work(ClientTask(number, number, evaluate=True), theta + theta.dtype.type(0.5))  # this round comes again
        fresh = client_of(settings)
        fresh.restore_state({name: np.array(value) for name, value in lives.export_state().items()})
        lives = fresh
        answer = lives.work(ClientTask(number, number, evaluate=True), theta)
        assert answer.row is not None
        assert expected.row is not None
        assert np.array_equal(answer.row, expected.row)
        assert answer.test == expected.test
        assert np.array_equal(lives.export_state()[PERSONAL], straight.export_state()[PERSONAL])
