"""A Flower strategy that runs its own rounds: what Flower's inherited loop would call is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from dqnfed_flwr.errors import ConfigError

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Of `start`: evaluates the model after a round, on the server."""


class OwnLoop(Strategy):
    """A strategy whose `start` is its loop: the clients' test of a step rides on the exchange after it.

    Flower's inherited loop ends a round before its step could be tested, and so does a strategy that wraps this one.
    """

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Not to be called: `ConfigError`."""
        name = type(self).__name__
        raise ConfigError(
            f"{name} runs its own loop: call its start, and where strategies wrap each other put it outermost, as in "
            "Guaranteed(Other(FedAvg())), not Other(Guaranteed(FedAvg()))"
        )

    configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = _refuse
