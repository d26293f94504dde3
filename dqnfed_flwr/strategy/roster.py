"""Who takes part: which node holds which partition, who stands by, and who is turned away."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING

from flwr.app import MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.errors import QuorumError, WireError
from dqnfed_flwr.strategy.debts import Debts
from dqnfed_flwr.strategy.exchange import Answer, pull, push
from dqnfed_flwr.strategy.member import Member, read_member
from dqnfed_flwr.strategy.preflight import Form, common_form, objection, scale_warning
from dqnfed_flwr.strategy.standing import Standing
from dqnfed_flwr.telemetry.events import DroppedClient

POLL_SECONDS = 0.5


class Roster:
    """The members known, kept up to date without ever waiting for a node that does not answer.

    Parameters
    ----------
    clients : int
        Clients that the federation should have.
    min_clients : int
        Fewest with which it begins.
    deadline : float
        Seconds to wait for them.
    num_classes : int
        Of the model, where the operator says; 0 leaves it to the members.
    retries : int
        How many deadlines more to wait as long as fewer than `min_clients` are there.

    Attributes
    ----------
    debts : Debts
        Replies that members still owe.
    """

    def __init__(self, clients: int, min_clients: int, deadline: float, num_classes: int = 0, retries: int = 0) -> None:
        self._clients, self._min_clients, self._deadline = clients, min_clients, deadline
        self._num_classes, self._retries = num_classes, retries
        self.debts = Debts(deadline)
        self._form: Form | None = None
        self._members: dict[int, Member] = {}
        self._spare: dict[int, Member] = {}
        self._asked: dict[str, int] = {}
        self._standings: defaultdict[int, Standing] = defaultdict(Standing)

    def set_deadline(self, seconds: float) -> None:
        """Wait so long from now on, for members and for what they owe."""
        self._deadline = self.debts.deadline = seconds

    @property
    def members(self) -> Mapping[int, Member]:
        """Members by client, rising."""
        return self._members

    @property
    def free(self) -> dict[int, Member]:
        """Members that owe no reply, by client, rising."""
        owing = self.debts.nodes
        return {client: member for client, member in self._members.items() if member.node_id not in owing}

    @property
    def left_out(self) -> list[DroppedClient]:
        """Nodes that are there and do not fit the others, by client; without those whose partition another serves."""
        misfits = [standing.misfit for standing in self._standings.values() if standing.misfit is not None]
        return sorted((drop for drop in misfits if drop.client not in self._members), key=lambda drop: drop.client)

    @property
    def refused(self) -> dict[str, str]:
        """Why nodes that are there cannot take part, by what is known of them: `client 3`, or else `node 17`."""
        misfits = {f"client {drop.client}": f"{drop.reason}: {drop.detail}" for drop in self.left_out}
        others = {f"node {node}": why for node, why in self._refusals.items() if not self._standings[node].misfit}
        return {**misfits, **others}

    @property
    def _refusals(self) -> dict[int, str]:
        return {node: standing.refusal for node, standing in self._standings.items() if standing.refusal}

    @property
    def form(self) -> Form:
        """What the members have in common, settled by `wait` and held against whoever comes later.

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

        As long as there are too few to begin with, wait `retries` deadlines more. Once the form is settled there is
        nothing to wait for: the rounds themselves take in who comes and goes.

        Raises
        ------
        QuorumError
            If fewer than `min_clients` take part; it says what the first of the others gave as the reason.
        DataError
            If they disagree on the form of the data, with no majority for either.
        """
        self.refresh(grid)
        if self._form is not None:
            return
        if 0 < len(self._members) < self._clients and not self._all_spoke():
            log(
                WARNING,
                "%d of %d clients are there; waiting up to %.0f s for the others. Start more nodes, or set clients",
                len(self._members),
                self._clients,
                self._deadline,
            )
        self.gather(grid, lambda: len(self._members) >= self._clients or self._all_spoke())
        waits = 1
        while len(self._members) < self._min_clients and not self._all_spoke() and waits <= self._retries:
            log(WARNING, "%d clients are there; wait %d of %d", len(self._members), waits + 1, self._retries + 1)
            self.gather(grid, lambda: len(self._members) >= self._min_clients or self._all_spoke())
            waits += 1
        self._preflight()
        if len(self._members) < self._min_clients:
            raise QuorumError(self._too_few(waits * self._deadline))
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

    def gather(self, grid: Grid, enough: Callable[[], bool]) -> None:
        """Refresh until there are `enough` members, or the deadline has passed."""
        end = time.monotonic() + self._deadline
        self.refresh(grid)
        while not enough() and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            self.refresh(grid)

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that are gone, query those not met yet, take in the answers that have come, late ones too."""
        present = set(grid.get_node_ids())
        self.debts.collect(grid)
        self.debts.review(present)
        known = len(self._members)
        self._members = {client: member for client, member in self._members.items() if member.node_id in present}
        self._spare = {node: member for node, member in self._spare.items() if node in present}
        self._asked = {number: node for number, node in self._asked.items() if node in present}
        for node in self._standings.keys() - present:
            del self._standings[node]
        if new := sorted(present - self._met()):
            self._query(grid, new)
        refusals: dict[str, list[int]] = {}
        for answer in pull(grid, self._asked):
            if why := self._take_in(answer):
                refusals.setdefault(why, []).append(answer.node)
            self._standings[answer.node].answered()
        for why, (first, *others) in refusals.items():
            more = f" (and {len(others)} more)" if others else ""
            log(WARNING, "Node %d%s does not take part: %s", first, more, why)
        self._asked = {number: node for number, node in self._asked.items() if self._standings[node].silences}
        self._fill_vacancies()
        if len(self._members) != known:
            log(INFO, "%d of %d clients are there", len(self._members), self._clients)

    def _query(self, grid: Grid, nodes: Sequence[int]) -> None:
        content = wire.encode_properties({"ask": "properties"})
        self._asked |= push(grid, dict.fromkeys(nodes, content), MessageType.QUERY, "roster")
        for node in nodes:
            self._standings[node].queried(time.monotonic())

    def _preflight(self) -> None:
        """Settle the form and leave out those that do not fit it."""
        if not self._members:
            return
        form = self.form
        members = {**self._members}
        for client, member in members.items():
            if found := objection(member, form):
                del self._members[client]
                self._turn_away(member, *found)
        for node, member in list(self._spare.items()):
            if found := objection(member, form):
                del self._spare[node]
                self._turn_away(member, *found)
        self._fill_vacancies()
        if warning := scale_warning(self._members.values()):
            log(WARNING, "data: %s", warning)

    def _turn_away(self, member: Member, reason: str, detail: str) -> None:
        misfit = DroppedClient(member.client, reason, detail)
        if self._standings[member.node_id].turned_away(misfit, time.monotonic()):
            log(WARNING, "Client %d (node %d) does not take part: %s", member.client, member.node_id, detail)

    def _all_spoke(self) -> bool:
        """Whether as many nodes as there should be clients have answered, be it that they cannot take part."""
        return not self._asked and len(self._members) + len(self._spare) + len(self._refusals) >= self._clients

    def _met(self) -> set[int]:
        now = time.monotonic()
        asked = {node for node, standing in self._standings.items() if standing.again > now}
        return {member.node_id for member in self._members.values()} | {*self._spare} | asked

    def _take_in(self, answer: Answer) -> str:
        """Take in what a node says of itself; if it cannot take part, why, unless it said so before."""
        try:
            member = read_member(answer.node, wire.decode_properties(answer.content()))
            if found := objection(member, self._form):
                self._turn_away(member, *found)
                return ""
            self._spare[answer.node] = member
            self._standings[answer.node].accepted()
            if member.client in self._members:
                log(WARNING, "Node %d stands by: partition %d is taken", answer.node, member.client)
        except WireError as error:
            return str(error) if self._standings[answer.node].refused(str(error), time.monotonic()) else ""
        return ""

    def _fill_vacancies(self) -> None:
        """Give each vacant partition to the node of lowest id that claims it; the others stand by."""
        for node, member in sorted(self._spare.items()):
            if member.client not in self._members:
                self._members[member.client] = self._spare.pop(node)
        self._members = dict(sorted(self._members.items()))
