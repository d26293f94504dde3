"""FedNew from the clients' models to the server's step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr.client.curvature import Curvature, Point
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import CurvatureState, RoundMemory
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.work import ClientContext, LocalRequest, RngKey
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.methods.fednew import client as fednew_client
from dqnfed_flwr.methods.fednew.client import FedNewWork, quantise
from dqnfed_flwr.params import Line
from dqnfed_flwr.types import ClientTask, Float64Array
from tests.helpers.rounds import decide
from tests.helpers.runs import TINY
from tests.helpers.second_order import DIM, Rounds, client_data, gradient_at, hessian_at, optimum, row_of, settings_of

ALPHA, RHO = 0.05, 0.2
FEDNEW: dict[str, Any] = {"method": "fednew", "fednew.alpha": ALPHA, "fednew.rho": RHO, "fednew.form": "exact"}


def rounds_of(clients: int, **mapping: Any) -> Rounds:
    settings = settings_of(clients, {**FEDNEW, **mapping})
    parts = [client_data(k) for k in range(clients)]
    return Rounds(settings, parts, make_method(resolve(settings)), np.zeros(DIM))


def reference(clients: int, rounds: int, *, refresh: int = 1) -> Float64Array:
    """The published iteration on gradients and Hessians that torch has no part in."""
    parts = [client_data(k) for k in range(clients)]
    counts = np.array([len(part.y_train) for part in parts])
    theta, y, duals = np.zeros(DIM), np.zeros(DIM), np.zeros((clients, DIM))
    hessians = [hessian_at(theta, part) for part in parts]
    for number in range(rounds):
        if refresh and number % refresh == 0:
            hessians = [hessian_at(theta, part) for part in parts]
        answers = np.array(
            [
                np.linalg.solve(h + (ALPHA + RHO) * np.eye(DIM), gradient_at(theta, part) - u + RHO * y)
                for h, part, u in zip(hessians, parts, duals, strict=True)
            ]
        )
        y = counts @ answers / counts.sum()
        duals = duals + RHO * (answers - y)
        theta = theta - y
    return theta


@pytest.mark.parametrize("refresh", [1, 3, 0])
def test_rounds_are_those_of_the_paper(refresh: int) -> None:
    federation = rounds_of(3, **{"fednew.refresh": refresh})
    federation.go(7)
    np.testing.assert_allclose(federation.theta, reference(3, 7, refresh=refresh), rtol=1e-6, atol=1e-8)


def test_conjugate_gradients_give_the_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fednew_client, "PRODUCTS", 60)
    monkeypatch.setattr(fednew_client, "TOLERANCE", 0.0)
    exact, products = rounds_of(3), rounds_of(3, **{"fednew.form": "cg"})
    exact.go(5)
    products.go(5)
    np.testing.assert_allclose(products.theta, exact.theta, rtol=1e-8, atol=1e-10)


def test_the_fixed_point_is_the_optimum() -> None:
    federation = rounds_of(3)
    federation.go(100)
    np.testing.assert_allclose(federation.theta, optimum([client_data(k) for k in range(3)]), atol=1e-7)
    # There each dual is its client's own gradient, as y_k = y = 0 asks for.
    for k, reply in federation.replies().items():
        assert float(np.abs(row_of(reply)).max()) < 1e-6  # y_k
        kept = federation.clients[k].export_state()
        np.testing.assert_allclose(kept["work/after/dual"], gradient_at(federation.theta, client_data(k)), atol=1e-6)


def test_two_clients_by_hand() -> None:
    # One parameter, H_1 = 1, H_2 = 3, alpha = 0, rho = 1, equal shares, constant gradients 2 and -4 for two rounds.
    # Round 1: y_1 = 2 / 2 = 1, y_2 = -4 / 4 = -1, y = 0, u = (1, -1).
    # Round 2: y_1 = (2 - 1) / 2 = 1/2, y_2 = (-4 + 1) / 4 = -3/4, y = -1/8, u_1 = 1 + 1/2 + 1/8 = 13/8.

    settings = Settings.from_mapping({**FEDNEW, "fednew.alpha": 0, "fednew.rho": 1, "dtype": "float64"})
    works = [scalar_work(FedNewWork, settings, hessian) for hessian in (1.0, 3.0)]
    method, step = make_method(resolve(settings)), None
    expected = [([1.0, -1.0], 0.0), ([0.5, -0.75], -0.125)]
    for number, (answers, mean) in enumerate(expected, start=1):
        directives = [method.directives(number, k) for k in (0, 1)]
        rows = np.array(
            [
                [work(number, slope, step, told)]
                for work, slope, told in zip(works, (2.0, -4.0), directives, strict=True)
            ]
        )
        np.testing.assert_allclose(rows[:, 0], answers, rtol=1e-14)
        step = float(decide(method, rows, number=number).step[0])
        assert step == pytest.approx(mean, abs=1e-15)


def scalar_work(kind: Any, settings: Settings, hessian: float) -> Any:
    """A client of one parameter with that Hessian, as a function of round, gradient, step before and directives."""

    cpu = torch.device("cpu")
    module = nn.Linear(1, 1, bias=False).double()
    # One class: the cross-entropy is constant, so the ridge is the whole Hessian.
    loss = LocalLoss(FlatModel(module, cpu), (torch.ones(2, 1).double(), torch.zeros(2).long()), ridge=hessian)
    memory = RoundMemory(torch.float64, cpu)
    state = CurvatureState(1, torch.float64, cpu)
    work = kind(ClientContext(resolve(settings), loss, Curvature(settings.curvature, 0.1, loss, state), memory))

    def answer(number: int, slope: float, step: float | None, told: Any) -> float:
        theta = torch.zeros(1).double()
        line = Line(theta, None if step is None else np.array([step]), float(step is not None), torch.tensor)
        request = LocalRequest(ClientTask(number, number, directives=told), RngKey(0, number, 0), line)
        return float(work.perform(request, Point(number, theta, torch.tensor([slope]).double(), 0.0)).row)

    return answer


def test_one_client_is_damped_newton() -> None:
    # u stays 0 for one client, and y of the round before pulls: (H + (alpha + rho) I) y' = g + rho y.
    federation = rounds_of(1)
    federation.go(5)
    np.testing.assert_allclose(federation.theta, reference(1, 5), rtol=1e-6, atol=1e-8)
    newton = rounds_of(1, **{"fednew.alpha": 0.0, "fednew.rho": 1e-9})
    step = newton.go().step
    expected = np.linalg.solve(hessian_at(np.zeros(DIM), client_data(0)), gradient_at(np.zeros(DIM), client_data(0)))
    np.testing.assert_allclose(step, expected, rtol=1e-5, atol=1e-8)


def test_the_ridge_counts_once() -> None:
    part = client_data(1)
    federation = rounds_of(2)
    reply = federation.replies()[1]
    system = hessian_at(np.zeros(DIM), part) + (ALPHA + RHO) * np.eye(DIM)  # its ridge is in there
    np.testing.assert_allclose(row_of(reply), np.linalg.solve(system, gradient_at(np.zeros(DIM), part)), rtol=1e-6)


def test_a_reply_that_did_not_count_leaves_the_dual_alone() -> None:
    federation = rounds_of(2)
    lost = federation.replies()[1]
    assert row_of(lost).any()
    federation.go(present=[0])  # client 1 worked, but its reply never arrived
    federation.replies([1])
    assert not federation.clients[1].export_state()["work/after/dual"].any()
    federation.go(present=[0, 1])
    federation.replies([1])
    assert federation.clients[1].export_state()["work/after/dual"].any()


@pytest.mark.parametrize("absent", [0, 2])
def test_a_client_that_misses_a_round_does_not_move_the_fixed_point(absent: int) -> None:
    federation = rounds_of(3)
    federation.go(3)
    federation.go(present=[k for k in range(3) if k != absent])
    federation.go(100)
    np.testing.assert_allclose(federation.theta, optimum([client_data(k) for k in range(3)]), atol=1e-7)


def test_a_client_that_comes_back_later_begins_with_the_others_duals_in_balance() -> None:
    federation = rounds_of(3)
    federation.go(3)
    for _ in range(4):
        federation.go(present=[0, 1])
    federation.go(100)
    np.testing.assert_allclose(federation.theta, optimum([client_data(k) for k in range(3)]), atol=1e-7)


def test_a_repeated_round_and_a_restart_give_the_same_bits() -> None:
    straight = rounds_of(2)
    straight.go(3)
    once, twice = straight.replies(), straight.replies()
    settings = straight.settings
    for k, client in enumerate(straight.clients):
        arrays = {name: np.array(values) for name, values in client.export_state().items()}
        straight.clients[k] = DQNFedClient(settings, k, client_data(k), arrays)
    restarted = straight.replies()
    for k in once:
        assert np.array_equal(row_of(once[k]), row_of(twice[k]))
        assert np.array_equal(row_of(once[k]), row_of(restarted[k]))


def test_quantised_values_lie_on_levels_and_are_right_in_the_mean() -> None:
    rng = np.random.default_rng(0)
    before, vector = torch.from_numpy(rng.standard_normal(6)), torch.from_numpy(rng.standard_normal(6))
    draws = torch.stack([quantise(vector, before, 3, rng) for _ in range(4000)])
    reach = float((vector - before).abs().max())
    levels = ((draws - before + reach) / (2 * reach / 7)).numpy()
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-9)
    assert levels.min() > -0.5
    assert levels.max() < 7.5
    # A draw deviates by at most a level of 2 R / 7: five standard errors of 4000 draws.
    np.testing.assert_allclose(draws.mean(dim=0), vector, atol=5 * (2 * reach / 7) / 2 / 4000**0.5)
    assert torch.equal(quantise(before, before, 3, rng), before)


def test_what_is_rounded_is_the_difference_to_the_row_before() -> None:
    # With one bit every difference is -R or R.
    federation = rounds_of(2, **{"fednew.bits": 1})
    first = row_of(federation.replies()[0])
    federation.go()
    differences = np.abs(row_of(federation.replies()[0]) - first)
    assert differences.min() > 0
    np.testing.assert_allclose(differences, differences.max(), rtol=1e-9)


def test_negative_curvature_along_the_first_direction_gives_a_gradient_step() -> None:
    settings = Settings.from_mapping(
        {**FEDNEW, "fednew.form": "cg", "fednew.alpha": 0.1, "dtype": "float64", "local.lr": 0.1}
    )
    work = scalar_work(FedNewWork, settings, -1.0)
    assert work(1, 2.0, None, make_method(resolve(settings)).directives(1, 0)) == pytest.approx(0.1 * 2)
    # u = rho (0.2 - 0.5) = -0.06, and the step before pulls by rho 0.5 = 0.1.
    assert work(2, 2.0, 0.5, {"taken": 1.0}) == pytest.approx(0.1 * (2 + 0.06 + 0.1))


@pytest.mark.parametrize("scale", [255.0, 1e4])
def test_the_exact_form_is_repaired_whatever_the_features(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = scale * torch.rand(20, 100, generator=generator), torch.arange(20) % 3
    loss = LocalLoss(FlatModel(nn.Linear(100, 3), torch.device("cpu")), (x, y))
    settings = Settings.from_mapping({**FEDNEW, "fednew.alpha": 1e-3, "fednew.rho": 1e-3})
    cpu = torch.device("cpu")
    state, memory = CurvatureState(1, torch.float32, cpu), RoundMemory(torch.float32, cpu)
    work = FedNewWork(ClientContext(resolve(settings), loss, Curvature(settings.curvature, 0.1, loss, state), memory))
    theta = torch.zeros_like(loss.model.theta)  # all classes alike, so that the Hessian is as large as it can be
    value, gradient = loss.loss_and_gradient(theta)
    line = Line(theta, None, 0.0, torch.tensor)
    result = work.perform(
        LocalRequest(ClientTask(1, 1, directives={"taken": 0.0}), RngKey(0, 1, 0), line),
        Point(1, theta, gradient, value),
    )
    assert result.figures["repaired"] == 1
    assert bool(result.row.isfinite().all())
    assert float(result.row @ gradient) > 0


def test_three_bits_reach_the_optimum_too() -> None:
    federation = rounds_of(2, **{"fednew.bits": 3})
    federation.go(70)
    np.testing.assert_allclose(federation.theta, optimum([client_data(k) for k in range(2)]), atol=1e-4)


def test_a_model_too_large_for_the_exact_form_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="at most 2000"):
        run({**TINY, "method": "fednew", "fednew.form": "exact", "model": "mlp"})


def test_titles_name_the_form() -> None:
    assert Settings.from_mapping({"method": "fednew"}).title == "FedNew (CG, Gauss-Newton)"
    assert Settings.from_mapping({"method": "fednew", "fednew.matrix": "hessian"}).title == "FedNew (CG)"
    assert Settings.from_mapping(FEDNEW).title == "FedNew"
    assert Settings.from_mapping({**FEDNEW, "fednew.bits": 3}).title == "Q-FedNew"
