from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, to_model_input
from dqnfed_flwr.methods.fedcorr import DECISION, FALLBACKS, LEVEL, LID, NOISE, RELABELLED, UNMEASURED
from dqnfed_flwr.models import build_model
from dqnfed_flwr.types import ClientReply, ClientTask
from tests.helpers.noisy_digits import digits, true_labels

LABELS = "work/after/labels"
ONE, TWO, THREE = 2, 7, 9  # a round of each stage
SETTINGS: dict[str, Any] = {
    "method": "fedcorr",
    "fedcorr.last": "dqn-fed",
    "clients": 6,
    "rounds": 12,
    "model": "logistic",
    "dtype": "float64",
    "fedcorr.preprocessing": 1,
    "fedcorr.finetuning": 2,
    "local.threads": 1,
    "local.epochs": 3,
    "local.batch-size": 20,
}


def settings(**changes: Any) -> Settings:
    return Settings.from_mapping({**SETTINGS, **changes})


def data_of(labels: NDArray[np.int64] | None = None, samples: int = 240) -> ClientData:
    given = digits({}, 1, 6)
    x, y = given["x_train"][:samples], given["y_train"][:samples] if labels is None else labels
    return ClientData(x, y, x[:0], y[:0], given["x_test"], given["y_test"], 10)


def client_of(chosen: Settings, data: ClientData | None = None) -> DQNFedClient:
    return DQNFedClient(chosen, 1, data or data_of())


def loss_of(chosen: Settings, data: ClientData) -> LocalLoss:
    dtype = DTYPES[chosen.dtype]
    module = build_model(chosen.model, data.input_shape, 10, seed=chosen.seed, dtype=dtype)
    samples = to_model_input(data.x_train, dtype), torch.tensor(data.y_train)
    return LocalLoss(FlatModel(module, torch.device("cpu")), samples)


def good_model() -> NDArray[Any]:
    """A model that knows most of the right labels: from 300 gradient steps on other clients' samples."""
    chosen = settings()
    x, y, _, _ = true_labels(0, 6)
    loss = loss_of(chosen, replace(data_of(), x_train=x, y_train=y))
    theta = loss.model.theta.clone()
    for _ in range(300):
        theta = theta - 0.5 * loss.loss_and_gradient(theta)[1]
    return theta.numpy()


def told(number: int, decision: int = 0, noise: float = 0.0) -> ClientTask:
    return ClientTask(number, number, directives={DECISION: decision, NOISE: noise})


def labels_of(client: DQNFedClient) -> NDArray[np.int64]:
    return np.array(client.export_state()[LABELS])


def equal(one: ClientReply, other: ClientReply) -> bool:
    assert one.row is not None
    assert other.row is not None
    return np.array_equal(one.row, other.row) and (one.loss, one.figures) == (other.loss, other.figures)


def test_stage_one_minimises_the_loss_and_the_squared_distance_times_beta_and_noise() -> None:
    """Full batches without mixup: theta' = theta - 0.1 (g(theta) + 2 * 5 * 0.3 (theta - theta_0))."""
    chosen = settings(**{"fedcorr.mixup": 0.0, "local.batch-size": 0})
    theta = good_model()
    loss, local = loss_of(chosen, data_of()), torch.tensor(theta)
    for _ in range(3):
        local = local - 0.1 * (loss.loss_and_gradient(local)[1] + 3.0 * (local - torch.tensor(theta)))
    reply = client_of(chosen).work(told(ONE, noise=0.3), theta)
    assert reply.row is not None
    np.testing.assert_allclose(reply.row, theta - local.numpy(), rtol=1e-9, atol=1e-12)
    assert reply.loss == loss.loss(torch.tensor(theta))


def test_mixup_changes_the_passes_and_nothing_random_else() -> None:
    theta = good_model()
    mixed, plain = client_of(settings()), client_of(settings(**{"fedcorr.mixup": 0.0}))
    one, two = mixed.work(told(ONE), theta), plain.work(told(ONE), theta)
    assert not equal(one, two)
    assert equal(one, client_of(settings()).work(told(ONE), theta))
    stage_two = [client.work(told(TWO), theta) for client in (mixed, plain)]
    assert equal(*stage_two)


def test_stage_one_reports_what_the_local_model_makes_of_the_samples() -> None:
    client = client_of(settings())
    figures = client.work(told(ONE), good_model()).figures
    assert set(figures) == {LID, LEVEL, UNMEASURED, FALLBACKS, RELABELLED}
    assert figures[LEVEL] == pytest.approx(0.5, abs=0.15)  # half of the labels are wrong
    assert figures[LID] > 0
    assert (figures[UNMEASURED], figures[FALLBACKS], figures[RELABELLED]) == (0, 0, 0)


def test_a_client_of_one_sample_has_no_dimension_and_no_noise() -> None:
    client = client_of(settings(), data_of(samples=1))
    figures = client.work(told(ONE), good_model()).figures
    assert figures == {LID: 0.0, LEVEL: 0.0, UNMEASURED: 1.0, FALLBACKS: 1.0, RELABELLED: 0.0}
    assert client.work(told(TWO, 1, 0.5), good_model()).figures == {RELABELLED: 0.0}


def test_a_decision_is_acted_upon_once() -> None:
    client, theta = client_of(settings()), good_model()
    given, right = data_of().y_train, true_labels(1, 6)[1]
    client.work(told(ONE), theta)
    reply = client.work(told(TWO, 1, 0.5), theta)
    corrected = labels_of(client)
    changed = corrected != given
    assert reply.figures[RELABELLED] == changed.sum()
    assert 20 < changed.sum() <= 60  # 240 samples, half of them noisy, half of those relabelled
    assert (corrected[changed] == right[changed]).mean() > 0.8
    assert client.work(told(TWO + 1, 1, 0.5), theta).figures[RELABELLED] == 0
    last = client.work(told(THREE, 2, 0.5), theta).figures[RELABELLED]
    assert last > 20
    assert (labels_of(client) != right).mean() < 0.15
    assert (given != right).mean() == 0.5


def test_a_clean_client_keeps_its_labels() -> None:
    client, theta = client_of(settings()), good_model()
    for number, decision in ((ONE, 0), (TWO, 1), (THREE, 2)):
        assert client.work(told(number, decision, 0.0), theta).figures[RELABELLED] == 0
    assert np.array_equal(labels_of(client), data_of().y_train)


def test_losses_and_gradients_of_stage_three_are_those_of_a_client_with_the_corrected_labels() -> None:
    client, theta = client_of(settings()), good_model()
    client.work(told(ONE), theta)
    reply = client.work(told(THREE, 2, 0.5), theta)
    plain = client_of(settings(method="dqn-fed"), data_of(labels_of(client)))
    expected = plain.work(ClientTask(THREE, THREE), theta)
    assert reply.row is not None
    assert expected.row is not None
    assert np.array_equal(reply.row, expected.row)
    assert (reply.loss, reply.rate) == (expected.loss, expected.rate)
    probe = ClientTask(10, 10, train=False, probe=True, factor=0.0, reference_loss=9.0)
    assert client.work(probe, theta).probe == plain.work(probe, theta).probe


@pytest.mark.parametrize("last", ["ditto", "dqn-fed"])
def test_a_client_brought_back_or_asked_again_goes_on_with_the_same_bits(last: str) -> None:
    kept = {"curvature.kind": "secant"} if last == "dqn-fed" else {}
    chosen, theta = settings(**{"fedcorr.last": last, **kept}), good_model()
    straight, lives = client_of(chosen), client_of(chosen)
    for task in (told(ONE), told(TWO, 1, 0.5), told(THREE, 2, 0.5), told(THREE + 1, 2, 0.5)):
        asked = replace(task, evaluate=True)
        expected = straight.work(asked, theta)
        if last == "ditto":  # curvature is kept by the number of the exchange, and the repeated one has another
            lives.work(asked, theta + 0.3)
        fresh = client_of(chosen)
        fresh.restore_state({name: np.array(value) for name, value in lives.export_state().items()})
        answer = fresh.work(asked, theta)
        assert equal(answer, expected)
        assert answer.test == expected.test
        theta, lives = theta - 0.01, fresh
    assert set(lives.export_state()) == set(straight.export_state())
    for name, value in straight.export_state().items():
        assert np.array_equal(lives.export_state()[name], value), name


def test_a_client_without_memory_has_its_own_labels_again() -> None:
    client, theta = client_of(settings()), good_model()
    client.work(told(ONE), theta)
    client.work(told(THREE, 2, 0.5), theta)
    client.restore_state({})
    probe = ClientTask(10, 10, train=False, probe=True, factor=0.0, reference_loss=9.0)
    assert client.work(probe, theta).probe == client_of(settings()).work(probe, theta).probe
