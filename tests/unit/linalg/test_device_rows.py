"""Rows on a device, here the processor: bits that depend on nothing but two rows, and float64's figures."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dqnfed_flwr.linalg.row_store import COLUMNS, TILE, DeviceRows, HostRows, RowMemory
from dqnfed_flwr.linalg.rows import SMALL, RowSet
from dqnfed_flwr.types import Float64Array, FloatArray

ON_DEVICE = RowMemory(device=torch.device("cpu"))


def device_rows(rows: FloatArray, dtype: str = "float32") -> DeviceRows:
    held = DeviceRows(len(rows), rows.shape[1], np.dtype(dtype), torch.device("cpu"))
    for slot, row in enumerate(rows):
        held.put(slot, row)
    return held


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, TILE + 6),
    dim=st.sampled_from([1, 7, COLUMNS - 1, COLUMNS, 2 * COLUMNS + 5]),
    data=st.data(),
)
def test_a_product_has_the_same_bits_whatever_else_is_asked_for(count: int, dim: int, data: st.DataObject) -> None:
    """In any turns, beside slots that hold the rows of an earlier round, and read from either side."""
    values = np.random.default_rng(dim).standard_normal((count, dim)).astype(np.float32)
    held = device_rows(values)
    there = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(there)), max_size=4)))
    found, done = np.zeros((count, count)), list[int]()
    for start, stop in pairwise([0, *cuts, len(there)]):
        turn = sorted(there[start:stop])
        if turn:
            found[turn] = held.products(turn, sorted(done))
            found[:, turn] = found[turn].T
            done += turn
    for slot in set(range(count)) - set(there):
        held.erase(slot)
    whole = np.zeros((count, count))
    whole[sorted(there)] = held.products(sorted(there), [])
    assert np.array_equal(found, whole)
    assert np.array_equal(whole, whole.T)


@pytest.mark.parametrize("count", [3, TILE + 3])
def test_figures_of_float32_rows_are_those_of_float64(rng: np.random.Generator, count: int) -> None:
    rows = rng.standard_normal((count, SMALL // count + COLUMNS)).astype(np.float32)
    wide, weights = rows.astype(np.float64), rng.standard_normal(count)
    held = RowSet(count, rows.shape[1], memory=ON_DEVICE)
    for slot in rng.permutation(count).tolist():
        held.put(slot, torch.from_numpy(rows[slot]))
    exact, total = wide @ wide.T, weights @ wide
    assert not held.exact
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    assert np.abs((held.gram(range(count)) - exact) / scale).max() < 3e-7  # a few units of 6e-8 where blocks are few
    assert [held.squared_norm(slot) for slot in range(count)] == pytest.approx(np.diag(exact), rel=1e-13)
    assert np.linalg.norm(held.combine(weights).numpy() - total) < 1e-6 * np.linalg.norm(total)
    held.refine()
    assert (
        np.abs((held.gram(range(count)) - exact) / scale).max() < 1e-13
    )  # the sums of the oracle have rounding of their own


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_answers_as_rows_in_memory_do(rng: np.random.Generator, dtype: str) -> None:
    values = rng.standard_normal((5, 3 * COLUMNS + 1)).astype(dtype)
    host, held = HostRows(len(values), values.shape[1], np.dtype(dtype)), device_rows(values, dtype)
    norms = [host.put(slot, row) for slot, row in enumerate(values)]
    assert [held.put(slot, row) for slot, row in enumerate(values)] == pytest.approx(norms, rel=1e-6)
    assert held.scale(2, 0.3) == pytest.approx(host.scale(2, 0.3), rel=1e-6)
    weights = rng.standard_normal(5)

    def close(one: Float64Array | torch.Tensor, other: Float64Array | torch.Tensor) -> None:
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-2)

    close(held.products([1, 4], [0, 2]), host.products([1, 4], [0, 2]))
    pairs = [(slice(0, 2), slice(0, 2)), (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose(held.wide_products(pairs), host.wide_products(pairs), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(held.sum(weights), host.sum(weights), rtol=1e-4, atol=1e-5)
    assert torch.equal(held.wide_sum(weights), host.wide_sum(weights)) or dtype == "float64"
    assert np.array_equal(held.columns([4, 2], slice(3, 9)), host.columns([4, 2], slice(3, 9)))
    assert held.vector(2).data_ptr() != held.vector(2).data_ptr()


def test_a_row_of_the_device_is_copied_into_its_slot_and_kept_as_a_copy() -> None:
    row = torch.ones(4, requires_grad=True)
    held = RowSet(2, 4, memory=ON_DEVICE)
    held.put(0, row)
    with torch.no_grad():
        row.mul_(2)
    kept = held.combine(np.array([1.0, 0.0]))
    held.put(0, torch.zeros(4))
    assert kept.tolist() == [1.0] * 4
    assert not kept.requires_grad
