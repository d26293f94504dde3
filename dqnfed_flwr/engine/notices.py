"""What a run says of its clients: who had no part, who holds up the others, and why it ended early or stands still.

Two listeners say it in the log while the run goes on. A SuperLink hands on nothing else of a run: `dqnfed submit` finds
`notice_in` its lines, and the audit log takes over those that begin with `Audit:`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from logging import INFO, WARNING

from flwr.common.logger import log

from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.errors import shortened
from dqnfed_flwr.strategy.compatibility import REASONS
from dqnfed_flwr.strategy.state import BUDGET_SPENT, ENDED_EARLY, STALLED
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.telemetry.standstill import STALLED_MARK, stalled_words
from dqnfed_flwr.telemetry.totals import Totals

MARK = "The run ended early"
"""Begins the line of a log that says so."""
LEFT_OUT = "Asked, and without a part in most of the rounds: "
"""Begins the line of a log that names such clients."""
NAMED, AUDITED, LONGEST = 10, 20, 60
"""Clients named at most, in a sentence and in a line for the audit log; letters of a detail there."""
REMEDY = (
    "What can be done: guarantee.tolerate=N goes on where up to N of the clients oppose all others; "
    "step.on-stationary=relax goes on along the mean gradient, at the cost of some, and stay tries again in every "
    "round; a larger guarantee.entitlement lets losses rise that are below it."
)
SHORTER = "A smaller step.min-move tries shorter steps as well."
"""Said where no length was accepted."""
THRIFT = (
    "What can be done: steps that are turned down take the exchanges; a smaller local.lr has fewer of these, and a run "
    "of more rounds begins with more. A new run, also one with start.model, has a budget that adds to this one."
)
"""Said where the budget is spent."""


def early_end(result: RunResult) -> str:
    """Why a run ended early, who is behind it, and what can be done, in one line; empty where it did not.

    Of one that stalled, its likeliest causes, too, in a line each.
    """
    if result.status == STALLED:
        return stalled_words(result.events, result.settings.rounds)
    if result.status not in ENDED_EARLY and not _held_out_at_once(result):
        return ""
    remedies: dict[str, str] = {"line-search-failed": f"{REMEDY} {SHORTER}", BUDGET_SPENT: THRIFT}
    remedy = remedies.get(result.status, REMEDY)
    where = f"{MARK}, as {result.status}, after round {len(result.events)} of {result.settings.rounds}"
    if result.events and not result.totals.moved:
        where += ", none of which moved its model"
    why = _why(result.status, result.events[-1]) if result.events else ""
    return f"{where}: {why}. {remedy}" if why else f"{where}. {remedy}"


def notice_in(line: str) -> tuple[str, str]:
    """Which of `STALLED_MARK`, `MARK` and `LEFT_OUT` a line of a log has, and its words from there on; empty: none."""
    for notice, after in ((STALLED_MARK, " after round "), (MARK, ", as "), (LEFT_OUT, "")):
        _, found, rest = line.partition(notice)
        if found and rest.startswith(after):
            return notice, f"{notice}{rest}".strip()
    return "", ""


def held_up(totals: Totals) -> str:
    """Which clients hold up the others, with the rounds in which they refused; empty if none does."""
    named = [f"{client} in {count}" for client, count in totals.holding_up.items()]
    if not named:
        return ""
    clients = "client" if len(named) == 1 else "clients"
    return f"{clients} {listed(named)} of {totals.rounds} rounds"


def left_out(result: RunResult) -> str:
    """Which clients had no part in most rounds in which they were asked, and nodes left out at the end; else empty."""
    parts = Counter(f"client {client}" for event in result.events for client in event.participants)
    words = [
        *(f"client {text}" for text in left_out_words(result.totals, without=result.left_out)),
        *(f"{who} in {parts[who] or 'none'} ({one_line(why)})" for who, why in result.left_out.items()),
    ]
    return listed(words)


def one_line(text: str) -> str:
    """A reason that came from elsewhere, such as a traceback, shortened and without line breaks."""
    return " ".join(shortened(text).split())


def left_out_words(totals: Totals, without: Collection[str] = ()) -> list[str]:
    """Each client that had no part in most rounds in which it was asked, with their numbers.

    Those in `without`, such as `client 3`, are said elsewhere.
    """
    found = totals.mostly_left_out.items()
    return [f"{c} in {count} of {totals.asked_in[c]}" for c, count in found if f"client {c}" not in without]


def _held_out_at_once(result: RunResult) -> bool:
    """Whether the held-out parts refused from the first round on, so that nothing was learnt."""
    return result.status == "held-out-stationary" and bool(result.events) and not result.totals.moved


def _why(status: str, last: RoundEvent) -> str:
    if status == "pareto-stationary":
        if not last.certificate.weights:
            return "every gradient is 0"
        return (
            f"no step lowers every loss; the unit gradients of clients {_weighted(last.certificate.weights)}, weighted "
            f"so, sum to a vector of length {last.certificate.distance:.2g}"
        )
    if status == "held-out-stationary":
        return f"the held-out parts of clients {listed(last.votes.refused_held_out)} refused every length of its step"
    if status == BUDGET_SPENT:
        return f"its budget holds no further exchange; {last.privacy.words}" if last.privacy else ""
    if not last.votes.refused:
        return "no length of its step was accepted"
    clients = listed(last.votes.refused)
    who = f"{'clients' if len(last.votes.refused) > 1 else 'client'} {clients} refused"
    common = f"; a common direction exists, its cosine with every gradient is {last.certificate.distance:.2g}"
    return f"{who} its step, until no length was left to try{common if last.certificate.weights else ''}"


def _weighted(weights: Mapping[int, float]) -> str:
    falling = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{client} ({weight:.2f})" for client, weight in falling])


def listed(names: Sequence[object], most: int = NAMED) -> str:
    """The first `most` of these, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


class LeftOutWatch(Listener):
    """Says once in a run that a round went without most of its clients, and why.

    What was said before a resumption stands in the log of that time.
    """

    def __init__(self) -> None:
        self._told = False

    def on_round(self, event: RoundEvent) -> None:
        """Say it, where it is so for the first time."""
        words = "" if self._told else most_left_out(event)
        if words:
            log(WARNING, "%s", words)
            self._told = True


def most_left_out(event: RoundEvent) -> str:
    """That more than half of a round's clients were left out, with the reasons; empty if that is not so.

    Nodes that are not asked, because they do not fit the others or fail each time, count as clients of every round.
    """
    unfit = {drop.client for drop in event.dropped if drop.reason in REASONS}
    out, all_of_them = unfit | set(event.no_part), event.asked + len(unfit - set(event.participants))
    if 2 * len(out) <= all_of_them:
        return ""
    why = {drop.client: drop for drop in reversed(event.dropped) if drop.client in out}
    counts = Counter(drop.reason for drop in why.values())
    reasons = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
    first = why[min(why)] if why else None
    example = f"; client {first.client}: {one_line(first.detail)}" if first else ""
    return f"Round {event.round} went without {len(out)} of {all_of_them} clients ({reasons}){example}"


class AuditLines(Listener):
    """Says who is dropped or overruled, in the round from which on it is so.

    Rounds that were done before a resumption are in the log of that time.
    """

    def __init__(self) -> None:
        self._before: tuple[object, object] = ((), ())

    def on_round(self, event: RoundEvent) -> None:
        """Say it where it is otherwise than in the round before."""
        now = (sorted({(drop.client, drop.reason) for drop in event.dropped}), sorted(event.votes.overruled))
        if now != self._before:
            self._before = now
            log(INFO, "Audit: %s", json.dumps(_audited(event)))


def _audited(event: RoundEvent) -> dict[str, object]:
    """Who was refused or overruled in a round, and why."""
    refused = {drop.client: f"{drop.reason}: {one_line(drop.detail)[:LONGEST]}" for drop in event.dropped}
    overruled = {client: _overruled(event, client) for client in event.votes.overruled}
    found: dict[str, object] = {"round": event.round}
    for name, clients in (("refused", refused), ("overruled", overruled)):
        found[name] = dict(sorted(clients.items())[:AUDITED])
        if len(clients) > AUDITED:
            found[f"{name} in all"] = len(clients)
    return found


def _overruled(event: RoundEvent, client: int) -> str:
    if client in event.votes.refused_held_out:
        return "it turned a step down by its held-out part"
    if client in event.votes.refused_training:
        return "it turned a step down by its training losses"
    return "its vote was set aside"
