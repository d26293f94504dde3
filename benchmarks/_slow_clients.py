"""Clients whose work takes simulated time: a grid on which nobody waits, and the clock of a server that asks them.

A message takes its client `speed` x samples that passed through the model x a constant. Samples are counted where the
package computes: a forward and backward pass of a sample counts as one, a forward pass alone as a third. Speeds are
lognormal, and a client keeps its own. Now and then one drops out of an exchange: half-way its node answers with an
error, as a SuperLink does in the place of a node that is gone, and is there again for the next message. Sending takes
no time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from benchmarks._clock import Clock
from benchmarks._queueing import FIRST_NODE, NODE_UNAVAILABLE, Node, QueueingGrid
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.config import Settings
from dqnfed_flwr.strategy import beside, client_registry, exchange
from dqnfed_flwr.tasks.batches import Batch
from dqnfed_flwr.types import Float64Array

FORWARD = 1 / 3
"""Of the cost of a forward and backward pass."""


@dataclass(frozen=True)
class Law:
    """How long clients take, and how often one drops out of an exchange.

    Attributes
    ----------
    speeds : Float64Array
        Seconds for a sample, forward and backward [K].
    drop : float
        Share of messages that bring no work back.
    seed : int
        Of the draws of who drops out; each is that of a client and the number of its message.
    """

    speeds: Float64Array
    drop: float
    seed: int

    @classmethod
    def lognormal(cls, clients: int, unit: float, *, sigma: float, drop: float, seed: int) -> Law:
        """Speeds exp(sigma z) times `unit` seconds a sample, with z standard normal."""
        drawn = np.random.default_rng([seed, 1]).lognormal(0.0, sigma, clients)
        return cls(unit * drawn, drop, seed)

    def drops(self, client: int, number: int) -> bool:
        """Whether the client drops out of its message with this number."""
        return bool(np.random.default_rng([self.seed, 2, client, number]).random() < self.drop)


class SlowGrid(QueueingGrid):
    """Clients that work by a `law`, and what they have spent.

    With `forward` False, forward passes alone cost nothing: for methods that need none, and are asked all the same.

    Attributes
    ----------
    pushed : float
        When tasks were last sent.
    """

    def __init__(self, app: ClientApp, law: Law, clock: Clock, settings: Settings, *, forward: bool = True) -> None:
        super().__init__(app, settings.clients, clock, settings.flat())
        self.law, self._forward = law, forward
        self._done: dict[str, Message] = {}
        self._numbers = [0] * len(law.speeds)

    @property
    def pushed(self) -> float:
        """When tasks were last sent."""
        return self.asked[-1][1] if self.asked else self._clock.now

    def begin(self, node: Node, message: Message) -> float:
        """Compute, to know how long it takes."""
        client = message.metadata.dst_node_id - FIRST_NODE
        self._numbers[client] += 1
        with counted() as samples:
            reply = super().finish(node, message)
        seconds = float(self.law.speeds[client]) * (samples.trained + FORWARD * self._forward * samples.judged)
        if self.law.drops(client, self._numbers[client]):
            words = "the node is gone" + "!" * (self._numbers[client] % 4)  # the same each time would leave it out
            reply, seconds = Message(Error(NODE_UNAVAILABLE, words), reply_to=message), seconds / 2
        self._done[message.metadata.message_id] = reply
        return seconds

    def finish(self, node: Node, message: Message) -> Message:
        """What was computed when it was taken up."""
        return self._done.pop(message.metadata.message_id)


@dataclass
class Counted:
    """Samples that passed through models: forward and backward, and forward alone."""

    trained: float = 0.0
    judged: float = 0.0


@contextmanager
def counted() -> Iterator[Counted]:
    """Within, the samples of every local pass are counted; evaluations on test parts are not."""
    found = Counted()
    mean, gradient, loss = LocalLoss.mean, LocalLoss.loss_and_gradient, LocalLoss.loss

    def counted_mean(self: LocalLoss, batch: Batch, count: int) -> Tensor:
        found.trained += count
        return mean(self, batch, count)

    def counted_gradient(self: LocalLoss, theta: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        found.trained += self.num_examples if rows is None else len(rows)
        return gradient(self, theta, rows)

    def counted_loss(self: LocalLoss, theta: Tensor) -> float:
        found.judged += self.num_examples
        return loss(self, theta)

    changed = {"mean": counted_mean, "loss_and_gradient": counted_gradient, "loss": counted_loss}
    originals = {name: getattr(LocalLoss, name) for name in changed}
    for name, method in changed.items():
        setattr(LocalLoss, name, method)
    try:
        yield found
    finally:
        for name, method in originals.items():
            setattr(LocalLoss, name, method)


@contextmanager
def simulated(clock: Clock) -> Iterator[None]:
    """Within, the server's exchanges wait by this clock: deadline, quorum, pauses and patience."""
    modules = (exchange, client_registry, beside)
    originals = [vars(module)["time"] for module in modules]
    for module in modules:
        vars(module)["time"] = clock
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            vars(module)["time"] = original
