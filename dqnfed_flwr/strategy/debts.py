"""Who still owes a reply: a node that is slower than the rounds is not asked again before it has answered.

A node works its messages off in their order, one at a time. If it were asked in every round all the same, a slow one
would be at work for rounds that are long over, and never catch up. So a message that its exchange did not wait for is a
debt of its node. It ends with the reply, which is thrown away; with the node's absence, since a node that was
restarted has forgotten what it was at; or, for a node that never answers, after some deadlines.

Only this process' clock counts, and debts are not in a checkpoint: a server that is resumed asks everybody once.
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
"""Reasons: a client that is not asked because of its debt, and a reply that came when its exchange was over."""
FORGIVEN_AFTER, LONGEST_PATIENCE = 3.0, 24.0
"""Deadlines after which a debt is forgiven: the first, and, doubled each time that one was, the last."""


@dataclass(slots=True)
class Debt:
    """A message that was not answered in time.

    Attributes
    ----------
    client, node : int
        Who owes the reply.
    asked : float
        When it was sent (monotonic).
    forgiven : bool
        The node is asked again all the same; its reply is still looked for.
    """

    client: int
    node: int
    asked: float
    forgiven: bool = False


class Debts:
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
        self._asked = 0.0
        self._debts: dict[str, Debt] = {}
        self._answered: dict[int, float] = {}
        self._patience: dict[int, float] = {}
        self._late: list[DroppedClient] = []

    @property
    def nodes(self) -> set[int]:
        """Nodes that are not to be asked."""
        return {debt.node for debt in self._debts.values() if not debt.forgiven}

    @property
    def owing(self) -> list[DroppedClient]:
        """Their clients, rising, with what they owe."""
        now = time.monotonic()
        since = {debt.client: debt.asked for debt in reversed(self._debts.values()) if not debt.forgiven}
        return [
            DroppedClient(client, OWING, f"its reply to a message sent {now - asked:.0f} s ago has not come")
            for client, asked in sorted(since.items())
        ]

    def begin(self) -> None:
        """An exchange begins."""
        self._asked = time.monotonic()

    def note(self, answer: Answer, client: int) -> None:
        """Book what it heard from a node."""
        if answer.owed:
            self._debts[answer.owed] = Debt(client, answer.node, self._asked)
        elif answer.usable:
            self._answered[answer.node] = self._asked
            self._patience.pop(answer.node, None)

    def collect(self, grid: Grid, until: float = math.inf) -> None:
        """Take late replies in and throw them away, for as long as it is not `until` (monotonic)."""
        for number, debt in list(self._debts.items()):
            if time.monotonic() >= until:
                return
            for answer in pull(grid, {number: debt.node}):
                del self._debts[number]
                self._settle(debt, answer)
        self._debts = {
            number: debt for number, debt in self._debts.items() if debt.asked >= self._answered.get(debt.node, 0.0)
        }

    def review(self, present: Collection[int]) -> None:
        """Strike off what nodes owe that are not `present`, and forgive what is old."""
        self._debts = {number: debt for number, debt in self._debts.items() if debt.node in present}
        self._answered = {node: asked for node, asked in self._answered.items() if node in present}
        self._patience = {node: patience for node, patience in self._patience.items() if node in present}
        now = time.monotonic()
        for debt in self._debts.values():
            patience = self._patience.get(debt.node, FORGIVEN_AFTER)
            if not debt.forgiven and now - debt.asked > patience * self.deadline:
                debt.forgiven = True
                self._patience[debt.node] = min(2 * patience, LONGEST_PATIENCE)
                log(WARNING, "Client %d has owed a reply for %.0f s; it is asked again", debt.client, now - debt.asked)

    def forgive(self) -> None:
        """Let everybody be asked, whatever they owe."""
        for debt in self._debts.values():
            debt.forgiven = True

    def take_late(self) -> list[DroppedClient]:
        """The late replies since the last call."""
        late, self._late = self._late, []
        return late

    def _settle(self, debt: Debt, answer: Answer) -> None:
        """A debt is paid, or the SuperLink says that it never will be."""
        self._answered[debt.node] = max(debt.asked, self._answered.get(debt.node, 0.0))
        if not answer.usable and not answer.unreadable:
            return
        told = f"it came {time.monotonic() - debt.asked:.0f} s after its message was sent; its exchange was over"
        self._late.append(DroppedClient(debt.client, LATE, told))
        log(INFO, "A late reply of client %d is thrown away: %s", debt.client, told)
