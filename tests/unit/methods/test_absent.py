"""Rows of clients that took part before and are absent now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.methods.absent import AbsentClients, AbsentRow
from dqnfed_flwr.types import FloatArray, RoundBatch


def take_part(memory: AbsentClients, number: int, clients: Sequence[int]) -> tuple[AbsentRow, ...]:
    """A round in which client c sends the row (c, number)."""
    count = len(clients)
    held = RowSet(count + memory.room, 2, torch.float32)
    for slot, client in enumerate(clients):
        held.put(slot, np.array([client, number], np.float32))
    batch = RoundBatch(
        gram=held.gram(range(count)),
        losses=np.ones(count),
        rates=np.ones(count),
        shares=np.ones(count) / count,
        clients=tuple(clients),
        round=number,
    )
    rows = RoundRows(held, tuple(range(count)))
    memory.observe(batch, rows)
    absent, slots = memory.absent, memory.place(rows)
    assert slots == tuple(range(count, count + len(absent)))
    for slot, item in zip(slots, absent, strict=True):
        assert np.array_equal(held.copies([slot])[0], item.row)
    held.clear()
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


def test_a_quorum_has_clients_absent_though_all_are_asked() -> None:
    assert AbsentClients(9, sampled=4, clients=4).room == AbsentClients(0, 4, 4, quorum=0.5).room == 0
    memory = AbsentClients(2, sampled=4, clients=4, quorum=0.5)
    assert memory.room == 3
    assert seen(take_part(memory, 1, [0, 1, 2, 3])) == []
    assert seen(take_part(memory, 2, [0, 1])) == [(1, 2), (1, 3)]
    assert late(memory, 3, 2, 3)
    assert [(item.round, item.client, item.late) for item in take_part(memory, 3, [0, 1])] == [
        (1, 2, False),
        (2, 3, True),
    ]


def late(memory: AbsentClients, client: int, number: int, now: int) -> bool:
    return memory.keep_late(client, number, now, lambda: np.array([client, number], np.float32))


def test_a_row_that_comes_late_counts_until_the_rounds_are_over() -> None:
    memory = AbsentClients(2, sampled=2, clients=6)
    take_part(memory, 1, [4, 5])
    take_part(memory, 2, [0, 1])
    assert late(memory, 3, 2, now=3)
    assert late(memory, 4, 2, now=3)  # newer than the row of round 1
    assert not late(memory, 0, 1, now=3)  # older than what is kept
    assert not late(memory, 2, 1, now=4)
    assert seen(take_part(memory, 3, [2, 3])) == [(1, 5), (2, 0), (2, 1), (2, 4)]  # 3 is back
    assert seen(take_part(memory, 4, [2, 3])) == [(2, 0), (2, 1), (2, 4)]
    assert not late(memory, 3, 3, now=5)
    assert seen(take_part(memory, 5, [0, 1])) == [(4, 2), (4, 3)]


def test_a_late_row_of_a_round_that_is_solved_again_counts_in_it() -> None:
    memory = AbsentClients(2, sampled=2, clients=6)
    take_part(memory, 1, [4, 5])
    assert late(memory, 3, 1, now=1)
    assert seen(take_part(memory, 1, [4])) == [(1, 3)]
    restored = AbsentClients(2, sampled=2, clients=6)
    restored.restore_state(memory.export_state())
    for each in (memory, restored):
        assert seen(take_part(each, 1, [4])) == [(1, 3)]
        assert seen(take_part(each, 2, [0, 1])) == [(1, 3), (1, 4)]
        assert seen(take_part(each, 4, [0, 1])) == []


@given(st.permutations([(client, number) for client in (2, 3) for number in (1, 2, 3)]))
def test_the_order_in_which_late_rows_come_makes_no_difference(order: list[tuple[int, int]]) -> None:
    memory = AbsentClients(3, sampled=2, clients=6)
    take_part(memory, 2, [0, 2])
    for client, number in order:
        late(memory, client, number, now=4)
    assert seen(take_part(memory, 4, [4, 5])) == [(2, 0), (3, 2), (3, 3)]


def test_a_late_row_of_no_use_is_not_read() -> None:
    def read() -> FloatArray:
        raise AssertionError("it is read")

    memory = AbsentClients(2, sampled=2, clients=6)
    take_part(memory, 2, [0, 1])
    assert not memory.keep_late(0, 2, 3, read)
    assert not memory.keep_late(3, 1, 4, read)
    assert not AbsentClients(2, sampled=6, clients=6).keep_late(3, 1, 2, read)
    assert not AbsentClients(0, sampled=2, clients=6).keep_late(3, 1, 1, read)


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
