"""FedAvgM and FedAdam on two clients, worked by hand over two rounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods import fedopt
from dqnfed_flwr.methods._base import Method, RoundRows, VectorMethod, make_method
from dqnfed_flwr.types import RoundBatch
from tests.helpers.rounds import decide

FIRST = np.array([[2.0, 0.0], [0.0, 0.0]])
SECOND = np.array([[4.0, 2.0], [2.0, 0.0]])
BOTH = pytest.mark.parametrize("name", ["fedavgm", "fedadam"])


def make(name: str, **given: Any) -> Method:
    return make_method(resolve(Settings.from_mapping({"method": name, **given})))


def no_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAdam's averages are the newest mean and square."""
    monkeypatch.setattr(fedopt, "BETA1", 0.0)
    monkeypatch.setattr(fedopt, "BETA2", 0.0)


def test_fedavgm_by_hand() -> None:
    method = make("fedavgm", **{"fedavgm.lr": 2.0, "fedavgm.momentum": 0.5})
    np.testing.assert_allclose(decide(method, FIRST).step, [2, 0])  # v = (1, 0)
    np.testing.assert_allclose(decide(method, SECOND).step, [7, 2])  # v = (3.5, 1)
    np.testing.assert_allclose(decide(method, FIRST, examples=[1, 3]).step, [4.5, 1])  # v = (2.25, 0.5)


@BOTH
def test_a_mean_whose_square_is_no_number_is_left_out(name: str) -> None:
    method, spared = make(name), make(name)
    for each in (method, spared):
        decide(each, SECOND)
    solved = decide(method, FIRST * 1e200, rates=[1, 1])
    assert solved.combination.notes["overflow"] == 1.0
    following = decide(method, SECOND)
    assert following.combination.notes["overflow"] == 0.0
    np.testing.assert_array_equal(following.step, decide(spared, SECOND).step)
    assert float(following.step.abs().max()) > 0


@BOTH
def test_the_model_stays_where_the_first_mean_of_all_is_left_out(name: str) -> None:
    method = make(name)
    solved = decide(method, FIRST * 1e200, rates=[1, 1])
    np.testing.assert_array_equal(solved.step, [0, 0])
    np.testing.assert_array_equal(decide(method, SECOND).step, decide(make(name), SECOND).step)


def test_fedadam_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedopt, "BETA1", 0.5)
    monkeypatch.setattr(fedopt, "BETA2", 0.75)
    method = make("fedadam", **{"fedadam.lr": 2.0, "fedadam.tau": 1.0})
    # m = (0.5, 0), v = (0.75 + 0.25, 0.75).
    np.testing.assert_allclose(decide(method, FIRST).step, [2 * 0.5 / 2, 0], rtol=1e-12)
    # m = (0.25 + 1.5, 0.5), v = (0.75 + 0.25 * 9, 0.75 * 0.75 + 0.25).
    expected = [2 * 1.75 / (math.sqrt(3) + 1), 2 * 0.5 / (math.sqrt(0.8125) + 1)]
    np.testing.assert_allclose(decide(method, SECOND).step, expected, rtol=1e-12)


def test_without_momentum_fedavgm_is_fedavg() -> None:
    method = make("fedavgm", **{"fedavgm.momentum": 0.0})
    for rows in (FIRST, SECOND, FIRST):
        expected = decide(make("fedavg"), rows, examples=[1, 3]).step
        np.testing.assert_allclose(decide(method, rows, examples=[1, 3]).step, expected, rtol=1e-12)


def test_with_a_large_tau_fedadam_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    no_averages(monkeypatch)
    # m = D, v = D^2, and |D| is lost beside tau.
    method = make("fedadam", **{"fedadam.lr": 1e14, "fedadam.tau": 1e14})
    for rows in (FIRST, SECOND):
        np.testing.assert_allclose(decide(method, rows).step, rows.mean(axis=0), rtol=1e-12)


def test_fedadam_moves_all_coordinates_alike_where_tau_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    no_averages(monkeypatch)
    method = make("fedadam", **{"fedadam.tau": 1e-12, "fedadam.lr": 0.5})
    step = decide(method, np.array([[1e-3, -10.0], [1e-3, -20.0]])).step
    np.testing.assert_allclose(step, [0.5, -0.5], rtol=1e-8)


@BOTH
def test_equal_clients_count_as_one(name: str) -> None:
    one, three = make(name), make(name)
    for row in (FIRST[:1], SECOND[:1]):
        np.testing.assert_allclose(decide(three, np.repeat(row, 3, axis=0)).step, decide(one, row).step, rtol=1e-12)


@BOTH
def test_gradients_count_by_the_local_rate(name: str) -> None:
    by_gradient, by_move = make(name, **{"local.work": "gradient", "local.lr": 0.25}), make(name)
    for rows in (FIRST, SECOND):
        np.testing.assert_allclose(decide(by_gradient, 4 * rows).step, decide(by_move, rows).step, rtol=1e-12)


@BOTH
def test_asked_twice_in_a_round_gives_the_same(name: str) -> None:
    method = make(name)
    assert isinstance(method, VectorMethod)
    first = decide(method, SECOND)
    held = RowSet(3, 2, torch.float64)
    batch = RoundBatch(np.eye(2), np.ones(2), np.ones(2), np.full(2, 0.5), (0, 1), 1)
    assert torch.equal(method.step(batch, RoundRows(held, (0, 1))), first.step)
