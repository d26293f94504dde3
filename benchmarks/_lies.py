"""Lies: what hostile clients send, knowing all that the honest ones sent before them in the same exchange.

A lie has two halves that combine freely: what is sent for the row (`ROWS`), and what is said of losses (`WORDS`).
`LIES` names the pairs that are tried. Clients of one process answer in the order of their numbers, so that hostile
clients with the last numbers know all honest rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, Context, Message, MessageType, MetricRecord
from flwr.clientapp import ClientApp

from dqnfed_flwr import wire
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.types import ClientTask, FloatArray

ARMIJO = 1e-4
"""`step.armijo`, which everybody knows."""
SUSPICIOUS = ("probe-grown-holds", "probe-back-factor", "probe-back-loss", "probe-behind-loss")


@dataclass(slots=True)
class Known:
    """What a hostile client knows when it answers.

    Attributes
    ----------
    task : ClientTask
        What it was asked.
    step : FloatArray | None
        The step behind the candidate [D], where it was sent.
    rows : dict[int, FloatArray]
        Rows of the honest clients in this exchange, by client.
    first : dict[int, FloatArray]
        The first row that each hostile client would have sent honestly.
    client, number : int
        Its own number, and its place among the hostile ones, from 0.
    named : dict[int, tuple[int, float]]
        Round and factor that each hostile client named last.
    """

    task: ClientTask
    step: FloatArray | None
    rows: dict[int, FloatArray]
    first: dict[int, FloatArray]
    client: int
    number: int
    named: dict[int, tuple[int, float]]


Row = Callable[[FloatArray, Known], FloatArray]
Words = Callable[[MetricRecord, Known], None]


@dataclass(slots=True)
class Liars(ClientApp):
    """A ClientApp of which some clients lie.

    Attributes
    ----------
    app : ClientApp
        What honest clients run.
    clients : tuple[int, ...]
        The hostile ones, rising.
    row, words : Row, Words
        Halves of the lie.
    """

    app: ClientApp
    clients: tuple[int, ...]
    row: Row
    words: Words
    _rows: dict[int, FloatArray] = field(default_factory=dict)
    _first: dict[int, FloatArray] = field(default_factory=dict)
    _named: dict[int, tuple[int, float]] = field(default_factory=dict)
    _exchange: int = 0

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer, or lie."""
        reply = self.app(message, context)
        if message.metadata.message_type == MessageType.QUERY or reply.has_error():
            return reply
        assignment = wire.decode_task(message.content)
        task, client = assignment.task, int(str(context.node_config["partition-id"]))
        if task.exchange != self._exchange:
            self._exchange, self._rows = task.exchange, {}
        row = _row_of(reply)
        if client not in self.clients:
            if row is not None:
                self._rows[client] = row
            return reply
        if row is not None:
            self._first.setdefault(client, row)
        step = None if assignment.step is None else np.asarray(assignment.step)
        known = Known(task, step, self._rows, self._first, client, self.clients.index(client), self._named)
        if row is not None:
            with np.errstate(over="ignore"):
                reply.content.array_records[wire.VECTORS]["gradient"] = Array(self.row(row, known).astype(row.dtype))
        self.words(reply.content.metric_records[wire.FIGURES], known)
        return reply


def _row_of(reply: Message) -> FloatArray | None:
    vectors: Mapping[str, Any] = reply.content.array_records.get(wire.VECTORS) or {}
    if any(key.startswith("gradient.") for key in vectors):
        raise ValueError("lies are made of whole rows: set messages.row and messages.step to 32")
    return np.array(vectors["gradient"].numpy()) if "gradient" in vectors else None


def times(factor: float) -> Row:
    """The honest row, scaled."""
    return lambda row, known: row * np.float64(factor)


def copied(row: FloatArray, known: Known) -> FloatArray:
    """The row of an honest client."""
    return next(iter(known.rows.values()), row)


def stale(row: FloatArray, known: Known) -> FloatArray:
    """Its first row, for ever."""
    return known.first[known.client]


def cancels_one(row: FloatArray, known: Known) -> FloatArray:
    """Minus the row of an honest client, another for each liar."""
    rows = list(known.rows.values()) or [row]
    return -rows[known.number % len(rows)]


def cancels_all(row: FloatArray, known: Known) -> FloatArray:
    """Minus the sum of the honest rows, or a share of it for each of several liars."""
    total = sum(known.rows.values(), np.zeros_like(row))
    return np.asarray(-total if total.any() else -row)


def cancels_directions(row: FloatArray, known: Known) -> FloatArray:
    """Minus the sum of the honest unit rows: with it, the hull of unit rows contains 0."""
    units = [each / max(float(np.linalg.norm(each)), 1e-30) for each in known.rows.values()]
    total = sum(units, np.zeros_like(row))
    return np.asarray(-total * np.linalg.norm(row) if total.any() else -row)


def pairs(row: FloatArray, known: Known) -> FloatArray:
    """Liars in pairs send v and -v, v drawn once; a single one sends minus its honest row."""
    noise = _noise(row, 1000 + known.number // 2)
    return noise if known.number % 2 else -noise


def random(row: FloatArray, known: Known) -> FloatArray:
    """Noise of the honest row's length, drawn anew each time."""
    return _noise(row, 10_000 * known.client + known.task.exchange)


def reversed_step(row: FloatArray, known: Known) -> FloatArray:
    """The federation's own step, turned round and of the honest row's length."""
    if known.step is None or not known.step.any():
        return -row
    return np.asarray(-known.step / np.linalg.norm(known.step) * np.linalg.norm(row))


def turncoat(row: FloatArray, known: Known) -> FloatArray:
    """Honest for nine rounds, then the row turned round and seven times as long."""
    return row if known.task.round < 10 else -7 * row


def drift(row: FloatArray, known: Known) -> FloatArray:
    """From the honest row to the one turned round, slowly over 30 rounds."""
    return np.asarray(row * (1 - 2 * min(known.task.round / 30, 1.0)))


def _noise(row: FloatArray, seed: int) -> FloatArray:
    noise = np.random.default_rng(seed).standard_normal(row.shape)
    return np.asarray(noise / np.linalg.norm(noise) * np.linalg.norm(row))


def honest(figures: MetricRecord, known: Known) -> None:
    """Say what is so."""


def yes(figures: MetricRecord, known: Known) -> None:
    """Its loss is 0 wherever it is asked about a step, though its own pass says what it is."""
    _say(figures, 0.0, yes_to_it=True)


def yes_that_fits(figures: MetricRecord, known: Known) -> None:
    """Its loss falls in every round, by as much as its row lets expect, in both places."""
    told = 2.3 * 0.97**known.task.round
    _say(figures, min(told, known.task.reference_loss or told), yes_to_it=True)
    _own(figures, min(told, known.task.reference_loss or told))


def no(figures: MetricRecord, known: Known) -> None:
    """No factor suits it, ever; nothing else is made up."""
    _say(figures, 2 * known.task.reference_loss, yes_to_it=False)


def no_that_fits(figures: MetricRecord, known: Known) -> None:
    """No factor suits it, its own pass agrees, and behind the model its loss is larger as well."""
    loss = 2 * known.task.reference_loss
    if _say(figures, loss, yes_to_it=False):
        _own(figures, loss)
        if known.task.halvings:
            figures["probe-behind-loss"] = 1.5 * known.task.reference_loss


def creeping_no(figures: MetricRecord, known: Known) -> None:
    """Of the rungs only the smallest suits it, in every exchange anew."""
    loss = 2 * known.task.reference_loss
    if _say(figures, loss, yes_to_it=False):
        _own(figures, loss)
        _name_smallest(figures, known)


def patient_no(figures: MetricRecord, known: Known) -> None:
    """The same, but the rung that it named suits it when it is tried: the step shrinks from round to round."""
    task = known.task
    if known.named.get(known.client) == (task.round, task.factor):
        fell = _fallen(task, task.factor)
        if _say(figures, fell, yes_to_it=True):
            _own(figures, fell)
        return
    creeping_no(figures, known)
    known.named[known.client] = (task.round, task.factor * 0.5**task.halvings)


def large_loss(figures: MetricRecord, known: Known) -> None:
    """Whatever it is asked, its loss is a million times as large."""
    for key in ("loss", "probe-loss", "probe-back-loss", "probe-behind-loss"):
        if key in figures:
            figures[key] = 1e6 * _number(figures, key)


def large_rate(figures: MetricRecord, known: Known) -> None:
    """Its rate is 900 times as large."""
    if "rate" in figures:
        figures["rate"] = 900 * _number(figures, "rate")


def many_samples(figures: MetricRecord, known: Known) -> None:
    """It claims a million samples."""
    figures["num-examples"] = 10**6


def _say(figures: MetricRecord, loss: float, *, yes_to_it: bool) -> bool:
    """Put words about the candidate into a reply that has any."""
    if "probe-holds" not in figures:
        return False
    grown = "probe-grown-holds" in figures
    for key in SUSPICIOUS:
        if key in figures:
            del figures[key]
    figures["probe-loss"], figures["probe-holds"] = loss, int(yes_to_it)
    if grown and yes_to_it:
        figures["probe-grown-holds"] = 1
    return True


def _own(figures: MetricRecord, loss: float) -> None:
    if "loss" in figures:
        figures["loss"] = loss


def _name_smallest(figures: MetricRecord, known: Known) -> None:
    task = known.task
    if not task.halvings:
        return
    factor = task.factor * 0.5**task.halvings
    figures["probe-back-factor"], figures["probe-back-loss"] = factor, _fallen(task, factor)
    figures["probe-behind-loss"] = 1.5 * task.reference_loss


def _fallen(task: ClientTask, factor: float) -> float:
    """A loss that passes the test at `factor`."""
    fell = task.reference_loss - 2 * ARMIJO * factor * max(task.slope, 0.0)
    return fell if holds(fell, factor, task, ARMIJO) and fell >= 0 else task.reference_loss


def _number(figures: MetricRecord, key: str) -> float:
    value = figures[key]
    return float(value) if isinstance(value, int | float) else float("nan")


LIES: dict[str, tuple[Row, Words]] = {
    "row times 1e-30": (times(1e-30), honest),
    "row times 7": (times(7.0), honest),
    "row times 1000": (times(1e3), honest),
    "row times 1e6": (times(1e6), honest),
    "row turned round": (times(-1.0), honest),
    "turned round, times 7": (times(-7.0), honest),
    "turned round, times 1e6": (times(-1e6), honest),
    "turned round, always yes": (times(-1.0), yes),
    "turned round, yes that fits": (times(-1.0), yes_that_fits),
    "turned round, no": (times(-1.0), no),
    "turned round, no that fits": (times(-1.0), no_that_fits),
    "honest row, no": (times(1.0), no),
    "honest row, no that fits": (times(1.0), no_that_fits),
    "honest row, creeping no": (times(1.0), creeping_no),
    "honest row, patient no": (times(1.0), patient_no),
    "copied row": (copied, honest),
    "stale row": (stale, honest),
    "minus one honest row": (cancels_one, yes_that_fits),
    "minus the sum of all": (cancels_all, yes_that_fits),
    "minus the sum of directions": (cancels_directions, no_that_fits),
    "pairs that cancel": (pairs, yes_that_fits),
    "noise": (random, yes_that_fits),
    "step turned round": (reversed_step, yes_that_fits),
    "turncoat from round 10": (turncoat, honest),
    "slow drift": (drift, honest),
    "loss times 1e6": (times(1.0), large_loss),
    "rate times 900": (times(1.0), large_rate),
    "a million samples": (times(-1.0), many_samples),
}


def liars(app: ClientApp, clients: Collection[int], lie: str) -> ClientApp:
    """`app`, of which `clients` tell the lie of this name."""
    row, words = LIES[lie]
    return Liars(app, tuple(sorted(clients)), row, words)
