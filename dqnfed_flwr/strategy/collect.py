"""Taking replies in: checked one by one as they arrive, rows straight into the basis."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from logging import WARNING
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import WireError
from dqnfed_flwr.guarantee.claims import two_losses
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.guarantee.held_out import accepts
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.linalg.row_store import RowMemory
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.run_files import private_folder
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.compatibility import Member
from dqnfed_flwr.strategy.exchange import Answer, send_and_receive
from dqnfed_flwr.strategy.schedule import Schedule, needs_step
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray, Probe
from dqnfed_flwr.wire import Buffers, ReplyForm

PATIENCE = Patience()
NOTHING: FloatArray = np.empty(0, np.float32)
"""Stands for an array that a client was not asked for."""
LONGEST_ROW = math.sqrt(torch.finfo(torch.float32).max)
"""Norm of a row, some 1.8e19, up to which sums of rows are finite in float32, and products of products in float64."""


@dataclass(slots=True)
class Collected:
    """What an exchange brought; the dicts are by client, rising but for `caught`."""

    answered: dict[int, ClientReply]  # all replies of sound form, without the row itself, which is in the basis
    trained: dict[int, ClientReply]  # those with a row
    rows: RoundRows  # in the order of `trained`
    probes: dict[int, Probe] = field(default_factory=dict)  # of the candidate; also where the rest of a reply is unfit
    dropped: dict[int, DroppedClient] = field(default_factory=dict)  # without a valid reply
    losses: dict[int, float] = field(default_factory=dict)  # f_k at the model sent, if asked to train; as `probes`
    caught: dict[int, str] = field(default_factory=dict)  # replies that contradict themselves, and what they say

    def sort(self) -> None:
        """Put the clients into rising order."""
        self.answered, self.probes = dict(sorted(self.answered.items())), dict(sorted(self.probes.items()))
        self.dropped, self.losses = dict(sorted(self.dropped.items())), dict(sorted(self.losses.items()))

    def slots(self) -> dict[int, int]:
        """Slot of each row, by client."""
        return dict(zip(self.trained, self.rows.slots, strict=True))

    def rows_of(self, heard: Sequence[int], others: Sequence[int]) -> RoundRows:
        """The rows of those `heard`, with those of `others` in addition."""
        slots, places = self.slots(), {client: k for k, client in enumerate(self.trained)}
        vectors = {name: tuple(each[places[client]] for client in heard) for name, each in self.rows.vectors.items()}
        chosen, further = (tuple(slots[client] for client in clients) for clients in (heard, others))
        return RoundRows(self.rows.basis, chosen, vectors, further)


class ReplyCollector:
    """Runs exchanges for one federation, in which clients train a model like `theta` [D] and its `buffers`.

    `patience` waits for room where rows need a disk and it is full.
    """

    def __init__(
        self, settings: Settings, theta: torch.Tensor, buffers: Buffers, method: Method, patience: Patience = PATIENCE
    ) -> None:
        self._settings, self.figure = settings, task_of(settings).figure
        self._method, self._dim = method, theta.numel()
        self._buffers = buffers if settings.trains_buffers else {}
        method.extras(self._dim)  # a method that this model does not suit says so before anything is sent
        self._basis = Basis(
            settings.sampled + method.reference_rows,
            self._dim,
            theta.dtype,
            references=method.reference_rows,
            eager=method.reads_products or settings.rule in ("probed", "search"),  # which compare slopes
            memory=_row_memory(settings, patience),
        )

    def exchange(self, grid: Grid, schedule: Schedule, state: RunState, registry: ClientRegistry) -> Collected:
        """Send the candidate of `state` out with `schedule` and take the replies in.

        Costs are added to `state.cost`, and who owes a reply when it closes is noted in `registry.stragglers`.
        """
        since, members, stragglers = time.perf_counter(), registry.members, registry.stragglers
        stragglers.start_exchange()
        contents = self.contents(schedule, state)
        nodes = {members[client].node_id: client for client in contents}
        answers = send_and_receive(
            grid,
            {node: contents[client] for node, client in nodes.items()},
            {node: message_type(schedule.tasks[client]) for node, client in nodes.items()},
            group=str(schedule.round),
            deadline=self._settings.deadline,
            quorum=self._settings.quorum,
            unawaited=self._unawaited(schedule, registry),
            meanwhile=lambda end: stragglers.drain(grid, end),
        )

        def answers_by_client() -> Iterator[tuple[int, Answer]]:
            for answer in answers:
                stragglers.record(answer, nodes[answer.node])
                yield nodes[answer.node], answer

        collected = self.receive(answers_by_client(), schedule, state, members)
        state.exchange += 1
        state.cost.exchanges += 1
        state.cost.bytes_down += sum(wire.payload(content) for content in contents.values())
        state.cost.add_time("exchange", since)
        return collected

    def _unawaited(self, schedule: Schedule, registry: ClientRegistry) -> set[int]:
        """Nodes that are asked and not waited for: those on trial, where the others are enough for the round.

        An evaluation after the last round waits for none that owes a reply either.
        """
        members, stragglers = registry.members, registry.stragglers
        if not (schedule.train or schedule.probe):
            return {*stragglers.on_trial, *stragglers.busy}
        doubtful = {client for client, member in members.items() if member.node_id in stragglers.on_trial}
        voters = self._settings.guarantee.needed(len(schedule.probe))
        for asked, least in ((schedule.train, self._settings.min_clients), (schedule.probe, voters)):
            if len({*asked} - doubtful) < min(least, len(asked)):
                return set()
        return set(stragglers.on_trial)

    def contents(self, schedule: Schedule, state: RunState) -> dict[int, RecordDict]:
        """What each client is sent, by client."""
        theta, buffers = state.candidate.numpy(), state.buffers
        step = None if state.move is None else state.move.step.numpy()
        sent = {name: vector.numpy() for name, vector in self._method.sends(schedule.round).items()}

        @cache
        def model(*, line: bool, train: bool) -> ArrayRecord:
            return wire.encode_model(theta, buffers, step if line else None, sent if train else {})

        return {
            client: wire.encode_task(
                task, model(line=step is not None and needs_step(task, self._settings), train=task.train and bool(sent))
            )
            for client, task in schedule.tasks.items()
        }

    def receive(
        self,
        answers: Iterable[tuple[int, Answer]],
        schedule: Schedule,
        state: RunState,
        members: Mapping[int, Member],
    ) -> Collected:
        """Check the answers, given with their client, one by one; rows go into the basis as they come.

        Each is compared with itself, and with the samples that its node registered with.
        """
        self._basis.clear()
        found = Collected({}, {}, RoundRows(self._basis, ()))
        for client, answer in answers:
            task = schedule.tasks[client]
            try:
                content = answer.content()
                state.cost.bytes_up += wire.payload(content)
                if (loss := wire.decode_loss(content, task)) is not None:
                    found.losses[client] = loss
                if probe := wire.decode_probe(content, task):
                    found.probes[client] = self._as_asked(probe)
                reply = found.answered[client] = self._decode(content, client, schedule)
                if words := self._contradiction(reply, task, members[client].num_examples):
                    found.caught[client] = words
            except WireError as error:
                found.dropped[client] = DroppedClient(client, error.reason, error.detail)
                log(WARNING, "Client %d is left out: %s", client, error)
        found.sort()
        found.trained = {client: reply for client, reply in found.answered.items() if client in schedule.train}
        found.rows = self._rows(found.trained, schedule)
        return found

    def _as_asked(self, probe: Probe) -> Probe:
        """A probe without a word on held-out samples that nobody asked for: it would excuse a client."""
        asked = probe.held_out is None or self._settings.judges_held_out
        return probe if asked else replace(probe, held_out=None)

    def _contradiction(self, reply: ClientReply, task: ClientTask, registered: int) -> str:
        """What a reply says against itself, or against what its node registered; empty if nothing."""
        if registered < reply.num_examples:
            return f"{reply.num_examples} samples; the node registered {registered}"
        if reply.probe is None or self._settings.rule != "probed":
            return ""
        probe, loss, step = reply.probe, reply.probe.loss, self._settings.step
        suits = holds(loss, task.factor, task, step.armijo, self._settings.dtype)
        if probe.holds != accepts(step.judge, suits, probe.held_out):
            said = "holds" if probe.holds else "fails"
            return f"it says that its test {said} where its loss goes from {task.reference_loss:.6g} to {loss:.6g}"
        return two_losses("its probe has loss", loss, "its gradient's pass", reply.loss) if task.train else ""

    def _decode(self, content: RecordDict, client: int, schedule: Schedule) -> ClientReply:
        extras = self._method.extras_of(schedule.round, client, self._dim)
        form = ReplyForm(self._dim, self._buffers, extras, self.figure)
        reply = wire.decode_reply(content, schedule.tasks[client], form)
        if reply.probe is not None:
            reply = replace(reply, probe=self._as_asked(reply.probe))
        if reply.row is None:
            return reply
        slot = schedule.train.index(client)
        put_row(self._basis, slot, reply.row)
        for name, vector in reply.vectors.items():
            if not np.isfinite(vector).all():
                self._basis.drop(slot)
                raise WireError("not-finite", f"{name!r} holds NaN or Inf")
        return replace(reply, row=None)

    def _rows(self, trained: Mapping[int, ClientReply], schedule: Schedule) -> RoundRows:
        slots = tuple(schedule.train.index(client) for client in trained)
        replies = list(trained.values())
        names = dict.fromkeys(name for reply in replies for name in reply.vectors)
        vectors = {name: tuple(reply.vectors.get(name, NOTHING) for reply in replies) for name in names}
        return RoundRows(self._basis, slots, vectors)


def _row_memory(settings: Settings, patience: Patience) -> RowMemory:
    """The setting `rows.memory`; files lie beside the checkpoint."""

    def write(folder: Path, action: Callable[[], None]) -> None:
        def in_folder() -> None:
            private_folder(folder)
            action()

        patience.write(folder, in_folder)

    return RowMemory(settings.rows.memory, str(output_directory(settings) or ""), write)


def put_row(basis: Basis, slot: int, row: FloatArray) -> None:
    """Put a client's row [D] into `slot`, which stays empty with a `WireError` where the row is no use as a number."""
    basis.put(slot, row)
    if not basis.squared_norm(slot) <= LONGEST_ROW**2:
        basis.drop(slot)
        raise WireError("not-finite", f"the gradient holds NaN or Inf, or is longer than {LONGEST_ROW:.2g}")


def message_type(task: ClientTask) -> str:
    """Flower's type of the message that carries `task`: `train` if a gradient is asked for, else `evaluate`."""
    return MessageType.TRAIN if task.train else MessageType.EVALUATE


def mean_buffers(replies: Mapping[int, ClientReply], buffers: Buffers) -> Buffers:
    """Buffers of `replies`, at least one, averaged by sample share; counters are rounded to their whole-number dtype.

    Where local work leaves buffers alone, replies bring none, and `buffers` stay.
    """
    if not next(iter(replies.values())).buffers:
        return buffers
    total = sum(reply.num_examples for reply in replies.values())
    averaged = {}
    for name, current in buffers.items():
        mean = sum(reply.buffers[name].astype(np.float64) * (reply.num_examples / total) for reply in replies.values())
        averaged[name] = np.asarray(np.rint(mean) if current.dtype.kind in "iub" else mean).astype(current.dtype)
    return averaged
