"""The rounds of a guarded run.

An exchange carries the candidate of the round before. It asks for three things: the clients that the strategy
evaluates on evaluate the candidate, the participants of that round test it by their loss, and the clients that the
strategy samples for the next round train at it. Where a test fails, all that the exchange brought is thrown away, and
the next one carries a shorter step. So T rounds take T + 1 exchanges without a miss.

The messages to evaluate are answered before the others are sent, as without the guarantee: a node that does both at
once, as Flower's simulation may have it, loses what one of them keeps in `context.state`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Result, Strategy

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.guarded.exchange import Brought, Receiver, evaluations, gather
from dqnfed_flwr.guarded.offers import Asked, Model, Offer, Offers
from dqnfed_flwr.guarded.records import model_key, with_task
from dqnfed_flwr.guarded.updates import weight_of
from dqnfed_flwr.strategy.hearing import say_if_tolerate_is_cut
from dqnfed_flwr.strategy.judging import Judgement, remember_round
from dqnfed_flwr.strategy.loop import UNJUDGED_ATTEMPTS, most_frequent_reason
from dqnfed_flwr.strategy.round_event import round_event
from dqnfed_flwr.strategy.schedule import Schedule, with_probe
from dqnfed_flwr.strategy.state import RoundCost
from dqnfed_flwr.strategy.step_search import CONTESTED, LINE_SEARCH_FAILED, NO_STEP, UNJUDGED
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.types import ClientTask

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
GIVEN_UP = {Judgement.CONTESTED: CONTESTED, Judgement.NO_LENGTH: LINE_SEARCH_FAILED}
"""Judgements that end a round without its step, and the status that says why."""


@dataclass(frozen=True)
class Given:
    """What `start` was called with."""

    grid: Grid
    rounds: int
    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn | None


@dataclass(slots=True)
class Outgoing:
    """The messages of one exchange."""

    schedule: Schedule
    evaluate: list[Message] = field(default_factory=list)
    guarded: list[Message] = field(default_factory=list)  # to train, and for the test alone
    asked: dict[int, Asked] = field(default_factory=dict)  # by node that trains


class GuardedRounds:
    """Drives the `strategy` through its rounds; figures go into `result`, the events of rounds to `on_round`."""

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        demand: float,
        given: Given,
        result: Result,
        on_round: Callable[[RoundEvent], None],
    ) -> None:
        self._strategy, self._settings, self._given, self._result = strategy, settings, given, result
        self._on_round = on_round
        self._weight = weight_of(strategy)
        self._offers, self._receiver = Offers(settings, demand), Receiver(self._weight)
        self._offer: Offer | None = None
        self._settled = 0  # rounds that are over
        self._due = 0  # the round whose evaluation waits, where no step is offered
        self._unjudged = self._exchanges = 0
        self._cost = RoundCost()

    def run(self, arrays: ArrayRecord) -> ArrayRecord:
        """Train from a model for all rounds; the last model, None of whose steps did harm.

        `RunError` if no client can take part, `ConfigError` if the strategy cannot be guarded.
        """
        model = Model.of(arrays)
        while self._settled < self._given.rounds or self._due:
            model = self._turn(model)
        return model.record

    def _turn(self, model: Model) -> Model:
        """One exchange and what follows from it; the model afterwards."""
        offer = self._offer
        candidate = offer.candidate if offer else model
        outgoing = self._messages(candidate)
        brought = self._exchange(outgoing, candidate)
        if offer is not None:
            if not self._judge(offer, outgoing.schedule, brought):
                return model
            model = offer.candidate
            self._result.arrays = model.record
        if evaluated := (self._settled if offer else self._due):
            self._evaluated(evaluated, model, brought.evaluations)
        if self._settled < self._given.rounds:
            self._train(model, outgoing, brought)
        return model

    def _messages(self, candidate: Model) -> Outgoing:
        """Have the strategy configure what is to be evaluated and trained, and add the tasks."""
        given, offer = self._given, self._offer
        evaluated = self._settled + 1 if offer else self._due
        number = self._settled + (2 if offer else 1)
        outgoing = Outgoing(Schedule({}, (), (), (), number))
        if evaluated:
            config = (evaluated, candidate.record, given.evaluate_config, given.grid)
            outgoing.evaluate = list(self._strategy.configure_evaluate(*config))
        train: list[Message] = []
        if number <= given.rounds:
            log(INFO, "")
            log(INFO, "[ROUND %d/%d]", number, given.rounds)
            _begin_at(self._strategy, candidate.record)
            train = list(self._strategy.configure_train(number, candidate.record, given.train_config, given.grid))
        nodes = [message.metadata.dst_node_id for message in train]
        if number == 1:
            say_if_tolerate_is_cut(self._settings, len(nodes))
        if len(set(nodes)) < len(nodes):
            raise ConfigError("the strategy sends a node several messages to train; a guarded one may send one")
        probing = set(offer.pending.clients) if offer else set()
        tasks = {node: self._task(node, number, train=node in nodes) for node in sorted({*nodes, *probing})}
        outgoing.schedule = Schedule(tasks, tuple(sorted(nodes)), tuple(sorted(probing)), (), number)
        before = offer.start.record if offer and (offer.pending.ladder.grow or offer.pending.ladder.halvings) else None
        for message in train:
            self._add_task(message, candidate, tasks, before, outgoing)
        outgoing.guarded += self._probes(offer, probing.difference(nodes), tasks, before)
        return outgoing

    def _task(self, node: int, number: int, *, train: bool) -> ClientTask:
        """What a node is asked for."""
        pending = self._offer.pending if self._offer else None
        task = ClientTask(self._exchanges + 1, number, train=train)
        return task if pending is None or node not in pending.losses else with_probe(task, pending, node)

    @staticmethod
    def _add_task(
        message: Message,
        candidate: Model,
        tasks: Mapping[int, ClientTask],
        before: ArrayRecord | None,
        outgoing: Outgoing,
    ) -> None:
        node = message.metadata.dst_node_id
        key = model_key(message.content, candidate.record)
        if key is None:
            raise ConfigError("the strategy sends clients another model than it was given; such a one is not guarded")
        rest = RecordDict({name: record for name, record in message.content.items() if name != key})
        outgoing.asked[node] = Asked(rest, key, message.metadata.message_type)
        task = tasks[node]
        message.content = with_task(message.content, task, key, before if task.probe else None)
        outgoing.guarded.append(message)

    @staticmethod
    def _probes(
        offer: Offer | None, nodes: Iterable[int], tasks: Mapping[int, ClientTask], before: ArrayRecord | None
    ) -> Iterable[Message]:
        """Messages to participants that are not to train, which the mod answers without the train function."""
        for node in sorted(nodes):
            if offer is None:
                return
            asked = offer.asked[node]
            content = RecordDict({asked.key: offer.candidate.record, **asked.content})
            yield Message(with_task(content, tasks[node], asked.key, before), node, asked.message_type)

    def _exchange(self, outgoing: Outgoing, candidate: Model) -> Brought:
        messages, since = [*outgoing.evaluate, *outgoing.guarded], time.perf_counter()
        self._cost.bytes_down += sum(wire.payload(message.content) for message in messages)
        evaluated = gather(self._given.grid, outgoing.evaluate, self._given.timeout)
        answers = gather(self._given.grid, outgoing.guarded, self._given.timeout)
        brought = self._receiver.receive(answers, outgoing.schedule.tasks, candidate.arrays, self._cost)
        brought.evaluations = evaluations(evaluated, self._weight, self._cost)
        self._cost.add_time("exchange", since)
        if messages:
            self._exchanges += 1
            self._cost.exchanges += 1
        return brought

    def _judge(self, offer: Offer, schedule: Schedule, brought: Brought) -> bool:
        """Whether the candidate is the model now."""
        collected, pending = brought.collected, offer.pending
        needed = self._settings.guarantee.needed(len(pending.clients))
        if len(collected.probes) < needed:
            self._cost.add_dropped(collected.dropped.values())
            self._unjudged += 1
            log(
                WARNING,
                "%d of %d participants of round %d answered; %d must judge its step",
                len(collected.probes),
                len(pending.clients),
                pending.round,
                needed,
            )
            if self._unjudged >= UNJUDGED_ATTEMPTS:
                self._give_up(offer, UNJUDGED)
            return False
        self._unjudged = 0
        judgement = self._offers.judge(offer, collected)
        if judgement is Judgement.ACCEPTED:
            losses = {node: probe.loss for node, probe in collected.probes.items()}
            late = [drop for node, drop in collected.dropped.items() if node not in schedule.train]
            self._settle(offer, pending.ladder.factor, losses, pending.combination.status, late)
            return True
        self._cost.add_dropped(collected.dropped.values())
        if judgement in GIVEN_UP:
            self._give_up(offer, GIVEN_UP[judgement])
        return False

    def _give_up(self, offer: Offer, why: str) -> None:
        """The round ends with the model that it began with, whose evaluation is due."""
        log(WARNING, "Round %d leaves the model as it is: %s", offer.pending.round, why)
        self._settle(offer, 0.0, offer.pending.losses, why, [])
        self._due = self._settled

    def _settle(
        self, offer: Offer, factor: float, losses: Mapping[int, float], status: str, dropped: list[DroppedClient]
    ) -> None:
        """The round is over; `dropped` were left out when its step was accepted."""
        pending, state = offer.pending, self._offers.state
        if factor:
            state.moves += 1
        remember_round(state, pending, factor, losses)
        event = round_event(pending, factor, losses, status, {}, dropped, self._cost)
        self._settled, self._offer, self._unjudged, self._cost = pending.round, None, 0, RoundCost()
        self._on_round(event)

    def _evaluated(self, number: int, model: Model, replies: Sequence[Message]) -> None:
        """Evaluation on clients and on the server at the model after a round."""
        self._due = 0
        if (figures := self._strategy.aggregate_evaluate(number, replies)) is not None:
            log(INFO, "\t└──> Evaluation of round %d: %s", number, figures)
            self._result.evaluate_metrics_clientapp[number] = figures
        if self._given.evaluate_fn and (own := self._given.evaluate_fn(number, model.record)) is not None:
            log(INFO, "\t└──> Global evaluation of round %d: %s", number, own)
            self._result.evaluate_metrics_serverapp[number] = own

    def _train(self, model: Model, outgoing: Outgoing, brought: Brought) -> None:
        """Have the strategy aggregate, and offer its step; or end the round where there is none.

        The updates of those who contradict themselves are kept from it, even where then none is left: nobody is heard
        in such a round, which leaves the model as it is.
        """
        number, collected = outgoing.schedule.round, brought.collected
        if number == 1 and outgoing.guarded and not collected.trained:
            raise RunError(f"no client can take part{most_frequent_reason(collected.dropped, moved=False)}")
        hearing = self._offers.hear(collected, outgoing.schedule)
        inner, figures = self._strategy.aggregate_train(number, brought.usable(hearing.muted))
        if figures is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", figures)
            self._result.train_metrics_clientapp[number] = figures
        dropped = [drop for node, drop in collected.dropped.items() if node in outgoing.schedule.train]
        since = time.perf_counter()
        offer = self._offers.make(model, inner, collected, hearing, outgoing.schedule, self._receiver.names, dropped)
        self._cost.add_time("solve", since)
        if not offer.pending.scale.norm > 0:
            status = str(offer.pending.combination.status)
            self._give_up(offer, NO_STEP if status == "converged" else status)
            return
        offer.asked = {node: outgoing.asked[node] for node in offer.pending.clients}
        self._offers.propose(offer)
        self._offer = offer


def _begin_at(strategy: Strategy, model: ArrayRecord) -> None:
    """Have a strategy that goes on from the model it made itself go on from `model`.

    Of Flower's strategies that is FedAvgM, which may lie in one that wraps it.
    """
    found: object = strategy
    while isinstance(found, Strategy):
        if isinstance(found, FedAvgM):
            found.current_arrays = model
        found = getattr(found, "strategy", None)
