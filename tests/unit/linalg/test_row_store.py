"""Rows in a file: the same bits as in memory, no name, and no surprise where a disk is full."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dqnfed_flwr.linalg import sweeps
from dqnfed_flwr.linalg.row_store import HostRows, RowMemory, SpilledRows
from dqnfed_flwr.linalg.rows import IN_MEMORY, SMALL, RowSet
from dqnfed_flwr.linalg.sweeps import STRIP
from dqnfed_flwr.types import Float64Array, FloatArray

CLIENTS, SPARE, SPOILT = 20, 2, 3
TYPES = {"float32": torch.float32, "float64": torch.float64}


def figures_of(held: RowSet, rows: FloatArray, order: list[int]) -> list[Float64Array | FloatArray]:
    """All that a row set says of a round of `rows`: one spoilt, one cut, then a reference, then refined."""
    held.clear()
    for slot in order:
        held.put(slot, rows[slot])
        if slot == SPOILT:
            held.drop(slot)
    held.scale(5, 0.3)
    filled = list(held.filled)
    weights = np.zeros(held.capacity)
    weights[filled] = np.linspace(-1, 2, len(filled))
    found = [held.gram(filled), held.combine(weights).numpy()]
    held.put(CLIENTS, found[1])
    filled.append(CLIENTS)
    found += [held.gram(filled), held.copies([5])[0], held.columns(filled, slice(1, 4))]
    held.refine()
    return [*found, held.gram(filled), np.array([held.squared_norm(slot) for slot in filled])]


def same(one: list[Float64Array | FloatArray], other: list[Float64Array | FloatArray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("products", [True, False])
@pytest.mark.parametrize(
    ("dim", "dtype"), [(5, "float32"), (5, "float64"), (SMALL // CLIENTS + 3, "float32"), (2 * STRIP + 5, "float32")]
)
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(CLIENTS)), seed=st.integers(0, 99))
def test_a_file_gives_the_same_bits_in_any_order(
    tmp_path: Path, dim: int, dtype: str, products: bool, order: list[int], seed: int
) -> None:
    rows = np.random.default_rng(seed).standard_normal((2, CLIENTS, dim)).astype(dtype)
    shape = (CLIENTS + SPARE, dim, TYPES[dtype])
    held = RowSet(*shape, references=SPARE, products=products)
    filed = RowSet(*shape, references=SPARE, products=products, memory=RowMemory(0, str(tmp_path)))
    for of_round, absent in zip(rows, (0, 2), strict=True):
        there = [slot for slot in order if slot >= absent]
        expected = figures_of(held, of_round, sorted(there))
        assert same(figures_of(filed, of_round, there), expected)
        assert same(figures_of(held, of_round, there), expected)


def test_only_what_is_above_the_bound_lies_in_a_file(tmp_path: Path) -> None:
    made = [RowMemory(bound, str(tmp_path)).rows(3, 5, np.dtype(np.float64)) for bound in (120, 119)]
    assert [type(rows) for rows in made] == [HostRows, SpilledRows]
    assert type(IN_MEMORY.rows(3, 5, np.dtype(np.float64))) is HostRows


def test_the_file_has_no_name_and_its_room_is_taken(tmp_path: Path) -> None:
    rows = SpilledRows(4, 2000, np.dtype(np.float32), tmp_path)
    assert not list(tmp_path.iterdir())
    status = os.fstat(rows._file.fileno())
    assert status.st_blocks * 512 >= status.st_size >= 4 * 2000 * 4


def test_a_sweep_holds_a_few_strips_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = RowSet(6, 12 * STRIP, memory=RowMemory(0, str(tmp_path)))
    monkeypatch.setattr(sweeps, "AT_ONCE", 1)
    largest, empty = [0], np.empty

    def noted(shape: int | tuple[int, ...], *rest: object) -> object:
        largest[0] = max(largest[0], int(np.prod(shape)))
        return empty(shape, *rest)  # type: ignore[call-overload]

    for slot in range(6):
        held.put(slot, np.full(12 * STRIP, slot + 1, np.float32))
    monkeypatch.setattr(np, "empty", noted)
    assert held.gram(range(6))[1, 2] == 12 * STRIP * 6
    assert largest[0] <= 6 * 12 * STRIP // 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_what_fails_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        SpilledRows(4, 5, np.dtype(np.float32), tmp_path)  # an open file would warn


def test_who_waits_for_room_is_told_where_it_is_needed(tmp_path: Path) -> None:
    places: list[Path] = []

    def write(folder: Path, action: Callable[[], None]) -> None:
        places.append(folder)
        action()

    RowMemory(0, str(tmp_path), write).rows(2, 3, np.dtype(np.float32))
    assert places == [tmp_path]
