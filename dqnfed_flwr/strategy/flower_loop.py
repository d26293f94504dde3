"""A round under Flower's inherited loop: train, then evaluate, in two exchanges and without probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import WARNING

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common.logger import log

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.params import line_point
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.collect import Collected, ReplyCollector, mean_buffers, message_type
from dqnfed_flwr.strategy.compatibility import Member
from dqnfed_flwr.strategy.exchange import Answer
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.round_event import evaluations, metrics
from dqnfed_flwr.strategy.schedule import Schedule, schedule_evaluation, schedule_exchange, training_needs_step
from dqnfed_flwr.strategy.solve import solve_replies
from dqnfed_flwr.strategy.state import Move, RunState


class FlowerRound:
    """One round, `server_round` from 1, of the inherited loop, from the model in `arrays` that Flower hands over.

    `arrays` are as `wire.encode_model` makes them. `last` is the step that led to the model, where it is known, and,
    once this round took a step, that step. The step rules `probed` and `search` need the package's own loop; they are
    refused.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        rule: StepRule,
        registry: ClientRegistry,
        *,
        server_round: int,
        arrays: ArrayRecord,
        last: Move | None = None,
    ) -> None:
        if settings.rule in ("probed", "search"):
            raise ConfigError(
                "step-rule: Flower's inherited loop cannot probe; use newton, fixed or clipped, or call DQNFed.start"
            )
        self._settings = settings.model_copy(update={"rounds": max(settings.rounds, server_round)})
        self._method, self._rule, self._registry = method, rule, registry
        self._state = RunState.at(arrays, server_round - 1)
        self.last = last
        self._state.last = last if training_needs_step(settings) else None
        self._collector = ReplyCollector(settings, self._state.theta, self._state.buffers, method)
        self._schedule: Schedule | None = None
        self._sent: dict[int, Message] = {}
        self._members: Mapping[int, Member] = {}
        self._discarded = 0

    def train_messages(self) -> list[Message]:
        """To this round's sample."""
        clients = list(self._registry.members)
        return self._send(schedule_exchange(self._state, self._settings, clients, self._num_classes, self._method))

    def evaluate_messages(self) -> list[Message]:
        """To all members, after the round."""
        after = replace(self._state, round=self._state.round + 1)
        return self._send(schedule_evaluation(after, list(self._registry.members), self._num_classes))

    def step(self, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the round and figures of it, or (None, None) when too few replies are usable."""
        collected = self._receive(replies)
        if len(collected.trained) < self._settings.min_clients:
            log(WARNING, "%d usable replies: the round changes nothing", len(collected.trained))
            return None, None
        theta = self._state.theta
        hearing = Hearing(dict(collected.losses), tuple(collected.trained), collected.slots())
        norm = float(theta.norm())
        batch, solved = solve_replies(self._method, collected, hearing, self._state.round + 1, norm)
        factor = self._rule.propose(solved.scale(norm, batch.round)).factor
        self._method.step_taken(solved.step, factor)
        self.last = Move(solved.step, factor) if factor else None
        model = line_point(theta, solved.step, 0.0, factor)
        figures = {"loss": float(batch.shares @ batch.losses), "factor": factor, "discarded": self._discarded}
        buffers = mean_buffers(collected.trained, self._state.buffers)
        return wire.encode_model(model.numpy(), buffers), metrics(figures)

    def fairness(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Fairness of the clients' figures on their test parts; None if no client has one."""
        found = evaluations(self._receive(replies).answered)
        return metrics(fairness_report(found.test, self._collector.figure)) if found.test else None

    @property
    def _num_classes(self) -> int:
        return self._registry.form.num_classes

    def _send(self, schedule: Schedule) -> list[Message]:
        """A list, because grids go through their messages more than once."""
        self._schedule = schedule
        members, group = self._registry.members, str(schedule.round)
        self._members = members
        self._sent = {
            client: Message(content, members[client].node_id, message_type(schedule.tasks[client]), group_id=group)
            for client, content in self._collector.contents(schedule, self._state).items()
        }
        return list(self._sent.values())

    def _receive(self, replies: Iterable[Message]) -> Collected:
        if self._schedule is None:
            raise ConfigError("replies were handed over before messages were asked for")
        return self._collector.receive(self._matched(replies), self._schedule, self._state, self._members)

    def _matched(self, replies: Iterable[Message]) -> Iterator[tuple[int, Answer]]:
        """The replies with their clients, by the message that each answers, or by its node where grids number none."""
        sent = {client: message.metadata for client, message in self._sent.items()}
        awaited: dict[object, int] = {about.message_id: client for client, about in sent.items() if about.message_id}
        numbered = bool(awaited)
        if not numbered:
            awaited = {about.dst_node_id: client for client, about in sent.items()}
        for reply in replies:
            node = reply.metadata.src_node_id
            client = awaited.pop(reply.metadata.reply_to_message_id if numbered else node, None)
            if client is None:
                log(WARNING, "A reply of node %d answers no open message of this round; discarded", node)
                self._discarded += 1
                continue
            yield client, Answer(node, reply)
