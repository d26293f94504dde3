"""Where a federation must do what one machine with all the data does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr import wire
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, load_client, to_model_input
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import Float64Array
from tests.helpers.nodes import app_over
from tests.helpers.quadratics import Federation, Quadratic, spread_out, start_at, strategy
from tests.helpers.runs import TINY

EXACT: dict[str, Any] = {**TINY, "dtype": "float64", "model": "mlp"}
FORMS: dict[str, dict[str, Any]] = {
    "two-sided": {"dqn-fed.form": "two-sided"},
    "one-sided": {"dqn-fed.form": "one-sided"},
    **{
        f"anchored by {name}": {"dqn-fed.form": "anchored", "dqn-fed.anchor": name}
        for name in ("fedsgd", "momentum", "server-lbfgs")
    },
    "fedsgd": {"method": "fedsgd", "step-rule": "clipped"},
    "mgda": {"method": "mgda", "step-rule": "clipped"},
}


def settings_of(**mapping: Any) -> Settings:
    return Settings.from_mapping({**EXACT, **mapping})


class Centralised:
    """All training samples on one machine."""

    def __init__(self, settings: Settings, clients: range) -> None:
        parts = [load_client(settings, client) for client in clients]
        self.inputs = torch.cat([to_model_input(part.x_train, torch.float64) for part in parts])
        self.labels = torch.cat([torch.from_numpy(np.array(part.y_train)) for part in parts])
        shape, classes = parts[0].input_shape, parts[0].num_classes
        self.model = build_model(settings.model, shape, classes, seed=settings.seed, dtype=torch.float64)
        self.spec = ParamSpec.of(self.model)

    def descend(self, lr: float, steps: int) -> Float64Array:
        """The model after so many full gradient steps."""
        optimiser = torch.optim.SGD(self.model.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            nn.functional.cross_entropy(self.model(self.inputs), self.labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return np.asarray(self.spec.flatten(self.model))


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_round_of_fedsgd_is_a_gradient_step_on_all_data(rounds: int) -> None:
    settings = settings_of(**{"method": "fedsgd", "local.lr": 0.3, "rounds": rounds, "split.alpha": 0.3})
    expected = Centralised(settings, range(settings.clients)).descend(0.3, rounds)
    np.testing.assert_allclose(run(settings).theta, expected, rtol=1e-10, atol=1e-12)


def test_fedavg_with_equal_clients_is_local_sgd() -> None:
    settings = settings_of(**{"method": "fedavg", "clients": 1, "local.epochs": 4, "local.lr": 0.2})
    expected = Centralised(settings, range(1)).descend(0.2, 2 * 4)
    for copies in (1, 3):
        server = copied(settings, load_client(settings, 0), copies)
        np.testing.assert_allclose(server, expected, rtol=1e-10, atol=1e-12)


def copied(settings: Settings, data: ClientData, copies: int) -> Float64Array:
    """The model of a federation of clients that all hold `data`."""
    several = Settings.from_mapping({**settings.flat(), "clients": copies})
    clients = [DQNFedClient(several, partition, data) for partition in range(copies)]
    model = build_model(settings.model, data.input_shape, data.num_classes, seed=0, dtype=torch.float64)
    server = DQNFed(several)
    start = wire.encode_model(ParamSpec.of(model).flatten(model).numpy(), {})
    server.start(InProcessGrid(app_over(clients), copies, {}), start)
    assert server.outcome is not None
    return np.asarray(server.outcome.theta)


@pytest.mark.parametrize("form", FORMS)
def test_copies_of_a_client_are_that_client_alone(form: str) -> None:
    only = spread_out(1)[0]

    def final(copies: int) -> Float64Array:
        server = strategy(copies, {"rounds": 6, **FORMS[form]})
        federation = Federation([only] * copies)
        server.start(InProcessGrid(federation.app(), copies, {}), start_at(np.zeros(6)))
        assert server.outcome is not None
        return np.asarray(server.outcome.theta)

    np.testing.assert_allclose(final(5), final(1), rtol=1e-7)


@pytest.mark.parametrize("kind", ["none", "secant", "hvp"])
def test_copies_of_a_client_with_real_data_are_that_client_alone(kind: str) -> None:
    settings = settings_of(**{"clients": 1, "rounds": 4, "curvature.kind": kind, "dqn-fed.form": "two-sided"})
    data = load_client(settings, 0)
    np.testing.assert_allclose(copied(settings, data, 4), copied(settings, data, 1), rtol=1e-6, atol=1e-9)


def test_with_copies_the_step_is_quasi_newton() -> None:
    # Exact rates make the two-sided step g / |g|^2 times the squared Newton decrement: for a round bowl, Newton's own.
    bowl = Quadratic(np.arange(1.0, 7.0), 3.0)
    server = strategy(4, {"rounds": 1, "dqn-fed.form": "two-sided", "step-rule": "newton"})
    server.start(InProcessGrid(Federation([bowl] * 4).app(), 4, {}), start_at(np.zeros(6)))
    assert server.outcome is not None
    np.testing.assert_allclose(server.outcome.theta, bowl.center, rtol=1e-9)
