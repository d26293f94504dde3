"""Methods whose weights need no inner products of different rows: nobody computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dqnfed_flwr import run
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import make_method
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.row_place import rows_for
from dqnfed_flwr.strategy.solve import pending_step, solve_replies
from dqnfed_flwr.types import ClientReply, Sees
from tests.helpers.rounds import round_rows
from tests.helpers.runs import TINY

SMALL: dict[str, Any] = {**TINY, "rounds": 2}


def free_of_products() -> list[str]:
    """Methods that say so."""
    alone = [
        name for name, profile in METHODS.items() if not profile.last_stage(Settings())
    ]  # others hand over to one of these
    made = {name: make_method(resolve(Settings.from_mapping({**SMALL, "method": name}))) for name in alone}
    return [name for name, method in made.items() if Sees.PRODUCTS not in method.sees]


@pytest.mark.parametrize("method", free_of_products())
def test_a_run_multiplies_no_rows(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run({**SMALL, "method": method})
    monkeypatch.setattr(RowSet, "_multiply", lambda *_: pytest.fail("rows were multiplied"))
    result = run({**SMALL, "method": method})
    assert result.theta.tobytes() == plain.theta.tobytes()
    assert all(event.step_norm_squared >= 0 for event in result.events)


def test_the_methods_without_products_are_the_usual_ones() -> None:
    assert {"fedavg", "fedsgd", "fedavgm", "q-ffl", "afl", "term", "median"} <= set(free_of_products())
    assert not {"dqn-fed", "mgda", "krum", "fedfv", "adafed"} & set(free_of_products())


@pytest.mark.parametrize(("rule", "products"), [("fixed", False), ("newton", False), ("probed", True)])
def test_rules_that_compare_slopes_need_the_products(rule: str, products: bool) -> None:
    plan = resolve(Settings.from_mapping({"method": "fedsgd", "step-rule": rule}))
    assert rows_for(plan, make_method(plan), torch.zeros(4)).products is products


def solved_by_fedsgd(rows: list[list[float]], *, products: bool) -> tuple[Any, Any]:
    """Two clients' figures and the step of FedSGD, as it becomes pending."""
    held = RowSet(2, 3, torch.float64, products=products)
    given = round_rows(np.array(rows))
    for slot, row in enumerate(rows):
        held.put(slot, np.array(row))
    replies = {client: ClientReply(5, loss=1.0, rate=1.0) for client in (0, 1)}
    collected = Collected(replies, {}, given)
    collected.trained, collected.rows = replies, type(given)(held, (0, 1))
    hearing = Hearing({0: 1.0, 1: 1.0}, (0, 1), {0: 0, 1: 1})
    method = make_method(resolve(Settings.from_mapping({"method": "fedsgd", "local.lr": 0.5})))
    batch, solved = solve_replies(method, collected, hearing, 1, 1.0)
    return solved, pending_step(batch, solved, collected, hearing, [], asked=(0, 1))


def test_the_length_of_the_step_is_right_and_the_certificate_is_absent() -> None:
    solved, pending = solved_by_fedsgd([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]], products=False)
    assert solved.norm == pytest.approx(0.5 * math.hypot(2.0, 1.0))
    assert not pending.certificate.weights
    with_products, other = solved_by_fedsgd([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0]], products=True)
    assert solved.norm == pytest.approx(with_products.norm)
    assert other.certificate.weights


def test_a_round_without_a_step_has_its_certificate_all_the_same() -> None:
    for products in (False, True):
        solved, pending = solved_by_fedsgd([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]], products=products)
        assert solved.norm == 0
        assert pending.certificate.stationary
        assert pending.certificate.weights == pytest.approx({0: 0.5, 1: 0.5})
