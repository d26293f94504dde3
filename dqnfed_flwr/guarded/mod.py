"""The client's half: a Flower mod around the user's own train function."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.arrays import between
from dqnfed_flwr.guarded.borrowed import undisturbed
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.records import ARMIJO, PREFIX, GuardRequest, plain, read_request, with_reply
from dqnfed_flwr.types import ClientReply

_CHECKED = PREFIX + "checked"
"""In a node's `context.state`: its local loss has been checked in this run."""


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
        first = context.state.pop(_CHECKED, None) is None  # the user's functions see their own state alone
        with undisturbed():
            found, names = answer(request, _task_of(local_loss(message, context)), check=first)
        reply = call_next(message, context) if request.task.train else Message(RecordDict(), reply_to=message)
        context.state[_CHECKED] = ConfigRecord({"run": context.run_id})
        if not reply.has_error():
            reply.content = with_reply(reply.content, found, names)
        return reply

    return mod


def answer(request: GuardRequest, local: LocalTask, *, check: bool = True) -> tuple[ClientReply, tuple[str, ...]]:
    """Row and loss at the model received, and the test of the step that led there; and the names that the row is about.

    With `check` the local loss is checked as it is made, which is due once for each node and run.
    `ModelError` or `DataError` where the local task is of no use.
    """
    since, task = time.perf_counter(), request.task
    with frozen(local) as generators:
        objective = GuardedLoss(local, generators, check=check)
        objective.place(request.arrays)
        known, row = objective.loss_and_row() if task.train else (objective.loss(), None)
        names = objective.names

        def loss_at(factor: float) -> float:
            if factor == task.factor or request.before is None:
                return known
            objective.place(between(request.before, request.arrays, factor / task.factor, names))
            return objective.loss()

        tested = probe(loss_at, task, ARMIJO) if task.probe else None
    reply = ClientReply(objective.samples, probe=tested)
    if task.train:
        reply = replace(reply, row=row, loss=known, rate=0.0)
    return replace(reply, seconds=time.perf_counter() - since), names


def _task_of(given: object) -> LocalTask:
    if not isinstance(given, LocalTask):
        raise ConfigError(f"the function given to guard returned {type(given).__name__}; it must return a LocalTask")
    return given
