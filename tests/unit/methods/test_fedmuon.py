from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dqnfed_flwr import wire
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.work import RngKey
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data import load_client
from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.methods._base import Method, make_method
from dqnfed_flwr.methods.fedmuon import client as fedmuon_client
from dqnfed_flwr.methods.fedmuon.client import orthogonal
from dqnfed_flwr.strategy.own_clients import contents_of
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray, on_host
from tests.helpers.clients import local_loss
from tests.helpers.rounds import decide
from tests.helpers.runs import TINY

FEDMUON: dict[str, Any] = {**TINY, "method": "fedmuon", "dtype": "float64", "local.batch-size": 0, "local.lr": 1.0}
STEP = np.linspace(-1, 1, 650)
FACTOR = 0.5


def fedmuon(**changes: Any) -> Settings:
    return Settings.from_mapping({**FEDMUON, **changes})


def answer(settings: Settings, number: int = 1, momentum: FloatArray | None = None, **task: Any) -> ClientReply:
    """What client 0 makes of the first model; in later rounds the last step was `STEP`."""
    theta = local_loss(settings).model.theta.numpy().copy()
    client = DQNFedClient(settings, 0, load_client(settings, 0))
    step, sent = (STEP, FACTOR) if number > 1 else (None, 0.0)
    vectors = {} if momentum is None else {"momentum": momentum}
    return client.work(ClientTask(number, number, factor=sent, **task), theta, step, {}, vectors)


def parts(vector: FloatArray | torch.Tensor | None) -> tuple[FloatArray, FloatArray]:
    """Weight [10, 64] and bias [10] of the logistic model."""
    assert vector is not None
    values = on_host(vector)
    return values[:640].reshape(10, 64), values[640:]


@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(3, 3), (2, 5), (5, 2), (4, 3, 2, 2), (1, 4)]),
    scale=st.sampled_from([1e-5, 1.0, 1e8]),
)
def test_singular_values_go_through_muons_polynomial(seed: int, shape: tuple[int, ...], scale: float) -> None:
    matrix = scale * np.random.default_rng(seed).standard_normal(shape)
    u, s, vt = np.linalg.svd(matrix.reshape(shape[0], -1), full_matrices=False)
    s = s / np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    found = orthogonal(torch.from_numpy(matrix))
    assert found.shape == shape
    np.testing.assert_allclose(found.numpy().reshape(shape[0], -1), u * s @ vt, rtol=1e-8, atol=1e-9)


@given(seed=st.integers(0, 10_000), rows=st.integers(1, 8), columns=st.integers(1, 8))
def test_a_matrix_far_from_singular_becomes_nearly_orthogonal(seed: int, rows: int, columns: int) -> None:
    u, s, vt = np.linalg.svd(np.random.default_rng(seed).standard_normal((rows, columns)), full_matrices=False)
    found = orthogonal(torch.from_numpy(u * np.maximum(s, 0.1 * s.max()) @ vt)).numpy()
    values = np.linalg.svd(found, compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.2
    np.testing.assert_allclose(u.T @ found @ vt.T, np.diag(np.diag(u.T @ found @ vt.T)), atol=1e-9)


def test_of_nothing_comes_nothing() -> None:
    assert not orthogonal(torch.zeros(3, 4)).any()


def test_one_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the mean momentum M, with the last move u: M' = 0.5 M + g, and -step = 0.75 rate orth(M') + 0.25 * 0.5 u."""
    monkeypatch.setattr(fedmuon_client, "BETA", 0.5)
    settings = fedmuon(
        **{
            **{"fedmuon.alignment": 0.25, "local.decay": 0.5, "local.lr": 2.0},
            **{"fedmuon.matrix-rate": 0.3},
        }
    )
    loss = local_loss(settings)
    gradient = loss.loss_and_gradient(loss.model.theta.clone())[1].numpy()
    momentum = np.random.default_rng(0).standard_normal(650)
    momentum[640:] = 0
    reply = answer(settings, 2, momentum, directives={"momentum": 1.0})
    kept, none = parts(reply.vectors["momentum"])
    expected = parts(0.5 * momentum + gradient)[0]
    np.testing.assert_allclose(kept, expected, rtol=1e-10, atol=1e-14)
    assert not none.any()
    weight, bias = parts(reply.row)
    pull, bias_pull = parts(0.25 * 0.5 * FACTOR * STEP)
    moved = 0.75 * 2.0 * 0.5 * 0.3 * orthogonal(torch.from_numpy(expected)).numpy()
    np.testing.assert_allclose(weight, moved + pull, rtol=1e-9, atol=1e-12)
    # Adam's first step is its rate, up or down.
    np.testing.assert_allclose(bias, 0.75 * 2.0 * 0.5 * 0.03 * np.sign(gradient[640:]) + bias_pull, rtol=1e-5)


@pytest.mark.parametrize(("epochs", "batch"), [(1, 0), (3, 0), (2, 16)])
def test_passes_are_those_of_torch(epochs: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's Muon makes matrices orthogonal in bfloat16; here it is kept from that."""
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    monkeypatch.setattr(fedmuon_client, "BETA", 0.9)
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    settings = fedmuon(**{"local.epochs": epochs, "local.batch-size": batch, "fedmuon.alignment": 0.0})
    loss, key = local_loss(settings), RngKey(settings.seed, 1, 0)
    start = loss.model.theta.clone()
    loss.model.place(start.clone())
    (x, y), (weight, bias) = loss.tensors, loss.model.parameters
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Muon([weight], lr=0.1, weight_decay=0.0, momentum=0.9, nesterov=False),
        torch.optim.Adam([bias], lr=0.01, betas=(0.9, 0.95)),
    ]
    shuffle = key.generator(0)
    for _ in range(epochs):
        for rows in torch.split(torch.from_numpy(shuffle.permutation(len(y))), batch or len(y)):
            value: Tensor = torch.nn.functional.cross_entropy(loss.model.module(x[rows]), y[rows])
            weight.grad, bias.grad = torch.autograd.grad(value, [weight, bias])
            for optimiser in optimisers:
                optimiser.step()
    expected_weight, expected_bias = parts((start - loss.model.theta).detach().numpy())
    found_weight, found_bias = parts(answer(settings).row)
    np.testing.assert_allclose(found_weight, expected_weight, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found_bias, expected_bias, rtol=1e-7, atol=1e-9)


def test_the_pull_of_the_last_step_is_the_same_with_more_mini_batches() -> None:
    settings = fedmuon(**{"local.batch-size": 16, "fedmuon.matrix-rate": 1e-12})
    for number, expected in ((1, 0 * STEP), (2, 0.5 * FACTOR * STEP)):
        weight, bias = parts(answer(settings, number).row)
        np.testing.assert_allclose(np.append(weight, bias), expected, atol=1e-9)


def test_a_momentum_that_did_not_come_is_missed() -> None:
    with pytest.raises(ShapeError, match="none came with the model"):
        answer(fedmuon(), 2, directives={"momentum": 1.0})


def test_momentum_of_plain_passes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.momentum: .* found 0\.9; use 0"):
        fedmuon(**{"local.momentum": 0.9})


def told(method: Method, *momenta: list[float]) -> dict[str, Tensor]:
    rows = np.eye(2)
    decide(method, rows, examples=[1, 3], vectors={"momentum": tuple(np.array(each, np.float64) for each in momenta)})
    return dict(method.sends(2))


def test_the_server_sends_the_mean_momentum_and_averages_as_fedavg_does() -> None:
    method = make_method(resolve(fedmuon()))
    assert (dict(method.sends(1)), dict(method.directives(1, 0))) == ({}, {"momentum": 0.0})
    np.testing.assert_allclose(told(method, [4, 0], [0, 8])["momentum"], [1, 6])
    assert dict(method.directives(2, 0)) == {"momentum": 1.0}
    np.testing.assert_allclose(decide(method, np.eye(2), examples=[1, 3]).step, [0.25, 0.75], rtol=1e-12)


def test_a_mean_whose_square_is_no_number_is_left_out() -> None:
    method = make_method(resolve(fedmuon()))
    told(method, [4, 0], [0, 8])
    sent = told(method, [1e200, 0], [0, 8])
    np.testing.assert_allclose(sent["momentum"], [1, 6])
    assert decide(method, np.eye(2)).combination.notes["overflow"] == 0


def test_only_those_who_train_are_sent_the_momentum() -> None:
    settings, theta = fedmuon(), np.zeros(2)
    method = make_method(resolve(settings))
    tasks = {0: ClientTask(2, 2), 1: ClientTask(2, 2, train=False, evaluate=True)}
    schedule = Schedule(tasks, train=(0,), probe=(), evaluate=(1,), round=2)
    state = RunState.at(wire.encode_model(theta, {}))
    for momenta in ((), ([4.0, 0.0], [0.0, 8.0])):
        if momenta:
            told(method, *momenta)
        sent = {
            client: wire.decode_task(content)
            for client, content in contents_of(schedule, state, resolve(settings), method).items()
        }
        assert [set(sent[client].vectors) for client in (0, 1)] == [{"momentum"} if momenta else set(), set()]
