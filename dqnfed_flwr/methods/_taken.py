"""What the server tells a client of its own past: which of its replies counted last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

TAKEN = "taken"


class Taken:
    """The round of the last reply that was taken in, by client. A client keeps state; this keeps both in step."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def __contains__(self, client: int) -> bool:
        """Whether a reply of `client` was ever taken in."""
        return client in self._rounds

    def note(self, clients: Iterable[int], round_number: int) -> None:
        """Replies of `clients` in a round count."""
        self._rounds |= dict.fromkeys(clients, round_number)

    def forget(self) -> None:
        """Take everybody for new."""
        self._rounds.clear()

    def directives(self, client: int) -> Mapping[str, float]:
        """What `client` is told; round 0 for a new one."""
        return {TAKEN: float(self._rounds.get(client, 0))}

    def export(self) -> NDArray[np.int64]:
        """Clients and rounds, int64 [n, 2]."""
        return np.array(sorted(self._rounds.items()), dtype=np.int64).reshape(-1, 2)

    def restore(self, pairs: NDArray[np.generic]) -> None:
        """Inverse of `export`."""
        self._rounds = {int(client): int(number) for client, number in np.asarray(pairs, np.int64)}
