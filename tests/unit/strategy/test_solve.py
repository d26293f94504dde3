"""From rows to a step: figures in the order of the clients, precision where the Gramian asks for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.functional import newton_rate_step
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.linalg.rows import IN_MEMORY, SMALL, RowSet
from dqnfed_flwr.methods._base import RoundRows, make_method
from dqnfed_flwr.strategy.solve import Slopes, solve
from dqnfed_flwr.types import ClientReply, Float64Array
from tests.helpers.gradient_sets import conflicting_set
from tests.helpers.hearings import batch_of

TWO_SIDED = Settings.from_mapping({"dqn-fed.form": "two-sided", "dqn-fed.rate-spread": 0})


def replies(count: int, clients: tuple[int, ...]) -> dict[int, ClientReply]:
    return {
        client: ClientReply(10 * (place + 1), loss=place + 0.5, rate=place + 1.0)
        for place, client in enumerate(clients[:count])
    }


def test_figures_stand_in_the_order_of_the_clients(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((2, 4))
    held = RowSet(5, 4, torch.float64)
    held.put(3, rows[1])
    held.put(1, rows[0])
    batch = batch_of(replies(2, (4, 9)), RoundRows(held, (1, 3)), 7)
    assert (batch.clients, batch.round) == ((4, 9), 7)
    np.testing.assert_allclose(batch.gram, rows @ rows.T, rtol=1e-14)
    assert batch.losses.tolist() == [0.5, 1.5]
    assert batch.rates.tolist() == [1, 2]
    assert batch.shares.tolist() == [1 / 3, 2 / 3]


@pytest.mark.parametrize("form", ["two-sided", "one-sided", "anchored"])
def test_slopes_and_norm_are_those_of_the_step_with_empty_slots_between(rng: np.random.Generator, form: str) -> None:
    rows = conflicting_set(rng, 3, 8)
    method = make_method(resolve(Settings.from_mapping({"dqn-fed.form": form})))
    held = RowSet(6 + method.reference_rows, 8, torch.float64)
    slots = (0, 2, 5)
    for slot, row in zip(slots, rows, strict=True):
        held.put(slot, row)
    given = RoundRows(held, slots)
    solved = solve(method, batch_of(replies(3, (1, 4, 6)), given, 1), given)
    np.testing.assert_allclose(solved.slopes, rows @ solved.step.numpy(), rtol=1e-10)
    assert solved.norm == pytest.approx(float(solved.step.norm()), rel=1e-10)


def test_who_makes_another_step_of_it_is_told_the_slopes_of_those_who_are_heard(rng: np.random.Generator) -> None:
    rows = conflicting_set(rng, 3, 8)
    method = make_method(resolve(Settings.from_mapping({"dqn-fed.form": "anchored"})))
    held = RowSet(3 + method.reference_rows, 8, torch.float64)
    for slot, row in enumerate(rows):
        held.put(slot, row)
    given, told = RoundRows(held, (0, 2), others=(1,)), list[Float64Array]()

    def adopt(step: torch.Tensor, slopes: Slopes) -> torch.Tensor:
        for vector in (step, 2 * step, step):
            found = slopes(vector)
            told.append(np.zeros(0) if found is None else found)
        return 3 * step

    solved = solve(method, batch_of(replies(2, (1, 4)), given, 1), given, adopt)
    along = rows @ solved.step.numpy() / 3
    np.testing.assert_allclose(told, [along[[0, 2]], 2 * along[[0, 2]], along[[0, 2]]], rtol=1e-10)
    np.testing.assert_allclose(solved.slopes, 3 * along[[0, 2, 1]], rtol=1e-10)


def distance(rows: Float64Array, rates: Float64Array, memory: RowMemory) -> tuple[float, bool]:
    """How far the step from float32 rows is from the recursion in float64 on the same rows; whether it was refined."""
    narrow = rows.astype(np.float32)
    held = RowSet(len(rows), rows.shape[1], memory=memory)
    for slot, row in enumerate(narrow):
        held.put(slot, row)
    given = RoundRows(held, tuple(range(len(rows))))
    fitting = {k: ClientReply(10, loss=1.0, rate=float(rate)) for k, rate in enumerate(rates)}
    step = solve(make_method(resolve(TWO_SIDED)), batch_of(fitting, given, 1), given).step.numpy()
    exact = newton_rate_step(narrow.astype(np.float64), rates)[0]
    return float(np.linalg.norm(step - exact) / np.linalg.norm(exact)), held.exact


@pytest.mark.parametrize("memory", [IN_MEMORY, RowMemory(device=torch.device("cpu"))], ids=["host", "device"])
@pytest.mark.parametrize(("common", "refined"), [(0.5, False), (1e-2, True)])
def test_an_ill_conditioned_round_is_solved_on_a_gramian_in_float64(
    rng: np.random.Generator, common: float, refined: bool, memory: RowMemory
) -> None:
    # The unit-diagonal Gramian has the condition number 1 / common^2: 4, and 1e4.
    dim = SMALL // 4 + 1
    directions = rng.standard_normal((5, dim)) / np.sqrt(dim)
    rows = conflicting_set(rng, 4, 5, common) @ directions
    error, exact = distance(rows, rng.uniform(0.5, 2, 4), memory)
    assert exact is refined
    assert error < 1e-5


def test_clients_that_send_the_same_are_solved_for_once_in_float64(rng: np.random.Generator) -> None:
    rows = rng.standard_normal((2, SMALL // 3 + 1))
    rates = np.array([1.0, 2.0, 2.0])
    narrow = rows[[0, 1, 1]].astype(np.float32)
    held = RowSet(3, narrow.shape[1])
    for slot, row in enumerate(narrow):
        held.put(slot, row)
    given = RoundRows(held, (0, 1, 2))
    fitting = {k: ClientReply(10, loss=1.0, rate=float(rate)) for k, rate in enumerate(rates)}
    solved = solve(make_method(resolve(TWO_SIDED)), batch_of(fitting, given, 1), given)
    assert held.exact
    assert solved.combination.rank == 2
    exact = newton_rate_step(narrow[:2].astype(np.float64), rates[:2])[0]
    assert np.linalg.norm(solved.step.numpy() - exact) / np.linalg.norm(exact) < 1e-6
