"""FedNL from the clients' models to the server's step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.methods.fednl import server
from dqnfed_flwr.methods.fednl.server import MOST_RESTARTS
from dqnfed_flwr.types import Float64Array
from tests.helpers.rounds import decide
from tests.helpers.runs import TINY
from tests.helpers.second_order import DIM, Rounds, client_data, gradient_at, hessian_at, optimum, settings_of

FEDNL: dict[str, Any] = {"method": "fednl", "fednl.form": "exact", "fednl.size": 1}
WHOLE: dict[str, Any] = {"fednl.size": DIM}
START = np.linspace(-0.5, 0.5, DIM)
"""At 0 all classes are alike, and the largest eigenvalue belongs to a plane: Rank-1 would be a matter of taste."""


def rounds_of(clients: int, sampled: Any = None, **mapping: Any) -> Rounds:
    share = {} if sampled is None else {"participation": sampled / clients}
    settings = settings_of(clients, {**FEDNL, **share, **mapping})
    parts = [client_data(k) for k in range(clients)]
    return Rounds(settings, parts, make_method(resolve(settings)), START)


def shares_of(clients: int) -> Float64Array:
    counts = np.array([len(client_data(k).y_train) for k in range(clients)])
    return np.asarray(counts / counts.sum())


def newton_step(theta: Float64Array, clients: int) -> Float64Array:
    shares = shares_of(clients)
    hessian = sum(p * hessian_at(theta, client_data(k)) for k, p in enumerate(shares))
    gradient = sum(p * gradient_at(theta, client_data(k)) for k, p in enumerate(shares))
    return np.asarray(np.linalg.solve(hessian, gradient))


def rank_one(matrix: Float64Array) -> Float64Array:
    values, vectors = np.linalg.eigh(matrix)
    k = int(np.abs(values).argmax())
    return np.asarray(values[k] * np.outer(vectors[:, k], vectors[:, k]))


def algorithm_one(clients: int, rounds: int, alpha: float) -> Float64Array:
    """Algorithm 1 with option 2 and Rank-1, from H_k = 0, without torch."""
    parts, shares, theta = [client_data(k) for k in range(clients)], shares_of(clients), START
    known = np.zeros((clients, DIM, DIM))
    for _ in range(rounds):
        errors = np.array([hessian_at(theta, part) for part in parts]) - known
        shift = shares @ np.linalg.norm(errors, axis=(1, 2))
        gradient = shares @ np.array([gradient_at(theta, part) for part in parts])
        matrix = np.tensordot(shares, known, 1) + shift * np.eye(DIM)
        known = known + alpha * np.array([rank_one(error) for error in errors])
        theta = theta - np.linalg.solve(matrix, gradient)
    return theta


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_rounds_are_those_of_the_paper(alpha: float) -> None:
    federation = rounds_of(3, **{"fednl.alpha": alpha})
    federation.go(6)
    np.testing.assert_allclose(federation.theta, algorithm_one(3, 6, alpha), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("option", ["shift", "projection"])
@pytest.mark.parametrize("compressor", ["rank", "top"])
def test_without_compression_and_fresh_it_is_newtons_method(option: str, compressor: str) -> None:
    federation = rounds_of(2, **WHOLE, **{"fednl.fresh": True, "fednl.option": option, "fednl.compressor": compressor})
    for _ in range(6):
        expected = federation.theta - newton_step(federation.theta, 2)
        federation.go()
        np.testing.assert_allclose(federation.theta, expected, atol=1e-8)
    assert float(np.abs(federation.theta - optimum([client_data(0), client_data(1)])).max()) < 1e-8


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"fednl.compressor": "top"},
        {"fednl.option": "projection"},
        {"fednl.fresh": True},
        {"fednl.alpha": 0.7, "fednl.size": 3},
    ],
)
def test_the_optimum_is_reached_faster_and_faster(mapping: dict[str, Any]) -> None:
    federation = rounds_of(3, **mapping)
    best = optimum([client_data(k) for k in range(3)])
    federation.go(30)
    early = float(np.abs(federation.theta - best).max())
    federation.go(30)
    late = float(np.abs(federation.theta - best).max())
    assert late < 1e-8
    assert late < early**1.2 or early < 1e-8


def test_two_clients_by_hand() -> None:
    # H_1 = (2), H_2 = (4), g = 6 and 0, n = 10 and 30, from H_k = 0. Round 1: l = (2 + 3 * 4) / 4 = 3.5, g = 1.5, so
    # the step is 1.5 / 3.5. Round 2: H = (2 + 3 * 4) / 4 = 3.5 and l = 0, with g = 3 and 1: 1.5 / 3.5 again.
    method = make_method(resolve(Settings.from_mapping({"method": "fednl", "fednl.form": "exact", "clients": 2})))
    for number, corrections, errors, slopes in (
        (1, (2.0, 4.0), (2.0, 4.0), (6.0, 0.0)),
        (2, (0.0, 0.0), (0.0, 0.0), (3.0, 1.0)),
    ):
        solved = decide(
            method,
            np.array(slopes)[:, None],
            examples=[10, 30],
            number=number,
            vectors={
                "values": tuple(np.array([[value]]) for value in corrections),
                "vectors": tuple(np.ones((1, 1, 1)) for _ in corrections),
                "errors": tuple(np.array([error]) for error in errors),
            },
            figures={"anew": np.full(2, float(number == 1))},
        )
        np.testing.assert_allclose(solved.step, [1.5 / 3.5], rtol=1e-14)


def test_one_that_always_begins_anew_ends_the_hessians_of_the_others_a_few_times() -> None:
    method = make_method(resolve(Settings.from_mapping({"method": "fednl", "fednl.form": "exact", "clients": 2})))
    one = {"values": np.ones((1, 1)), "vectors": np.ones((1, 1, 1)), "errors": np.ones(1)}
    restarts = []
    for number in range(1, 12):
        solved = decide(
            method,
            np.ones((2, 1)),
            number=number,
            vectors={name: (values, values) for name, values in one.items()},
            figures={"anew": np.array([1.0, float(method.directives(number, 1)["taken"] == 0)])},
        )
        notes = solved.combination.notes
        restarts.append((notes["restarts"], notes["left_out"]))
        method.restore_state({name: np.array(value) for name, value in method.export_state().items()})
    assert restarts.count((1.0, 0.0)) + restarts.count((1.0, 1.0)) == MOST_RESTARTS
    assert restarts[-1] == (0.0, 1.0)


def test_the_weight_of_a_hessian_is_the_sample_count_that_was_checked() -> None:
    assert "samples" not in make_method(resolve(settings_of(2, FEDNL))).extras(DIM).figures


def test_the_error_is_the_frobenius_norm() -> None:
    reply = rounds_of(1).replies()[0]
    hessian = hessian_at(START, client_data(0))
    assert float(reply.vectors["errors"][0]) == pytest.approx(float(np.linalg.norm(hessian, "fro")), rel=1e-7)
    assert float(np.linalg.norm(hessian, 2)) < 0.9 * float(reply.vectors["errors"][0])


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_with_sampling_it_is_fednl_pp(alpha: float) -> None:
    # FedNL-PP in absolute terms: x = (H + l I)^-1 of the mean of (H_k + l_k I) w_k - grad f_k(w_k), each as last seen.
    federation = rounds_of(3, sampled=2, **{"fednl.alpha": alpha})
    sets, counts = ([0, 1], [1, 2], [0, 2], [0, 1], [1, 2]), np.array([len(client_data(k).y_train) for k in range(3)])
    known, errors = np.zeros((3, DIM, DIM)), np.zeros(3)
    targets, seen = np.zeros((3, DIM)), np.zeros(3, bool)
    theta = federation.theta
    for present in sets:
        for k in present:
            hessian = hessian_at(theta, client_data(k))
            known[k] += alpha * rank_one(hessian - known[k])
            errors[k] = np.linalg.norm(hessian - known[k])
            targets[k] = (known[k] + errors[k] * np.eye(DIM)) @ theta - gradient_at(theta, client_data(k))
            seen[k] = True
        shares = counts * seen / (counts * seen).sum()
        matrix = np.tensordot(shares, known, 1) + shares @ errors * np.eye(DIM)
        theta = np.linalg.solve(matrix, shares @ targets)
        federation.go(present=present)
        np.testing.assert_allclose(federation.theta, theta, rtol=1e-6, atol=1e-8)


def test_fednl_pp_converges_where_clients_take_turns() -> None:
    federation = rounds_of(3, sampled=1, **WHOLE)
    for number in range(60):
        federation.go(present=[number % 3])
    np.testing.assert_allclose(federation.theta, optimum([client_data(k) for k in range(3)]), atol=1e-8)


def test_a_reply_that_did_not_count_is_not_part_of_what_both_know() -> None:
    straight, losing = rounds_of(2, sampled=1), rounds_of(2, sampled=1)
    for federation in (straight, losing):
        federation.go(2, present=[0])
        federation.go(present=[1])
    losing.replies([0])  # computed, but never arrived; both go on with client 1
    for federation in (straight, losing):
        federation.go(present=[1])
        federation.go(present=[0])
    np.testing.assert_allclose(losing.theta, straight.theta, rtol=1e-12)


def test_a_client_without_its_memory_makes_everybody_begin_anew() -> None:
    federation = rounds_of(2)
    federation.go(5)
    federation.clients[0] = DQNFedClient(federation.settings, 0, client_data(0))
    solved = federation.go()
    assert solved.combination.notes["restarts"] == 1
    assert solved.combination.notes["hessian_clients"] == 1
    notes = federation.go().combination.notes
    assert (notes["restarts"], notes["hessian_clients"], notes["new_clients"]) == (0, 2, 1)
    federation.go(60)
    np.testing.assert_allclose(federation.theta, optimum([client_data(0), client_data(1)]), atol=1e-8)


def test_restarts_of_client_and_server_keep_the_bits() -> None:
    straight = rounds_of(2, sampled=1)
    for k in (0, 1, 0):
        straight.go(present=[k])
    saved = {name: np.array(values) for name, values in straight.method.export_state().items()}
    memories = [{name: np.array(v) for name, v in c.export_state().items()} for c in straight.clients]
    theta, step = straight.theta, straight.step
    for k in (1, 0):
        straight.go(present=[k])
    method = make_method(resolve(straight.settings))
    method.restore_state(saved)
    other = Rounds(straight.settings, [client_data(0), client_data(1)], method, theta)
    other.clients = [DQNFedClient(straight.settings, k, client_data(k), memory) for k, memory in enumerate(memories)]
    other.round, other.step = 3, step
    for k in (1, 0):
        other.go(present=[k])
    assert np.array_equal(other.theta, straight.theta)


def test_a_correction_that_makes_no_sense_costs_only_its_client() -> None:
    federation = rounds_of(2, **{"fednl.compressor": "top"})
    replies = federation.replies()
    spoilt = np.full_like(replies[1].vectors["places"], 1e6)
    object.__setattr__(replies[1], "vectors", {**replies[1].vectors, "places": spoilt})
    notes = federation.decide(replies).combination.notes
    assert (notes["bad_corrections"], notes["hessian_clients"]) == (1, 1)


@pytest.mark.parametrize("name", ["vectors", "values", "errors"])
def test_a_correction_out_of_all_proportion_costs_only_its_client(name: str) -> None:
    federation = rounds_of(2)
    replies = federation.replies()
    spoilt = {**replies[1].vectors, name: np.full_like(replies[1].vectors[name], 1e200, dtype=np.float64)}
    object.__setattr__(replies[1], "vectors", spoilt)
    notes = federation.decide(replies).combination.notes
    assert (notes["bad_corrections"], notes["hessian_clients"]) == (1, 1)


def test_the_last_layer_of_logistic_regression_is_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DAMPING", 0.0)
    exact, last = rounds_of(2), rounds_of(2, **{"fednl.form": "last-layer"})
    last.method.head = np.array([[0, 1, 2, 3, 12], [4, 5, 6, 7, 13], [8, 9, 10, 11, 14]])  # type: ignore[attr-defined]
    exact.go(5)
    last.go(5)
    np.testing.assert_allclose(last.theta, exact.theta, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("form", ["last-layer", "diagonal"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_networks_are_trained_by_the_other_forms(form: str, participation: float) -> None:
    settings = Settings.from_mapping(
        {**TINY, "method": "fednl", "fednl.form": form, "model": "mlp", "rounds": 8, "clients": 2, "evaluate-every": 0}
        | {"participation": participation}
    )
    events = run(settings).events
    assert float(np.mean(events[-1].losses_before)) < 0.95 * float(np.mean(events[0].losses_before))
    assert events[-1].notes["hessian_clients"] == 2


def test_a_step_of_the_other_layers_is_a_gradient_step() -> None:
    settings = Settings.from_mapping({"method": "fednl", "fednl.form": "last-layer", "local.lr": 0.2, "clients": 2})
    method = make_method(resolve(settings))
    method.head = np.array([[2, 4], [3, 5]])  # type: ignore[attr-defined]
    grads = np.arange(12.0).reshape(2, 6)
    blank = {"values": np.zeros((1, 1)), "vectors": np.ones((1, 1, 4)), "errors": np.array([1.5])}
    solved = decide(
        method,
        grads,
        vectors={name: (values, values) for name, values in blank.items()},
        figures={"anew": np.ones(2)},
    )
    mean = grads.mean(axis=0)  # columns 2 to 5 are divided by l + damping = 1.5 + 0.5
    np.testing.assert_allclose(solved.step, np.concatenate([0.2 * mean[:2], mean[2:] / 2]), rtol=1e-12)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"fednl.form": "diagonal", "fednl.option": "projection"}, "fednl.option"),
        ({"step-rule": "probed"}, "step-rule"),
        ({"local.work": "gradient"}, "local.work"),
    ],
)
def test_impossible_settings_are_refused(mapping: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.from_mapping({"method": "fednl", "fednl.form": "exact", **mapping})


def test_a_model_too_large_for_the_exact_form_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="at most 2000"):
        run({**TINY, "method": "fednl", "fednl.form": "exact", "model": "mlp"})


def test_titles_name_the_form() -> None:
    def title(**mapping: Any) -> str:
        return Settings.from_mapping({"method": "fednl", "fednl.form": "exact", **mapping}).title

    assert title() == "FedNL"
    assert title(participation=0.5) == "FedNL-PP"
    assert title(**{"fednl.form": "last-layer"}) == "FedNL (last layer)"
    assert title(**{"fednl.form": "diagonal", "participation": 0.5}) == "FedNL (diagonal)"
