"""A client's own account of what it gives of its records, and the noise of each exchange.

The noise lies on the gradient itself, before its sketch, its part of the sum, its length, its rate and its products
with steps: these are computed from what the mechanism of `budget` gave, whoever asks for them and with which weights.
Each client makes all of the noise by itself, from a secret of its own, and trusts nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.masked.budget import Protection
from dqnfed_flwr.masked.secrets import derive, stream
from dqnfed_flwr.types import Float64Array


class SpentError(DQNFedError):
    """A question that a client's budget does not allow."""


@dataclass(slots=True)
class Release:
    """The noise of one exchange, a function of its secret `key`, and what it has given already."""

    protection: Protection
    key: bytes = field(repr=False)
    given: dict[str, int] = field(default_factory=dict)

    def noise(self, kind: str, most: int, size: int = 1) -> Float64Array:
        """Standard normal values [size], others each time; `SpentError` after `most` of a kind."""
        number = self.given[kind] = self.given.get(kind, 0) + 1
        if number > most:
            raise SpentError(f"more than {most} of {kind} in one exchange; the noise is made for no more")
        return normal(derive(self.key, "noise", kind, number), size)


@dataclass(slots=True)
class Ledger:
    """What a client has given of its records in a run; it refuses what the budget does not hold.

    It counts the exchanges of the run, also those in which it was not asked. An exchange is charged once, and asked the
    very same again it gives the very same.
    """

    protection: Protection
    exchange: int = 0
    said: bytes = b""

    def open(self, exchange: int, asked: bytes, root: bytes) -> Release:
        """The noise for an exchange in which `asked` is asked, from the secret `root` of this client in this run."""
        if exchange < self.exchange or (exchange == self.exchange and asked != self.said):
            raise SpentError(f"another question in exchange {exchange}, after exchange {self.exchange}")
        if exchange > self.protection.budget.exchanges:
            budget = self.protection.budget
            raise SpentError(
                f"exchange {exchange} would spend more than epsilon {budget.epsilon:g} at delta {budget.delta:g}: the "
                f"noise is made for {budget.exchanges}"
            )
        self.exchange, self.said = exchange, asked
        return Release(self.protection, derive(root, "records", exchange, asked, repr(self.protection)))

    @property
    def spent(self) -> float:
        """The epsilon of the exchanges so far."""
        return self.protection.budget.spent(self.exchange)

    def export(self) -> dict[str, NDArray[Any]]:
        """As arrays."""
        kept = {"ledger": self.exchange.to_bytes(8, "big") + self.said, "budget": repr(self.protection).encode()}
        return {name: np.frombuffer(value, np.uint8) for name, value in kept.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`; without arrays nothing was given. `SpentError` if the budget was another one."""
        if "budget" in arrays and arrays["budget"].tobytes() != repr(self.protection).encode():
            raise SpentError("epsilon, delta, rounds, clip or largest-loss are others than before in this run")
        kept = arrays["ledger"].tobytes() if "ledger" in arrays else b""
        self.exchange, self.said = int.from_bytes(kept[:8], "big"), kept[8:]


def normal(key: bytes, size: int) -> Float64Array:
    """Standard normal values [size] from a secret stream, by Box and Muller from 53 bits each, in float64."""
    half = -(-size // 2)
    bits = np.frombuffer(stream(key, 16 * half), "<u8") >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]
