"""The event of a round, who listens to it, and what the rounds of a run come to.

A line of `events.jsonl` is one `RoundEvent` in JSON, non-finite numbers as null. Field by field:
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from dqnfed_flwr.fairness import improved_ratio
from dqnfed_flwr.guarantee.harm import STRICT, not_above
from dqnfed_flwr.guarantee.overrule import Certificate, Votes
from dqnfed_flwr.record_codec import TRANSIENT, pack, unpack
from dqnfed_flwr.types import ACCURACY, ClientReply, Evaluation, Figure

RunStatus = Literal[
    "running",
    "finished",
    "pareto-stationary",
    "line-search-failed",
    "early-stopped",
    "held-out-stationary",
    "stalled",
    "budget-spent",
]
"""Where a run stands, or how it ended by itself."""
EVENT_SCHEMA = 1
DERIVED = ("improved_ratio", "improved_of_asked", "unharmed_ratio", "harmed")
"""Keys of a line that follow from others, for readers without this package."""
TEST, VALIDATION = "test", "validation"
"""The parts that a figure is measured on; the first also stands in `run.json`, for figures other than accuracy."""
INFINITE = "infinite_after"
"""Key of a line alone: participants whose loss after the round was infinite, which JSON has no number for."""


@dataclass(frozen=True, slots=True)
class DroppedClient:
    """A client whose reply did not count, and why."""

    client: int
    reason: str
    detail: str


@dataclass(slots=True)
class Cost:
    """What the exchanges of a round cost; a resumed run counts and times anew.

    Attributes
    ----------
    exchanges, misses : int
        Exchanges, the one that settles the last round among them; candidates that were not accepted.
    bytes_up, bytes_down : int
        Payload of records from and to clients, without framing.
    repeated_calls : int
        Calls to the SuperLink that were repeated, because it answered with an error of its own.
    seconds : dict[str, float]
        By phase: `exchange` (waiting for and taking in replies), `solve`, `step`, `total`.
    since : float
        When it began, on the clock of `time.perf_counter`; not written.
    """

    exchanges: int = 0
    misses: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    repeated_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter, compare=False, repr=False, metadata=TRANSIENT)

    def add_time(self, phase: str, since: float) -> None:
        """Add the time since `since` (perf_counter) to `phase`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since

    def closed(self, misses: int) -> Cost:
        """That of a round that is over now, with further `misses`."""
        seconds = {**self.seconds, "total": time.perf_counter() - self.since}
        return replace(self, misses=self.misses + misses, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What clients that were evaluated said of their test and validation parts.

    Attributes
    ----------
    test, validation : dict[int, float] | None
        Their `figure` on these parts, in its own unit, by client; None where nobody has one.
    test_loss : float
        Their mean test loss; NaN if there is none.
    without_figure : dict[str, list[int]]
        Those that have no such figure there, such as an AUROC of one class, by part; only parts with such clients.
    figure : Figure
        What was measured: accuracy in [0, 1], or what the task has in its place.
    """

    test: dict[int, float] | None = None
    validation: dict[int, float] | None = None
    test_loss: float = math.nan
    without_figure: dict[str, list[int]] = field(default_factory=dict)
    figure: Figure = ACCURACY

    @classmethod
    def of(cls, replies: Mapping[int, ClientReply], figure: Figure = ACCURACY) -> Evaluated:
        """That of `replies` by client; a client without a test part has no figure."""
        tests = {client: reply.test for client, reply in replies.items() if reply.test is not None}
        validations = {client: reply.validation for client, reply in replies.items() if reply.validation is not None}
        losses = [test.loss for test in tests.values() if test.examples]
        found = {TEST: _figures(tests), VALIDATION: _figures(validations)}
        lacking = {part: [c for c, value in each.items() if math.isnan(value)] for part, each in found.items()}
        known = {part: {c: value for c, value in each.items() if not math.isnan(value)} for part, each in found.items()}
        return cls(
            known[TEST] or None,
            known[VALIDATION] or None,
            float(np.mean(losses)) if losses else math.nan,
            {part: clients for part, clients in lacking.items() if clients},
            figure,
        )


def _figures(parts: Mapping[int, Evaluation]) -> dict[int, float]:
    return {client: part.figure if part.examples else math.nan for client, part in parts.items()}


@dataclass(frozen=True, slots=True)
class AlongStep:
    """Training losses of participants along the step of a round, theta^{t-1} - alpha * step.

    `factors` are alpha, falling [R], `losses` f_k there [R], by client; infinite or NaN where the model diverges.
    """

    factors: list[float]
    losses: dict[int, list[float]]


@dataclass(frozen=True, slots=True)
class Spent:
    """What the exchanges so far may say of one record: (epsilon, delta), of the `budget` of the run.

    Told losses have noise: with probability 1 - doubt over the run, no step is taken after which the loss of a client,
    cut to the largest that is told, is above what it is entitled to by more than `rise`. Clients are those that judge
    the step; where the step rule asks nobody, `rise` is None.
    """

    epsilon: float
    delta: float
    budget: float
    rise: float | None
    doubt: float

    @property
    def words(self) -> str:
        """A sentence without its end."""
        spent = f"ε {self.epsilon:.2f} of {self.budget:g} spent (δ {self.delta:g}, a record replaced)"
        if self.rise is None:
            return f"{spent}; no client judged the steps"
        sure = 1 - self.doubt
        return f"{spent}; with probability {sure:g} no client that judged was harmed by more than τ {self.rise:.2g}"


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
    rates, weights : list[float]
        d~_k and the coefficient of each participant's row.
    step_norm_squared : float
        |step|^2; eta^t for the two-sided step (17).
    factor : float
        alpha; 0 when the model was left as it was.
    rank, condition, residual, status
        Of the solve, see `dqnfed_flwr.types.Combination`. Where the model stayed the status says why: `stationary`,
        `line-search-failed`, `held-out`, `contested`, `unjudged`, `not-finite` or `no-step`.
    pairs_kept, pairs_rejected : int
        Curvature pairs, over participants.
    dropped : list[DroppedClient]
        Clients left out, each with its reason.
    notes : dict[str, float]
        Further figures of the method.
    asked : int
        Clients that were asked for a gradient.
    no_part : list[int]
        Those of them that had no part in the round: no reply, one that was not usable, or one that contradicts itself.
    entitlement : float
        e: the loss up to which a participant may rise without harm; -infinity (null) where no loss may rise.
    limits : list[float]
        With `guarantee.window` W the largest of each participant's last W losses: harm is a rise above it. Where it is
        empty, a rise above `losses_before` is.
    votes : Votes
        Whose gradients made the step, who refused a candidate, and whose vote did not count.
    cost : Cost
        Of its exchanges.
    evaluated : Evaluated
        Test and validation figures at theta^t.
    certificate : Certificate
        Where the model stayed: the shortest point in the convex hull of the unit gradients.
    along : AlongStep | None
        Losses along the step, in the rounds in which `step.diagnose-every` asks for them.
    privacy : Spent | None
        With `privacy.epsilon`, what was spent of it, and what noise makes of the guarantee.
    """

    round: int
    participants: list[int]
    losses_before: list[float]
    losses_after: list[float]
    rates: list[float]
    weights: list[float]
    step_norm_squared: float
    factor: float
    rank: int
    condition: float
    residual: float
    status: str
    pairs_kept: int = 0
    pairs_rejected: int = 0
    dropped: list[DroppedClient] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    asked: int = 0
    no_part: list[int] = field(default_factory=list)
    entitlement: float = 0.0
    limits: list[float] = field(default_factory=list)
    votes: Votes = field(default_factory=Votes)
    cost: Cost = field(default_factory=Cost)
    evaluated: Evaluated = field(default_factory=Evaluated)
    certificate: Certificate = field(default_factory=Certificate)
    schema: int = EVENT_SCHEMA
    along: AlongStep | None = None
    privacy: Spent | None = None

    @property
    def moved(self) -> bool:
        """Whether the round changed the model."""
        return self.factor != 0

    @property
    def improved_ratio(self) -> float:
        """rho_t (29): share of the participants that answered again with losses_after <= losses_before."""
        return improved_ratio(self.losses_before, self.losses_after)

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
        """Share of the participants that answered again whose loss did not rise, or no further than allowed."""
        return improved_ratio(self.limits or self.losses_before, self.losses_after, self.entitlement)

    @property
    def harmed(self) -> list[int]:
        """The others of them."""
        allowed = not_above(self.losses_after, self.limits or self.losses_before, self.entitlement)
        fine = allowed | np.isnan(self.losses_after)
        return [client for client, good in zip(self.participants, fine, strict=True) if not good]

    def to_json(self) -> str:
        """One line of JSON."""
        infinite = [c for c, loss in zip(self.participants, self.losses_after, strict=True) if math.isinf(loss)]
        derived = {name: getattr(self, name) for name in DERIVED}
        return json.dumps(finite({**pack(self, {}), INFINITE: infinite, **derived}), separators=(",", ":"))

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
        for derived in DERIVED:
            del record[derived]  # a line that lacks one is no event
        infinite = record[INFINITE]
        if record["entitlement"] is None:
            record["entitlement"] = STRICT
        for place, client in enumerate(record["participants"]):
            if client in infinite:
                record["losses_after"][place] = math.inf
        return unpack(cls, record)


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
