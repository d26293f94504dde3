"""LocalNewton from the clients' models to the server's step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.methods.local_newton import client as newton_client
from dqnfed_flwr.types import ClientTask
from tests.helpers.rounds import decide
from tests.helpers.runs import TINY
from tests.helpers.second_order import DIM, Rounds, client_data, gradient_at, hessian_at, optimum, row_of, settings_of

NEWTON = {"method": "local-newton", "local-newton.damping": 0.0}


@pytest.fixture(autouse=True)
def _close_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve down to rounding."""
    monkeypatch.setattr(newton_client, "PRODUCTS", 100)
    monkeypatch.setattr(newton_client, "TOLERANCE", 0.0)


def rounds_of(clients: int, **mapping: object) -> Rounds:
    settings = settings_of(clients, {**NEWTON, **mapping})
    parts = [client_data(k) for k in range(clients)]
    return Rounds(settings, parts, make_method(resolve(settings)), np.zeros(DIM))


def test_two_clients_by_hand() -> None:
    # f_1 = (x - 2)^2 / 2 and f_2 = 4 (x + 1)^2 / 2 at x = 0: Newton steps -2 and 1, of 30 and 10 samples: -5/4.
    # The step is subtracted, so that x = 5/4, which is no minimum of the mean: that one lies at 2/7.
    settings = Settings.from_mapping({"method": "local-newton"})
    solved = decide(make_method(resolve(settings)), np.array([[-2.0], [1.0]]), examples=[30, 10])
    np.testing.assert_allclose(solved.step, [-1.25], rtol=1e-15)


def test_a_row_is_the_newton_step_of_its_client() -> None:
    federation = rounds_of(2, **{"local-newton.damping": 0.3})
    for k, reply in federation.replies().items():
        part = client_data(k)
        expected = np.linalg.solve(
            hessian_at(np.zeros(DIM), part) + 0.3 * np.eye(DIM), gradient_at(np.zeros(DIM), part)
        )
        np.testing.assert_allclose(row_of(reply), expected, rtol=1e-6, atol=1e-9)
        assert reply.figures["negative"] == 0


def test_one_client_converges_quadratically_to_the_optimum() -> None:
    federation, best = rounds_of(1), optimum([client_data(0)])
    errors = []
    for _ in range(7):
        federation.go()
        errors.append(float(np.abs(federation.theta - best).max()))
    assert errors[-1] < 1e-9
    assert errors[3] < errors[2] ** 1.5  # faster than any line


def test_clients_that_are_copies_take_newtons_step() -> None:
    part = client_data(3)
    settings = settings_of(3, NEWTON)
    federation = Rounds(settings, [part] * 3, make_method(resolve(settings)), np.full(DIM, 0.1))
    newton = np.linalg.solve(hessian_at(np.full(DIM, 0.1), part), gradient_at(np.full(DIM, 0.1), part))
    np.testing.assert_allclose(federation.go().step, newton, rtol=1e-6, atol=1e-9)


def test_the_mean_of_newton_steps_is_newton_where_hessians_agree() -> None:
    # Client k has f_k = 1/2 (x - c_k)^T H (x - c_k): H^-1 g_k = x - c_k, whose mean leads to the mean centre at once.
    rng = np.random.default_rng(0)
    root = rng.standard_normal((5, 5))
    hessian, centres, theta = root @ root.T + np.eye(5), rng.standard_normal((4, 5)), rng.standard_normal(5)
    rows = np.array([np.linalg.solve(hessian, hessian @ (theta - centre)) for centre in centres])
    method = make_method(resolve(Settings.from_mapping({"method": "local-newton"})))
    np.testing.assert_allclose(theta - decide(method, rows).step.numpy(), centres.mean(axis=0), rtol=1e-10, atol=1e-12)


def test_several_local_steps_are_displacements() -> None:
    single = rounds_of(1)
    single.go(3)
    several = rounds_of(1, **{"local.epochs": 3})
    several.go()
    np.testing.assert_allclose(several.theta, single.theta, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("matrix", ["hessian", "gauss-newton"])
def test_negative_curvature_is_reported_and_gauss_newton_has_none(matrix: str) -> None:
    # The Hessian of a network at its start is indefinite: with no damping some solve must meet that.
    settings = Settings.from_mapping(
        {**TINY, **NEWTON, "model": "mlp", "rounds": 1, "clients": 2, "local-newton.matrix": matrix}
    )
    notes = run(settings).events[0].notes
    assert notes["negative_curvature"] == (2 if matrix == "hessian" else 0)


def test_without_any_positive_curvature_the_row_is_a_gradient_step(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(1, {**NEWTON, "local.lr": 0.25, "local-newton.matrix": "hessian"})
    client = DQNFedClient(settings, 0, client_data(0))
    monkeypatch.setattr("dqnfed_flwr.client.gradients.LocalLoss.hessian_product", lambda *_: -torch.ones(DIM).double())
    monkeypatch.setattr(
        "dqnfed_flwr.client.work.second_order._dot", lambda a, b: -1.0 if bool((b == -1).all()) else 1.0
    )
    reply = client.work(ClientTask(1, 1), np.zeros(DIM))
    np.testing.assert_allclose(row_of(reply), 0.25 * gradient_at(np.zeros(DIM), client_data(0)), rtol=1e-12)
    assert reply.figures == {"iterations": 1.0, "negative": 1.0, "residual": 1.0}


def test_the_history_of_pairs_serves_as_solver() -> None:
    lbfgs = {"local-newton.solver": "lbfgs", "curvature.kind": "secant", "curvature.memory": 5}
    federation = rounds_of(1, **lbfgs)
    first = federation.replies()[0]
    np.testing.assert_allclose(row_of(first), 0.1 * gradient_at(np.zeros(DIM), client_data(0)), rtol=1e-10)
    federation.go(40)
    np.testing.assert_allclose(federation.theta, optimum([client_data(0)]), atol=1e-4)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"local-newton.solver": "lbfgs"}, "curvature.kind"),
        ({"local-newton.solver": "lbfgs", "curvature.kind": "hvp", "local.epochs": 2}, "local.epochs"),
        ({"step-rule": "probed"}, "step-rule"),
    ],
)
def test_impossible_settings_are_refused(mapping: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.from_mapping({"method": "local-newton", **mapping})


def test_titles_name_the_form() -> None:
    def title(**mapping: object) -> str:
        return Settings.from_mapping({"method": "local-newton", **mapping}).title

    assert title() == "LocalNewton (CG, Gauss-Newton)"
    assert title(**{"local-newton.matrix": "hessian"}) == "LocalNewton (CG)"
    assert title(**{"local-newton.solver": "lbfgs", "curvature.kind": "hvp"}) == "LocalNewton (L-BFGS)"


def test_a_run_through_messages_converges() -> None:
    result = run({**TINY, "method": "local-newton", "rounds": 4, "ridge": 0.01})
    losses = [float(np.mean(event.losses_before)) for event in result.events]
    assert losses[-1] < 0.5 * losses[0]
    assert 0 < result.events[0].notes["cg_iterations"] <= 20
