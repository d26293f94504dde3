"""A round under Flower's inherited loop: train, then evaluate, in two exchanges and without probes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from logging import WARNING

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.common.logger import log

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.params import line_point
from dqnfed_flwr.steps import StepRule
from dqnfed_flwr.strategy.exchange import Answer
from dqnfed_flwr.strategy.hearing import Hearing
from dqnfed_flwr.strategy.intake import Collected, Intake, mean_buffers, message_type
from dqnfed_flwr.strategy.orders import Orders, final_evaluation, next_orders, trains_on_the_line
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.solve import solve_replies
from dqnfed_flwr.strategy.state import Move, RunState


def metrics(figures: Mapping[str, float]) -> MetricRecord:
    """Flower's record of some figures."""
    return MetricRecord({key: float(value) for key, value in figures.items()})


class InheritedRound:
    """One round of the inherited loop, from the model that Flower hands over.

    Parameters
    ----------
    settings, method, rule, roster
        Of the strategy.
    server_round : int
        From 1.
    arrays : ArrayRecord
        The model, as `wire.encode_model` made it.
    last : Move | None
        The step that led to the model, where it is known.

    Attributes
    ----------
    last : Move | None
        As given, until this round takes a step.

    Raises
    ------
    ConfigError
        If the step rule is `probed` or `search`, which need the package's own loop.
    """

    def __init__(
        self,
        settings: Settings,
        method: Method,
        rule: StepRule,
        roster: Roster,
        *,
        server_round: int,
        arrays: ArrayRecord,
        last: Move | None = None,
    ) -> None:
        if settings.rule in ("probed", "search"):
            raise ConfigError(
                "step-rule: Flower's inherited loop cannot probe; use newton, fixed or clipped, or call DQNFed.start"
            )
        theta, _, buffers = wire.decode_model(arrays)
        model = torch.from_numpy(np.array(theta))
        self._settings = settings.model_copy(update={"rounds": max(settings.rounds, server_round)})
        self._method, self._rule, self._roster = method, rule, roster
        done = server_round - 1
        self._state = RunState(theta=model, candidate=model, buffers=buffers, round=done, exchange=done)
        self.last = last
        self._state.last = last if trains_on_the_line(settings) else None
        self._intake = Intake(settings, model, buffers, method)
        self._orders: Orders | None = None
        self._sent: dict[int, Message] = {}
        self._discarded = 0

    def train_messages(self) -> list[Message]:
        """To this round's sample."""
        clients = list(self._roster.members)
        return self._send(next_orders(self._state, self._settings, clients, self._num_classes, self._method))

    def evaluate_messages(self) -> list[Message]:
        """To all members, after the round."""
        after = replace(self._state, round=self._state.round + 1)
        return self._send(final_evaluation(after, list(self._roster.members), self._num_classes))

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
        self._method.settle(solved.step, factor)
        self.last = Move(solved.step, factor) if factor else None
        model = line_point(theta, solved.step, 0.0, factor)
        loss = float(batch.shares @ batch.losses)
        figures = {"loss": loss, "factor": factor, "discarded": float(self._discarded)}
        buffers = mean_buffers(collected.trained, self._state.buffers)
        return wire.encode_model(model.numpy(), buffers), metrics(figures)

    def fairness(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Fairness figures of the clients' test accuracies; None if nobody evaluated."""
        tests = {client: reply.test for client, reply in self._receive(replies).answered.items() if reply.test}
        accuracies = {client: test.correct / test.examples for client, test in tests.items() if test.examples}
        return metrics(fairness_report(accuracies)) if accuracies else None

    @property
    def _num_classes(self) -> int:
        return self._roster.form.num_classes

    def _send(self, orders: Orders) -> list[Message]:
        """A list, because grids go through their messages more than once."""
        self._orders = orders
        members, group = self._roster.members, str(orders.round)
        self._sent = {
            client: Message(content, members[client].node_id, message_type(orders.tasks[client]), group_id=group)
            for client, content in self._intake.contents(orders, self._state).items()
        }
        return list(self._sent.values())

    def _receive(self, replies: Iterable[Message]) -> Collected:
        if self._orders is None:
            raise ConfigError("replies were handed over before messages were asked for")
        registered = {client: member.num_examples for client, member in self._roster.members.items()}
        return self._intake.receive(self._matched(replies), self._orders, self._state, registered)

    def _matched(self, replies: Iterable[Message]) -> Iterator[tuple[int, Answer]]:
        """The replies with their clients, by the message that each answers, or by its node where grids number none."""
        sent = {client: message.metadata for client, message in self._sent.items()}
        awaited: dict[object, int] = {told.message_id: client for client, told in sent.items() if told.message_id}
        numbered = bool(awaited)
        if not numbered:
            awaited = {told.dst_node_id: client for client, told in sent.items()}
        for reply in replies:
            told = reply.metadata
            client = awaited.pop(told.reply_to_message_id if numbered else told.src_node_id, None)
            if client is None:
                log(
                    WARNING,
                    "A reply of node %d answers no open message of this round; discarded",
                    told.src_node_id,
                )
                self._discarded += 1
                continue
            yield client, Answer(told.src_node_id, reply)
