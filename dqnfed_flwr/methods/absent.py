"""What is kept of clients from earlier rounds: rows of those that are absent now, and whose replies counted.

With sampling, methods that look after clients in conflict also look after those of the rounds before: FedFV for `tau`
rounds, FedMDFG for one, FedLF for as many as it takes to ask all clients once. Rows are copied only where participation
is below 1: a client that drops out under full participation is not remembered. DQN-Fed also keeps rows that come late,
and all rows where a quorum below 1 leaves slow clients out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.methods._base import RoundRows, State
from dqnfed_flwr.types import FloatArray, RoundBatch, Sees

CLIENTS, ROUNDS, LATE, ROW = "absent_clients", "absent_rounds", "absent_late", "absent_row_"


@dataclass(frozen=True, slots=True)
class AbsentRow:
    """The newest row [D] of a client, the round it is from, and whether it came when that round had its rows."""

    client: int
    round: int
    row: FloatArray
    late: bool = False


class AbsentClients:
    """The newest row of every client of the last rounds.

    Parameters
    ----------
    rounds : int
        tau: a client counts in round t if it last took part in round t - tau or later.
    sampled : int
        Clients asked in a round.
    clients : int
        Clients of the federation; where all are asked, and waited for, nothing is kept.
    quorum : float
        Share of replies with which an exchange closes.

    Attributes
    ----------
    room : int
        Most clients that can be absent and remembered: tau * sampled, or all but one; 0 where nothing is kept.
    sees : Sees
        What keeping rows takes.
    absent : tuple[AbsentRow, ...]
        Those absent from this round, oldest round first, then by client.
    """

    def __init__(self, rounds: int, sampled: int, clients: int, quorum: float = 1.0) -> None:
        self.room = min(rounds * sampled, clients - 1) if sampled < clients or quorum < 1 else 0
        self.sees = Sees.COLUMNS if self.room else Sees.NORMS
        self.absent: tuple[AbsentRow, ...] = ()
        self._rounds = rounds
        self._known: dict[int, AbsentRow] = {}

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Find the clients absent from this round, and take in its rows; called once a round."""
        if not self.room:
            return
        since, present = batch.round - self._rounds, set(batch.clients)
        absent = [item for item in self._known.values() if since <= item.round < batch.round + item.late]
        absent = sorted((item for item in absent if item.client not in present), key=lambda it: (it.round, it.client))
        kept = {item.client: item for item in absent if item.round > since}
        for client, row in zip(batch.clients, rows.copies(), strict=True):
            kept[client] = AbsentRow(client, batch.round, row)
        self._known = kept
        self.absent = tuple(absent[-self.room :])

    def keep_late(self, client: int, round_number: int, now: int, read: Callable[[], FloatArray]) -> bool:
        """As `Method.keep_late`: kept is the row of the newest round, the first of these to come."""
        known = self._known.get(client)
        if not self.room or now - round_number > self._rounds or (known and known.round >= round_number):
            return False
        self._known[client] = AbsentRow(client, round_number, read(), late=True)
        return True

    def place(self, rows: RoundRows) -> tuple[int, ...]:
        """Put the rows of the absent into the last `room` slots; the slots taken."""
        first = rows.capacity - self.room
        for slot, item in enumerate(self.absent, first):
            rows.put(slot, item.row)
        return tuple(range(first, first + len(self.absent)))

    def forget(self, clients: Collection[int]) -> None:
        """Drop the rows of these clients."""
        self._known = {client: item for client, item in self._known.items() if client not in clients}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Clients, rounds and rows; empty where nothing is kept."""
        if not self._known:
            return {}
        items = sorted(self._known.values(), key=lambda item: item.client)
        return {
            CLIENTS: np.array([item.client for item in items]),
            ROUNDS: np.array([item.round for item in items]),
            LATE: np.array([item.late for item in items]),
            **{f"{ROW}{item.client}": item.row for item in items},
        }

    def restore_state(self, state: State) -> None:
        """Take up what `export_state` gave."""
        known = zip(*(state[name].tolist() for name in (CLIENTS, ROUNDS, LATE) if CLIENTS in state), strict=True)
        self._known = {
            client: AbsentRow(client, number, np.array(state[f"{ROW}{client}"]), late) for client, number, late in known
        }


TAKEN = "taken"


class Taken:
    """The round of the last reply of each client that counted; a client that keeps state compares it with its own."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        """Whether a reply of `client` was ever taken in."""
        return client in self._rounds

    def note(self, clients: Iterable[int], round_number: int) -> None:
        """Replies of `clients` in a round count."""
        self._rounds |= dict.fromkeys(clients, round_number)

    def forget(self) -> None:
        """Take all clients for new."""
        self._rounds.clear()

    def directives(self, client: int) -> Mapping[str, float]:
        """The directive for `client`: its round, 0 for a new client."""
        return {TAKEN: float(self._rounds.get(client, 0))}

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """Clients and rounds, int64 [n, 2]."""
        return {TAKEN: np.array(sorted(self._rounds.items()), dtype=np.int64).reshape(-1, 2)}

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        self._rounds = {int(client): int(number) for client, number in np.asarray(state[TAKEN], np.int64)}
