"""Between Flower messages and the `NumPyClient`: what the ClientApp calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from flwr.app import ArrayRecord, Context, Message, MessageType, UserConfig

from dqnfed_flwr import wire
from dqnfed_flwr.client.cache import Cache
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.wire import Assignment

_Items = frozenset[tuple[str, Scalar]]
_KNOWN: deque[tuple[UserConfig, _Items]] = deque(maxlen=4)


@dataclass(slots=True)
class _Session:
    """A client of this process, and the record that its memory was last saved to."""

    client: DQNFedClient
    saved: ArrayRecord | None = None

    @property
    def nbytes(self) -> int:
        """Of the client's samples."""
        return self.client.nbytes

    def load(self, context: Context) -> None:
        """Bring the client's memory to what Flower keeps for it.

        The next message of a client may come to any process, so the context decides; where it still holds the very
        record saved here, there is nothing to read.
        """
        held = wire.memory_record(context.state)
        if held is not self.saved:
            self.client.restore_state(wire.decode_memory(context.state))
            self.saved = held

    def save(self, context: Context) -> None:
        """Leave the client's memory, if it has any, in the context."""
        if memory := self.client.export_state():
            wire.encode_memory(memory, context.state)
            self.saved = wire.memory_record(context.state)


_SESSIONS: Cache[tuple[int, _Items, int, str | None], _Session] = Cache()


def answer_task(message: Message, context: Context) -> Message:
    """Do what a `train` or `evaluate` message asks; the client's memory travels in the context's state."""
    assignment = wire.decode_task(message.content)
    session = _session_of(context)
    session.load(context)
    reply = session.client.work(assignment.task, assignment.theta, assignment.step, assignment.buffers, lasting=True)
    session.save(context)
    return Message(wire.encode_reply(reply), reply_to=message)


def foresee_gradients(asked: Sequence[tuple[Message, Context]]) -> None:
    """Compute the gradients that these messages ask for at one model together; `answer_task` then takes them up.

    Raises
    ------
    ModelError
        If the model cannot be taken apart for that.
    """
    alike: dict[tuple[int, int], list[tuple[Assignment, DQNFedClient]]] = {}
    for message, context in asked:
        if message.metadata.message_type == MessageType.TRAIN:
            assignment = wire.decode_task(message.content)
            key = id(assignment.theta), assignment.task.num_classes
            alike.setdefault(key, []).append((assignment, _session_of(context).client))
    for (assignment, first), *others in alike.values():
        if others:
            classes = assignment.task.num_classes
            first.foresee(classes, assignment.theta, assignment.buffers, [client for _, client in others])


def answer_properties(message: Message, context: Context) -> Message:
    """Tell the server which partition this node holds and what its data look like."""
    properties = _session_of(context).client.get_properties({})
    return Message(wire.encode_properties(properties), reply_to=message)


def forget_clients() -> None:
    """Let go of all clients of this process, with their data."""
    _SESSIONS.clear()


def _session_of(context: Context) -> _Session:
    node = context.node_config
    if "partition-id" not in node:
        raise ConfigError("this node has no partition-id; start it with --node-config 'partition-id=0'")
    items, partition, path = _items(context.run_config), _partition(node["partition-id"]), node.get("data")
    place = None if path is None else str(path)
    return _SESSIONS.get((context.run_id, items, partition, place), lambda: _open(_settings(items), partition, place))


def _partition(given: Scalar) -> int:
    text = str(given)
    if not text.isdecimal():
        raise ConfigError(f"partition-id: found {given!r}; give the number of this node's client, from 0")
    return int(text)


def _open(settings: Settings, partition: int, data_path: str | None) -> _Session:
    return _Session(DQNFedClient(settings, partition, load_client(settings, partition, data_path)))


def _items(config: UserConfig) -> _Items:
    """The settings of a run as a key; those of the last few runs are known again without hashing each of them."""
    known = next((items for seen, items in tuple(_KNOWN) if seen == config), None)
    if known is None:
        known = frozenset(config.items())
        _KNOWN.append((dict(config), known))
    return known


@lru_cache(maxsize=4)
def _settings(items: _Items) -> Settings:
    return Settings.from_mapping(dict(items))
