"""In-process grids that behave as real ones may: replies out of order or never, nodes that go and come, bad clients."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy

from flwr.app import Context, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp

from dqnfed_flwr.engine.in_process import InProcessGrid

FIRST_NODE = 2


class ShuffledGrid(InProcessGrid):
    """Replies arrive in an order drawn from `seed`."""

    def __init__(self, app: ClientApp, clients: int, seed: int, run_config: UserConfig | None = None) -> None:
        super().__init__(app, clients, run_config or {})
        self._random = random.Random(seed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Any reply that is still to come."""
        del message_ids
        return super().pull_messages([self._random.choice(list(self._waiting))]) if self._waiting else []


class SilentGrid(InProcessGrid):
    """Some nodes answer the query, and nothing else as long as they are in `silent`."""

    def __init__(self, app: ClientApp, clients: int, silent: Iterable[int]) -> None:
        super().__init__(app, clients, {})
        self.silent = {client + FIRST_NODE for client in silent}
        self.until = 0
        """Number of the push with which all begin to speak; 0 for never."""
        self._pushes = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Count."""
        self._pushes += 1
        if self._pushes == self.until:
            self.silent = set()
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies of the others."""

        def speaks(number: str) -> bool:
            message = self._waiting[number]
            return message.metadata.dst_node_id not in self.silent or message.metadata.message_type == MessageType.QUERY

        return super().pull_messages([number for number in message_ids if number in self._waiting and speaks(number)])


class TogetherGrid(InProcessGrid):
    """All messages of a push are answered at once, as Flower's simulation may have it: what a node is to do twice
    begins with the same state, and the state that is kept is that of the last to end, here the first message.
    """

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Compute all replies, backwards."""
        messages = list(messages)
        numbers = super().push_messages(messages)
        before = {node: deepcopy(context.state) for node, context in self._contexts.items()}
        self._answered = {}
        for number, message in reversed(list(zip(numbers, messages, strict=True))):
            node = message.metadata.dst_node_id
            self._contexts[node].state = deepcopy(before[node])
            self._answered[number] = self._answer(message)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are asked for."""
        return [self._answered.pop(number) for number in message_ids if self._waiting.pop(number, None) is not None]


class ChangingGrid(InProcessGrid):
    """Nodes that leave and join: `plan` changes the grid whenever somebody looks which nodes are there.

    Attributes
    ----------
    looked : int
        How often somebody did, this time included.
    exchanges : int
        Exchanges of tasks so far.
    """

    def __init__(self, app: ClientApp, clients: int, plan: Callable[[ChangingGrid], None]) -> None:
        super().__init__(app, clients, {})
        self._clients = clients
        self._plan = plan
        self.looked = 0
        self.exchanges = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Count."""
        messages = list(messages)
        self.exchanges += any(message.metadata.message_type != MessageType.QUERY for message in messages)
        return super().push_messages(messages)

    def get_node_ids(self) -> list[int]:
        """The nodes of this moment."""
        self.looked += 1
        self._plan(self)
        return super().get_node_ids()

    def leave(self, node: int) -> None:
        """Take a node away."""
        self._contexts.pop(node, None)

    def join(self, node: int, client: int) -> None:
        """Bring a node that holds the partition `client`."""
        config: dict[str, bool | float | int | str] = {"partition-id": client, "num-partitions": self._clients}
        self._contexts[node] = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})


class Meddling(ClientApp):
    """A ClientApp with one client whose replies to tasks are tampered with, from a given exchange on.

    Parameters
    ----------
    app : ClientApp
        What honest clients run.
    client : int
        The dishonest one.
    meddle : Callable[[Message], Message]
        Makes its reply from the honest one; may raise.
    since : int
        Its first exchange, from 1, that this is done to.
    """

    def __init__(self, app: ClientApp, client: int, meddle: Callable[[Message], Message], since: int = 1) -> None:
        super().__init__()
        self._app, self._client, self._meddle, self._since = app, client, meddle, since
        self._seen = 0

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, or meddle."""
        reply = self._app(message, context)
        if context.node_config["partition-id"] != self._client or message.metadata.message_type == MessageType.QUERY:
            return reply
        self._seen += 1
        return self._meddle(reply) if self._seen >= self._since else reply
