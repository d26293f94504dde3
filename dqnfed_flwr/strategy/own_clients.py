"""The package's own clients as a side of the loop: registered members, and a method that weighs their gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from logging import WARNING
from typing import TYPE_CHECKING

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from dqnfed_flwr import wire
from dqnfed_flwr.errors import DataError, QuorumError
from dqnfed_flwr.masked.sketch import sketch_size
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.params import line_point
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.beside import BesideRounds
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.collect import Collected, Receiver, check_least
from dqnfed_flwr.strategy.exchange import Answer, Repeats
from dqnfed_flwr.strategy.hearing import Hearing, say_if_tolerate_is_cut
from dqnfed_flwr.strategy.row_place import PATIENCE, rows_for
from dqnfed_flwr.strategy.schedule import (
    Schedule,
    exchange,
    needs_step,
    schedule_evaluation,
    schedule_exchange,
)
from dqnfed_flwr.strategy.short_messages import ShortMessages
from dqnfed_flwr.strategy.side import Direction, TooFewReplies
from dqnfed_flwr.strategy.solve import Slopes, solve_replies, unknown
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.tasks import TASKS
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent, Spent
from dqnfed_flwr.types import ClientReply, ClientTask, on_host
from dqnfed_flwr.wire import Buffers, ReplyForm

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector


class OwnClients:
    """The members in `registry`, reached over `grid`, and the `method` that makes the steps of a run from their rows.

    They train `task`. The candidate that is sent, and the model, are those of `state`; where steps are sent
    in its place, `short` makes and counts them. `patience` waits for room where rows need a disk and it is full.
    `figure` is what clients are evaluated by. With a `device`, as `rows_device` finds it, rows, steps and model lie
    there.
    """

    def __init__(
        self,
        run: RunPlan,
        task: Task,
        state: RunState,
        method: Method,
        registry: ClientRegistry,
        grid: Grid,
        short: ShortMessages | None,
        patience: Patience = PATIENCE,
        device: torch.device | None = None,
    ) -> None:
        self._short = short
        self._run, self._settings, self._state, self._registry, self._grid = run, run.settings, state, registry, grid
        self.method, self.figure = method, task.figure
        self.not_asked, self.stragglers = list[DroppedClient](), registry.stragglers
        self._num_classes = registry.form.num_classes
        dim = state.theta.numel()
        method.extras(dim)  # a method that this model does not suit says so before anything is sent
        self._receiver = _OwnReplies(run, task, method, registry, dim, state.buffers if run.work.passes else {})
        self._beside = BesideRounds(run, state, method, registry, grid, self._receiver, task.floor)
        self._device, self._patience = device, patience
        self._rows = rows_for(run, method, state.theta, patience, device)
        say_if_tolerate_is_cut(run, run.settings.sampled)

    @property
    def can_train(self) -> bool:
        """Whether enough members are free."""
        return len(self._registry.available) >= self._settings.min_clients

    @property
    def keeps_move(self) -> bool:
        """Whether clients that train need the step that led to the model."""
        return self._run.trains_on_line

    @property
    def privacy(self) -> Spent | None:
        """Nothing is promised of records."""
        return None

    def limits(self, losses: Mapping[int, float]) -> dict[int, float]:
        """As the window of the guarantee has it."""
        return self._state.limits(losses)

    def ready(self, pending: PendingStep | None) -> str:
        """Wait until enough members are free, and one of those who must judge the pending step; why not, if not."""
        if words := self._registry.hopeless:
            raise QuorumError(f"{words}. The model is unchanged since round {self._state.round}")

        def can_go_on() -> bool:
            free = self._registry.available
            return self.can_train and (pending is None or any(client in free for client in pending.clients))

        def judges_given_up() -> bool:
            return pending is not None and {*pending.clients} <= self._registry.given_up.keys()

        self._registry.wait_until(self._grid, lambda: can_go_on() or judges_given_up())
        if self._beside.together:
            self._registry.wait_until(self._grid, lambda: not self.stragglers.busy)
        if not can_go_on():
            self.stragglers.ask_all()  # where the others are too few, one that owes a reply is asked, too
        return "" if can_go_on() else f"{len(self._registry.members)} clients are there"

    def exchange(self) -> tuple[Schedule, Collected]:
        """One exchange of a round.

        Where messages are short, nodes that have the model are not sent the step again that led to it: where too few
        replied when that was accepted, the next round goes without it.
        """
        if self._short is not None and self._state.pending is None:
            self._state.last = None
        self.not_asked = [*self.stragglers.left_out, *self._registry.left_out]
        beside = self._beside.ask()
        available = [client for client in self._registry.available if client not in beside]
        schedule = schedule_exchange(self._state, self._run, available, self._num_classes, self.method)
        return schedule, self._exchange(schedule)

    def evaluate(self) -> Mapping[int, ClientReply]:
        """Evaluate the model as it stands on all members; after the last exchange no client need catch up."""
        self._registry.refresh(self._grid)
        schedule = schedule_evaluation(self._state, list(self._registry.members), self._num_classes)
        return self._exchange(schedule).answered

    def note_answers(self, collected: Collected, faults: Mapping[int, DroppedClient], *, accepted: bool) -> None:
        """Leave out those that fail each time; rows of a candidate that was turned down are of no use later either."""
        self._registry.note_answers(collected.trained, faults)
        if accepted:
            self._beside.accepted(collected)

    def check(self, collected: Collected, schedule: Schedule) -> None:
        """Raise `TooFewReplies` where fewer than `min-clients` sent a row of use."""
        if not schedule.train:
            clients = list(self._registry.members)
            raise TooFewReplies(
                f"the method trains none of clients {clients[:12]} in round {schedule.round}; one that plans by number "
                f"needs partition-ids below clients ({self._settings.clients})"
            )
        if len(collected.trained) < self._settings.min_clients:
            dropped = [drop for client, drop in collected.dropped.items() if client in schedule.train]
            what = f"{len(collected.trained)} usable replies in round {schedule.round}"
            raise TooFewReplies(what, dropped, [drop.client for drop in dropped])

    def direction(self, collected: Collected, hearing: Hearing, schedule: Schedule) -> Direction:
        """The method's step, and the mean buffers of those who are heard."""
        if not hearing.heard:
            raise TooFewReplies(f"nobody is heard in round {schedule.round}", hearing.dropped, hearing.losses)
        theta_norm = float(self._state.theta.norm())
        batch, solved = solve_replies(self.method, collected, hearing, schedule.round, theta_norm, self.adopt)
        heard = {client: collected.trained[client] for client in hearing.heard}
        return Direction(batch, solved, mean_buffers(heard, self._state.buffers))

    def adopt(self, step: Tensor, slopes: Slopes = unknown) -> Tensor:
        """The step as it is sent."""
        return step if self._short is None else self._short.adopt(step, self._state.round, slopes)

    def place(self, pending: PendingStep, ladder: Ladder) -> None:
        """Make theta - factor * step the candidate.

        It lies on the line through the candidate before, which the clients measured, to the last bit; but where it is
        shorter than anything that they were asked for, through theta itself: a long step that was tried leaves its
        rounding in that line, and a very short one would drown in it.
        """
        state, known = self._state, pending.ladder
        anew = ladder.factor < known.lowest
        base, at = (state.theta, 0.0) if anew else (state.candidate, known.factor)
        state.candidate = line_point(base, pending.step, at, ladder.factor)
        if self._short is not None:
            self._short.place(ladder.factor, anew=anew or not at)

    def settle(self) -> None:
        """Have the last models confirmed, where the result is one that is."""
        self._beside.settle()

    def everybody_in(self, clients: Collection[int]) -> bool:
        """Whether these are all members, and each was asked."""
        return self._settings.sampled >= self._settings.clients and {*clients}.issuperset(self._registry.members)

    def round_over(self, event: RoundEvent) -> None:
        """The model is that of the state; what the rounding of its step left is known."""
        if self._short is not None:
            self._short.round_over(moved=event.moved)

    def _exchange(self, schedule: Schedule) -> Collected:
        """Send the candidate out with `schedule`; who owes a reply when the exchange closes is noted."""
        since, state, members = time.perf_counter(), self._state, self._registry.members
        contents = self._contents(schedule)
        nodes = {members[client].node_id: client for client in contents}
        messages = [
            Message(contents[client], node, _message_type(schedule.tasks[client]), group_id=str(schedule.round))
            for node, client in nodes.items()
        ]
        late = partial(self._late, schedule)
        quorum = 1.0 if self._beside.together else self._settings.quorum
        found = exchange(self._grid, messages, schedule, nodes, self.stragglers, self._settings, late, quorum)
        collected = self._receiver.receive(found, schedule, self._rows, state.cost)
        if self._short is not None:
            self._short.received(collected)
        self._receiver.check_losses(collected, len(schedule.tasks))
        state.exchange += 1
        state.cost.exchanges += 1
        state.cost.bytes_down += sum(wire.payload(content) for content in contents.values())
        state.cost.add_time("exchange", since)
        if isinstance(self._grid, Repeats):
            state.cost.repeated_calls += self._grid.take_repeats()
        return collected

    def _late(self, schedule: Schedule, client: int) -> Callable[[Answer], str]:
        """What takes the reply of a client in if it comes late, which says what model it has, too."""
        read, short = self._beside.late(schedule, client), self._short

        def noted(answer: Answer) -> str:
            if short is not None and answer.usable:
                short.answered(client, lost=wire.LOST_MODEL in answer.content())
            return read(answer)

        return noted

    def _contents(self, schedule: Schedule) -> dict[int, RecordDict]:
        """What each client is sent with a schedule, by client."""
        if self._short is None:
            stays = self._device is not None
            return contents_of(schedule, self._state, self._run, self.method, stays=stays)
        nodes = {client: self._registry.members[client].node_id for client in schedule.tasks}
        models = self._short.models(schedule, self._state, nodes, self.method.sends(schedule.round))
        return {client: wire.encode_task(task, models[client]) for client, task in schedule.tasks.items()}


def contents_of(
    schedule: Schedule, state: RunState, run: RunPlan, method: Method, *, stays: bool = False
) -> dict[int, RecordDict]:
    """What each client is sent with a schedule, by client; vectors are tensors where rows `stays` on their device."""
    carried: Callable[[Tensor], Vector] = (lambda vector: vector) if stays else on_host
    theta, buffers = carried(state.candidate), state.buffers
    step = None if state.move is None else carried(state.move.step)
    sent = {name: carried(vector) for name, vector in method.sends(schedule.round).items()}

    @cache
    def model(*, line: bool, train: bool) -> ArrayRecord:
        return wire.encode_model(theta, buffers, step if line else None, sent if train else {})

    return {
        client: wire.encode_task(
            task, model(line=step is not None and needs_step(task, run), train=task.train and bool(sent))
        )
        for client, task in schedule.tasks.items()
    }


class _OwnReplies(Receiver):
    """Replies of members, in the form that the method asks for."""

    def __init__(
        self, run: RunPlan, task: Task, method: Method, registry: ClientRegistry, dim: int, buffers: Buffers
    ) -> None:
        super().__init__(run, task.floor)
        self._method, self._registry, self._figure = method, registry, task.figure
        self._dim, self._buffers = dim, buffers

    def form(self, schedule: Schedule, client: int) -> ReplyForm:
        """What the method asks of the client in this round."""
        extras = self._method.extras_of(schedule.round, client, self._dim)
        row = sketch_size(self._dim) if self._run.masked else self._dim
        return ReplyForm(row, self._buffers, extras, self._figure, self._floor, self._run.row_bits)

    def samples(self, client: int, reply: ClientReply) -> int:
        """As its node registered."""
        return self._registry.members[client].num_examples

    def admit(self, content: RecordDict, reply: ClientReply) -> None:
        """Nothing: the form says all."""

    def say(self, drop: DroppedClient) -> None:
        """Each time."""
        log(WARNING, "Client %d is left out: %s: %s", drop.client, drop.reason, drop.detail)

    def check_losses(self, found: Collected, asked: int) -> None:
        """Refuse losses that task or method make no sense of: `DataError`. Tasks of the package have no such."""
        if self._settings.task in TASKS:
            return
        check_least(found, self._settings.guarantee.liars(asked))
        losses = found.losses
        if self._floor is not None or min(losses.values(), default=0.0) >= 0:
            return
        client, loss = min(losses.items(), key=lambda item: item[1])
        for part in self._run.parts:
            if why := part.method.nonnegative(part, floor=False):
                raise DataError(
                    f"task: the loss of client {client} is {loss:.6g}, but {part.method.name} {why}, which takes "
                    "losses from 0; add a constant to the loss, or use another method"
                )


def _message_type(task: ClientTask) -> str:
    """Flower's type of the message that carries `task`: `train` if a gradient is asked for, else `evaluate`."""
    return MessageType.TRAIN if task.train else MessageType.EVALUATE


def mean_buffers(replies: Mapping[int, ClientReply], buffers: Buffers) -> Buffers:
    """Buffers of `replies`, at least one, averaged by sample share; counters are rounded to their whole-number dtype.

    What is the same for all stays as it is, also where it is more than float64 can count. Where local work leaves
    buffers alone, replies bring none, and `buffers` stay.
    """
    if not next(iter(replies.values())).buffers:
        return buffers
    total = sum(reply.num_examples for reply in replies.values())
    averaged = {}
    for name, current in buffers.items():
        first, *others = (reply.buffers[name] for reply in replies.values())
        if all(first.tobytes() == other.tobytes() for other in others):
            averaged[name] = np.array(first)
            continue
        exact = np.complex128 if current.dtype.kind == "c" else np.float64
        mean = sum(reply.buffers[name].astype(exact) * (reply.num_examples / total) for reply in replies.values())
        averaged[name] = np.asarray(np.rint(mean) if current.dtype.kind in "iub" else mean).astype(current.dtype)
    return averaged
