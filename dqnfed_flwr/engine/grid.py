"""A Flower grid without a network: it calls the ClientApp in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from logging import WARNING
from typing import NoReturn

import numpy as np
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from dqnfed_flwr.engine.ahead import Ahead
from dqnfed_flwr.engine.once import Once
from dqnfed_flwr.errors import DQNFedError, ModelError, RunError
from dqnfed_flwr.wire import decode_memory, encode_memory

SERVER_NODE = 1
_RUNS = count(1)
"""Numbers of the runs of this process: clients of two that go on at the same time are not the same."""
CLIENT_ERROR = 2
"""Flower's code of an exception in a ClientApp."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What clients of one process do together.

    Attributes
    ----------
    size : int
        Messages of a group, at least 1; they are taken in their order, so that groups do not depend on threads.
    prepare : Callable[[Sequence[tuple[Message, Context]]], None]
        Called once with the messages of a group, before the first of them is answered. A `ModelError` ends the run;
        after any other error the clients answer all the same.
    """

    size: int
    prepare: Callable[[Sequence[tuple[Message, Context]]], None]


class InProcessGrid(Grid):
    """Nodes 2 ... n+1 with partitions 0 ... n-1, all in this process.

    Replies come one a call, in the order of the messages. With `jobs` 1 each is computed when it is pulled, so that a
    strategy takes it in before the next is computed; with more, that many clients compute at the same time and a few
    replies wait. Bits do not depend on it, as long as every reply is pulled.

    Parameters
    ----------
    app : ClientApp
        What every node runs.
    clients : int
        Nodes.
    run_config : Mapping[str, Scalar]
        Of the run.
    jobs : int
        Clients that compute at the same time, each in a thread.
    groups : Groups | None
        What is done once for several messages; None for nothing.
    """

    def __init__(
        self, app: ClientApp, clients: int, run_config: UserConfig, *, jobs: int = 1, groups: Groups | None = None
    ) -> None:
        self._app, self._groups, self._number = app, groups, next(_RUNS)
        self._ready: dict[str, Once] = {}
        self._replies = Ahead(self._answer, jobs)
        self._contexts = {
            client + 2: Context(
                run_id=self._number,
                node_id=client + 2,
                node_config={"partition-id": client, "num-partitions": clients},
                state=RecordDict(),
                run_config=run_config,
            )
            for client in range(clients)
        }
        self._waiting: dict[str, Message] = {}
        self._sent = 0
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, self._number, SERVER_NODE

    @property
    def run(self) -> Run:
        """A run of this process alone."""
        return Run.create_empty(self._number)

    def set_run(self, run: Run) -> None:
        """Nothing to set: the grid is its own run."""
        del run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> NoReturn:
        """Flower has deprecated this method; messages are built by `flwr.app.Message`."""
        raise RunError("create_message is deprecated; build a flwr.app.Message")

    def get_node_ids(self) -> list[int]:
        """All nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages; their numbers. What was pushed before and not pulled is withdrawn."""
        self._waiting.clear()
        for message in messages:
            self._sent += 1
            number = str(self._sent)
            message.metadata.__dict__["_message_id"] = number
            self._waiting[number] = message
        self._ready = {} if self._groups is None else self._form(self._groups)
        self._replies.put(self._waiting)
        return list(self._waiting)

    def withdraw(self) -> None:
        """Drop what was pushed and not pulled: no client works for nobody, and none owes a reply."""
        self._waiting.clear()
        self._replies.put(self._waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The reply to the first of `message_ids` that waits."""
        for number in message_ids:
            if self._waiting.pop(number, None) is not None:
                return [self._replies.take(number)]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies; `timeout` has no meaning here."""
        del timeout
        return [reply for number in self.push_messages(messages) for reply in self.pull_messages([number])]

    def export_client_states(self) -> dict[str, NDArray[np.generic]]:
        """Memory of all clients, as `<node>/<name>`."""
        return {
            f"{node}/{name}": values
            for node, context in self._contexts.items()
            for name, values in decode_memory(context.state).items()
        }

    def restore_client_states(self, states: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export_client_states`."""
        for node, context in self._contexts.items():
            prefix = f"{node}/"
            memory = {name.removeprefix(prefix): v for name, v in states.items() if name.startswith(prefix)}
            encode_memory(memory, context.state)

    def _form(self, groups: Groups) -> dict[str, Once]:
        """For each message that waits, what is to be done before it is answered."""
        waiting = list(self._waiting.items())
        ready: dict[str, Once] = {}
        for start in range(0, len(waiting), groups.size):
            part = waiting[start : start + groups.size]
            asked = [(message, self._contexts[message.metadata.dst_node_id]) for _, message in part]
            ready |= dict.fromkeys((number for number, _ in part), Once(partial(groups.prepare, asked)))
        return ready

    def _prepare(self, message: Message) -> None:
        try:
            if prepare := self._ready.get(message.metadata.message_id):
                prepare()
        except ModelError:  # the settings are at fault, not a client
            raise
        except Exception as error:  # whoever is at fault says so in its own answer
            log(WARNING, "Clients compute one by one: %s: %s", type(error).__name__, error)

    def _answer(self, message: Message) -> Message:
        self._prepare(message)
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except DQNFedError as error:
            return Message(Error(CLIENT_ERROR, f"{type(error).__name__}: {error}"), reply_to=message)
        except Exception:  # whatever a client raises costs only itself, as on a real node
            return Message(Error(CLIENT_ERROR, traceback.format_exc()), reply_to=message)
