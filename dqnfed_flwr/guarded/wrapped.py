"""The strategy that is wrapped: what it asks of nodes, and its step, changed as little as the clients demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from logging import INFO
from typing import TypeVar

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Strategy
from numpy.typing import NDArray

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.records import Model
from dqnfed_flwr.linalg.min_norm import Status, one_sided_weights
from dqnfed_flwr.methods._base import Method, RoundRows, answer
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.exchange import Stragglers
from dqnfed_flwr.strategy.hearing import say_if_tolerate_is_cut
from dqnfed_flwr.strategy.loop import EvaluateFn
from dqnfed_flwr.types import Combination, Float64Array, RoundBatch, Sees

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


CHANGED = "step_changed"
"""Note of a round: 1 where the strategy's step was changed, 0 where it was offered as it was."""
NOTHING = 1e-6
"""A nearest step shorter than this share of the strategy's is none."""


class Nearest(Method):
    """min |u - u_ref|^2 subject to g_k . u >= d_k, u_ref the strategy's own step theta - theta_inner.

    d_k is -(e - f_k) for a client whose loss f_k is below the entitlement e, and else 0: where u_ref meets that for
    everybody it is the step itself. Where it does not, a client at the bound of 0 would not fall at first order, and
    rise at second; so those above their entitlement are then asked to fall, by the share `demand` of the mean rate at
    which u_ref lowers their losses, each in proportion to |g_k|^2. Where no step does that, d_k = 0 stands.

    The reference lies in the last slot. `cuts` says by what rows were made shorter before, by client.
    """

    reference_rows = 1
    sees = Sees.PRODUCTS
    guaranteed = True

    def __init__(self, run: RunPlan, demand: float) -> None:
        super().__init__(run)
        self._demand = demand
        self.cuts: Mapping[int, float] = {}

    def combine(self, batch: RoundBatch, rows: RoundRows) -> Combination:
        """Coefficients of the K rows, and 1 for the reference."""
        reference = rows.capacity - 1
        gram = rows.gram([*rows.slots, reference])
        own, descents = gram[:-1, :-1], gram[-1, :-1]
        bounds = self._bounds(batch)
        weights = np.zeros(rows.capacity)
        weights[reference] = 1.0
        kept = one_sided_weights(own, np.minimum(bounds, descents), offset=descents)
        if (descents >= bounds).all():
            return answer(weights, kept, {}, notes={CHANGED: 0.0})
        solution = one_sided_weights(own, self._demands(batch, own, descents, bounds), offset=descents)
        if solution.status is Status.STATIONARY:
            solution = one_sided_weights(own, bounds, offset=descents)
        weights[list(rows.slots)] = solution.weights
        square = float(gram[-1, -1] + 2 * solution.weights @ descents + solution.weights @ own @ solution.weights)
        if solution.status is Status.STATIONARY or square <= NOTHING**2 * gram[-1, -1]:
            return answer(np.zeros_like(weights), solution, {}, status=Status.STATIONARY, notes={CHANGED: 1.0})
        return answer(weights, solution, {}, notes={CHANGED: 1.0})

    def _bounds(self, batch: RoundBatch) -> Float64Array:
        """How fast each loss may rise along the step at most, as the least g_k . u [K]."""
        cuts = np.array([self.cuts.get(client, 1.0) for client in batch.clients])
        return -batch.slack * cuts if batch.slack.size else np.zeros(len(batch.clients))

    def _demands(
        self, batch: RoundBatch, gram: Float64Array, descents: Float64Array, bounds: Float64Array
    ) -> Float64Array:
        """The bounds, with what those above their entitlement are asked for [K]."""
        asking: NDArray[np.bool_] = ~batch.served & (np.diag(gram) > 0)
        if not asking.any() or not self._demand:
            return bounds
        squares = np.diag(gram)[asking]
        typical = self._demand * float(np.maximum(descents[asking], 0.0).mean())
        demands = bounds.copy()
        demands[asking] = typical * squares / squares.mean()
        return demands
