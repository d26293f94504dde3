"""Rows of clients that took part before and are absent now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.methods.absent import AbsentClients, AbsentRow
from dqnfed_flwr.types import RoundBatch


def take_part(memory: AbsentClients, number: int, clients: Sequence[int]) -> tuple[AbsentRow, ...]:
    """A round in which client c sends the row (c, number)."""
    count = len(clients)
    basis = Basis(count + memory.room, 2, torch.float32)
    for slot, client in enumerate(clients):
        basis.put(slot, np.array([client, number], np.float32))
    batch = RoundBatch(
        gram=basis.gram(range(count)),
        losses=np.ones(count),
        rates=np.ones(count),
        shares=np.ones(count) / count,
        clients=tuple(clients),
        round=number,
    )
    rows = RoundRows(basis, tuple(range(count)))
    memory.observe(batch, rows)
    absent, slots = memory.absent, memory.place(rows)
    assert slots == tuple(range(count, count + len(absent)))
    for slot, item in zip(slots, absent, strict=True):
        assert np.array_equal(basis.row(slot), item.row)
    basis.clear()
    return absent


def seen(absent: tuple[AbsentRow, ...]) -> list[tuple[int, int]]:
    assert all(np.array_equal(item.row, np.array([item.client, item.round], np.float32)) for item in absent)
    return [(item.round, item.client) for item in absent]


def test_a_client_counts_for_so_many_rounds_after_its_last() -> None:
    memory = AbsentClients(2, sampled=2, clients=6)
    assert memory.room == 4
    assert seen(take_part(memory, 1, [4, 5])) == []
    assert seen(take_part(memory, 2, [0, 1])) == [(1, 4), (1, 5)]
    assert seen(take_part(memory, 3, [2, 4])) == [(1, 5), (2, 0), (2, 1)]  # 4 is back
    assert seen(take_part(memory, 4, [2, 3])) == [(2, 0), (2, 1), (3, 4)]  # 5 was last seen three rounds ago
    assert seen(take_part(memory, 9, [2, 3])) == []


def test_nothing_is_kept_where_everybody_is_asked() -> None:
    memory = AbsentClients(3, sampled=4, clients=4)
    assert memory.room == 0
    assert take_part(memory, 1, [0, 1]) == ()
    assert take_part(memory, 2, [2, 3]) == ()
    assert memory.export_state() == {}


def test_a_memory_of_no_rounds_keeps_nothing() -> None:
    memory = AbsentClients(0, sampled=1, clients=4)
    assert take_part(memory, 1, [0]) == take_part(memory, 2, [1]) == ()


def test_the_memory_survives_a_restart() -> None:
    memory, restored = AbsentClients(2, 2, 6), AbsentClients(2, 2, 6)
    take_part(memory, 1, [0, 1])
    take_part(memory, 2, [1, 2])
    restored.restore_state({name: np.array(value) for name, value in memory.export_state().items()})
    for number, clients in ((3, [3, 4]), (4, [0, 5])):
        assert seen(take_part(restored, number, clients)) == seen(take_part(memory, number, clients))
    fresh = AbsentClients(2, 2, 6)
    fresh.restore_state({})
    assert take_part(fresh, 3, [3, 4]) == ()


def test_no_more_rows_are_reserved_than_clients_can_be_absent() -> None:
    assert AbsentClients(100_000, sampled=3, clients=4).room == 3
    assert AbsentClients(3, sampled=18, clients=20).room == 19
