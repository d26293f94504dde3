"""Somebody's strategy and its clients as a side of the loop.

An exchange carries the candidate of the round before. It asks for three things: the clients that the strategy
evaluates on evaluate the candidate, the participants of that round test it by their loss, and the clients that the
strategy samples for the next round train at it. Where a test fails, all that the exchange brought is thrown away, and
the next one carries a shorter step. A candidate that goes out alone is tested and evaluated; then nobody trains.

The messages to evaluate are answered before the others are sent, as without the guarantee: a node that does both at
once, as Flower's simulation may have it, loses what one of them keeps in `context.state`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr import wire
from dqnfed_flwr.client.held_out import HeldOutTerms
from dqnfed_flwr.errors import CheckpointError, ConfigError, RunError, ShapeError
from dqnfed_flwr.guarded.memory import StrategyMemory, figures_of, restore_figures
from dqnfed_flwr.guarded.records import Model, check_alike, flatten, model_key, moved, with_task
from dqnfed_flwr.guarded.replies import GuardedReplies, evaluations
from dqnfed_flwr.guarded.wrapped import Given, Nearest, Wrapped, said_by
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.steps import Ladder
from dqnfed_flwr.strategy.checkpointer import group
from dqnfed_flwr.strategy.collect import Collected
from dqnfed_flwr.strategy.exchange import Answer, Stragglers
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.loop import most_frequent_reason
from dqnfed_flwr.strategy.schedule import Schedule, exchange, with_probe
from dqnfed_flwr.strategy.side import Direction
from dqnfed_flwr.strategy.solve import NOT_FINITE, Solved, make_batch, solve
from dqnfed_flwr.strategy.state import PendingStep, RunState
from dqnfed_flwr.strategy.step_search import NO_STEP
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent, Spent
from dqnfed_flwr.types import ACCURACY, ClientTask, Combination, Float64Array, RoundBatch, under


@dataclass(frozen=True, slots=True)
class Asked:
    """How to ask a node for its test alone: what its last message to train held beside the model, and its type."""

    content: RecordDict
    key: str
    message_type: str


@dataclass(slots=True)
class Line:
    """From the model, through a candidate, to the end of the step at factor 1; with how to ask its participants."""

    end: Model
    candidate: Model
    asked: Mapping[int, Asked] = field(default_factory=dict)


class StrategySide:
    """Nodes that a `strategy` configures, and the step that it would take, changed as little as clients demand.

    Figures go into `result`. Of the `state` the vectors are not used; no step that led to `model` did harm.
    """

    figure, can_train, keeps_move = ACCURACY, True, False
    privacy: Spent | None = None

    def __init__(
        self, strategy: Strategy, run: RunPlan, *, demand: float, floor: float | None, given: Given, result: Result
    ) -> None:
        self._strategy, self._run, self._settings = strategy, run, run.settings
        nothing = torch.empty(0)
        self.state = RunState(nothing, nothing, {})
        configs = {"train": given.train_config, "evaluate": given.evaluate_config}
        self._memory = StrategyMemory(strategy, configs) if run.settings.output else None
        self._kept: dict[str, NDArray[np.generic]] = {}  # its memory before the last exchange
        self._given, self._grid, self._result = given, given.grid, result
        self.method, self._terms = Nearest(run, demand), {"demand": demand, "floor": floor}
        self.model = Model.of(result.arrays)
        self.replies = GuardedReplies(run, floor, said_by(strategy, "weighted_by_key", str) or "")
        self.not_asked: list[DroppedClient] = []
        self.stragglers = Stragglers(run.settings.deadline)
        self._wrapped = Wrapped(strategy, run, given, self.stragglers)
        self._line = Line(self.model, self.model)
        self._asked: dict[int, Asked] = {}
        self._evaluations: list[Message] = []
        self._due = 0  # the round whose evaluation waits, where no step is offered

    def limits(self, losses: Mapping[int, float]) -> dict[int, float]:
        """As the window of the guarantee has it."""
        return self.state.limits(losses)

    def ready(self, pending: PendingStep | None) -> str:
        """Wait until a node is free, and one of those who must judge the pending step; why not, if not."""
        judges = () if pending is None else pending.clients
        if self.stragglers.wait_for(self._grid, judges):
            return ""
        return f"none of the {len(judges)} participants of round {self.state.round + 1} is there"

    def exchange(self) -> tuple[Schedule, Collected]:
        """One exchange of a round: evaluation first, then training and tests."""
        state, pending = self.state, self.state.pending
        candidate = self._line.candidate if pending else self.model
        self.not_asked = self.stragglers.left_out
        number = state.round + (2 if pending else 1)
        self._kept = self._memory.export_state() if self._memory else {}
        since = time.perf_counter()
        evaluated = self._wrapped.to_evaluate(pending.round if pending else self._due, candidate)
        figures = self._gather(evaluated, Schedule({}, (), (), (), number))
        trains = number <= self._settings.rounds and not (pending and pending.ladder.alone)
        train = self._wrapped.to_train(number, candidate) if trains else []
        schedule = self._schedule(number, train, pending)
        messages = self._with_tasks(train, schedule, candidate, pending)
        state.cost.bytes_down += sum(wire.payload(message.content) for message in [*evaluated, *messages])
        collected = self.replies.take(self._gather(messages, schedule), schedule, candidate.arrays, state.cost)
        self._evaluations = evaluations(figures, self.replies.weight, state)
        state.cost.add_time("exchange", since)
        if evaluated or messages:
            state.exchange += 1
            state.cost.exchanges += 1
        if pending is None and self._due:
            self._evaluated(self._due)
        return schedule, collected

    def finish(self) -> None:
        """Evaluate the model after a last round that left it as it was."""
        if self._due:
            answers = self._gather(
                self._wrapped.to_evaluate(self._due, self.model), Schedule({}, (), (), (), self._due)
            )
            self._evaluations = evaluations(answers, self.replies.weight, self.state)
            self._evaluated(self._due)

    def note_answers(self, collected: Collected, faults: Mapping[int, DroppedClient], *, accepted: bool) -> None:
        """Nothing: `replies` keeps account of faults."""

    def check(self, collected: Collected, schedule: Schedule) -> None:
        """`RunError` where nobody's first reply can be used."""
        if schedule.round == 1 and schedule.tasks and not collected.trained:
            raise RunError(f"no client can take part{most_frequent_reason(collected.dropped.values(), moved=False)}")

    def direction(self, collected: Collected, hearing: Hearing, schedule: Schedule) -> Direction:
        """Have the strategy aggregate, and change its step as little as the clients who are heard demand.

        The updates of those who contradict themselves are kept from it, even where then none is left: nobody is heard
        in such a round, which leaves the model as it is.
        """
        number = schedule.round
        inner, figures = self._strategy.aggregate_train(number, self.replies.usable(hearing.muted))
        if figures is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", figures)
            self._result.train_metrics_clientapp[number] = figures
        end, names = self.model if inner is None else Model.of(inner), self.replies.names
        check_alike("the strategy's model", end.arrays, self.model.arrays)
        held = collected.rows.held
        there = flatten(self.model.arrays, names) if names else np.zeros(held.dim)
        reference = held.capacity - 1
        held.put(reference, there - (flatten(end.arrays, names) if names else there))
        status = NO_STEP if inner is None else ""
        if not status and not np.isfinite(held.squared_norm(reference)):
            status = NOT_FINITE
        if hearing.heard and not status:
            rows = collected.rows_of(hearing.heard, hearing.unheard)
            self.method.disown(hearing.disowned)
            self.method.cuts = hearing.cuts
            batch = make_batch(collected.trained, hearing, rows, number, float(np.linalg.norm(there)))
            solved = solve(self.method, batch, rows)
        else:
            hearing.heard = ()
            batch, solved = _no_step(hearing, number, held, status or NO_STEP)
        end = _changed(end, solved, held, names)
        self._line = Line(end, end, {node: self._asked[node] for node in hearing.losses})
        return Direction(batch, solved)

    def adopt(self, step: Tensor) -> Tensor:
        """The step itself: nodes are sent what the strategy sends, a model."""
        return step

    def place(self, pending: PendingStep, ladder: Ladder) -> None:
        """Go a share of the way to the end of the step; back on the line that the clients measured where it can be."""
        line, known = self._line, pending.ladder.factor
        if 0 < ladder.factor < known:
            line.candidate = self.model.toward(line.candidate, ladder.factor / known)
        else:
            line.candidate = self.model.toward(line.end, ladder.factor)

    def everybody_in(self, clients: Collection[int]) -> bool:
        """Never known: a strategy may ask others the next time."""
        return False

    def round_over(self, event: RoundEvent) -> None:
        """The candidate is the model, or the evaluation of the one before is due."""
        if not event.moved:
            log(WARNING, "Round %d leaves the model as it is: %s", event.round, event.status)
            self._due = event.round
            return
        self.model = self._line.candidate
        self._result.arrays = self.model.record
        self._evaluated(event.round)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """What a checkpoint holds of the run besides its state, as if the step on offer had never been made."""
        record = {
            **self._terms,
            "arrays": list(self.model.arrays),
            "names": self.replies.names,
            "samples": self.replies.samples_of,
            "due": self._due,
            "figures": figures_of(self._result),
        }
        arrays = group("model", {str(k): values for k, values in enumerate(self.model.arrays.values())})
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        settled = self._memory if not self.state.pending else None
        return arrays | group("strategy", settled.export_state() if settled else self._kept)

    def restore_state(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Take up what `export_state` gave; `CheckpointError` where it is of a run on other terms."""
        record = json.loads(state["record"].tobytes())
        for name, now in self._terms.items():
            if record[name] != now:
                raise CheckpointError(f"the checkpoint belongs to another run; {name}: {record[name]} then, {now} now")
        model = Model.made({name: state[f"model/{k}"] for k, name in enumerate(record["arrays"])})
        try:
            check_alike("the checkpoint's model", model.arrays, self.model.arrays)
        except ShapeError as error:
            raise CheckpointError(f"the checkpoint belongs to a run of another model: {error}") from None
        if self._memory:
            self._memory.restore_state(under("strategy/", state))
        self.model = model
        self._line = Line(self.model, self.model)
        self.replies.names = tuple(record["names"])
        self.replies.samples_of = {int(node): samples for node, samples in record["samples"].items()}
        self._due, self._result.arrays = record["due"], self.model.record
        restore_figures(self._result, record["figures"])

    def _schedule(self, number: int, train: Sequence[Message], pending: PendingStep | None) -> Schedule:
        """What each node is asked for."""
        nodes = {message.metadata.dst_node_id for message in train}
        probing = set() if pending is None else {*pending.clients} - self.stragglers.busy
        tasks = {}
        for node in sorted({*nodes, *probing}):
            task = ClientTask(self.state.exchange + 1, number, train=node in nodes)
            tasks[node] = with_probe(task, pending, node) if pending is not None and node in probing else task
        needed = self._settings.guarantee.needed(len(pending.clients)) if pending else 0
        return Schedule(tasks, tuple(sorted(nodes)), tuple(sorted(probing)), (), number, needed)

    def _with_tasks(
        self, train: Sequence[Message], schedule: Schedule, candidate: Model, pending: PendingStep | None
    ) -> list[Message]:
        """The messages to train, with the tasks of the mod, and further ones to nodes that only test the candidate."""
        lengths = pending is not None and (pending.ladder.grow or pending.ladder.halvings)
        before, terms = self.model.record if lengths else None, HeldOutTerms.of(self._run)
        self._asked = {}
        for message in train:
            node, key = message.metadata.dst_node_id, model_key(message.content, candidate.record)
            if key is None:
                raise ConfigError(
                    "the strategy sends clients another model than it was given; such a one is not guarded"
                )
            rest = RecordDict({name: record for name, record in message.content.items() if name != key})
            self._asked[node] = Asked(rest, key, message.metadata.message_type)
            task = schedule.tasks[node]
            message.content = with_task(message.content, task, key, before if task.probe else None, terms)
        messages = list(train)
        for node in schedule.probe:
            if node not in schedule.train:
                asked = self._line.asked[node]
                content = RecordDict({asked.key: candidate.record, **asked.content})
                content = with_task(content, schedule.tasks[node], asked.key, before, terms)
                messages.append(Message(content, node, asked.message_type))
        return messages

    def _gather(self, messages: Sequence[Message], schedule: Schedule) -> list[Answer]:
        """Send messages and wait for the replies; one answer for each, in the order of the messages.

        Flower's own helper hands replies over in the order in which they arrive, and reports a dead node under the
        server's id.
        """
        nodes = [message.metadata.dst_node_id for message in messages]
        clients = dict(zip(nodes, nodes, strict=True))
        found: dict[int, list[Answer]] = {node: [] for node in nodes}  # one may be asked to evaluate several times
        for node, answer in exchange(self._grid, messages, schedule, clients, self.stragglers, self._settings):
            found[node].append(answer)
        return [found[node].pop(0) if found[node] else Answer(node, None) for node in nodes]

    def _evaluated(self, number: int) -> None:
        """Evaluation on clients and on the server at the model after a round."""
        self._due, record = 0, self.model.record
        if (figures := self._strategy.aggregate_evaluate(number, self._evaluations)) is not None:
            log(INFO, "\t└──> Evaluation of round %d: %s", number, figures)
            self._result.evaluate_metrics_clientapp[number] = figures
        if self._given.evaluate_fn and (own := self._given.evaluate_fn(number, record)) is not None:
            log(INFO, "\t└──> Global evaluation of round %d: %s", number, own)
            self._result.evaluate_metrics_serverapp[number] = own


def _changed(target: Model, solved: Solved, rows: RowSet, names: Sequence[str]) -> Model:
    """The strategy's model with the solve's correction; the very model where there is none."""
    weights = solved.combination.weights.copy()
    weights[-1] = 0.0
    if not weights.any():
        return target
    return Model.made(moved(target.arrays, names, -rows.combine(weights).double().numpy()))


def _no_step(hearing: Hearing, number: int, rows: RowSet, status: str) -> tuple[RoundBatch, Solved]:
    """The solve of a round in which there is nothing to weigh, and nobody is heard."""
    nobody: Float64Array = np.zeros(0)
    batch = RoundBatch(np.zeros((0, 0)), nobody, nobody, nobody, (), number, slack=nobody)
    nothing = Combination(np.zeros(rows.capacity), status=status)
    return batch, Solved(nothing, torch.zeros(rows.dim), 0.0, np.zeros(len(hearing.slots)))
