"""Replies to a guarded strategy, checked client by client: what the guard added is read, and taken off.

The rest is what a strategy makes its model and its figures of. A strategy takes for granted that replies are alike, and
ends the run where one is not. Here such a one costs only its client. Clients are nodes, by the ids that Flower gives
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import INFO, WARNING

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.errors import RunError, ShapeError, WireError, shortened
from dqnfed_flwr.guarded.records import Arrays, check_alike, has_reply, plain, read_names, reply_part
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.collect import TIMES, Collected, Fault, Receiver, check_least, in_short
from dqnfed_flwr.strategy.exchange import Answer
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.events import Cost, DroppedClient
from dqnfed_flwr.types import ClientReply
from dqnfed_flwr.wire import ReplyForm

NOTHING = np.zeros(())
"""In place of an array that the model does not have."""
LONG_DOUBLES = "gG"
"""Kinds of numbers that some machines alone have."""
NAMED, LONGEST = 6, 60
"""Records and keys that a message names at most, and how much of a name."""
Form = frozenset[str]
"""The records of a reply by name and kind, the keys of its metrics, and how long those are that are lists."""


class GuardedReplies(Receiver):
    """Takes in what nodes send: where a row is unfit, the client's own update does not reach the strategy either.

    `floor` is the least value of a loss, None where that is not known; `weight` is as in `Alike`.

    Attributes
    ----------
    names : tuple[str, ...]
        The arrays that rows are about, as most clients of the first exchange say; empty before it.
    samples_of : dict[int, int]
        How many samples each node has, as it said first.
    """

    def __init__(self, run: RunPlan, floor: float | None, weight: str = "") -> None:
        super().__init__(run, floor)
        self.weight = weight
        self.names: tuple[str, ...] = ()
        self.samples_of: dict[int, int] = {}
        self._size = (2, 1, torch.float32)
        self._held = RowSet(*self._size, references=1)
        self._faults: dict[int, Fault] = {}
        self._alike = Alike((), weight)
        self._model: Arrays = {}
        self._replies: dict[int, Message] = {}

    def take(self, answers: Sequence[Answer], schedule: Schedule, model: Arrays, cost: Cost) -> Collected:
        """Check the answers, in the order of the messages, to a schedule about a `model`; costs go into `cost`.

        `RunError` if clients answered, none of them runs the mod, and none did before; or if every node that was ever
        asked fails each time.
        """
        self._agree(answers, schedule, model)
        trained = [a.message.content for a in answers if a.node in schedule.train and a.message and a.usable]
        self._alike = Alike((plain(content) for content in trained if has_reply(content)), self.weight)
        self._model = model
        rows = self._rows_for(max(len(schedule.train), 1) + 1, model)
        collected = self.receive(((answer.node, answer) for answer in answers), schedule, rows, cost)
        self._note_faults(schedule.tasks, collected.dropped)
        self._replies = {}
        for answer in answers:
            if answer.node in schedule.train and answer.message is not None:
                self._keep(answer.node, answer.message, collected)
        check_least(collected, self._settings.guarantee.liars(len(schedule.tasks)))
        return collected

    def usable(self, muted: Collection[int]) -> list[Message]:
        """What a strategy is to make its model of: no reply of those whose word does not count, `muted`."""
        return [message for node, message in self._replies.items() if node not in muted]

    def form(self, schedule: Schedule, client: int) -> ReplyForm:
        """A row of the agreed size."""
        return ReplyForm(self._held.dim, {}, floor=self._floor)

    def samples(self, client: int, reply: ClientReply) -> int:
        """As its node said first."""
        return self.samples_of.setdefault(client, reply.num_examples)

    def say(self, drop: DroppedClient) -> None:
        """Nothing yet: `_note_faults` says who is left out."""

    def part(self, content: RecordDict) -> RecordDict:
        """What the guard added."""
        if not has_reply(content):
            raise WireError("missing-key", "nothing of the guard; give its train function mods=[guard(local_loss)]")
        return reply_part(content)

    def admit(self, content: RecordDict, reply: ClientReply) -> None:
        """The row is about the agreed arrays, and the update is one that a strategy can use."""
        if read_names(content, self._model) != self.names:
            values = 0 if reply.row is None else len(reply.row)
            raise WireError("extra-key", f"a gradient of other arrays than the others': {values} values")
        check_update(plain(content), self._model)
        self._alike.check(plain(content))

    def _keep(self, node: int, message: Message, collected: Collected) -> None:
        """Keep a reply to train for the strategy, where it is sound and has weight, or is an error that is news."""
        if message.has_error():
            if self._faults[node].times <= TIMES:  # else the strategy would log its error once more
                self._replies[node] = message
        elif node in collected.answered:
            message.content = plain(message.content)
            if self._alike.counts(message.content):
                self._replies[node] = message
            else:
                log(INFO, "Node %d's update has no part in the step: its %s is 0", node, self.weight)

    def _note_faults(self, asked: Collection[int], dropped: Mapping[int, DroppedClient]) -> None:
        """Say who is left out; of a node that fails each time that once more, by name, and then no more.

        `RunError` if every node does.
        """
        for node in asked:
            fault, drop = self._faults.setdefault(node, Fault()), dropped.get(node)
            before = fault.times
            fault.note(drop)
            if drop is None or 1 < fault.times < TIMES or fault.times > TIMES:
                continue
            words = f"{drop.reason}: {in_short(drop.detail)}"
            if fault.times == TIMES > before:
                log(WARNING, "Node %d fails each time, for good, and is not named again: %s", node, words)
            else:
                log(WARNING, "Node %d is left out: %s", node, words)
        if dropped and all(fault.stays for fault in self._faults.values()):
            node, drop = next(iter(dropped.items()))
            raise RunError(
                f"each of the {len(self._faults)} nodes fails each time, {TIMES} times in a row; node {node}: "
                f"{drop.reason}: {in_short(drop.detail)}"
            )

    def _agree(self, answers: Sequence[Answer], schedule: Schedule, model: Arrays) -> None:
        """Fix the form of the rows by what most clients say, the first of the messages where it is a draw."""
        if self.names:
            return
        contents = [a.message.content for a in answers if a.node in schedule.train and a.message and a.usable]
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

    def _rows_for(self, capacity: int, model: Arrays) -> RowSet:
        """Room for so many rows, the last for the strategy's step."""
        arrays = [model[name] for name in self.names]
        dim = max(sum(values.size for values in arrays), 1)
        dtype = torch.float64 if any(values.dtype == np.float64 for values in arrays) else torch.float32
        if self._size != (capacity, dim, dtype):
            self._size = (capacity, dim, dtype)
            self._held = RowSet(*self._size, references=1)
        return self._held


def evaluations(answers: Sequence[Answer], weight: str, state: RunState) -> list[Message]:
    """The replies to evaluate that a strategy can be given, errors too; others are counted in `state`."""
    alike = Alike((answer.content() for answer in answers if answer.usable), weight)
    found = []
    for answer in answers:
        if answer.message is None:
            continue
        try:
            if answer.usable:
                state.cost.bytes_up += wire.payload(answer.content())
                alike.check(answer.content())
        except WireError as error:
            state.add_dropped([DroppedClient(answer.node, error.reason, f"evaluation: {error.detail}")])
            log(WARNING, "Node %d's evaluation is left out: %s", answer.node, error)
        else:
            found.append(answer.message)
    return found


class Alike:
    """Checks that replies have the form that most of them have.

    The `contents` are those of one exchange, without what the guard added, in the order of the messages: where as many
    have another form, the first counts. `weight` is the key of the metric by which the strategy weighs replies; empty
    if it has none.
    """

    def __init__(self, contents: Iterable[RecordDict], weight: str) -> None:
        contents = list(contents)
        found = Counter(map(form_of, contents)).most_common(1)
        self._form = found[0][0] if found else None
        self._weight = weight
        self._weighed = any(0 < value < math.inf for content in contents for value in self._weights(content))

    def check(self, content: RecordDict) -> None:
        """Raise `WireError` if `content` has another form, or a weight that no mean can be made with.

        Such a weight is no finite number of at least 0; it is 0 where no other reply has more.
        """
        if self._form is not None and (found := form_of(content)) != self._form:
            if lacking := self._form - found:
                raise WireError("missing-key", f"its reply lacks what most others have: {_named(lacking)}")
            raise WireError("extra-key", f"its reply has what most others have not: {_named(found - self._form)}")
        for value in self._weights(content):
            if not 0 <= value < math.inf or not (value or self._weighed):
                raise WireError("bad-count", f"{self._weight} is {value:g}; replies are weighed by it")

    def counts(self, content: RecordDict) -> bool:
        """Whether a reply that passed `check` has weight: a strategy may divide by that of some replies alone."""
        return 0 not in self._weights(content)

    def _weights(self, content: RecordDict) -> list[float]:
        """The weights in a reply, one in each of its records of metrics; NaN in place of a list."""
        found = [record[self._weight] for record in content.metric_records.values() if self._weight in record]
        return [math.nan if isinstance(value, list) else float(value) for value in found]


def form_of(content: RecordDict) -> Form:
    """The form of a reply."""
    parts = set()
    for name, record in content.items():
        parts.add(f"{name} ({type(record).__name__})")
        if isinstance(record, MetricRecord):
            for key, value in record.items():
                parts.add(f"{name}.{key}[{len(value)}]" if isinstance(value, list) else f"{name}.{key}")
    return frozenset(parts)


def check_update(content: RecordDict, model: Arrays) -> None:
    """Check the numbers of a reply to train: a strategy would spread what is wrong in them to everybody.

    Every array must be readable and every number finite, in the dtype of the model too, but for infinities that the
    model itself holds there. Where the model is real, so is the update. Where there is one record of arrays, as
    Flower's strategies need it, it must have the model's names and shapes. `WireError` if not.
    """
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    for record in records:
        found = {}
        for name, array in record.items():
            try:
                found[name] = array.numpy()
            except Exception as error:  # whatever bytes that a client made up can have NumPy raise
                raise WireError("bad-array", f"{name[:LONGEST]!r} in its update: {shortened(str(error))}") from None
            if found[name].dtype.kind not in "biufc":
                raise WireError("bad-dtype", f"{name[:LONGEST]!r} in its update has dtype {found[name].dtype}")
            current = model.get(name, NOTHING)
            current = current if current.shape == found[name].shape else NOTHING
            kind = found[name].dtype
            if kind.char in LONG_DOUBLES or (kind.kind == "c" and current is not NOTHING and current.dtype.kind != "c"):
                raise WireError("bad-dtype", f"{name[:LONGEST]!r} in its update has dtype {found[name].dtype}")
            if wire.strays(found[name], current) or wire.strays(_rounded(found[name], current), current):
                where = f"{name[:LONGEST]!r} in its update"
                raise WireError("not-finite", f"{where} holds NaN, or Inf where the model does not")
        if len(records) == 1:
            try:
                check_alike("its update", found, model)
            except ShapeError as error:
                raise WireError("bad-shape", str(error)) from None
    for metrics in content.values():
        if isinstance(metrics, MetricRecord) and not all(np.isfinite(value).all() for value in metrics.values()):
            raise WireError("not-finite", f"one of its metrics {sorted(metrics)[:8]} is NaN or Inf")


def _rounded(values: NDArray[np.generic], current: NDArray[np.generic]) -> NDArray[np.generic]:
    """Floating-point values in the dtype of the model, where that is narrower."""
    if values.dtype.kind != "f" or current.dtype.kind != "f" or current.dtype.itemsize >= values.dtype.itemsize:
        return values
    with np.errstate(over="ignore"):
        return values.astype(current.dtype)


def _named(parts: Form) -> str:
    words = [part[:LONGEST] for part in sorted(parts)[:NAMED]]
    more = len(parts) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")
