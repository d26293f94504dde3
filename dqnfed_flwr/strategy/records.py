"""What the modules of a round hand to each other: schedule, replies, who is heard, the step, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dqnfed_flwr.guarantee.claims import CONTRADICTION
from dqnfed_flwr.guarantee.overrule import SET_ASIDE, Certificate, certificate
from dqnfed_flwr.methods._base import RoundRows
from dqnfed_flwr.steps import Ladder, StepScale
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.types import ClientReply, ClientTask, Combination, Float64Array, Probe


@dataclass(frozen=True, slots=True)
class Schedule:
    """One exchange.

    Attributes
    ----------
    tasks : dict[int, ClientTask]
        By client, rising.
    train, probe, evaluate : tuple[int, ...]
        Clients asked for each, rising.
    round : int
        The round whose gradients are asked for.
    """

    tasks: dict[int, ClientTask]
    train: tuple[int, ...]
    probe: tuple[int, ...]
    evaluate: tuple[int, ...]
    round: int


@dataclass(slots=True)
class Collected:
    """What an exchange brought.

    Attributes
    ----------
    trained : dict[int, ClientReply]
        Replies with a row, by client, rising; without the row itself, which is in the basis.
    rows : RoundRows
        The rows, in the order of `trained`.
    answered : dict[int, ClientReply]
        All replies of sound form, by client, rising.
    probes : dict[int, Probe]
        What participants say of the candidate, by client, rising; also where the rest of the reply is unfit.
    dropped : dict[int, DroppedClient]
        Clients without a valid reply.
    losses : dict[int, float]
        f_k at the model sent, of those asked to train, by client, rising; also where the rest of the reply is unfit.
    caught : dict[int, str]
        Clients whose reply contradicts itself, with what it says.
    """

    answered: dict[int, ClientReply]
    trained: dict[int, ClientReply]
    rows: RoundRows
    probes: dict[int, Probe] = field(default_factory=dict)
    dropped: dict[int, DroppedClient] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    caught: dict[int, str] = field(default_factory=dict)

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
        return RoundRows(self.rows.basis, chosen, vectors, further)


@dataclass(slots=True)
class Hearing:
    """Who has a say in a round's direction.

    Attributes
    ----------
    losses : dict[int, float]
        f_k(theta^{t-1}) of every participant, rising: all who were asked for a row and said what their loss is.
    heard : tuple[int, ...]
        Those whose rows make the direction, rising.
    muted : dict[int, str]
        Those that contradicted themselves.
    slots : dict[int, int]
        Places of the sound rows, by client.
    entitlement : float
        e of the round.
    cuts : dict[int, float]
        Below 1: what the rows of clients were multiplied by.
    claimants : frozenset[int]
        Those with a claim: they have a vote that nobody can take away.
    aside : dict[int, str]
        Those whose sound rows are set aside for this round, with the reason in words; they keep their vote.
    apart : frozenset[int]
        Those who have no part in the mean.
    unreadable : int
        How many of those asked answered without saying what their loss is.
    disowned : frozenset[int]
        Those whose rows have counted so far and count no more.
    """

    losses: dict[int, float]
    heard: tuple[int, ...]
    slots: dict[int, int]
    entitlement: float = 0.0
    muted: dict[int, str] = field(default_factory=dict)
    cuts: dict[int, float] = field(default_factory=dict)
    claimants: frozenset[int] = frozenset()
    aside: dict[int, str] = field(default_factory=dict)
    apart: frozenset[int] = frozenset()
    unreadable: int = 0
    disowned: frozenset[int] = frozenset()

    @property
    def unheard(self) -> tuple[int, ...]:
        """Those with a sound row that is not in the direction, rising."""
        return tuple(sorted(set(self.slots).difference(self.heard)))

    @property
    def voteless(self) -> tuple[int, ...]:
        """Those whose word on the step does not count from the start: without a sound row, or muted; rising."""
        return tuple(sorted({*self.losses}.difference(self.slots).union(self.muted)))

    @property
    def dropped(self) -> list[DroppedClient]:
        """Those that are not heard, for the event."""
        kinds = ((CONTRADICTION, self.muted), (SET_ASIDE, self.aside))
        return [DroppedClient(client, reason, detail) for reason, found in kinds for client, detail in found.items()]


@dataclass(frozen=True, slots=True)
class Solved:
    """A step and what is known of it.

    Attributes
    ----------
    combination : Combination
        The method's answer.
    step : Tensor
        [D].
    norm : float
        |step|.
    slopes : Float64Array
        g_k . step, of the K rows of the round and then of the `others`.
    """

    combination: Combination
    step: Tensor
    norm: float
    slopes: Float64Array

    def scale(self, theta_norm: float, round_number: int) -> StepScale:
        """What a step rule may know of the step, which leads from a model of this norm."""
        found = self.combination
        return StepScale(self.norm, found.length, theta_norm, round_number, found.hints, dim=self.step.numel())


@dataclass(slots=True)
class PendingStep:
    """A step that was solved for and waits for the clients' losses at the candidate.

    Attributes
    ----------
    round : int
        t; the step leads from theta^{t-1} to theta^t.
    step : Tensor
        [D].
    ladder : Ladder
        Candidate factor and rungs asked for.
    scale : StepScale
        What the rule may know of it.
    asked : tuple[int, ...]
        Clients that were asked for a row, rising.
    clients : tuple[int, ...]
        Participants: those of them whose loss is known, rising.
    heard : tuple[int, ...]
        Participants whose rows made the step, rising.
    losses, slopes, rates, shares, weights : dict[int, float]
        By participant: f_k(theta^{t-1}), g_k . step, d~_k, p_k, coefficient; 0 where there is no row, rates NaN.
    entitlement : float
        e of the round, see `guarantee.harm`.
    gram : Float64Array
        Inner products of the rows of those heard whose loss is above it, of all heard where none is [B, B].
    binding : tuple[int, ...]
        These clients [B].
    combination : Combination
        Of the solve; for the record.
    dropped : list[DroppedClient]
        Who was left out of the round, with the reason.
    pairs_kept, pairs_rejected : int
        Curvature pairs of the participants, counted.
    misses : int
        Candidates on this step that were turned down.
    relaxed : bool
        The step is that of the mean row, judged by the mean loss, because no common descent was found.
    fallback : Tensor | None
        Mean row [D], kept when the run may relax.
    blocked : dict[int, int]
        Ladders of this step that a participant refused against its own gradient, see `guarantee.claims`.
    promised : dict[int, tuple[float, float]]
        The factor that each participant named one exchange ago, and its loss there.
    voteless, aside, overruled, caught, refused : tuple[int, ...]
        Participants that have no vote from the start; whose row was set aside; that are overruled, that contradicted
        themselves, and that refused a candidate, up to now.
    first : float
        The first factor that was tried.
    unreadable : int
        Clients that were asked and answered without saying what their loss is.
    """

    round: int
    step: Tensor
    ladder: Ladder
    scale: StepScale
    asked: tuple[int, ...]
    clients: tuple[int, ...]
    heard: tuple[int, ...]
    losses: dict[int, float]
    slopes: dict[int, float]
    rates: dict[int, float]
    shares: dict[int, float]
    weights: dict[int, float]
    combination: Combination
    dropped: list[DroppedClient]
    gram: Float64Array
    binding: tuple[int, ...]
    entitlement: float = 0.0
    pairs_kept: int = 0
    pairs_rejected: int = 0
    misses: int = 0
    relaxed: bool = False
    fallback: Tensor | None = None
    blocked: dict[int, int] = field(default_factory=dict)
    promised: dict[int, tuple[float, float]] = field(default_factory=dict)
    voteless: tuple[int, ...] = ()
    aside: tuple[int, ...] = ()
    overruled: tuple[int, ...] = ()
    caught: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    first: float = 0.0
    unreadable: int = 0

    def votes(self, probes: Mapping[int, Probe]) -> dict[int, Probe]:
        """Those of the probes that count; all of them where none would."""
        out = {*self.voteless, *self.overruled, *self.caught}
        return {client: probe for client, probe in probes.items() if client not in out} or dict(probes)

    @property
    def certificate(self) -> Certificate:
        """How near the model is to a Pareto-stationary one, by the gradients that the step was made of."""
        return certificate(self.gram, self.binding)


@dataclass(slots=True)
class RoundCost:
    """What the exchanges since the last round cost, and who was left out in those that ended none.

    Attributes
    ----------
    exchanges, misses, repeated_calls : int
        Counts; misses are those of steps given up before the round's own.
    bytes_up, bytes_down : int
        Of arrays and figures, without framing.
    seconds : dict[str, float]
        By phase.
    dropped : list[DroppedClient]
        Each client once for each reason.
    since : float
        When it began (perf_counter).
    """

    exchanges: int = 0
    misses: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    repeated_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    dropped: list[DroppedClient] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    def add_time(self, phase: str, since: float) -> None:
        """Add the time since `since` (perf_counter) to `phase`."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since

    def add_dropped(self, dropped: Iterable[DroppedClient]) -> None:
        """Keep `dropped` for the event of the round, each client once for each reason."""
        self.dropped = each_once([*self.dropped, *dropped])


def each_once(dropped: Iterable[DroppedClient]) -> list[DroppedClient]:
    """The first for each client and reason: a client may fail at the same in several exchanges of a round."""
    found: dict[tuple[int, str], DroppedClient] = {}
    for drop in dropped:
        found.setdefault((drop.client, drop.reason), drop)
    return list(found.values())
