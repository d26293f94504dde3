"""The event of a round, who listens to it, and what the rounds of a run come to.

A line of `events.jsonl` is one `RoundEvent` in JSON, non-finite numbers as null. Field by field:
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.claims import CONTRADICTION
from dqnfed_flwr.guarantee.harm import STRICT, not_above
from dqnfed_flwr.record_codec import TRANSIENT, pack, unpack
from dqnfed_flwr.types import ACCURACY, Figure

EVENT_SCHEMA = 1
DERIVED = ("improved_of_asked", "unharmed_ratio", "harmed")
"""Keys of a line that follow from others, for readers without this package."""
TEST = "test"
"""The part that a figure other than accuracy was measured on: its key, in a line and in `run.json`."""
INFINITE = "infinite_after"
"""Key of a line alone: participants whose loss after the round was infinite, which JSON has no number for."""


@dataclass(frozen=True, slots=True)
class DroppedClient:
    """A client whose reply did not count, and why."""

    client: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class AlongStep:
    """Training losses of participants along the step of a round, theta^{t-1} - alpha * step.

    `factors` are alpha, falling [R], `losses` f_k there [R], by client; infinite or NaN where the model diverges.
    """

    factors: list[float]
    losses: dict[int, list[float]]


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """What happened in one round: theta^{t-1} -> theta^t = theta^{t-1} - factor * step.

    Attributes
    ----------
    schema : int
        Version of this record.
    round : int
        t, from 1.
    participants : list[int]
        Clients (partition numbers, rising) that were asked for a gradient and said what their loss is; S^t of (29).
    losses_before, losses_after : list[float]
        f_k(theta^{t-1}) and f_k(theta^t) of each participant; NaN (null) after where the client did not answer again.
    improved_ratio : float
        rho_t (29): share of the participants that answered again with losses_after <= losses_before.
    rates, weights : list[float]
        d~_k and the coefficient of each participant's row.
    step_norm_squared : float
        |step|^2; eta^t for the two-sided step (17).
    factor : float
        alpha; 0 when the model was left as it was.
    rank, condition, residual, status
        Of the solve, see `dqnfed_flwr.types.Combination`. Where the model stayed the status says why: `stationary`,
        `line-search-failed`, `held-out`, `contested`, `unjudged`, `not-finite` or `no-step`.
    misses : int
        Candidates that were not accepted.
    exchanges : int
        Exchanges this round used (the one that settles the last round counts to it).
    pairs_kept, pairs_rejected : int
        Curvature pairs, over participants.
    dropped : list[DroppedClient]
        Clients left out, each with its reason.
    bytes_up, bytes_down : int
        Payload of records from and to clients.
    repeated_calls : int
        Calls to the SuperLink that were repeated, because it answered with an error of its own.
    seconds : dict[str, float]
        By phase: `exchange` (waiting for and taking in replies), `solve`, `step`, `total`.
    accuracy : dict[int, float] | None
        Test accuracy in [0, 1] of each evaluated client at theta^t, or the figure that the task has in its place, in
        its own unit; None when not evaluated.
    validation : dict[int, float] | None
        The same on the validation part.
    figure : Figure
        What these two are. Of another one than accuracy a line has its name, direction and unit, and calls `accuracy`
        `test`.
    without_figure : dict[str, list[int]]
        Evaluated clients that have no such figure there, such as an AUROC of one class, by part (`test` or
        `validation`); only parts with such clients.
    test_loss : float
        Mean test loss over evaluated clients, NaN if none.
    notes : dict[str, float]
        Further figures of the method.
    asked : int
        Clients that were asked for a gradient.
    no_part : list[int]
        Those of them that had no part in the round: no reply, one that was not usable, or one that contradicts itself.
    heard : list[int]
        Participants whose gradients made the step.
    overruled : list[int]
        Participants whose vote was set aside for this round, though they said nothing contradictory.
    refused : list[int]
        Participants that turned a candidate down.
    refused_training, refused_held_out : list[int]
        Those of them whose training losses alone did so, and whose held-out parts did, here or at a shorter length.
    unable : list[int]
        Participants that were to judge by their held-out part and could not; their training losses judged.
    entitlement : float
        e: the loss up to which a participant may rise without harm; -infinity (null) where no loss may rise.
    certificate : dict[int, float]
        Where the model stayed: weights, by client, of the shortest point in the convex hull of the unit gradients.
    distance : float
        Its length; near 0 the model is Pareto-stationary. NaN where the model moved.
    along : AlongStep | None
        Losses along the step, in the rounds in which `step.diagnose-every` asks for them; other lines lack it.
    """

    round: int
    participants: list[int]
    losses_before: list[float]
    losses_after: list[float]
    improved_ratio: float
    rates: list[float]
    weights: list[float]
    step_norm_squared: float
    factor: float
    rank: int
    condition: float
    residual: float
    status: str
    misses: int
    exchanges: int
    pairs_kept: int = 0
    pairs_rejected: int = 0
    dropped: list[DroppedClient] = field(default_factory=list)
    bytes_up: int = 0
    bytes_down: int = 0
    repeated_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    accuracy: dict[int, float] | None = None
    validation: dict[int, float] | None = None
    test_loss: float = math.nan
    notes: dict[str, float] = field(default_factory=dict)
    asked: int = 0
    no_part: list[int] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)
    overruled: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    refused_training: list[int] = field(default_factory=list)
    refused_held_out: list[int] = field(default_factory=list)
    unable: list[int] = field(default_factory=list)
    entitlement: float = 0.0
    certificate: dict[int, float] = field(default_factory=dict)
    distance: float = math.nan
    schema: int = EVENT_SCHEMA
    figure: Figure = field(default=ACCURACY, metadata=TRANSIENT)  # a line has it where it is another one
    without_figure: dict[str, list[int]] = field(default_factory=dict)
    along: AlongStep | None = None

    @property
    def moved(self) -> bool:
        """Whether the round changed the model."""
        return self.factor != 0

    @property
    def improved_of_asked(self) -> float:
        """Share of all clients asked whose loss is known not to have risen; NaN if none answered again.

        `improved_ratio` is of those that answered again.
        """
        answered = int(np.count_nonzero(~np.isnan(self.losses_after)))
        asked = max(self.asked, len(self.participants))
        if math.isnan(self.improved_ratio) or answered == asked:
            return self.improved_ratio
        return round(self.improved_ratio * answered) / asked

    @property
    def unharmed_ratio(self) -> float:
        """Share of the participants that answered again whose loss did not rise, or stayed below the entitlement."""
        return improved_ratio(self.losses_before, self.losses_after, self.entitlement)

    @property
    def harmed(self) -> list[int]:
        """The others of them."""
        fine = not_above(self.losses_after, self.losses_before, self.entitlement) | np.isnan(self.losses_after)
        return [client for client, good in zip(self.participants, fine, strict=True) if not good]

    def to_json(self) -> str:
        """One line of JSON."""
        infinite = [c for c, loss in zip(self.participants, self.losses_after, strict=True) if math.isinf(loss)]
        derived = {name: getattr(self, name) for name in DERIVED}
        record = pack(self, {})
        for name in ("without_figure", "along"):
            if not record[name]:
                del record[name]
        if self.figure != ACCURACY:
            record = {TEST if key == "accuracy" else key: value for key, value in record.items()}
            derived["figure"] = self.figure.to_json()
        return json.dumps(finite({**record, INFINITE: infinite, **derived}), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> RoundEvent:
        """Inverse of `to_json`; ValueError if the line is no event of this schema."""
        record = json.loads(line)
        if not isinstance(record, dict) or record.get("schema") != EVENT_SCHEMA:
            raise ValueError(f"not an event of schema {EVENT_SCHEMA}: {line[:80]!r}")
        try:
            return cls._of(record)
        except (LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"not an event of schema {EVENT_SCHEMA} ({error!r}): {line[:80]!r}") from None

    @classmethod
    def _of(cls, record: dict[str, Any]) -> RoundEvent:
        if TEST in record:
            record["accuracy"] = record.pop(TEST)
        for derived in DERIVED:
            del record[derived]  # a line that lacks one is no event
        infinite = record[INFINITE]
        if record["entitlement"] is None:
            record["entitlement"] = STRICT
        for place, client in enumerate(record["participants"]):
            if client in infinite:
                record["losses_after"][place] = math.inf
        event: RoundEvent = unpack(cls, {"without_figure": {}, "along": None, **record})
        return replace(event, figure=Figure.from_json(record.get("figure")))


class Listener(Protocol):
    """Anything that wants to know of rounds: progress bar, log, metrics. It only listens.

    A class that derives from this one writes those methods that it needs; the others do nothing.
    """

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """A run of `rounds` rounds begins; `done` are those a resumed run had finished."""
        return

    def on_round(self, event: RoundEvent) -> None:
        """A round is settled."""
        return

    def on_end(self) -> None:
        """The run ended, in whatever way."""
        return


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts and means over the rounds of a run.

    Attributes
    ----------
    rounds, moved : int
        Rounds settled, and those of them that changed the model.
    judged, improved : int
        Rounds that changed the model and after which a client answered again; those of them in which no loss rose.
    improved_of_asked, unharmed_ratio : float
        rho and the share not harmed over the rounds that moved the model alone: means over the judged ones of those of
        the events; NaN where there is none.
    asked, heard : float
        Clients a round that were asked for a gradient, and whose gradients made the step; NaN without rounds.
    no_part : Mapping[int, int]
        Rounds in which each client was asked and had no part; none with 0.
    asked_in : Mapping[int, int]
        Rounds in which each of them was asked.
    overruled, harmed, refused, contradicted : Mapping[int, int]
        Rounds in which each client was overruled, was harmed, turned a candidate down, and was not heard because it
        contradicted itself; none with 0.
    """

    rounds: int
    moved: int
    judged: int
    improved: int
    improved_of_asked: float
    unharmed_ratio: float
    asked: float
    heard: float
    no_part: Mapping[int, int]
    asked_in: Mapping[int, int]
    overruled: Mapping[int, int]
    harmed: Mapping[int, int]
    refused: Mapping[int, int]
    contradicted: Mapping[int, int]

    @classmethod
    def of(cls, events: Sequence[RoundEvent]) -> Totals:
        """Those of these rounds."""
        moved = [event for event in events if event.moved]
        judged = [event for event in moved if not math.isnan(event.improved_ratio)]
        no_part = _count(event.no_part for event in events)
        asked_in = _count({*event.participants, *event.no_part} for event in events)
        return cls(
            rounds=len(events),
            moved=len(moved),
            judged=len(judged),
            improved=sum(event.improved_of_asked == 1 for event in judged),
            improved_of_asked=mean(event.improved_of_asked for event in judged),
            unharmed_ratio=mean(event.unharmed_ratio for event in judged),
            asked=mean(event.asked for event in events),
            heard=mean(len(event.heard) for event in events),
            no_part=no_part,
            asked_in={client: asked_in[client] for client in no_part},
            overruled=_count(event.overruled for event in events),
            harmed=_count(event.harmed for event in events),
            refused=_count(event.refused for event in events),
            contradicted=_count(
                {drop.client for drop in event.dropped if drop.reason == CONTRADICTION} for event in events
            ),
        )

    @property
    def moved_words(self) -> str:
        """`moved_words` of these."""
        return moved_words(self.moved, self.rounds, self.improved_of_asked, self.unharmed_ratio)

    @property
    def mostly_left_out(self) -> dict[int, int]:
        """Clients that had no part in most rounds in which they were asked, and in how many, the most first."""
        found = {client: count for client, count in self.no_part.items() if 2 * count > self.asked_in[client]}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))

    @property
    def holding_up(self) -> dict[int, int]:
        """Clients that turned candidates down in more than half of all rounds, and in how many, the most first."""
        found = {client: count for client, count in self.refused.items() if 2 * count > self.rounds}
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def moved_words(moved: int, rounds: int, rho: float, unharmed: float) -> str:
    """Rounds that moved the model, with rho and the share not harmed over these, a dash for one not known."""
    shown = (f"{value:.3f}" if value == value else "–" for value in (rho, unharmed))
    return f"{moved} of {rounds} rounds moved the model; over these ρ {next(shown)}, not harmed {next(shown)}"


def unmoved_at_end(events: Sequence[RoundEvent]) -> list[RoundEvent]:
    """The last rounds of these that did not move the model, up to one that did."""
    found = list(takewhile(lambda event: not event.moved, reversed(events)))
    return found[::-1]


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN of no values."""
    known = list(values)
    return sum(known) / len(known) if known else math.nan


def finite(value: Any) -> Any:
    """What JSON can hold of a value: null for a float that is not finite, dictionaries with keys of text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _count(clients: Iterable[Iterable[int]]) -> dict[int, int]:
    return dict(sorted(Counter(client for each in clients for client in each).items()))
