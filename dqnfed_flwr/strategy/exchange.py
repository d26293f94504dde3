"""One exchange: messages out, replies taken in as they arrive, closed at a quorum or a deadline; and late replies.

Flower's own helper hands replies over in batches after a fixed sleep, waits for those that are lost, and reports a
dead node under the server's id. Here every reply is known by the message it answers, and a node that has not answered
when the exchange closes is absent. Replies are pulled one by one: the server holds one of them at a time, and one that
cannot even be unpacked takes no other with it.

A node works its messages off in their order, one at a time. If a straggler, a node slower than the rounds, were asked
in every round all the same, it would be at work for rounds that are long over, and never catch up. So a node owes the
reply to a message that its exchange did not wait for, and is not asked again until one of three things happens. Its
reply comes; or the node is gone, for one that was restarted has forgotten what it was at; or some deadlines are over.
In the last case it is on trial: no exchange waits for it until it has answered something. Only this process' clock
counts, and a checkpoint holds nothing of it: a server that is resumed asks everybody once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Protocol, runtime_checkable

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from dqnfed_flwr.errors import WireError, shortened
from dqnfed_flwr.telemetry.events import DroppedClient

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
POLL_SECONDS = 0.5
"""Pause between two looks at who is there."""
OWING, LATE = "owing", "late"
"""Reasons: a client that is not asked because it owes a reply, and a reply that came when its exchange was over."""
ASK_AGAIN_AFTER, LONGEST_WAIT = 3.0, 24.0
"""Deadlines after which a node that owes a reply is asked again: the first, and, doubled each time, the last."""
DISCARDED = "it is discarded"
"""What becomes of a late reply by which nothing can be gained."""
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


def push(grid: Grid, messages: Sequence[Message]) -> dict[str, int]:
    """Send messages; the nodes by the numbers of their messages, those that could not be sent left out."""
    numbers = grid.push_messages(messages) if messages else []
    sent = zip(numbers, messages, strict=False)
    return {number: message.metadata.dst_node_id for number, message in sent if number}


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


def arrivals(
    grid: Grid,
    waiting: dict[str, int],
    end: float,
    *,
    go_on: Callable[[], bool] = lambda: True,
    meanwhile: Callable[[float], None] = lambda end: None,
) -> Iterator[Answer]:
    """Yield answers as they come, and strike them off `waiting` (nodes by message number).

    It ends when none is waited for, at the time `end` (monotonic), or, asked before each look, where `go_on` says no.
    Where nothing has come, `meanwhile` is called with `end`, and a pause follows, which grows from one to the next.
    """
    pause = FIRST_PAUSE
    while waiting and go_on() and time.monotonic() < end:
        quiet = True
        for answer in pull(grid, waiting):
            quiet = False
            yield answer
            if time.monotonic() >= end:
                return
        if quiet:
            meanwhile(end)
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, LONGEST_PAUSE) if quiet else FIRST_PAUSE


def send_and_receive(
    grid: Grid,
    messages: Sequence[Message],
    *,
    deadline: float,
    quorum: float = 1.0,
    unawaited: Collection[int] = (),
    judges: Collection[int] = (),
    needed: int = 0,
    meanwhile: Callable[[float], None] = lambda end: None,
) -> Iterator[Answer]:
    """`push` messages and yield one answer for each as it arrives, or one for a node that gives none, last.

    The exchange closes after `deadline` seconds, or before, with usable replies to a share of `quorum` of them,
    or when all have answered. Nodes that are `unawaited` do not count; what they say before it closes does. A quorum
    does not close it before `needed` of the `judges` have answered, as long as there are others of them to wait for.
    `meanwhile` is called whenever nothing has come, with the time (monotonic) at which the exchange closes.
    """
    nodes = [message.metadata.dst_node_id for message in messages]
    waiting = push(grid, messages)
    absent = dict.fromkeys(nodes)
    end = time.monotonic() + deadline
    missing = math.ceil(quorum * sum(node not in unawaited for node in nodes) - 1e-9)

    def lacks_judges() -> bool:
        return needed > 0 and not {*judges}.isdisjoint({*waiting.values()} - {*unawaited})

    def is_awaited() -> bool:
        return lacks_judges() or (missing > 0 and not {*waiting.values()} <= {*unawaited})

    for answer in arrivals(grid, waiting, end, go_on=is_awaited, meanwhile=meanwhile):
        absent.pop(answer.node, None)
        missing -= answer.usable and answer.node not in unawaited
        needed -= answer.usable and answer.node in judges
        yield answer
        if missing <= 0 and not lacks_judges():
            break
    if isinstance(grid, Withdraws):
        grid.withdraw()
        waiting.clear()
    owed = {node: number for number, node in waiting.items()}
    for node in absent:
        yield Answer(node, None, owed=owed.get(node, ""))


def discard(answer: Answer) -> str:
    """Do nothing with a late answer, and say so."""
    return DISCARDED


@dataclass(slots=True)
class OwedReply:
    """A message that was not answered in time."""

    client: int
    node: int
    sent: float  # when the message was sent (monotonic)
    read: Callable[[Answer], str]  # takes the reply in, and says what becomes of it
    ask_again: bool = False  # the node is asked again all the same; its reply is still looked for
    beside: bool = False  # it belongs to no exchange: `read` takes in what came, also where that is no reply


class Stragglers:
    """The replies that are owed in one run; `deadline` is that of its exchanges, in seconds, and may be set anew."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._sent = 0.0
        self._owed: dict[str, OwedReply] = {}
        self._last_answered: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._late: list[DroppedClient] = []
        self._on_trial: set[int] = set()

    @property
    def on_trial(self) -> frozenset[int]:
        """Nodes that may be asked, but did not answer what they were asked last: nobody waits for them."""
        return frozenset(self._on_trial)

    @property
    def busy(self) -> set[int]:
        """Nodes that are not to be asked."""
        return {owed.node for owed in self._owed.values() if not owed.ask_again}

    @property
    def left_out(self) -> list[DroppedClient]:
        """Their clients, rising, with what they owe."""
        now = time.monotonic()
        since = {owed.client: owed.sent for owed in reversed(self._owed.values()) if not owed.ask_again}
        return [
            DroppedClient(client, OWING, f"its reply to a message sent {now - sent:.0f} s ago has not come")
            for client, sent in sorted(since.items())
        ]

    def start_exchange(self) -> None:
        """Take the time at which the messages of an exchange are sent."""
        self._sent = time.monotonic()

    def record(self, answer: Answer, client: int, read: Callable[[Answer], str] = discard) -> None:
        """Note what the exchange brought from a node; `read` takes a reply in that it still owes."""
        if answer.owed:
            self._owed[answer.owed] = OwedReply(client, answer.node, self._sent, read)
        elif answer.usable:
            self._last_answered[answer.node] = self._sent
            self._waits.pop(answer.node, None)
            self._on_trial.discard(answer.node)

    def owe(
        self,
        grid: Grid,
        messages: Sequence[Message],
        readers: Mapping[int, tuple[int, Callable[[Answer], str]]],
        *,
        alone: bool,
    ) -> None:
        """Send messages that belong to no exchange; `readers`, by node with its client, take the answers in later.

        Where they are `alone`, the nodes are not asked for more meanwhile.
        """
        now = time.monotonic()
        for number, node in push(grid, messages).items():
            client, read = readers[node]
            self._owed[number] = OwedReply(client, node, now, read, ask_again=not alone, beside=True)

    def drain(self, grid: Grid, until: float = math.inf) -> None:
        """Take late replies in, for as long as it is not `until` (monotonic)."""
        for number, owed in list(self._owed.items()):
            if time.monotonic() >= until:
                return
            for answer in pull(grid, {number: owed.node}):
                del self._owed[number]
                self._take_late(owed, answer)
        answered = self._last_answered
        self._owed = {number: owed for number, owed in self._owed.items() if owed.sent >= answered.get(owed.node, 0.0)}

    def update(self, present: Collection[int]) -> None:
        """Forget nodes that are not `present`, and let those be asked again that have owed a reply for long."""
        self._owed = {number: owed for number, owed in self._owed.items() if owed.node in present}
        self._last_answered = {node: sent for node, sent in self._last_answered.items() if node in present}
        self._waits = {node: deadlines for node, deadlines in self._waits.items() if node in present}
        self._on_trial.intersection_update(present)
        now = time.monotonic()
        for owed in self._owed.values():
            deadlines = self._waits.get(owed.node, ASK_AGAIN_AFTER)
            if not owed.ask_again and now - owed.sent > deadlines * self.deadline:
                owed.ask_again = True
                self._on_trial.add(owed.node)
                self._waits[owed.node] = min(2 * deadlines, LONGEST_WAIT)
                log(
                    WARNING,
                    "Client %d has owed a reply for %.0f s; it is asked again, and not waited for",
                    owed.client,
                    now - owed.sent,
                )

    def wait_for(self, grid: Grid, judges: Collection[int]) -> bool:
        """Wait until a node is free, and one of the `judges` if there are any; False if none of these is there.

        After a deadline everybody may be asked. Where no node is there at all, nobody is waited for.
        """
        end = time.monotonic() + self.deadline
        while True:
            present = set(grid.get_node_ids())
            self.drain(grid)
            self.update(present)
            if present and judges and not present.intersection(judges):
                return False
            free = present - self.busy
            if not present or (free and (not judges or free.intersection(judges))):
                return True
            if time.monotonic() >= end:
                self.ask_all()
                return True
            time.sleep(POLL_SECONDS)

    def ask_all(self) -> None:
        """Let everybody be asked and waited for, whatever they owe."""
        self._on_trial.clear()
        for owed in self._owed.values():
            owed.ask_again = True

    def take_late(self) -> list[DroppedClient]:
        """The late replies since the last call."""
        late, self._late = self._late, []
        return late

    def _take_late(self, owed: OwedReply, answer: Answer) -> None:
        """Take a late reply in; without one the SuperLink says that there never will be any."""
        self._last_answered[owed.node] = max(owed.sent, self._last_answered.get(owed.node, 0.0))
        if owed.beside:
            if answer.usable:
                self._on_trial.discard(owed.node)
            owed.read(answer)
            return
        if not answer.usable and not answer.unreadable:
            self._on_trial.add(owed.node)
            return
        self._on_trial.discard(owed.node)
        seconds, words = time.monotonic() - owed.sent, owed.read(answer)
        detail = f"it came {seconds:.0f} s after its message was sent; its exchange was over, and {words}"
        self._late.append(DroppedClient(owed.client, LATE, detail))
        log(INFO, "A late reply of client %d: %s", owed.client, detail)
