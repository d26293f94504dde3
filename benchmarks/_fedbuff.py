"""FedBuff (Nguyen et al., AISTATS 2022), as a rival on a grid of slow clients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from flwr.app import Message

from benchmarks._clock import Clock
from benchmarks._queueing import QueueingGrid
from dqnfed_flwr import wire
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.strategy.exchange import Answer, pull, push
from dqnfed_flwr.types import ClientTask, FloatArray
from dqnfed_flwr.wire import ReplyForm


class FedBuff:
    """Buffered asynchronous averaging, with `size` updates a step: all clients are always at work.

    An update is the displacement of the client's local passes, from the model that it was sent. Nguyen et al., AISTATS
    2022, algorithm 1 with server rate 1 and the weight 1 / sqrt(1 + tau). Models with buffers are not for it.
    """

    def __init__(self, grid: QueueingGrid, clock: Clock, theta: FloatArray, size: int, classes: int) -> None:
        self.theta, self._version = theta, 0
        self._grid, self._clock, self._size, self._classes = grid, clock, size, classes
        self._waiting: dict[str, int] = {}
        self._sent: dict[int, tuple[int, ClientTask]] = {}
        self._messages = 0
        self._ask(grid.get_node_ids())

    def step(self) -> None:
        """Wait for `size` updates, and make the step."""
        total = np.zeros_like(self.theta, np.float64)
        for _ in range(self._size):
            row, age = self._next()
            total += row / math.sqrt(1.0 + age)
        self.theta = (self.theta - total / self._size).astype(self.theta.dtype)
        self._version += 1

    def _next(self) -> tuple[FloatArray, int]:
        """The next update, and its tau; whoever answered or dropped out before goes on with the newest model."""
        while True:
            self._ask(sorted({*self._grid.get_node_ids()} - {*self._waiting.values()}))
            self._clock.now = max(self._clock.now, self._grid.next_reply)
            first = next(iter(pull(self._grid, self._waiting)), None)
            if first is None:
                continue
            version, task = self._sent[first.node]
            try:
                return self._row(first, task), self._version - version
            except WireError:
                continue

    def _row(self, answer: Answer, task: ClientTask) -> FloatArray:
        reply = wire.decode_reply(answer.content(), task, ReplyForm(len(self.theta), {}))
        return np.asarray(reply.row)

    def _ask(self, nodes: Sequence[int]) -> None:
        """Send the newest model; each message has a number of its own, for other draws."""
        messages = []
        for node in nodes:
            self._messages += 1
            task = ClientTask(exchange=self._messages, round=self._messages, train=True, num_classes=self._classes)
            self._sent[node] = self._version, task
            messages.append(Message(wire.encode_task(task, wire.encode_model(self.theta, {})), node, "train"))
        self._waiting |= push(self._grid, messages)
