"""Taking replies in: checked one by one as they arrive, rows straight to their place; and faults that stay.

A fault stays that a node answers in the same way, several times in a row. An absence is no answer, and counts neither
way. What depends on the model, such as a gradient that is not finite, is no fault of this kind: at another model the
client may be well again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import RecordDict

from dqnfed_flwr import wire
from dqnfed_flwr.errors import DataError, WireError
from dqnfed_flwr.guarantee.harm import accepts, holds
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, two_losses
from dqnfed_flwr.linalg.rows import LONGEST_ROW, RowSet
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.strategy.exchange import Answer
from dqnfed_flwr.strategy.schedule import Schedule
from dqnfed_flwr.telemetry.events import Cost, DroppedClient
from dqnfed_flwr.types import ClientReply, ClientTask, FloatArray, Probe
from dqnfed_flwr.wire import ReplyForm

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector

NOTHING: FloatArray = np.empty(0, np.float32)
"""Stands for an array that a client was not asked for."""
REPEATED = "repeated-fault"
"""Reason: a client that is not asked any more, for it answered with the same fault several times in a row."""
TIMES = 3
"""So many times in a row."""
NO_ANSWER = ("absent", "owing", "late")
OF_THE_MODEL = ("not-finite", "bad-loss", "bad-rate", "bad-buffer", "bad-figure", "bad-probe")
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LateReply:
    """Of a reply that belongs to no exchange: the loss at the model that was sent, where it is told, and the row."""

    loss: float | None
    row: FloatArray


@dataclass(slots=True)
class Collected:
    """What an exchange brought; the dicts are by client, rising but for `caught`."""

    answered: dict[int, ClientReply]  # all replies of sound form, without the row itself, which is in `rows`
    trained: dict[int, ClientReply]  # those with a row
    rows: RoundRows  # in the order of `trained`
    probes: dict[int, Probe] = field(default_factory=dict)  # of the candidate; also where the rest of a reply is unfit
    dropped: dict[int, DroppedClient] = field(default_factory=dict)  # without a valid reply
    losses: dict[int, float] = field(default_factory=dict)  # f_k at the model sent, if asked to train; as `probes`
    caught: dict[int, str] = field(default_factory=dict)  # replies that contradict themselves, and what they say
    floor: float | None = 0.0  # least value of a loss; None where that is not known

    def sort(self) -> None:
        """Put the clients into rising order."""
        self.answered, self.probes = dict(sorted(self.answered.items())), dict(sorted(self.probes.items()))
        self.dropped, self.losses = dict(sorted(self.dropped.items())), dict(sorted(self.losses.items()))

    def slots(self) -> dict[int, int]:
        """Slot of each row, by client."""
        return dict(zip(self.trained, self.rows.slots, strict=True))

    def rows_of(self, heard: Sequence[int], others: Sequence[int]) -> RoundRows:
        """The rows of those `heard`, with those of `others` in addition."""
        slots, places = self.slots(), {client: k for k, client in enumerate(self.trained)}
        vectors = {name: tuple(each[places[client]] for client in heard) for name, each in self.rows.vectors.items()}
        chosen, further = (tuple(slots[client] for client in clients) for clients in (heard, others))
        return RoundRows(self.rows.held, chosen, vectors, further)


class Receiver(ABC):
    """Checks the replies of clients, each by itself, and puts their rows into a `RowSet`.

    A reply counts whole or not at all; but its loss and its test count where they can be read. Subclasses say what form
    replies must have.
    """

    def __init__(self, run: RunPlan, floor: float | None) -> None:
        self._run, self._settings, self._floor = run, run.settings, floor

    @abstractmethod
    def form(self, schedule: Schedule, client: int) -> ReplyForm:
        """The form that a client's reply must have."""

    @abstractmethod
    def samples(self, client: int, reply: ClientReply) -> int:
        """How many samples a client said at first that it has."""

    @abstractmethod
    def say(self, drop: DroppedClient) -> None:
        """Log that a reply does not count."""

    def part(self, content: RecordDict) -> RecordDict:
        """Of a reply, the part that is about the step."""
        return content

    @abstractmethod
    def admit(self, content: RecordDict, reply: ClientReply) -> None:
        """Raise `WireError` where a reply with a row is unfit in a way of its own."""

    def receive(self, answers: Iterable[tuple[int, Answer]], schedule: Schedule, rows: RowSet, cost: Cost) -> Collected:
        """Check the answers, given with their client, one by one; `rows` take theirs in as they come.

        Each is compared with itself, and with the samples that its client had at first. Costs are added to `cost`.
        """
        rows.clear()
        found = Collected({}, {}, RoundRows(rows, ()), floor=self._floor)
        for client, answer in answers:
            try:
                content = answer.content()
                cost.bytes_up += wire.payload(content)
                self._take(content, client, schedule, self.form(schedule, client), found)
            except WireError as error:
                drop = found.dropped[client] = DroppedClient(client, error.reason, error.detail)
                self.say(drop)
        found.sort()
        found.trained = {client: reply for client, reply in found.answered.items() if client in schedule.train}
        found.rows = self._rows(found.trained, schedule, rows)
        return found

    def late(self, client: int, content: RecordDict, task: ClientTask, form: ReplyForm, rows: RowSet) -> LateReply:
        """A reply that belongs to no exchange, checked as any other; `WireError` if it is unfit."""
        found = Collected({}, {}, RoundRows(rows, ()), floor=self._floor)
        alone = Schedule({client: task}, (client,) * task.train, (client,) * task.probe, (), task.round)
        self._take(content, client, alone, form, found)
        if words := found.caught.get(client):
            raise WireError(CONTRADICTION, words)
        named = found.probes[client].loss if task.probe else found.losses.get(client)
        return LateReply(named, rows.copies([0])[0] if task.train else NOTHING)

    def _take(self, content: RecordDict, client: int, schedule: Schedule, form: ReplyForm, found: Collected) -> None:
        """Put what one client says into `found`; `WireError` where something is unfit."""
        task, part = schedule.tasks[client], self.part(content)
        if (loss := wire.decode_loss(part, task, self._floor)) is not None:
            found.losses[client] = loss
        if probe := wire.decode_probe(part, task, self._floor):
            found.probes[client] = self._as_asked(probe)
        reply = wire.decode_reply(part, task, form)
        if reply.probe is not None:
            reply = replace(reply, probe=self._as_asked(reply.probe))
        if reply.row is not None:
            self.admit(content, reply)
            _put(found.rows.held, schedule.train.index(client), reply.row, reply.vectors)
        found.answered[client] = replace(reply, row=None)
        if words := self._contradiction(reply, task, self.samples(client, reply)):
            found.caught[client] = words

    def _as_asked(self, probe: Probe) -> Probe:
        """A probe without a word on held-out samples that nobody asked for: it would excuse a client."""
        asked = probe.held_out is None or self._run.judges_held_out
        return probe if asked else replace(probe, held_out=None)

    def _contradiction(self, reply: ClientReply, task: ClientTask, samples: int) -> str:
        """What a reply says against itself, or against the `samples` that its client had at first; empty if nothing."""
        if samples < reply.num_examples:
            return f"{reply.num_examples} samples; the node said {samples} first"
        if reply.probe is None or self._run.rule.judged_by != "test":
            return ""
        probe, loss, step = reply.probe, reply.probe.loss, self._settings.step
        suits = holds(loss, task.factor, task, step.armijo, self._settings.dtype)
        if probe.holds != accepts(step.judge, suits, probe.held_out):
            said = "holds" if probe.holds else "fails"
            return f"it says that its test {said} where its loss goes from {task.reference_loss:.6g} to {loss:.6g}"
        return two_losses("its probe has loss", loss, "its gradient's pass", reply.loss) if task.train else ""

    @staticmethod
    def _rows(trained: Mapping[int, ClientReply], schedule: Schedule, rows: RowSet) -> RoundRows:
        slots = tuple(schedule.train.index(client) for client in trained)
        replies = list(trained.values())
        names = dict.fromkeys(name for reply in replies for name in reply.vectors)
        vectors = {name: tuple(reply.vectors.get(name, NOTHING) for reply in replies) for name in names}
        return RoundRows(rows, slots, vectors)


def check_least(found: Collected, liars: int) -> None:
    """End the run where more clients than may lie have a loss below the floor: it is not the least value.

    Not for tasks that come with the package, of whose floor there is no doubt.
    """
    below = [drop for drop in found.dropped.values() if drop.reason == wire.BELOW_FLOOR]
    if len(below) > liars:
        raise DataError(
            f"client {below[0].client}: {below[0].detail}; give the floor that the loss has, or None where it is not "
            "known"
        )


def _put(rows: RowSet, slot: int, row: Vector, vectors: Mapping[str, FloatArray]) -> None:
    """Put a client's row [D] into `slot`; `WireError`, and it stays empty, for what is not finite, as in `vectors`."""
    if not rows.admit(slot, row):
        raise WireError("not-finite", f"the gradient holds NaN or Inf, or is longer than {LONGEST_ROW:.2g}")
    for name, vector in vectors.items():
        if not np.isfinite(vector).all():
            rows.drop(slot)
            raise WireError("not-finite", f"{name!r} holds NaN or Inf")


@dataclass(slots=True)
class Fault:
    """What a node answered last, where that was a fault, and how many times in a row."""

    kind: str = ""
    times: int = 0

    @property
    def stays(self) -> bool:
        """Whether it came often enough."""
        return self.times >= TIMES

    def note(self, drop: DroppedClient | None) -> None:
        """An answer came that did not count, or one that did: None."""
        if drop is not None and drop.reason in NO_ANSWER:
            return
        kind = "" if drop is None or drop.reason in OF_THE_MODEL else _kind(drop)
        self.times = self.times + 1 if kind and kind == self.kind else int(bool(kind))
        self.kind = kind


def _kind(drop: DroppedClient) -> str:
    """Reason and text without their numbers: a loss, an address or a line may differ from time to time."""
    return f"{drop.reason}: {_NUMBER.sub('#', drop.detail)}"


def in_short(detail: str) -> str:
    """A text that came from elsewhere in one line: of several lines, such as a traceback's, the first and the last."""
    lines = [line.strip() for line in detail.splitlines() if line.strip()] or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"
