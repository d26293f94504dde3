"""One exchange of a guarded run: what is sent, and what comes back, checked client by client.

Clients are nodes, by the ids that Flower gives them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING

import numpy as np
import torch
from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr import wire
from dqnfed_flwr.errors import RunError, WireError
from dqnfed_flwr.guarantee.claims import two_losses
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.guarded.arrays import Arrays
from dqnfed_flwr.guarded.records import ARMIJO, has_reply, plain, read_names, reply_part
from dqnfed_flwr.guarded.updates import Alike, check_update
from dqnfed_flwr.linalg.gram import Basis
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.strategy.collect import Collected, put_row
from dqnfed_flwr.strategy.exchange import Answer, Withdraws, arrivals
from dqnfed_flwr.strategy.state import RoundCost
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, ClientTask


@dataclass(slots=True)
class Brought:
    """What an exchange brought."""

    collected: Collected  # rows, losses and tests, by node
    replies: dict[int, Message]  # to train, sound or an error, by node; in the order of the messages
    evaluations: list[Message] = field(default_factory=list)  # those to evaluate, in the order of the messages

    def usable(self, muted: Collection[int]) -> list[Message]:
        """What the strategy is to make its model of: no reply of those whose word does not count, `muted`."""
        return [message for node, message in self.replies.items() if node not in muted]


def gather(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Answer]:
    """Send messages and wait for the replies; one answer for each, in the order of the messages.

    Flower's own helper hands replies over in the order in which they arrive, and reports a dead node under the
    server's id. What has not come after `timeout` seconds is absent.
    """
    numbers = list(grid.push_messages(messages)) if messages else []
    waiting = {number: place for place, number in enumerate(numbers) if number}
    found = {answer.node: answer for answer in arrivals(grid, waiting, time.monotonic() + timeout)}
    if isinstance(grid, Withdraws):
        grid.withdraw()
    nodes = [message.metadata.dst_node_id for message in messages]
    return [replace(found.get(place, Answer(node, None)), node=node) for place, node in enumerate(nodes)]


class Receiver:
    """Takes the replies of clients in: what the mod added is checked, and taken off.

    A reply counts whole or not at all: where the row is unfit, the client's own update does not reach the strategy
    either. Its loss and its test count where they can be read.

    Parameters
    ----------
    weight : str
        Key of the metric by which the strategy weighs replies; empty if it has none.

    Attributes
    ----------
    names : tuple[str, ...]
        The arrays that rows are about, as most clients of the first exchange say; empty before it.
    samples : dict[int, int]
        How many samples each node has, as it said first.
    """

    def __init__(self, weight: str = "") -> None:
        self._weight = weight
        self.names: tuple[str, ...] = ()
        self.samples: dict[int, int] = {}
        self._basis: Basis | None = None

    def receive(
        self, answers: Sequence[Answer], tasks: Mapping[int, ClientTask], model: Arrays, cost: RoundCost
    ) -> Brought:
        """Check the answers to `tasks`, by node, about `model`; costs are added to `cost`.

        `RunError` if clients answered, none of them runs the mod, and none did before.
        """
        self._agree(answers, tasks, model)
        trained = [a.message.content for a in answers if tasks[a.node].train and a.message and a.usable]
        alike = Alike((plain(content) for content in trained if has_reply(content)), self._weight)
        train = sorted(node for node, task in tasks.items() if task.train)
        basis = self._cleared(max(len(train), 1) + 1, model)
        brought = Brought(Collected({}, {}, RoundRows(basis, ())), {})
        for answer in answers:
            task = tasks[answer.node]
            try:
                slot = train.index(answer.node) if task.train else None
                self._take(answer, task, model, brought.collected, slot, alike, cost)
            except WireError as error:
                brought.collected.dropped[answer.node] = DroppedClient(answer.node, error.reason, error.detail)
                log(WARNING, "Node %d is left out: %s", answer.node, error)
                usable = answer.message is not None and answer.message.has_error()
            else:
                usable = True
            if task.train and usable and answer.message is not None:
                if not answer.message.has_error():
                    answer.message.content = plain(answer.message.content)
                brought.replies[answer.node] = answer.message
        collected = brought.collected
        collected.sort()
        collected.trained = {node: reply for node, reply in collected.answered.items() if tasks[node].train}
        collected.rows = RoundRows(basis, tuple(train.index(node) for node in collected.trained))
        return brought

    def _agree(self, answers: Sequence[Answer], tasks: Mapping[int, ClientTask], model: Arrays) -> None:
        """Fix the form of the rows by what most clients say, the first of the messages where it is a draw."""
        if self.names:
            return
        contents = [a.message.content for a in answers if tasks[a.node].train and a.message and a.usable]
        if contents and not any(map(has_reply, contents)):
            raise RunError(
                f"{len(contents)} clients answered and none sent its gradient; guard their train function: "
                "@app.train(mods=[guard(local_loss)])"
            )
        said: Counter[tuple[str, ...]] = Counter()
        for content in contents:
            try:
                said[read_names(content, model)] += 1
            except WireError:
                continue
        if said:
            self.names = said.most_common(1)[0][0]

    def _cleared(self, capacity: int, model: Arrays) -> Basis:
        """An empty basis of so many slots, the last for the strategy's step."""
        arrays = [model[name] for name in self.names]
        dim = max(sum(values.size for values in arrays), 1)
        dtype = torch.float64 if any(values.dtype == np.float64 for values in arrays) else torch.float32
        if self._basis is None or (self._basis.capacity, self._basis.dim) != (capacity, dim):
            self._basis = Basis(capacity, dim, dtype, references=1)
        self._basis.clear()
        return self._basis

    def _take(
        self,
        answer: Answer,
        task: ClientTask,
        model: Arrays,
        found: Collected,
        slot: int | None,
        alike: Alike,
        cost: RoundCost,
    ) -> None:
        """Put what one client says into `found`, its row into `slot`; `WireError` where something is unfit."""
        node, content = answer.node, answer.content()
        cost.bytes_up += wire.payload(content)
        if not has_reply(content):
            raise WireError("missing-key", "nothing of the guard; give its train function mods=[guard(local_loss)]")
        part = reply_part(content)
        if (loss := wire.decode_loss(part, task)) is not None:
            found.losses[node] = loss
        if tested := wire.decode_probe(part, task):
            found.probes[node] = replace(tested, held_out=None)  # the mod judges by training losses alone
        reply = wire.decode_reply(part, task, wire.ReplyForm(found.rows.basis.dim, {}))
        if words := contradiction(reply, task, self.samples.setdefault(node, reply.num_examples)):
            found.caught[node] = words
        if slot is not None and reply.row is not None:
            if read_names(content, model) != self.names:
                raise WireError("extra-key", f"a gradient of other arrays than the others': {len(reply.row)} values")
            check_update(plain(content), model)
            alike.check(plain(content))
            put_row(found.rows.basis, slot, reply.row)
        found.answered[node] = replace(reply, row=None)


def evaluations(answers: Sequence[Answer], weight: str, cost: RoundCost) -> list[Message]:
    """The replies to evaluate that a strategy can be given, errors too; others are counted in `cost`."""
    alike = Alike((answer.content() for answer in answers if answer.usable), weight)
    found = []
    for answer in answers:
        if answer.message is None:
            continue
        try:
            if answer.usable:
                cost.bytes_up += wire.payload(answer.content())
                alike.check(answer.content())
        except WireError as error:
            cost.add_dropped([DroppedClient(answer.node, error.reason, f"evaluation: {error.detail}")])
            log(WARNING, "Node %d's evaluation is left out: %s", answer.node, error)
        else:
            found.append(answer.message)
    return found


def contradiction(reply: ClientReply, task: ClientTask, samples: int) -> str:
    """What a reply says against itself, or against the `samples` that its node said first; empty if nothing."""
    if samples < reply.num_examples:
        return f"{reply.num_examples} samples; the node said {samples} first"
    if reply.probe is None:
        return ""
    loss = reply.probe.loss
    if reply.probe.holds != holds(loss, task.factor, task, ARMIJO):
        said = "holds" if reply.probe.holds else "fails"
        return f"it says that its test {said} where its loss goes from {task.reference_loss:.6g} to {loss:.6g}"
    return two_losses("its probe has loss", loss, "its gradient's pass", reply.loss) if task.train else ""
