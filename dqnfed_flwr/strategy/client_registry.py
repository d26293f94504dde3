"""Who takes part: which node holds which partition, who stands by, and who is turned away."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.errors import QuorumError, WireError, shortened
from dqnfed_flwr.strategy.collect import REPEATED, TIMES, Fault, in_short
from dqnfed_flwr.strategy.compatibility import (
    Form,
    Member,
    check_tested,
    common_form,
    incompatibility,
    read_member,
    scale_warning,
)
from dqnfed_flwr.strategy.exchange import POLL_SECONDS, Answer, Stragglers, pull, push
from dqnfed_flwr.telemetry.events import DroppedClient

ASK_AGAIN_SECONDS, LONGEST_PAUSE = 60.0, 3600.0
"""A node whose answer was of no use is queried again after so long; one that gave none, whose process may have been
killed over the query, too, and then ever more rarely."""


@dataclass(slots=True)
class NodeStatus:
    """What the server knows of one node; times are monotonic seconds."""

    unanswered: int = 0  # queries in a row that brought no answer yet
    next_query: float = -math.inf  # when it may be queried again
    refusal: str = ""  # why it cannot take part; empty where nothing is known against it
    misfit: DroppedClient | None = None  # the same where its data or model do not fit, or it fails each time
    fault: Fault = field(default_factory=Fault)  # of its answers in rounds

    def queried(self, now: float) -> None:
        """A query has gone out."""
        self.next_query = now + min(ASK_AGAIN_SECONDS * 2**self.unanswered, LONGEST_PAUSE)
        self.unanswered += 1

    def answered(self) -> None:
        """It gave an answer, of whatever kind."""
        self.unanswered = 0

    def accepted(self) -> None:
        """Nothing is held against it any more."""
        self.refusal, self.misfit = "", None

    def refused(self, why: str, now: float) -> bool:
        """It cannot take part; whether that is news."""
        known, self.refusal, self.next_query = self.refusal, why, now + ASK_AGAIN_SECONDS
        return why != known

    def rejected(self, misfit: DroppedClient, now: float) -> bool:
        """It does not fit the others; whether that is news."""
        known, self.misfit = self.misfit, misfit
        self.refused(f"{misfit.reason}: client {misfit.client}: {misfit.detail}", now)
        return misfit != known

    def given_up(self, misfit: DroppedClient) -> None:
        """It fails each time, and is not asked again until it comes anew."""
        self.rejected(misfit, math.inf)


class ClientRegistry:
    """The members known, kept up to date without ever waiting for a node that does not answer.

    A federation should have `clients`, for which it waits `deadline` seconds, and begins with `min_clients` at the
    fewest, for which it waits `retries` deadlines more. `num_classes` is that of the model; 0 leaves it to the members.
    `stragglers` are the replies that members still owe.
    """

    def __init__(self, clients: int, min_clients: int, deadline: float, num_classes: int = 0, retries: int = 0) -> None:
        self._clients, self._min_clients = clients, min_clients
        self._num_classes, self._retries = num_classes, retries
        self.stragglers = Stragglers(deadline)
        self._form: Form | None = None
        self._members: dict[int, Member] = {}
        self._standby: dict[int, Member] = {}
        self._queries: dict[str, int] = {}
        self._nodes: defaultdict[int, NodeStatus] = defaultdict(NodeStatus)

    @property
    def members(self) -> Mapping[int, Member]:
        """Members by client, rising."""
        return self._members

    @property
    def available(self) -> dict[int, Member]:
        """Members that owe no reply, by client, rising."""
        busy = self.stragglers.busy
        return {client: member for client, member in self._members.items() if member.node_id not in busy}

    @property
    def left_out(self) -> list[DroppedClient]:
        """Nodes that are there and do not fit the others, by client; without those whose partition another serves."""
        misfits = [status.misfit for status in self._nodes.values() if status.misfit is not None]
        return sorted((drop for drop in misfits if drop.client not in self._members), key=lambda drop: drop.client)

    @property
    def refused(self) -> dict[str, str]:
        """Why nodes that are there cannot take part, by what is known of them: `client 3`, or else `node 17`."""
        misfits = {f"client {drop.client}": f"{drop.reason}: {drop.detail}" for drop in self.left_out}
        others = {f"node {node}": why for node, why in self._refusals.items() if not self._nodes[node].misfit}
        return {**misfits, **others}

    @property
    def given_up(self) -> dict[int, str]:
        """Clients that are left out for good, for they fail each time, with what they say; rising."""
        return {drop.client: drop.detail for drop in self.left_out if drop.reason == REPEATED}

    @property
    def hopeless(self) -> str:
        """Why too few clients are left to train, where some fail each time and no others can come; else empty."""
        few = len(self._members) + len(self._standby) < self._min_clients
        if not few or not self.given_up or not self._all_answered():
            return ""
        (client, detail), *others = self.given_up.items()
        more = f", and {len(others)} more fail each time" if others else ""
        return (
            f"{len(self._members)} of {self._clients} clients can train; at least {self._min_clients} are needed "
            f"(min-clients): client {client}: {detail}{more}"
        )

    @property
    def _refusals(self) -> dict[int, str]:
        return {node: status.refusal for node, status in self._nodes.items() if status.refusal}

    @property
    def form(self) -> Form:
        """What the members have in common, fixed by `wait`; later nodes are compared with it.

        Raises
        ------
        DataError
            If they disagree, with no majority for either.
        """
        if self._form is None:
            self._form = common_form(list(self._members.values()), self._num_classes)
        return self._form

    def wait(self, grid: Grid) -> None:
        """Wait until all clients are there, or have said that they cannot take part, or the deadline has passed.

        As long as there are too few to begin with, wait `retries` deadlines more. Once the form is fixed there is
        nothing to wait for: the rounds themselves take in who comes and goes.

        Raises
        ------
        QuorumError
            If fewer than `min_clients` take part; it says what the first of the others gave as the reason.
        DataError
            If they disagree on the form of the data, with no majority for either, or nobody has a sample to test on.
        """
        self.refresh(grid)
        if self._form is not None:
            return
        if 0 < len(self._members) < self._clients and not self._all_answered():
            log(
                WARNING,
                "%d of %d clients are there; waiting up to %.0f s for the others. Start more nodes, or set clients",
                len(self._members),
                self._clients,
                self.stragglers.deadline,
            )
        self.wait_until(grid, lambda: len(self._members) >= self._clients or self._all_answered())
        waits = 1
        while len(self._members) < self._min_clients and not self._all_answered() and waits <= self._retries:
            log(WARNING, "%d clients are there; wait %d of %d", len(self._members), waits + 1, self._retries + 1)
            self.wait_until(grid, lambda: len(self._members) >= self._min_clients or self._all_answered())
            waits += 1
        self._exclude_misfits()
        if len(self._members) < self._min_clients:
            raise QuorumError(self._too_few(waits * self.stragglers.deadline))
        if len(self._members) < self._clients:
            log(WARNING, "Begin with %d of %d clients", len(self._members), self._clients)

    def _too_few(self, seconds: float) -> str:
        reasons = [*self._refusals.values()]
        if len({*reasons}) == 1 and len(reasons) >= self._clients:
            return f"none of {self._clients} clients can take part: {reasons[0]}"
        refused = f". {len(reasons)} could not take part: {reasons[0]}" if reasons else ""
        return (
            f"{len(self._members)} of {self._clients} clients came within {seconds:.0f} s; at least "
            f"{self._min_clients} are needed (min-clients). Start more nodes or raise deadline{refused}"
        )

    def wait_until(self, grid: Grid, enough: Callable[[], bool]) -> None:
        """Refresh until there are `enough` members, or the deadline has passed."""
        end = time.monotonic() + self.stragglers.deadline
        self.refresh(grid)
        while not enough() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self.refresh(grid)

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that are gone, query those not met yet, take in the answers that have come, late ones too."""
        present = set(grid.get_node_ids())
        self.stragglers.drain(grid)
        self.stragglers.update(present)
        known = len(self._members)
        self._members = {client: member for client, member in self._members.items() if member.node_id in present}
        self._standby = {node: member for node, member in self._standby.items() if node in present}
        self._queries = {number: node for number, node in self._queries.items() if node in present}
        for node in self._nodes.keys() - present:
            del self._nodes[node]
        if new := sorted(present - self._known()):
            self._query(grid, new)
        refusals: dict[str, list[int]] = {}
        for answer in pull(grid, self._queries):
            if why := self._admit(answer):
                refusals.setdefault(why, []).append(answer.node)
            self._nodes[answer.node].answered()
        for why, (first, *others) in refusals.items():
            more = f" (and {len(others)} more)" if others else ""
            log(WARNING, "Node %d%s does not take part: %s", first, more, why)
        self._queries = {number: node for number, node in self._queries.items() if self._nodes[node].unanswered}
        self._fill_vacancies()
        if len(self._members) != known:
            log(INFO, "%d of %d clients are there", len(self._members), self._clients)

    def note_answers(self, trained: Iterable[int], dropped: Mapping[int, DroppedClient]) -> None:
        """Take note of who `trained`, and of whose answers did not count, and leave out those that fail each time.

        Until its node comes anew such a client is not asked again; a node that stands by takes its place.
        """
        for client in sorted({*trained, *dropped}.intersection(self._members)):
            member, drop = self._members[client], dropped.get(client)
            status = self._nodes[member.node_id]
            status.fault.note(drop)
            if drop is not None and status.fault.stays:
                del self._members[client]
                words = f"{drop.reason}: {in_short(drop.detail)}"
                status.given_up(DroppedClient(client, REPEATED, shortened(f"{TIMES} times in a row {words}")))
                log(WARNING, "Client %d is left out for good, after %d times the same: %s", client, TIMES, words)
        self._fill_vacancies()

    def _query(self, grid: Grid, nodes: Sequence[int]) -> None:
        content = wire.encode_properties({"ask": "properties"})
        self._queries |= push(grid, [Message(content, node, MessageType.QUERY, group_id="roster") for node in nodes])
        for node in nodes:
            self._nodes[node].queried(time.monotonic())

    def _exclude_misfits(self) -> None:
        """Fix the form, and leave out those that do not fit it."""
        if not self._members:
            return
        form = self.form
        for pool in (self._members, self._standby):
            for key, member in list(pool.items()):
                if found := incompatibility(member, form):
                    del pool[key]
                    self._reject(member, *found)
        self._fill_vacancies()
        check_tested(self._members.values())
        if warning := scale_warning(self._members.values()):
            log(WARNING, "data: %s", warning)

    def _reject(self, member: Member, reason: str, detail: str) -> None:
        misfit = DroppedClient(member.client, reason, detail)
        if self._nodes[member.node_id].rejected(misfit, time.monotonic()):
            log(WARNING, "Client %d (%s) does not take part: %s", member.client, member.words, detail)

    def _all_answered(self) -> bool:
        """Whether as many nodes as there should be clients have answered, be it that they cannot take part."""
        return not self._queries and len(self._members) + len(self._standby) + len(self._refusals) >= self._clients

    def _known(self) -> set[int]:
        now = time.monotonic()
        asked = {node for node, status in self._nodes.items() if status.next_query > now}
        return {member.node_id for member in self._members.values()} | {*self._standby} | asked

    def _admit(self, answer: Answer) -> str:
        """Take in what a node says of itself; if it cannot take part, why, unless it said so before."""
        try:
            member = read_member(answer.node, wire.decode_properties(answer.content()))
            if found := incompatibility(member, self._form):
                self._reject(member, *found)
                return ""
        except WireError as error:
            return str(error) if self._nodes[answer.node].refused(str(error), time.monotonic()) else ""
        self._standby[answer.node] = member
        self._nodes[answer.node].accepted()
        if member.client in self._members:
            log(WARNING, "Client %d is taken: %s stands by", member.client, member.words)
        return ""

    def _fill_vacancies(self) -> None:
        """Give each vacant partition to the node of lowest id that claims it; the others stand by."""
        for node, member in sorted(self._standby.items()):
            if member.client not in self._members:
                self._members[member.client] = self._standby.pop(node)
                if member.name:
                    log(INFO, "Client %d is %s", member.client, member.words)
        self._members = dict(sorted(self._members.items()))
