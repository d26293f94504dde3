"""Taking replies in: checked one by one as they arrive, rows straight into the basis."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from types import MappingProxyType

import numpy as np
import torch
from flwr.app import MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.guarantee.claims import two_losses
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.strategy.debts import Debts
from dqnfed_flwr.strategy.exchange import Answer, converse
from dqnfed_flwr.strategy.member import Member
from dqnfed_flwr.strategy.orders import Orders, needs_step
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, ClientTask, Probe
from dqnfed_flwr.wire import Buffers, ReplyForm

LONGEST_ROW = math.sqrt(torch.finfo(torch.float32).max)
"""Norm of a row, some 1.8e19, up to which sums of rows are finite in float32, and products of products in float64."""


@dataclass(slots=True)
class Collected:
    """What an exchange brought.

    Attributes
    ----------
    trained : dict[int, ClientReply]
        Replies with a row, by client, rising; without the row itself, which is in the basis.
    rows : RoundRows
        The rows, in the order of `trained`.
    answered : dict[int, ClientReply]
        All replies of sound form, by client, rising.
    probes : dict[int, Probe]
        What participants say of the candidate, by client, rising; also where the rest of the reply is unfit.
    dropped : dict[int, DroppedClient]
        Clients without a valid reply.
    losses : dict[int, float]
        f_k at the model sent, of those asked to train, by client, rising; also where the rest of the reply is unfit.
    caught : dict[int, str]
        Clients whose reply contradicts itself, with what it says.
    """

    answered: dict[int, ClientReply]
    trained: dict[int, ClientReply]
    rows: RoundRows
    probes: dict[int, Probe] = field(default_factory=dict)
    dropped: dict[int, DroppedClient] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    caught: dict[int, str] = field(default_factory=dict)

    def slots(self) -> dict[int, int]:
        """Slot of each row, by client."""
        return dict(zip(self.trained, self.rows.slots, strict=True))

    def rows_of(self, heard: Sequence[int], others: Sequence[int]) -> RoundRows:
        """The rows of those `heard`, with those of `others` beside them."""
        places = {client: k for k, client in enumerate(self.trained)}
        vectors = {
            name: tuple(values[places[client]] for client in heard) for name, values in self.rows.vectors.items()
        }
        slots = self.slots()
        beside = tuple(slots[client] for client in others)
        return RoundRows(self.rows.basis, tuple(slots[client] for client in heard), vectors, beside)


class Intake:
    """Runs exchanges for one federation.

    Parameters
    ----------
    settings : Settings
        Of the run.
    theta : Tensor
        A model [D], for size and dtype.
    buffers : Buffers
        Its buffers.
    method : Method
        Tells what it needs beside gradients.
    """

    def __init__(self, settings: Settings, theta: torch.Tensor, buffers: Buffers, method: Method) -> None:
        self._settings = settings
        self._method, self._dim = method, theta.numel()
        self._buffers = buffers if settings.trains_buffers else {}
        method.extras(self._dim)  # a method that this model does not suit says so before anything is sent
        self._basis = Basis(
            settings.sampled + method.reference_rows, self._dim, theta.dtype, references=method.reference_rows
        )

    def exchange(
        self, grid: Grid, orders: Orders, state: RunState, members: Mapping[int, Member], debts: Debts
    ) -> Collected:
        """Send the candidate of `state` out with `orders` and take the replies in.

        Books costs in `state.tally`, and in `debts` who owes a reply when it closes.
        """
        since = time.perf_counter()
        debts.begin()
        contents = self.contents(orders, state)
        nodes = {members[client].node_id: client for client in contents}
        answers = converse(
            grid,
            {node: contents[client] for node, client in nodes.items()},
            {node: message_type(orders.tasks[client]) for node, client in nodes.items()},
            group=str(orders.round),
            deadline=self._settings.deadline,
            quorum=self._settings.quorum,
            meanwhile=lambda end: debts.collect(grid, end),
        )

        def heard() -> Iterator[tuple[int, Answer]]:
            for answer in answers:
                debts.note(answer, nodes[answer.node])
                yield nodes[answer.node], answer

        registered = {client: members[client].num_examples for client in contents}
        collected = self.receive(heard(), orders, state, registered)
        state.exchange += 1
        state.tally.exchanges += 1
        state.tally.bytes_down += sum(wire.payload(content) for content in contents.values())
        state.tally.spend("exchange", since)
        return collected

    def contents(self, orders: Orders, state: RunState) -> dict[int, RecordDict]:
        """What each client is sent, by client."""
        theta = state.candidate.numpy()
        plain = wire.encode_model(theta, state.buffers)
        line = plain
        if (move := state.move) is not None:
            line = wire.encode_model(theta, state.buffers, move.step.numpy())
        return {
            client: wire.encode_task(task, line if needs_step(task, self._settings) else plain)
            for client, task in orders.tasks.items()
        }

    def receive(
        self,
        answers: Iterable[tuple[int, Answer]],
        orders: Orders,
        state: RunState,
        registered: Mapping[int, int] = MappingProxyType({}),
    ) -> Collected:
        """Check the answers, given with their client, one by one; rows go into the basis as they come.

        Each is held against itself, and against the samples that its node `registered` with, by client.
        """
        self._basis.clear()
        replies: dict[int, ClientReply] = {}
        probes: dict[int, Probe] = {}
        dropped: dict[int, DroppedClient] = {}
        losses: dict[int, float] = {}
        caught: dict[int, str] = {}
        for client, answer in answers:
            task = orders.tasks[client]
            try:
                content = answer.content()
                state.tally.bytes_up += wire.payload(content)
                if (loss := wire.decode_loss(content, task)) is not None:
                    losses[client] = loss
                if probe := wire.decode_probe(content, task):
                    probes[client] = probe
                reply = replies[client] = self._take(content, client, orders)
                if words := self._contradiction(reply, task, registered.get(client, 0)):
                    caught[client] = words
            except WireError as error:
                dropped[client] = DroppedClient(client, error.reason, error.detail)
                log(WARNING, "Client %d is left out: %s", client, error)
        return Collected(
            dict(sorted(replies.items())),
            *self._rows(replies, orders),
            dict(sorted(probes.items())),
            dict(sorted(dropped.items())),
            dict(sorted(losses.items())),
            caught,
        )

    def _contradiction(self, reply: ClientReply, task: ClientTask, registered: int) -> str:
        """What a reply says against itself, or against what its node registered; empty if nothing."""
        if 0 < registered < reply.num_examples:
            return f"{reply.num_examples} samples; the node registered {registered}"
        if reply.probe is None or self._settings.rule != "probed":
            return ""
        loss = reply.probe.loss
        if reply.probe.holds != holds(loss, task.factor, task, self._settings.step.armijo):
            said = "holds" if reply.probe.holds else "fails"
            return f"it says that its test {said} where its loss goes from {task.reference_loss:.6g} to {loss:.6g}"
        return two_losses("its probe has loss", loss, "its gradient's pass", reply.loss) if task.train else ""

    def _take(self, content: RecordDict, client: int, orders: Orders) -> ClientReply:
        form = ReplyForm(self._dim, self._buffers, self._method.round_extras(orders.round, self._dim))
        reply = wire.decode_reply(content, orders.tasks[client], form)
        if reply.row is None:
            return reply
        slot = orders.train.index(client)
        self._basis.put(slot, reply.row)
        if not self._basis.squared_norm(slot) <= LONGEST_ROW**2:
            self._basis.drop(slot)
            raise WireError("not-finite", f"the gradient holds NaN or Inf, or is longer than {LONGEST_ROW:.2g}")
        for name, vector in reply.vectors.items():
            if not np.isfinite(vector).all():
                self._basis.drop(slot)
                raise WireError("not-finite", f"{name!r} holds NaN or Inf")
        return replace(reply, row=None)

    def _rows(self, replies: Mapping[int, ClientReply], orders: Orders) -> tuple[dict[int, ClientReply], RoundRows]:
        """Replies with a row, and the rows."""
        trained = {client: reply for client, reply in sorted(replies.items()) if client in orders.train}
        slots = tuple(orders.train.index(client) for client in trained)
        names = self._method.round_extras(orders.round, self._dim).vectors if trained else ()
        vectors = {name: tuple(reply.vectors[name] for reply in trained.values()) for name in names}
        return trained, RoundRows(self._basis, slots, vectors)


def message_type(task: ClientTask) -> str:
    """Flower's type of the message that carries `task`: `train` if a gradient is asked for, else `evaluate`."""
    return MessageType.TRAIN if task.train else MessageType.EVALUATE


def mean_buffers(replies: Mapping[int, ClientReply], buffers: Buffers) -> Buffers:
    """Buffers averaged by sample share; whole-number ones (counters) are rounded to their dtype.

    Parameters
    ----------
    replies : Mapping[int, ClientReply]
        Of the clients that trained; at least one. They bring no buffers where local work leaves them alone.
    buffers : Buffers
        The names, and what stays where none are brought.
    """
    if not next(iter(replies.values())).buffers:
        return buffers
    total = sum(reply.num_examples for reply in replies.values())
    averaged = {}
    for name, current in buffers.items():
        mean = sum(reply.buffers[name].astype(np.float64) * (reply.num_examples / total) for reply in replies.values())
        averaged[name] = np.asarray(np.rint(mean) if current.dtype.kind in "iub" else mean).astype(current.dtype)
    return averaged
