"""The client's half: a Flower mod around the user's own train function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from dqnfed_flwr.client.held_out import HeldOutTest, LossesAt
from dqnfed_flwr.client.memory import StateArrays
from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.borrowed import undisturbed
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.records import (
    ARMIJO,
    PREFIX,
    GuardRequest,
    between,
    plain,
    read,
    read_request,
    with_reply,
    write,
)
from dqnfed_flwr.types import ClientReply, Float64Array

_CHECKED = PREFIX + "checked"
"""In a node's `context.state`: its local loss has been checked in this run."""
_HELD_OUT = PREFIX + "held-out"
"""There, too: the losses of its held-out samples at earlier models, and when it answered."""


def guard(local_loss: Callable[[Message, Context], LocalTask]) -> Mod:
    """A mod that adds to a train function what `Guaranteed` needs to know of the client.

    At the model received it computes the client's mean training loss and its gradient, and tests the step that led
    there. Then the train function runs, as it would without the mod. In a message that only asks for the test, it does
    not run. A message of a strategy that is not wrapped goes through untouched.

    Parameters
    ----------
    local_loss : Callable[[Message, Context], LocalTask]
        Gives model, batches and criterion; called as often as the train function, with the same arguments.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from torch import nn
    >>> from dqnfed_flwr import LocalTask, guard
    >>> app = ClientApp()
    >>> def local_loss(msg, context):
    ...     return LocalTask(nn.Linear(4, 2), load_batches(context), nn.CrossEntropyLoss())
    >>> @app.train(mods=[guard(local_loss)])
    ... def train(msg, context):
    ...     ...
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        request = read_request(message.content)
        if request is None:
            return call_next(message, context)
        message.content = plain(message.content)
        state = context.state
        own = {key: state.pop(key) for key in (_CHECKED, _HELD_OUT) if key in state}  # the user's functions see theirs
        try:
            with undisturbed():
                local, held = _task_of(local_loss(message, context)), own.get(_HELD_OUT)
                known = read(held) if isinstance(held, ArrayRecord) else {}
                found, names, kept = answer(request, local, known, check=_CHECKED not in own)
            own = {_CHECKED: ConfigRecord({"run": context.run_id}), **({_HELD_OUT: write(kept)} if kept else {})}
            reply = call_next(message, context) if request.task.train else Message(RecordDict(), reply_to=message)
        finally:
            state.update(own)
        if not reply.has_error():
            reply.content = with_reply(reply.content, found, names)
        return reply

    return mod


def answer(
    request: GuardRequest, local: LocalTask, known: StateArrays | None = None, *, check: bool = True
) -> tuple[ClientReply, tuple[str, ...], StateArrays]:
    """Row and loss at the model received, and the test of the step that led there; and the names that the row is about.

    With `check` the local loss is checked as it is made, which is due once for each node and run. What is `known` of
    held-out losses comes back last, with what is added. `ModelError` or `DataError` where the local task is of no use.
    """
    since, task = time.perf_counter(), request.task
    with frozen(local) as generators:
        objective = GuardedLoss(local, generators, check=check)
        objective.place(request.arrays)
        here, row = objective.loss_and_row() if task.train else (objective.loss(), None)
        names = objective.names

        def place(factor: float) -> None:
            there = request.arrays
            if factor != task.factor and request.before is not None:
                there = between(request.before, there, factor / task.factor, names)
            objective.place(there)

        def loss_at(factor: float) -> float:
            if factor == task.factor or request.before is None:
                return here
            place(factor)
            return objective.loss()

        def losses_at(factor: float) -> Float64Array:
            place(factor)
            return objective.held_out_losses()

        held_out, kept = _held_out_test(request, cache(losses_at), known or {})
        tested = probe(loss_at, task, ARMIJO, held_out) if task.probe else None
    reply = ClientReply(objective.samples, probe=tested)
    if task.train:
        reply = replace(reply, row=row, loss=here, rate=0.0)
    return replace(reply, seconds=time.perf_counter() - since), names, kept


def _held_out_test(
    request: GuardRequest, losses_at: LossesAt, known: StateArrays
) -> tuple[HeldOutTest | None, StateArrays]:
    """The test on the held-out part, None where there is none to do; and what is known of it from now on."""
    terms, task = request.terms, request.task
    judge = None if terms is None else terms.judge(len(losses_at(task.factor)))
    if judge is None:
        return None, {}
    judge.memory.load(known)
    test = judge.visit(task, losses_at)
    return test, judge.memory.export()


def _task_of(given: object) -> LocalTask:
    if not isinstance(given, LocalTask):
        raise ConfigError(f"the function given to guard returned {type(given).__name__}; it must return a LocalTask")
    return given
