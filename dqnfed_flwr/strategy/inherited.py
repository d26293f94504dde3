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
from dqnfed_flwr.admission import Ledger
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.methods._base import Method
from dqnfed_flwr.params import line_point
from dqnfed_flwr.steps import StepRule, StepScale
from dqnfed_flwr.strategy.admission import book, present
from dqnfed_flwr.strategy.exchange import Answer
from dqnfed_flwr.strategy.intake import Collected, Intake, mean_buffers, message_type
from dqnfed_flwr.strategy.orders import Orders, final_evaluation, next_orders
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.solve import make_batch, solve
from dqnfed_flwr.strategy.state import RunState


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
    ledger : Ledger
        What admission remembers of clients; changed in place.

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
        ledger: Ledger,
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
        self._state.ledger = ledger
        self._intake = Intake(settings, model, buffers, method)
        self._orders: Orders | None = None

    def train_messages(self) -> Iterator[Message]:
        """To this round's sample."""
        clients, _ = present(self._state, self._roster.members, self._settings)
        return self._send(next_orders(self._state, self._settings, clients, self._num_classes, self._method))

    def evaluate_messages(self) -> Iterator[Message]:
        """To all members, after the round."""
        after = replace(self._state, round=self._state.round + 1)
        return self._send(final_evaluation(after, list(self._roster.members), self._num_classes))

    def step(self, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the round and figures of it, or (None, None) when too few replies are usable."""
        collected = self._receive(replies)
        if len(collected.trained) < self._settings.min_clients:
            log(WARNING, "%d usable replies: the round changes nothing", len(collected.trained))
            return None, None
        if self._orders is not None:
            book(self._state.ledger, collected, self._orders, self._settings.admission)
        batch = make_batch(collected.trained, collected.rows, self._state.round + 1)
        solved = solve(self._method, batch, collected.rows)
        theta = self._state.theta
        scale = StepScale(solved.norm, solved.combination.length, float(theta.norm()), batch.round)
        factor = self._rule.propose(scale).factor
        self._method.settle(solved.step, factor)
        model = line_point(theta, solved.step, 0.0, factor)
        figures = {"loss": float(batch.shares @ batch.losses), "factor": factor}
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

    def _send(self, orders: Orders) -> Iterator[Message]:
        self._orders = orders
        members = self._roster.members
        for client, content in self._intake.contents(orders, self._state).items():
            kind = message_type(orders.tasks[client])
            yield Message(content, members[client].node_id, kind, group_id=str(orders.round))

    def _receive(self, replies: Iterable[Message]) -> Collected:
        if self._orders is None:
            raise ConfigError("replies were handed over before messages were asked for")
        clients = {member.node_id: client for client, member in self._roster.members.items()}
        known = (
            (clients[reply.metadata.src_node_id], Answer(reply.metadata.src_node_id, reply))
            for reply in replies
            if clients.get(reply.metadata.src_node_id) in self._orders.tasks
        )
        registered = {client: member.num_examples for client, member in self._roster.members.items()}
        return self._intake.receive(known, self._orders, self._state, registered)
