"""Stragglers: a node that is slower than the rounds is not asked again before it has answered.

A node works its messages off in their order, one at a time. If it were asked in every round all the same, a slow one
would be at work for rounds that are long over, and never catch up. So a node owes the reply to a message that its
exchange did not wait for. It owes nothing any more once the reply comes, which is thrown away; once the node is gone,
since one that was restarted has forgotten what it was at; or, if it never answers, after some deadlines.

Only this process' clock counts, and a checkpoint holds nothing of it: a server that is resumed asks everybody once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr.strategy.exchange import Answer, pull
from dqnfed_flwr.telemetry.events import DroppedClient

OWING, LATE = "owing", "late"
"""Reasons: a client that is not asked because it owes a reply, and a reply that came when its exchange was over."""
ASK_AGAIN_AFTER, LONGEST_WAIT = 3.0, 24.0
"""Deadlines after which a node that owes a reply is asked again: the first, and, doubled each time, the last."""


@dataclass(slots=True)
class OwedReply:
    """A message that was not answered in time.

    Attributes
    ----------
    client, node : int
        Who owes the reply.
    sent : float
        When the message was sent (monotonic).
    ask_again : bool
        The node is asked again all the same; its reply is still looked for.
    """

    client: int
    node: int
    sent: float
    ask_again: bool = False


class Stragglers:
    """The replies that are owed in one run.

    Parameters
    ----------
    deadline : float
        Of its exchanges, in seconds.

    Attributes
    ----------
    deadline : float
        As given; may be set anew.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._sent = 0.0
        self._owed: dict[str, OwedReply] = {}
        self._last_answered: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._late: list[DroppedClient] = []

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

    def record(self, answer: Answer, client: int) -> None:
        """Note what the exchange brought from a node."""
        if answer.owed:
            self._owed[answer.owed] = OwedReply(client, answer.node, self._sent)
        elif answer.usable:
            self._last_answered[answer.node] = self._sent
            self._waits.pop(answer.node, None)

    def drain(self, grid: Grid, until: float = math.inf) -> None:
        """Take late replies in and throw them away, for as long as it is not `until` (monotonic)."""
        for number, owed in list(self._owed.items()):
            if time.monotonic() >= until:
                return
            for answer in pull(grid, {number: owed.node}):
                del self._owed[number]
                self._discard(owed, answer)
        answered = self._last_answered
        self._owed = {number: owed for number, owed in self._owed.items() if owed.sent >= answered.get(owed.node, 0.0)}

    def update(self, present: Collection[int]) -> None:
        """Forget nodes that are not `present`, and let those be asked again that have owed a reply for long."""
        self._owed = {number: owed for number, owed in self._owed.items() if owed.node in present}
        self._last_answered = {node: sent for node, sent in self._last_answered.items() if node in present}
        self._waits = {node: deadlines for node, deadlines in self._waits.items() if node in present}
        now = time.monotonic()
        for owed in self._owed.values():
            deadlines = self._waits.get(owed.node, ASK_AGAIN_AFTER)
            if not owed.ask_again and now - owed.sent > deadlines * self.deadline:
                owed.ask_again = True
                self._waits[owed.node] = min(2 * deadlines, LONGEST_WAIT)
                log(WARNING, "Client %d has owed a reply for %.0f s; it is asked again", owed.client, now - owed.sent)

    def ask_all(self) -> None:
        """Let everybody be asked, whatever they owe."""
        for owed in self._owed.values():
            owed.ask_again = True

    def take_late(self) -> list[DroppedClient]:
        """The late replies since the last call."""
        late, self._late = self._late, []
        return late

    def _discard(self, owed: OwedReply, answer: Answer) -> None:
        """Throw a late reply away; without one the SuperLink says that there never will be any."""
        self._last_answered[owed.node] = max(owed.sent, self._last_answered.get(owed.node, 0.0))
        if not answer.usable and not answer.unreadable:
            return
        detail = f"it came {time.monotonic() - owed.sent:.0f} s after its message was sent; its exchange was over"
        self._late.append(DroppedClient(owed.client, LATE, detail))
        log(INFO, "A late reply of client %d is thrown away: %s", owed.client, detail)
