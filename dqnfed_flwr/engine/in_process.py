"""A Flower grid without a network: it calls the ClientApp in this process.

Clients may compute in several threads: `Prefetch` keeps their replies a little ahead of those that are pulled, and
`CallOnce` does what a group of them needs once.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import count
from logging import WARNING
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

import numpy as np
from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError, DQNFedError, ModelError, RunError
from dqnfed_flwr.wire import decode_memory, decode_properties, encode_memory
from dqnfed_flwr.wire.codecs import HELD_MODEL

if TYPE_CHECKING:
    import torch

In = TypeVar("In")
Out = TypeVar("Out")
HELD = 2
"""Results begun or held for each thread: what bounds the memory."""
SERVER_NODE = 1
_RUNS = count(1)
"""Numbers of the runs of this process: clients of two that go on at the same time are not the same."""
CLIENT_ERROR = 2
"""Flower's code of an exception in a ClientApp."""


@dataclass(frozen=True, slots=True)
class Groups:
    """What clients of one process do together.

    A group is `size` messages, at least 1, in their order, so that groups do not depend on threads. `prepare` is called
    once with them, before the first of them is answered. A `ModelError` ends the run; after any other error the clients
    answer all the same.
    """

    size: int
    prepare: Callable[[Sequence[tuple[Message, Context]]], None]


class InProcessGrid(Grid):
    """Nodes 2 ... n+1 with partitions 0 ... n-1, all in this process.

    Replies come one a call, in the order of the messages. With `jobs` 1 each is computed when it is pulled, so that a
    strategy takes it in before the next is computed; with more, that many clients compute at the same time, each in a
    thread, and a few replies wait. Bits do not depend on it, as long as every reply is pulled. Queries are answered
    one by one: threads would slow them down. `groups` says what is done once for several messages.
    """

    def __init__(
        self, app: ClientApp, clients: int, run_config: UserConfig, *, jobs: int = 1, groups: Groups | None = None
    ) -> None:
        self._app, self._groups, self._number = app, groups, next(_RUNS)
        self._config = run_config
        self._prepared: dict[str, CallOnce] = {}
        self._replies = Prefetch(self._answer, jobs)
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

    def clients_device(self) -> torch.device:
        """Where all clients compute; `ConfigError` if it is absent."""
        from dqnfed_flwr.client.device import choose_device

        double = self._config.get("dtype") == "float64"
        return choose_device(str(self._config.get("device", "auto")), "float64" if double else "float32")

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
        self._prepared = {} if self._groups is None else self._form(self._groups)
        self._replies.put({number: message for number, message in self._waiting.items() if not _is_query(message)})
        return list(self._waiting)

    def withdraw(self) -> None:
        """Drop what was pushed and not pulled: no client computes it, and none owes a reply."""
        self._waiting.clear()
        self._replies.put(self._waiting)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The reply to the first of `message_ids` that waits."""
        for number in message_ids:
            if (message := self._waiting.pop(number, None)) is not None:
                return [self._answer(message) if _is_query(message) else self._replies.take(number)]
        return []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """All replies; `timeout` has no meaning here."""
        del timeout
        return [reply for number in self.push_messages(messages) for reply in self.pull_messages([number])]

    def export_client_states(self) -> dict[str, NDArray[np.generic]]:
        """Memory of all clients, as `<node>/<name>`, but the model that they keep: a server that goes on sends it."""
        return {
            f"{node}/{name}": values
            for node, context in self._contexts.items()
            for name, values in decode_memory(context.state).items()
            if not name.startswith(HELD_MODEL)
        }

    def restore_client_states(self, states: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `export_client_states`."""
        for node, context in self._contexts.items():
            prefix = f"{node}/"
            memory = {name.removeprefix(prefix): v for name, v in states.items() if name.startswith(prefix)}
            encode_memory(memory, context.state)

    def _form(self, groups: Groups) -> dict[str, CallOnce]:
        """For each message that waits, what is to be done before it is answered."""
        waiting = list(self._waiting.items())
        prepared: dict[str, CallOnce] = {}
        for start in range(0, len(waiting), groups.size):
            part = waiting[start : start + groups.size]
            asked = [(message, self._contexts[message.metadata.dst_node_id]) for _, message in part]
            prepared |= dict.fromkeys((number for number, _ in part), CallOnce(partial(groups.prepare, asked)))
        return prepared

    def _prepare(self, message: Message) -> None:
        try:
            if prepare := self._prepared.get(message.metadata.message_id):
                prepare()
        except ModelError:  # the settings are at fault, not a client
            raise
        except Exception as error:  # the client at fault says so in its own answer
            log(WARNING, "Clients compute one by one: %s: %s", type(error).__name__, error)

    def _answer(self, message: Message) -> Message:
        self._prepare(message)
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except DQNFedError as error:
            return Message(Error(CLIENT_ERROR, f"{type(error).__name__}: {error}"), reply_to=message)
        except Exception:  # whatever a client raises costs only itself, as on a real node
            return Message(Error(CLIENT_ERROR, traceback.format_exc()), reply_to=message)


class OneSourceGrid(InProcessGrid):
    """An `InProcessGrid` on which what a client raises over the first query is raised by `pull_messages`.

    What is wrong with settings, model or the set that all share is wrong with the run. A fault of a client's own part
    is an answer, as on real nodes, and the others go on without it; unless all have one: then it is a `DataError`.
    """

    def __init__(
        self, app: ClientApp, clients: int, run_config: UserConfig, *, jobs: int = 1, groups: Groups | None = None
    ) -> None:
        super().__init__(app, clients, run_config, jobs=jobs, groups=groups)
        self._faults: dict[int, str] = {}
        self._known: dict[str, Message] = {}

    def _answer(self, message: Message) -> Message:
        if not _is_query(message):
            return super()._answer(message)
        number = message.metadata.message_id
        if number not in self._known:
            self._ask([message, *filter(_is_query, self._waiting.values())])
        return self._known.pop(number)

    def _ask(self, queries: Sequence[Message]) -> None:
        """Have queries answered up to the first answer without a fault: a fault of all is told once, as the run's."""
        for query in queries:
            node = query.metadata.dst_node_id
            reply = self._known[query.metadata.message_id] = self._app(query, self._contexts[node])
            fault = decode_properties(reply.content).get("fault")
            if not fault:
                self._faults.pop(node, None)
                return
            self._faults[node] = str(fault)
        if len(self._faults) == len(self._contexts):
            raise DataError(_of_all([self._faults[node] for node in sorted(self._faults)]))


def _of_all(faults: Sequence[str]) -> str:
    """The fault of the first client, and whether those of the others differ."""
    return faults[0] + ("; nor can any other client take part" if len({*faults}) > 1 else "")


def _is_query(message: Message) -> bool:
    return bool(message.metadata.message_type == MessageType.QUERY)


class Prefetch(Generic[In, Out]):
    """Results by key, computed in order by `threads` threads that stay a little ahead of those taken.

    With one thread nothing runs ahead: a result is computed when it is taken, in the caller's thread. Several threads
    may call `work` with different arguments. What it raises, `take` raises.
    """

    def __init__(self, work: Callable[[In], Out], threads: int) -> None:
        self._work, self._threads = work, threads
        self._waiting: dict[str, In] = {}
        self._begun: dict[str, Future[Out]] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="client") if threads > 1 else None

    def put(self, inputs: Mapping[str, In]) -> None:
        """Take these up, in their order, in place of what was not taken."""
        wait([future for future in self._begun.values() if not future.cancel()])
        self._begun.clear()
        self._waiting = dict(inputs)

    def take(self, key: str) -> Out:
        """The result under `key`, once; `KeyError` if there is none."""
        if self._pool is None:
            return self._work(self._waiting.pop(key))
        if key not in self._begun:
            self._begin(key, self._pool)
        self._run_ahead(self._pool)
        result = self._begun.pop(key).result()
        self._run_ahead(self._pool)
        return result

    def _run_ahead(self, pool: ThreadPoolExecutor) -> None:
        for key in list(self._waiting)[: max(0, HELD * self._threads - len(self._begun))]:
            self._begin(key, pool)

    def _begin(self, key: str, pool: ThreadPoolExecutor) -> None:
        self._begun[key] = pool.submit(self._work, self._waiting.pop(key))


class CallOnce:
    """Makes `call` when a thread first needs it; other threads wait for it, and all of them get its error, every time.

    The arguments of `call` are freed when it has returned.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Have it done."""
        with self._lock:
            call, self._call = self._call, None
            if call is not None:
                try:
                    call()
                except Exception as error:  # raised for every thread
                    self._error = error
        if self._error is not None:
            raise self._error
