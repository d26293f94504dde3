"""Who is asked for what in the next exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.types import ClientTask


@dataclass(frozen=True, slots=True)
class Orders:
    """One exchange.

    Attributes
    ----------
    tasks : dict[int, ClientTask]
        By client, rising.
    train, probe, evaluate : tuple[int, ...]
        Clients asked for each, rising.
    round : int
        The round whose gradients are asked for.
    """

    tasks: dict[int, ClientTask]
    train: tuple[int, ...]
    probe: tuple[int, ...]
    evaluate: tuple[int, ...]
    round: int


def next_orders(
    state: RunState,
    settings: Settings,
    clients: list[int],
    num_classes: int,
    method: Method,
) -> Orders:
    """Plan the exchange that carries `state.candidate`.

    The participants of the pending step probe it, a new sample trains, and everybody evaluates where it is due. Where
    an exchange is repeated for want of usable replies, another sample is drawn, without those who gave none.

    Parameters
    ----------
    state : RunState
        Not changed.
    settings : Settings
        Of the run.
    clients : list[int]
        Members present.
    num_classes : int
        Classes of the federation's model.
    method : Method
        Has the last word on who trains, and tells clients what it has to tell.
    """
    pending = state.pending
    train_round = state.round + (2 if pending else 1)
    train: tuple[int, ...] = ()
    if train_round <= settings.rounds:
        offered = method.offered(train_round, settings.sampled)
        drawn = _sample_anew(clients, offered, state, settings, train_round)
        train = _select(method, train_round, drawn, state)
    probe = tuple(client for client in pending.clients if client in clients) if pending else ()
    evaluate = tuple(sorted(clients)) if pending and _due(pending.round, settings) else ()
    tasks = {
        client: _task(
            client, state, train_round, (client in train, client in probe, client in evaluate), num_classes=num_classes
        )
        for client in sorted({*train, *probe, *evaluate})
    }
    tasks |= {client: replace(tasks[client], directives=method.directives(train_round, client)) for client in train}
    return Orders(tasks, train, probe, evaluate, train_round)


def final_evaluation(state: RunState, clients: list[int], num_classes: int) -> Orders:
    """Plan an exchange that only evaluates the model as it stands, before the round that would follow."""
    following = state.round + 1
    tasks = {
        client: _task(client, state, following, (False, False, True), num_classes=num_classes) for client in clients
    }
    return Orders(tasks, (), (), tuple(clients), following)


def needs_step(task: ClientTask, settings: Settings) -> bool:
    """Whether the client needs the step beside the candidate: for other rungs, or to get back to theta^{t-1}."""
    rungs = task.probe and (task.grow or task.halvings > 0 or len(task.rungs) > 0)
    return task.factor > 0 and (rungs or (task.train and trains_on_the_line(settings)))


def trains_on_the_line(settings: Settings) -> bool:
    """Whether clients that train need the step that led to the model, whoever took it."""
    curvature = settings.curvature
    recomputed = curvature.kind == "secant" and curvature.previous == "recomputed"
    return settings.wants_step or (recomputed and settings.reads_curvature)


def _sample_anew(
    clients: list[int], count: int, state: RunState, settings: Settings, round_number: int
) -> tuple[int, ...]:
    """The round's sample; after failed attempts without those of all of them, else of the last, if enough are left.

    Where everybody is asked there are no others, and all are asked again.
    """
    attempts = state.unusable
    every = [client for out in attempts for client in out]
    draw = partial(sample, count=count, seed=settings.seed, round_number=round_number, attempts=every)
    if attempts and count < len(clients):
        for out in (every, attempts[-1]):
            others = [client for client in clients if client not in out]
            if len(others) >= settings.min_clients:
                return draw(others)
    return draw(clients)


def _select(method: Method, round_number: int, drawn: tuple[int, ...], state: RunState) -> tuple[int, ...]:
    """Who of `drawn` trains; where the method asks only such as gave nothing usable in this round, others instead."""
    train = method.select(round_number, drawn)
    failed = {client for out in state.unusable for client in out}
    if failed.issuperset(train):
        return method.select(round_number, tuple(client for client in drawn if client not in failed)) or train
    return train


def sample(
    clients: list[int], count: int, *, seed: int, round_number: int, attempts: Sequence[int] = ()
) -> tuple[int, ...]:
    """`count` of `clients` without replacement, rising; the same for a seed and a round in every process.

    With `attempts`, whatever they are, it is another draw, which has nothing to do with the first.
    """
    if count >= len(clients):
        return tuple(sorted(clients))
    generator = np.random.default_rng([seed, round_number, *attempts])
    return tuple(sorted(int(client) for client in generator.choice(sorted(clients), count, replace=False)))


def _due(round_number: int, settings: Settings) -> bool:
    every = settings.evaluate_every
    return round_number == settings.rounds or bool(every and round_number % every == 0)


def _task(
    client: int, state: RunState, round_number: int, asked: tuple[bool, bool, bool], *, num_classes: int
) -> ClientTask:
    train, probe, evaluate = asked
    task = ClientTask(
        exchange=state.exchange + 1,
        round=round_number,
        train=train,
        probe=probe,
        evaluate=evaluate,
        num_classes=num_classes,
    )
    if state.pending is None:
        return replace(task, factor=state.last.factor) if train and state.last else task
    ladder = state.pending.ladder
    if not probe:
        return replace(task, factor=ladder.factor)
    return replace(
        task,
        factor=ladder.factor,
        grow=ladder.grow,
        halvings=ladder.halvings,
        rungs_above=ladder.rungs_above,
        rungs_below=ladder.rungs_below,
        reference_loss=state.pending.losses[client],
        entitlement=state.pending.entitlement,
        slope=state.pending.slopes[client],
    )
