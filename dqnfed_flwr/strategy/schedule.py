"""Who is asked for what in the next exchange, and who is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.strategy.exchange import Answer, Stragglers, discard, send_and_receive
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.types import ClientTask


@dataclass(frozen=True, slots=True)
class Schedule:
    """One exchange; clients are in rising order."""

    tasks: dict[int, ClientTask]  # by client
    train: tuple[int, ...]  # asked for each of the three
    probe: tuple[int, ...]
    evaluate: tuple[int, ...]
    round: int  # whose gradients are asked for
    needed: int = 0  # how many that probe must answer, or the step cannot be judged


def schedule_exchange(state: RunState, run: RunPlan, clients: list[int], num_classes: int, method: Method) -> Schedule:
    """Plan the exchange that carries `state.candidate`.

    The participants of the pending step probe it, a new sample trains, unless the candidate goes out alone, and
    everybody evaluates where it is due. Where an exchange is repeated for want of usable replies, another sample is
    drawn, without those who gave none.

    `clients` are the members present, `num_classes` is that of the federation's model. The `method` decides last who
    trains, and gives the directives of those who do.
    """
    pending, settings = state.pending, run.settings
    train_round = state.round + (2 if pending else 1)
    train: tuple[int, ...] = ()
    if train_round <= settings.rounds and not (pending and pending.ladder.alone):
        offered = method.offered(train_round, settings.sampled)
        drawn = _sample_anew(clients, offered, state, settings, train_round)
        train = _select(method, train_round, drawn, state)
    probe = tuple(client for client in pending.clients if client in clients) if pending else ()
    evaluate = tuple(sorted(clients)) if pending and _due(pending.round, settings) else ()
    tasks = _tasks(state, train_round, train, probe, evaluate, num_classes)
    tasks |= {client: replace(tasks[client], directives=method.directives(train_round, client)) for client in train}
    needed = settings.guarantee.needed(len(pending.clients)) if pending else 0
    return Schedule(tasks, train, probe, evaluate, train_round, needed)


def schedule_evaluation(state: RunState, clients: list[int], num_classes: int) -> Schedule:
    """Plan an exchange that only evaluates the model as it stands, before the round that would follow."""
    following = state.round + 1
    return Schedule(_tasks(state, following, (), (), clients, num_classes), (), (), tuple(clients), following)


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    schedule: Schedule,
    clients: Mapping[int, int],
    stragglers: Stragglers,
    settings: RunSettings,
    late: Callable[[int], Callable[[Answer], str]] = lambda client: discard,
    quorum: float | None = None,
) -> Iterator[tuple[int, Answer]]:
    """`send_and_receive` the messages of a schedule, and yield each answer with its client; `clients` are by node.

    Who owes a reply when it closes is noted among the `stragglers`; `late` gives what will take in that of a client. A
    `quorum` stands in for that of the settings.
    """
    stragglers.start_exchange()
    for answer in send_and_receive(
        grid,
        messages,
        deadline=settings.deadline,
        quorum=settings.quorum if quorum is None else quorum,
        unawaited=_unawaited(schedule, clients, stragglers, settings),
        judges=[node for node, client in clients.items() if client in schedule.probe],
        needed=schedule.needed,
        meanwhile=lambda end: stragglers.drain(grid, end),
    ):
        client = clients[answer.node]
        stragglers.record(answer, client, late(client) if answer.owed else discard)
        yield client, answer


def _unawaited(
    schedule: Schedule, clients: Mapping[int, int], stragglers: Stragglers, settings: RunSettings
) -> set[int]:
    """Nodes that are asked and not waited for: those on trial, where the others are enough for the round.

    An evaluation after the last round waits for none that owes a reply either. `clients` are by node.
    """
    if not (schedule.train or schedule.probe):
        return {*stragglers.on_trial, *stragglers.busy}
    doubtful = {client for node, client in clients.items() if node in stragglers.on_trial}
    for asked, least in ((schedule.train, settings.min_clients), (schedule.probe, schedule.needed)):
        if len({*asked} - doubtful) < min(least, len(asked)):
            return set()
    return set(stragglers.on_trial)


def needs_step(task: ClientTask, run: RunPlan) -> bool:
    """Whether the client needs the step as well as the candidate: for other rungs, or to get back to theta^{t-1}."""
    rungs = task.probe and (task.grow or task.halvings > 0 or len(task.rungs) > 0)
    return task.factor > 0 and (rungs or (task.train and run.trains_on_line))


def _sample_anew(
    clients: list[int], count: int, state: RunState, settings: RunSettings, round_number: int
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


def _due(round_number: int, settings: RunSettings) -> bool:
    every = settings.evaluate_every
    return round_number == settings.rounds or bool(every and round_number % every == 0)


def with_probe(task: ClientTask, pending: PendingStep, client: int) -> ClientTask:
    """`task`, with the request that a participant tests the candidate of the `pending` step."""
    return replace(
        task,
        **pending.ladder.asked,
        probe=True,
        reference_loss=pending.limits.get(client, pending.losses[client]),
        entitlement=pending.entitlement,
        slope=pending.slopes[client],
    )


def _tasks(
    state: RunState,
    round_number: int,
    train: Sequence[int],
    probe: Sequence[int],
    evaluate: Sequence[int],
    num_classes: int,
) -> dict[int, ClientTask]:
    """What each client is asked for, by client, rising."""
    pending, tasks = state.pending, {}
    for client in sorted({*train, *probe, *evaluate}):
        task = ClientTask(
            exchange=state.exchange + 1,
            round=round_number,
            train=client in train,
            probe=client in probe,
            evaluate=client in evaluate,
            num_classes=num_classes,
        )
        if pending is not None:
            task = replace(task, factor=pending.ladder.factor)
        elif task.train and state.last:
            task = replace(task, factor=state.last.factor)
        tasks[client] = with_probe(task, pending, client) if pending is not None and task.probe else task
    return tasks
