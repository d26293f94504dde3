from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.methods.fedavg import FedAvg
from dqnfed_flwr.methods.propfair.client import propfair_objective
from dqnfed_flwr.types import ClientReply, ClientTask, on_host
from tests.helpers.rounds import decide
from tests.helpers.runs import TINY

ONE_STEP: dict[str, Any] = {**TINY, "dtype": "float64", "local.epochs": 1, "local.batch-size": 0}
MODEL = "tests.helpers.models:zeros"  # logistic regression at 0: the loss is log 10 on ten classes


def value_and_slope(loss: float, bound: float = 2.0, epsilon: float = 0.2) -> tuple[float, float]:
    given = torch.tensor(loss, dtype=torch.float64, requires_grad=True)
    value = propfair_objective(given, bound=bound, epsilon=epsilon)
    (slope,) = torch.autograd.grad(value, given)
    return float(value.detach()), float(slope)


@pytest.mark.parametrize(
    ("loss", "value", "slope"),
    [
        (1.0, 0.0, 1.0),  # -log 1
        (1.5, math.log(2), 2.0),  # -log 1/2
        (1.8, math.log(5), 5.0),  # -log epsilon
        (3.0, math.log(5) + 1.2 * 5, 5.0),  # the tangent there, 1.2 further
    ],
)
def test_by_hand(loss: float, value: float, slope: float) -> None:
    assert value_and_slope(loss) == pytest.approx((value, slope), abs=1e-12)


@given(losses=st.tuples(st.floats(0, 50), st.floats(0, 50)), bound=st.floats(0.5, 5.0), epsilon=st.floats(0.05, 0.5))
def test_is_convex_rising_and_without_a_jump(losses: tuple[float, float], bound: float, epsilon: float) -> None:
    low, high = sorted(losses)
    (at_low, slope_low), (at_high, slope_high) = (value_and_slope(loss, bound, epsilon) for loss in (low, high))
    assert 0 < slope_low <= slope_high <= 1 / epsilon * (1 + 1e-12)
    room = 1e-9 * (1 + abs(at_high))
    assert slope_low * (high - low) - room <= at_high - at_low <= slope_high * (high - low) + room


def reply(method: str, theta: np.ndarray, **settings: Any) -> ClientReply:
    given = Settings.from_mapping({**ONE_STEP, "model": MODEL, "method": method, **settings})
    return DQNFedClient(given, 0, load_client(given, 0)).work(ClientTask(1, 1), theta)


def row(method: str, **settings: Any) -> tuple[np.ndarray, float]:
    answer = reply(method, np.zeros(650), **settings)
    assert answer.row is not None
    return on_host(answer.row), answer.loss


def test_one_step_is_the_gradient_over_the_utility() -> None:
    # At 0 the loss is log 10 = 2.3026: utility 0.6974 with M = 3; below epsilon with M = 2, where the slope is 5.
    plain, loss = row("fedavg")
    assert loss == pytest.approx(math.log(10))
    for bound, slope in ((3.0, 1 / (3 - math.log(10))), (2.0, 5.0), (4.0, 1 / (4 - math.log(10)))):
        moved, told = row("propfair", **{"propfair.bound": bound})
        np.testing.assert_allclose(moved, slope * plain, rtol=1e-10, atol=1e-15)
        assert told == loss  # the loss itself, before training


def test_a_large_bound_is_fedavg() -> None:
    # The slope is 1 / (M - F), so that with the rate M eta the step tends to that of eta.
    common = {"local.batch-size": 8, "local.epochs": 2}
    plain, _ = row("fedavg", **common)
    moved, _ = row("propfair", **{**common, "propfair.bound": 1e14, "local.lr": 0.1 * 1e14})
    np.testing.assert_allclose(moved, plain, rtol=1e-11, atol=1e-13)


def test_the_server_averages_as_fedavg_does() -> None:
    method = make_method(resolve(Settings.from_mapping({"method": "propfair"})))
    assert isinstance(method, FedAvg)
    np.testing.assert_allclose(decide(method, np.eye(2), examples=[1, 3]).step, [0.25, 0.75], rtol=1e-12)


def test_runs_and_lowers_the_loss() -> None:
    result = run(Settings.from_mapping({**TINY, "method": "propfair", "rounds": 3, "local.batch-size": 10}))
    first, last = (np.mean(result.events[at].losses_before) for at in (0, -1))
    assert last < first


def test_other_local_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"local\.work"):
        Settings.from_mapping({"method": "propfair", "local.work": "gradient"})


def test_the_same_turn_gives_the_same_bits() -> None:
    one, other = (row("propfair", **{"local.batch-size": 8})[0] for _ in range(2))
    assert np.array_equal(one, other)
