"""One exchange: messages out, replies taken in as they arrive, closed at a quorum or a deadline.

Flower's own helper hands replies over in batches after a fixed sleep, waits for those that are lost, and reports a
dead node under the server's id. Here every reply is known by the message it answers, and whoever has not answered
when the exchange closes is absent. Replies are pulled one by one: the server holds one of them at a time, and one that
cannot even be unpacked takes no other with it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from dqnfed_flwr.errors import WireError, shortened

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
UNPACKING_FAILED = (ValueError, TypeError, LookupError, AttributeError, DecodeError)
"""What Flower raises while it rebuilds a message from a reply that is not what it claims to be."""


@runtime_checkable
class Withdraws(Protocol):
    """A grid that can take messages back, so that no reply comes late."""

    def withdraw(self) -> None:
        """Drop what was pushed and not pulled."""


@runtime_checkable
class Repeats(Protocol):
    """A grid that repeats calls which its SuperLink could not do."""

    def take_repeats(self) -> int:
        """How many calls were repeated since this was asked last."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from a node: a message, one that cannot be unpacked (with the reason), or nothing in time.

    `owed` is the number of the message that the node has not answered and still may.
    """

    node: int
    message: Message | None
    unreadable: str = ""
    owed: str = ""

    @property
    def usable(self) -> bool:
        """Whether there is content to look at."""
        return self.message is not None and not self.message.has_error()

    def content(self) -> RecordDict:
        """The content of the reply.

        Raises
        ------
        WireError
            With reason `absent`, `unreadable` or `client-error`.
        """
        if self.unreadable:
            raise WireError("unreadable", self.unreadable)
        if self.message is None:
            raise WireError("absent", "no reply before the exchange closed")
        if self.message.has_error():
            error = self.message.error
            raise WireError("client-error", f"code {error.code}: {error.reason}")
        return self.message.content


def push(
    grid: Grid, contents: Mapping[int, RecordDict], message_type: str | Mapping[int, str], group: str
) -> dict[str, int]:
    """Send a message to each node; the nodes by the numbers of their messages, those that could not be sent left out.

    `contents` are by node id, and so may be Flower's `message_type`; `group` is the group id of all messages.
    """
    messages = [
        Message(content, node, message_type if isinstance(message_type, str) else message_type[node], group_id=group)
        for node, content in contents.items()
    ]
    return {number: node for number, node in zip(grid.push_messages(messages), contents, strict=False) if number}


def pull(grid: Grid, waiting: dict[str, int]) -> Iterator[Answer]:
    """Yield the answers that have come by now, and strike them off `waiting` (nodes by message number)."""
    for number in list(waiting):
        try:
            arrived = list(grid.pull_messages([number]))
        except UNPACKING_FAILED as error:
            yield Answer(waiting.pop(number), None, shortened(f"{type(error).__name__}: {error}"))
            continue
        for message in arrived:
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is not None:
                yield Answer(node, message)


def send_and_receive(
    grid: Grid,
    contents: Mapping[int, RecordDict],
    message_type: str | Mapping[int, str],
    *,
    group: str,
    deadline: float,
    quorum: float = 1.0,
    meanwhile: Callable[[float], None] = lambda end: None,
) -> Iterator[Answer]:
    """Send a message to each node and yield the answers as they arrive; the absent come last.

    Parameters
    ----------
    grid, contents, message_type, group
        As for `push`.
    deadline : float
        Seconds after which the exchange closes.
    quorum : float
        Share of nodes with whose usable replies it closes before.
    meanwhile : Callable[[float], None]
        Called whenever nothing has come, with the time (monotonic) at which the exchange closes.

    Yields
    ------
    Answer
        One for every node.
    """
    waiting = push(grid, contents, message_type, group)
    absent = dict.fromkeys(contents)
    end, pause = time.monotonic() + deadline, FIRST_PAUSE
    missing = math.ceil(quorum * len(contents) - 1e-9)
    while missing > 0 and waiting and time.monotonic() < end:
        heard = len(absent)
        for answer in pull(grid, waiting):
            del absent[answer.node]
            if answer.usable:
                missing -= 1
            yield answer
            if missing <= 0 or time.monotonic() >= end:
                break
        if len(absent) < heard:
            pause = FIRST_PAUSE
        else:
            meanwhile(end)
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(2 * pause, LONGEST_PAUSE)
    if isinstance(grid, Withdraws):
        grid.withdraw()
        waiting.clear()
    owed = {node: number for number, node in waiting.items()}
    for node in absent:
        yield Answer(node, None, owed=owed.get(node, ""))
