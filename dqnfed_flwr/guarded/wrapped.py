"""The strategy that is wrapped: what it asks of nodes, of those that owe no reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from logging import INFO
from typing import TypeVar

from flwr.app import ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Strategy

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.arrays import Model
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.exchange import Stragglers
from dqnfed_flwr.strategy.hearing import say_if_tolerate_is_cut
from dqnfed_flwr.strategy.loop import EvaluateFn

T = TypeVar("T")


@dataclass(frozen=True)
class Given:
    """What `start` was called with."""

    grid: Grid
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None


class Wrapped:
    """Has a `strategy` configure its messages, without those to nodes that owe a reply."""

    def __init__(self, strategy: Strategy, run: RunPlan, given: Given, stragglers: Stragglers) -> None:
        self._strategy, self._run, self._given, self._stragglers = strategy, run, given, stragglers

    def to_evaluate(self, number: int, model: Model) -> list[Message]:
        """The strategy's messages to evaluate a model after a round; none where the number is 0."""
        if not number:
            return []
        config = self._given.evaluate_config
        return self._to_free(self._strategy.configure_evaluate(number, model.record, config, self._given.grid))

    def to_train(self, number: int, model: Model) -> list[Message]:
        """The strategy's messages to train at a model in a round."""
        log(INFO, "")
        log(INFO, "[ROUND %d/%d]", number, self._run.settings.rounds)
        for each in strategies_in(self._strategy):
            if isinstance(each, FedAvgM):  # the only one of Flower's that goes on from the model that it made itself
                each.current_arrays = model.record
        config = self._given.train_config
        train = list(self._strategy.configure_train(number, model.record, config, self._given.grid))
        nodes = [message.metadata.dst_node_id for message in train]
        if number == 1:
            say_if_tolerate_is_cut(self._run, len(nodes))
        if len(set(nodes)) < len(nodes):
            raise ConfigError("the strategy sends a node several messages to train; a guarded one may send one")
        return self._to_free(train)

    def _to_free(self, messages: Iterable[Message]) -> list[Message]:
        """Those of the messages that go to nodes which owe no reply."""
        busy = self._stragglers.busy
        return [message for message in messages if message.metadata.dst_node_id not in busy]


def strategies_in(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy, and those that lie in its attributes, each once."""
    waiting, seen = [strategy], set[int]()
    while waiting:
        each = waiting.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [value for value in vars(each).values() if isinstance(value, Strategy)]


def said_by(strategy: Strategy, name: str, kind: type[T]) -> T | None:
    """An attribute of a strategy of Flower's, or of one that it wraps; None if none has it."""
    found = (getattr(each, name, None) for each in strategies_in(strategy))
    return next((value for value in found if isinstance(value, kind)), None)
