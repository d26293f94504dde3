"""A Flower strategy that runs its own rounds: what Flower's inherited loop would call is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dqnfed_flwr.errors import ConfigError

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Of `start`: evaluates the model after a round, on the server."""


class OwnLoop(Strategy):
    """A strategy whose `start` is its loop: the clients' test of a step rides on the exchange after it.

    Flower's inherited loop ends a round before its step could be tested, and so does a strategy that wraps this one.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not to be called: `ConfigError`."""
        self._refuse()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not to be called: `ConfigError`."""
        self._refuse()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not to be called: `ConfigError`."""
        self._refuse()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Not to be called: `ConfigError`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        name = type(self).__name__
        raise ConfigError(
            f"{name} runs its own loop: call its start, and where strategies wrap each other put it outermost, as in "
            "Guaranteed(Other(FedAvg())), not Other(Guaranteed(FedAvg()))"
        )
