"""The ClientApp: Flower messages in, `NumPyClient` out. No algorithm here."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from logging import WARNING
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from flwr.app import ArrayRecord, Context, Message, MessageType, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from dqnfed_flwr import wire
from dqnfed_flwr.client.masks import STATE, Masks, check_records, discreet, masks_of
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Scalar, Settings, resolve
from dqnfed_flwr.errors import ClientDataError, ConfigError, WireError
from dqnfed_flwr.types import ClientReply, under
from dqnfed_flwr.version import package_version
from dqnfed_flwr.wire import Assignment
from dqnfed_flwr.wire.codecs import HELD_MODEL, WHOLE
from dqnfed_flwr.wire.masked import decode_masked

if TYPE_CHECKING:
    from dqnfed_flwr.client.held_model import HeldModel

app = ClientApp()

LEAST = 128
"""So many are kept however large they are."""
ROOM = 2 << 30
"""Bytes up to which more of them are kept."""
_Items = frozenset[tuple[str, Scalar]]
_Key = tuple[int, _Items, int, str | None]
"""Run, settings, partition, and where the client's own data are."""
_KNOWN: deque[tuple[UserConfig, _Items]] = deque(maxlen=4)


class Sized(Protocol):
    """Something that knows how large it is."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)


class Cache(Generic[Key, Value]):
    """Values by key; those asked for longest ago go first.

    An exchange asks for every client once, in the same order each time: a cache with room for one client too few would
    find none of them. That is why their number is not bounded, but their bytes are: `least` values are kept however
    large they are, and more of them up to `room` bytes. A value may grow as it is used: `weigh` it then.
    """

    def __init__(self, least: int = LEAST, room: int = ROOM) -> None:
        self._least, self._room = least, room
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key, build: Callable[[], Value]) -> Value:
        """The value of `key`, built if it is not here; all who ask at the same time are given the same one."""
        with self._lock:
            if key in self._values:
                return self._used(key)
        built = build()
        with self._lock:
            if key not in self._values:
                size = built.nbytes
                self._values[key] = built, size
                self._bytes += size
                self._shrink()
            return self._used(key)

    def weigh(self, key: Key) -> None:
        """Take note of how large the value of `key`, if it is still here, is by now."""
        with self._lock:
            if key in self._values:
                value, size = self._values[key]
                self._values[key] = value, value.nbytes
                self._bytes += self._values[key][1] - size
                self._shrink()

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _used(self, key: Key) -> Value:
        self._values.move_to_end(key)
        return self._values[key][0]

    def _shrink(self) -> None:
        while len(self._values) > self._least and self._bytes > self._room:
            _, (_, size) = self._values.popitem(last=False)
            self._bytes -= size


@dataclass(slots=True)
class _Session:
    """A client of this process, the record that its memory was last saved to, and the bytes of that.

    `held` is the model that it keeps where it is sent steps alone.
    """

    client: DQNFedClient
    masks: Masks | None = None
    held: HeldModel | None = None
    saved: ArrayRecord | None = None
    memory: int = 0

    @property
    def nbytes(self) -> int:
        """All that the client holds by itself; what its process holds once, such as the model, is not counted."""
        return self.client.nbytes + self.memory

    def load(self, context: Context) -> None:
        """Bring the client's memory to what Flower keeps for it.

        The next message of a client may come to any process, so the context decides; where it still holds the very
        record saved here, there is nothing to read.
        """
        held = wire.memory_record(context.state)
        if held is not self.saved:
            memory = wire.decode_memory(context.state)
            own = {name: each for name, each in memory.items() if not name.startswith((HELD_MODEL, STATE))}
            self.client.restore_state(own)
            if self.held is not None:
                self.held.load(under(HELD_MODEL, memory))
            if self.masks is not None:
                self.masks.load(under(STATE, memory))
            self.saved = held

    def read(self, message: Message, context: Context) -> Assignment:
        """What a message asks, with the memory at hand for it; `WireError` if it cannot be read, or not any more."""
        self.load(context)
        return wire.decode_task(message.content, None if self.held is None else self.held.follow)

    def save(self, context: Context) -> None:
        """Leave in the context that the model is in order, and the client's memory, if it has any."""
        wire.encode_checked(context.run_id, self.client.checked, context.state)
        memory = {**self.client.export_state(), **({} if self.masks is None else self.masks.export())}
        model = {} if self.held is None else {HELD_MODEL + name: values for name, values in self.held.export().items()}
        if memory or self.held is not None:
            wire.encode_memory(memory | model, context.state)
            self.saved = wire.memory_record(context.state)
        self.memory = sum(values.nbytes for values in memory.values())


_SESSIONS: Cache[_Key, _Session] = Cache()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Loss, gradient and rate at the candidate model; probes and accuracies where asked for."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Probes and accuracies at the candidate model."""
    return _answer(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Partition, sample counts and form of this node's data; or what is wrong with them."""
    try:
        session = _session_of(context)
        with discreet(session.masks):
            properties = session.client.get_properties({})
        wire.encode_checked(context.run_id, session.client.checked, context.state)
    except ClientDataError as error:  # an error of Flower's would not say whose it is
        _, _, partition, _ = _key_of(context)
        properties = {"partition": partition, "fault": str(error), "version": package_version()}
    if name := context.node_config.get("name"):
        properties["name"] = str(name)
    return Message(wire.encode_properties(properties), reply_to=message)


def _answer(message: Message, context: Context) -> Message:
    """Do what a `train` or `evaluate` message asks; the client's memory travels in the context's state."""
    session = _session_of(context)
    session.load(context)
    if session.masks is not None and (asked := decode_masked(message.content)) is not None:
        content = session.masks.answer(asked, session.client.averaged)
    else:
        try:
            content = wire.encode_reply(_work(session, session.read(message, context)))
        except WireError as error:
            if error.reason != wire.LOST_MODEL:
                raise
            log(WARNING, "%s; the server sends the whole model next", error)
            content = wire.encode_lost()
    session.save(context)
    _SESSIONS.weigh(_key_of(context))
    return Message(content, reply_to=message)


def _work(session: _Session, assignment: Assignment) -> ClientReply:
    work = partial(session.client.work, assignment.task, assignment.theta, assignment.step, assignment.buffers)
    if session.masks is None:
        return work(assignment.vectors, lasting=True)
    with discreet(session.masks):
        release = session.masks.release(assignment)
        return session.masks.hidden(assignment, work(assignment.vectors, lasting=True, release=release))


def compute_together(asked: Sequence[tuple[Message, Context]]) -> None:
    """Compute the gradients that these messages ask for at one model together; the app's answers then take them up.

    Raises
    ------
    ModelError
        If the model cannot be taken apart for that.
    """
    alike: dict[tuple[int, int], list[tuple[Assignment, DQNFedClient]]] = {}
    for message, context in asked:
        if message.metadata.message_type == MessageType.TRAIN:
            session = _session_of(context)
            with suppress(WireError):  # the client says so in its own answer
                assignment = session.read(message, context)
                key = id(assignment.theta), assignment.task.num_classes
                alike.setdefault(key, []).append((assignment, session.client))
    for (assignment, first), *others in alike.values():
        if others:
            classes = assignment.task.num_classes
            first.precompute(classes, assignment.theta, assignment.buffers, [client for _, client in others])


def forget_clients() -> None:
    """Let go of all clients of this process, with their data and models."""
    _SESSIONS.clear()
    if models := sys.modules.get("dqnfed_flwr.client.shared_models"):  # else there are none, and torch is not needed
        models.forget_models()


def _session_of(context: Context) -> _Session:
    key = _key_of(context)
    _, items, partition, place = key
    session = _SESSIONS.get(key, lambda: _open(_settings(items), partition, place, context))
    session.client.checked = wire.decode_checked(context.run_id, context.state) or session.client.checked
    return session


def _key_of(context: Context) -> _Key:
    node = context.node_config
    if "partition-id" not in node:
        raise ConfigError("this node has no partition-id; start it with --node-config 'partition-id=0'")
    path = node.get("data")
    place = None if path is None else str(path)
    return context.run_id, _items(context.run_config), _partition(node["partition-id"]), place


def _partition(given: Scalar) -> int:
    text = str(given)
    if not text.isdecimal():
        raise ConfigError(f"partition-id: found {given!r}; give the number of this node's client, from 0")
    return int(text)


def _open(settings: Settings, partition: int, data_path: str | None, context: Context) -> _Session:
    masks = masks_of(settings, partition, context)  # a node without keys says so before it reads its data
    from dqnfed_flwr.client.parts import open_client

    with discreet(masks):
        data = open_client(settings, partition, data_path)
        check_records(settings, partition, data.count("train"))
    client = DQNFedClient(settings, partition, data)
    bits = resolve(settings).step_bits
    if bits == WHOLE:
        return _Session(client, masks)
    from dqnfed_flwr.client.held_model import HeldModel

    return _Session(client, masks, HeldModel(bits))


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
