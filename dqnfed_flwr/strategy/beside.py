"""What clients answer beside the exchanges: replies that come late, and losses at a model that is to be confirmed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.errors import ConfigError, WireError
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.collect import OF_THE_MODEL, TIMES, Collected, LateReply, Receiver
from dqnfed_flwr.strategy.confirmation import Confirmation, KnownModel
from dqnfed_flwr.strategy.exchange import ASK_AGAIN_AFTER, DISCARDED, Answer, Withdraws, discard, send_and_receive
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.types import ClientTask, on_host
from dqnfed_flwr.wire import ReplyForm

CONFIRM = "confirm"
"""Begins the group of messages that show a proposal."""


class BesideRounds:
    """Takes late replies of the members of a `registry` in, and has them confirm models where that is set.

    `floor` is the least value of a loss, as far as it is known. Who was asked about a proposal, and when, is in no
    checkpoint: a server that is resumed asks again.
    """

    def __init__(
        self,
        run: RunPlan,
        state: RunState,
        method: Method,
        registry: ClientRegistry,
        grid: Grid,
        receiver: Receiver,
        floor: float | None,
    ) -> None:
        self._run, self._settings, self._state, self._method = run, run.settings, state, method
        self._registry, self._grid, self._receiver, self._floor = registry, grid, receiver, floor
        self._accepted: set[int] = set()  # exchanges whose candidate is the model, or was
        self._proposal: KnownModel | None = None  # the one that what follows is about
        self._opened, self._asked, self._failures = 0.0, set[int](), Counter[int]()  # since when; by client
        if self._settings.guarantee.confirm and method.inner.rests:
            raise ConfigError(f"guarantee.confirm: {run.method.name} makes no common model to confirm; use 0")
        if self._settings.guarantee.confirm and state.confirmation is None:
            state.confirmation = Confirmation()

    @property
    def together(self) -> bool:
        """Whether exchanges wait for all clients, whatever the quorum."""
        return self._state.confirmation is not None and self._state.confirmation.together

    def accepted(self, collected: Collected) -> None:
        """The model that the last exchange carried is that of the state."""
        self._accepted.add(self._state.exchange)
        if (known := self._state.confirmation) is not None:
            named = {client: probe.loss for client, probe in collected.probes.items()} | collected.losses
            known.accepted(self._state.round, self._state.theta, self._state.buffers, named)
            self._decide(known)

    def late(self, schedule: Schedule, client: int) -> Callable[[Answer], str]:
        """What takes in the reply of a client to a schedule if it comes late: its loss and row may be of use.

        Its test is not. Where clients may lie, no row is: nobody has held it against those of the others.
        """
        task, node = schedule.tasks[client], self._registry.members[client].node_id
        if not task.train or self._run.masked or self._settings.guarantee.liars(len(schedule.train)):
            return discard
        form, state = self._receiver.form(schedule, client), self._state

        def read(answer: Answer) -> str:
            member = self._registry.members.get(client)
            sound = member is not None and member.node_id == node and task.exchange in self._accepted
            if not sound or state.standing.is_muted(client, task.round):
                return DISCARDED
            try:
                return self._keep(client, task, form, answer)
            except WireError as error:
                return f"{DISCARDED}: {error}"

        return read

    def ask(self, *, train: bool = True) -> set[int]:
        """Ask those who are free and have not named their loss at the proposal, if there is one.

        Where late rows are of use, and with `train`, they train at it in place of the newest model. Those are returned,
        and not to be asked for more.
        """
        known, free = self._state.confirmation, self._registry.available
        if known is None:
            return set()
        self._decide(known)
        if known.proposal is None:
            return set()
        asked = [client for client in known.lacking(free) if client not in self._asked]
        train = train and self._method.keeps_late and len(free) - len(asked) >= self._settings.min_clients
        train = train and not self._method.sends(known.proposal.round + 1)  # those are of the newest model
        if train and self._state.pending is not None:  # its participants must judge the step
            asked = [client for client in asked if client not in self._state.pending.clients]
        if asked:
            self._send(known, known.proposal, {client: free[client].node_id for client in asked}, train=train)
        return {*asked} if train else set()

    def settle(self) -> None:
        """Have the proposal decided, and then the newest model, at the end of a run: within a deadline each."""
        known = self._state.confirmation
        if known is None:
            return

        def decided(proposal: KnownModel) -> bool:
            self.ask(train=False)
            return known.proposal is not proposal

        for _ in range(2):
            if (proposal := known.proposal) is None:
                return
            self._registry.wait_until(self._grid, partial(decided, proposal))
            if known.proposal is proposal:
                self._decide(known, patient=False)

    def _send(self, known: Confirmation, proposal: KnownModel, nodes: Mapping[int, int], *, train: bool) -> None:
        """Show the proposal to clients, whose `nodes` are given; their answers are read whenever they come."""
        tasks = {client: self._task(known, proposal, client, train=train) for client in nodes}
        model = wire.encode_model(on_host(proposal.theta), proposal.buffers)
        contents = {client: wire.encode_task(task, model) for client, task in tasks.items()}
        self._state.cost.bytes_down += sum(wire.payload(content) for content in contents.values())
        self._asked |= tasks.keys()
        kind, group = MessageType.TRAIN if train else MessageType.EVALUATE, f"{CONFIRM}-{proposal.round}"
        messages = [Message(contents[client], node, kind, group_id=group) for client, node in nodes.items()]
        readers = {node: (c, self._reader(proposal, c, node, tasks[c])) for c, node in nodes.items()}
        if not isinstance(self._grid, Withdraws):
            self._registry.stragglers.owe(self._grid, messages, readers, alone=train)
            return
        for answer in send_and_receive(self._grid, messages, deadline=self._settings.deadline):
            readers[answer.node][1](answer)

    def _task(self, known: Confirmation, proposal: KnownModel, client: int, *, train: bool) -> ClientTask:
        """A gradient at the proposal, or a test of it as it stands, against the loss at a confirmed model."""
        number = proposal.round + 1
        return ClientTask(
            exchange=self._state.exchange + 1,
            round=number,
            train=train,
            probe=not train,
            reference_loss=known.losses.get(client, 0.0),
            entitlement=known.entitlement,
            num_classes=self._registry.form.num_classes,
            directives=self._method.directives(number, client) if train else {},
        )

    def _reader(self, proposal: KnownModel, client: int, node: int, task: ClientTask) -> Callable[[Answer], str]:
        """What takes in the answer of a client about a proposal.

        Where a client has no loss or gradient there, as they are not finite, that is a refusal. A client that fails is
        asked again, a few times.
        """
        alone = Schedule({client: task}, (client,) * task.train, (client,) * task.probe, (), task.round)
        form = self._receiver.form(alone, client)

        def read(answer: Answer) -> str:
            known, member = self._state.confirmation, self._registry.members.get(client)
            try:
                if member is None or member.node_id != node:
                    raise WireError("absent", "its node is another now")
                return self._keep(client, task, form, answer)
            except WireError as error:
                if known is not None and error.reason in OF_THE_MODEL:
                    known.name(proposal.round, client, math.inf)
                elif self._proposal is proposal:
                    self._failures[client] += 1
                    if self._failures[client] < TIMES:
                        self._asked.discard(client)
                return f"{DISCARDED}: {error}"

        return read

    def _keep(self, client: int, task: ClientTask, form: ReplyForm, answer: Answer) -> str:
        """Take loss and row of a reply that belongs to no exchange, where they are of use; what becomes of it."""
        state = self._state

        @cache
        def reply() -> LateReply:
            content = answer.content()
            state.cost.bytes_up += wire.payload(content)
            return self._receiver.late(client, content, task, form, RowSet(1, form.dim, state.theta.dtype))

        if state.confirmation is not None and (loss := reply().loss) is not None:
            state.confirmation.name(task.round - 1, client, loss)
            self._decide(state.confirmation)
        now = state.round + (2 if state.pending else 1)
        kept = task.train and self._method.keep_late(client, task.round, now, lambda: reply().row)
        return f"its row of round {task.round} is kept" if kept else DISCARDED

    def _decide(self, known: Confirmation, *, patient: bool = True) -> None:
        """Decide about the proposal, as far as all have spoken that are there or ever named a loss.

        Those are not waited for that fail time and again, or are away since an earlier confirmation; and nobody is
        after some deadlines, or where the caller is not `patient`.
        """
        self._follow(known)
        members = self._registry.members
        clients = {*members, *known.losses}
        silent = {client for client, times in self._failures.items() if times >= TIMES}
        silent |= {client for client in known.unheard if client not in members}
        if not patient or time.monotonic() > self._opened + ASK_AGAIN_AFTER * self._settings.deadline:
            silent = clients
        known.decide(clients, silent, self._settings.guarantee, self._floor)
        self._follow(known)

    def _follow(self, known: Confirmation) -> None:
        """Begin anew with who was asked, where there is another proposal."""
        if known.proposal is not self._proposal:
            self._proposal, self._opened = known.proposal, time.monotonic()
            self._asked, self._failures = set(), Counter()
