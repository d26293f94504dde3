"""A grid whose nodes work their messages off one at a time, each in its own time, as SuperNodes do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from benchmarks._clock import Clock
from dqnfed_flwr.errors import RunError

FIRST_NODE = 2
NODE_UNAVAILABLE = 5


@dataclass
class Node:
    """One node: seconds for a message, and more for the next one alone; what it is at, until when, and what waits."""

    context: Context
    seconds: float = 0.0
    once: float = 0.0
    online: bool = True
    free: float = 0.0
    at: Message | None = None
    queue: list[tuple[float, Message]] = field(default_factory=list)

    @property
    def backlog(self) -> int:
        """Messages that it has not answered."""
        return len(self.queue) + (self.at is not None)


class QueueingGrid(Grid):
    """Clients 0 ... n-1 on nodes 2 ... n+1.

    A node that is offline answers nothing, and whoever waits for it is told so; what it was at is lost. Queries are
    answered at once.

    Attributes
    ----------
    nodes : dict[int, Node]
        By client.
    asked : list[tuple[int, float]]
        Client and time of every task that was pushed.
    """

    def __init__(self, app: ClientApp, clients: int, clock: Clock, run_config: UserConfig | None = None) -> None:
        self._app, self._clock, self._sent = app, clock, 0
        self._messages: dict[str, Message] = {}
        self._replies: dict[str, Message] = {}
        self.asked: list[tuple[int, float]] = []
        self.nodes = {client: Node(_context(client, clients, run_config or {})) for client in range(clients)}
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    @property
    def next_reply(self) -> float:
        """When the first of the nodes that are at work will have done."""
        self._work()
        return min(node.free for node in self.nodes.values() if node.at is not None)

    @property
    def run(self) -> Run:
        """A run of this process alone."""
        return Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        """Nothing to set."""
        del run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> NoReturn:
        """Flower has deprecated it; messages are built by `flwr.app.Message`."""
        raise RunError("create_message is deprecated; build a flwr.app.Message")

    def get_node_ids(self) -> list[int]:
        """Nodes that are online."""
        return [client + FIRST_NODE for client, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Put the messages behind those that wait already."""
        numbers = []
        for message in messages:
            self._sent += 1
            number, client = str(self._sent), message.metadata.dst_node_id - FIRST_NODE
            message.metadata.__dict__["_message_id"] = number
            self._messages[number] = message
            numbers.append(number)
            if message.metadata.message_type == MessageType.QUERY:
                self._replies[number] = self._app(message, self.nodes[client].context)
                continue
            self.asked.append((client, self._clock.now))
            self.nodes[client].queue.append((self._clock.now, message))
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now."""
        self._work()
        return [reply for number in message_ids for reply in self._pull(number)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> NoReturn:
        """On a simulated clock one does not wait: messages are pushed, and replies pulled when it is time."""
        raise RunError("send_and_receive waits by the real clock; push messages and pull their replies")

    def begin(self, node: Node, message: Message) -> float:
        """Seconds that a node is at work for a message which it takes up now."""
        seconds, node.once = node.seconds + node.once, 0.0
        return seconds

    def finish(self, node: Node, message: Message) -> Message:
        """Its reply, when they are over."""
        return self._app(message, node.context)

    def lose(self, client: int) -> None:
        """A node is restarted so fast that nobody sees it offline: what it was at is lost."""
        self._work()
        self.nodes[client].at = None
        self.nodes[client].free = self._clock.now

    def give_up(self, client: int) -> None:
        """The SuperLink answers in the place of a node that stays: what it was asked has come to nothing."""
        self._work()
        node = self.nodes[client]
        for message in filter(None, [node.at, *(message for _, message in node.queue)]):
            self._replies[message.metadata.message_id] = Message(
                Error(NODE_UNAVAILABLE, "the message has expired"), reply_to=message
            )
        node.at, node.queue = None, []
        node.free = self._clock.now

    def leave(self, client: int) -> None:
        """A node is killed."""
        self.lose(client)
        self.nodes[client].online = False

    def join(self, client: int) -> None:
        """It is back, under the same id."""
        self.nodes[client].online = True
        self.nodes[client].free = self._clock.now

    def _pull(self, number: str) -> list[Message]:
        message = self._messages[number]
        if not self.nodes[message.metadata.dst_node_id - FIRST_NODE].online:
            return [Message(Error(NODE_UNAVAILABLE, "node is offline"), reply_to=message)]
        if number not in self._replies:
            return []
        del self._messages[number]
        return [self._replies.pop(number)]

    def _work(self) -> None:
        for node in self.nodes.values():
            while node.online and (node.at is not None or node.queue):
                if node.at is None:
                    pushed, node.at = node.queue.pop(0)
                    node.free = max(node.free, pushed) + self.begin(node, node.at)
                if node.free > self._clock.now:
                    break
                self._replies[node.at.metadata.message_id] = self.finish(node, node.at)
                node.at = None


def _context(client: int, clients: int, run_config: UserConfig) -> Context:
    config: dict[str, bool | float | int | str] = {"partition-id": client, "num-partitions": clients}
    node = client + FIRST_NODE
    return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=run_config)
