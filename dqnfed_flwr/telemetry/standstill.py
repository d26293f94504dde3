"""Why the model of a run does not move: the likeliest causes, ranked by what the events of its last rounds hold.

Each cause has a weight: the rounds of the stretch in which it is seen, and for clients that were left out the share of
those asked that they are. What a client says of itself stands before what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dqnfed_flwr.errors import shortened
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, LATER, OVERRULED, SET_ASIDE
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from dqnfed_flwr.telemetry.totals import unmoved_at_end

STALLED_MARK = "The run stalled"
"""Begins the words about a run whose model stands still."""
MOST = 3
"""Causes named."""
NAMED = 5
"""Clients named of a cause."""
TEXT = 300
"""Letters of what a client said."""
NO_CAUSE = (OVERRULED, SET_ASIDE, "zero-gradient")
"""Reasons that leave a client its part in the round."""
ABSENCES = ("absent", "owing", "late")
REMEDIES = {
    CONTRADICTION: "read the data of these clients without draws, the same samples at every pass, and put random "
    "layers (dropout) into evaluation mode; where there are none, lower the learning rate, and see to the device",
    "not-finite": "lower local.lr or step.lr, and look for NaN, infinite or very large features and targets there",
}
"""What can be done about a reason; any other, of a fault of the client's own, has `MEND`."""
MEND = "mend that on the node, or start the run without it"
RAISE = "see to the nodes, give them more time (deadline, timeout), or need fewer of them (min-clients, voters)"
STATUSES = {
    "not-finite": (
        "the step held NaN or Inf",
        "lower local.lr or step.lr, and look for very large features and targets, and scale them",
    ),
    "no-step": (
        "the method or strategy made no other model",
        "see that the clients train (a learning rate of 0, frozen parameters, rows of zeros), and that the model that "
        "they send back is the one that they trained",
    ),
    "stationary": (
        "no direction lowers every loss, or every gradient is 0",
        "see that the loss depends on the parameters; step.on-stationary=relax goes on along the mean gradient",
    ),
    "contested": (
        "a client with a claim refused every candidate",
        "look at the data of the clients that refuse; a smaller guarantee.tolerate gives fewer claims",
    ),
    "unjudged": ("too few participants came back to judge the step", RAISE),
}
"""Ends of a round without a step that nobody refused: what was seen, and what can be done."""
REFUSING = (
    "see that their loss is a function of the model alone and their gradient its derivative; guarantee.tolerate=N goes "
    "on without N of them, a larger guarantee.entitlement lets losses rise that are below it, a smaller step.min-move "
    "tries shorter steps"
)
CERTIFIED = ("stationary", "held-out")
"""Ends of a round that show why a model rests."""
CONSEQUENCE = 0.5
"""Weight of a round that was not judged: it says that clients were missing, and not why."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause in words, with a remedy, and its weight in rounds."""

    words: str
    remedy: str
    weight: float

    def __str__(self) -> str:
        """One line."""
        return f"{self.words}. What can be done: {self.remedy}"


def stalled_words(events: Sequence[RoundEvent], rounds: int) -> str:
    """What is said of a run of so many rounds that stands still: a line, and one for each of the likeliest causes."""
    stretch = unmoved_at_end(events)
    if not events:
        return f"{STALLED_MARK} after round 0 of {rounds}"
    if not stretch:
        return (
            f"{STALLED_MARK} after round {len(events)} of {rounds}: its steps changed nobody's loss. What can be done: "
            "raise local.lr or step.lr; see that the loss depends on the parameters"
        )
    ever = "never moved" if len(stretch) == len(events) else f"has not moved since round {stretch[0].round - 1}"
    shown = any(event.status in CERTIFIED for event in stretch)
    unknown = "" if shown else ", and nothing shows that it is stationary"
    head = f"{STALLED_MARK} after round {events[-1].round} of {rounds}: its model {ever}, for {_rounds(len(stretch))}"
    head += unknown
    found = causes(stretch)
    return "\n".join([head, *(f"  {place}. {cause}" for place, cause in enumerate(found, 1))])


def causes(stretch: Sequence[RoundEvent], most: int = MOST) -> list[Cause]:
    """The likeliest causes of rounds that did not move the model, the likeliest first.

    Of equally likely ones what a client says of itself is first.
    """
    found = [*_left_out(stretch), *_refused(stretch), *_ended(stretch)]
    return sorted(found, key=lambda cause: -cause.weight)[:most]  # which keeps the order of equal ones


def _left_out(stretch: Sequence[RoundEvent]) -> list[Cause]:
    """Clients whose replies did not count, by reason."""
    by_reason: dict[str, list[tuple[RoundEvent, DroppedClient]]] = {}
    for event in stretch:
        for drop in event.dropped:
            if drop.reason not in NO_CAUSE:
                by_reason.setdefault(drop.reason, []).append((event, drop))
    return [_left_out_for(reason, found, len(stretch)) for reason, found in by_reason.items()]


def _left_out_for(reason: str, found: Sequence[tuple[RoundEvent, DroppedClient]], rounds: int) -> Cause:
    each = {(event.round, drop.client): event for event, drop in found}
    clients = Counter(client for _, client in each)
    weight = sum(1 / max(event.asked, len(event.participants), 1) for event in each.values())
    first = next((drop for _, drop in found if not drop.detail.startswith(LATER)), found[0][1])
    text = " ".join(shortened(first.detail).split())
    said = text if len(text) <= TEXT else f"{text[: TEXT // 2]} ... {text[-TEXT // 2 :]}"
    where = _rounds(len({number for number, _ in each}))
    words = f"{reason}: {_who(clients)} without a part, in {where} of {rounds}; client {first.client} first: {said}"
    remedy = REMEDIES.get(reason, RAISE if reason in ABSENCES else MEND)
    return Cause(words, remedy, min(weight, rounds))


def _refused(stretch: Sequence[RoundEvent]) -> list[Cause]:
    """Clients that turned candidates down."""
    clients = Counter(client for event in stretch for client in event.votes.refused)
    rounds = [event for event in stretch if event.votes.refused]
    lengths = [event for event in stretch if event.status in ("line-search-failed", "held-out")]
    if not rounds and not lengths:
        return []
    who = f"{_who(clients)} refused the step" if clients else "no length of the step was accepted"
    cut = f", which was cut down to step.min-move in {_rounds(len(lengths))}" if lengths and clients else ""
    return [
        Cause(f"{who} in {_rounds(len(rounds or lengths))} of {len(stretch)}{cut}", REFUSING, len(rounds or lengths))
    ]


def _ended(stretch: Sequence[RoundEvent]) -> Iterable[Cause]:
    """How rounds ended that nobody refused."""
    for status, count in Counter(event.status for event in stretch if event.status in STATUSES).items():
        words, remedy = STATUSES[status]
        weight = count * (CONSEQUENCE if status == "unjudged" else 1.0)
        yield Cause(f"{status}: {words}, in {_rounds(count)} of {len(stretch)}", remedy, weight)


def _who(clients: Counter[int]) -> str:
    """Clients with the rounds that each is counted in, the most first."""
    order = sorted(clients.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{client} ({count})" for client, count in order[:NAMED])
    more = f" and {len(order) - NAMED} more" if len(order) > NAMED else ""
    return f"{'clients' if len(order) > 1 else 'client'} {named}{more}"


def _rounds(count: int) -> str:
    return f"{count} round{'s' if count != 1 else ''}"
