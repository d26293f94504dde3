"""Texts about a run that ended before its rounds were done, and about clients that hold up the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.errors import shortened
from dqnfed_flwr.strategy.state import ENDED_EARLY
from dqnfed_flwr.telemetry.events import RoundEvent, Totals

MARK = "The run ended early"
"""Begins the line of a log that says so."""
LEFT_OUT = "Asked, and without a part in most of the rounds: "
"""Begins the line of a log that names such clients."""
NAMED = 10
"""Clients named at most."""
REMEDY = (
    "What can be done: guarantee.tolerate=N goes on where up to N of the clients oppose all others; "
    "step.on-stationary=relax goes on along the mean gradient, at the cost of some, and stay tries again in every "
    "round; a larger guarantee.entitlement lets losses rise that are below it."
)
SHORTER = "A smaller step.min-move tries shorter steps as well."
"""Said where no length was accepted."""


def early_end(result: RunResult) -> str:
    """Why a run ended early, who is behind it, and what can be done, in one line; empty where it did not."""
    if result.status not in ENDED_EARLY:
        return ""
    remedy = f"{REMEDY} {SHORTER}" if result.status == "line-search-failed" else REMEDY
    where = f"{MARK}, as {result.status}, after round {len(result.events)} of {result.settings.rounds}"
    why = _why(result.status, result.events[-1]) if result.events else ""
    return f"{where}: {why}. {remedy}" if why else f"{where}. {remedy}"


def early_end_in(line: str) -> str:
    """The words of `early_end` in a line of a log; empty where it has none."""
    _, mark, rest = line.partition(MARK)
    return f"{mark}{rest}".strip() if rest.startswith(", as ") else ""


def left_out_in(line: str) -> str:
    """Such clients by a line of a log, from `LEFT_OUT` on; empty where it names none."""
    _, mark, rest = line.partition(LEFT_OUT)
    return f"{mark}{rest}".strip()


def held_up(totals: Totals) -> str:
    """Which clients hold up the others, with the rounds in which they refused; empty if none does."""
    named = [f"{client} in {count}" for client, count in totals.holding_up.items()]
    if not named:
        return ""
    clients = "client" if len(named) == 1 else "clients"
    return f"{clients} {listed(named)} of {totals.rounds} rounds"


def left_out(result: RunResult) -> str:
    """Which clients had no part in most rounds in which they were asked, and nodes that had none at all; else empty."""
    words = [
        *(f"client {text}" for text in left_out_words(result.totals)),
        *(f"{who} in none ({one_line(why)})" for who, why in result.left_out.items()),
    ]
    return listed(words)


def one_line(text: str) -> str:
    """A reason that came from elsewhere, such as a traceback, shortened and without line breaks."""
    return " ".join(shortened(text).split())


def left_out_words(totals: Totals) -> list[str]:
    """Each client that had no part in most rounds in which it was asked, with their numbers."""
    return [f"{client} in {count} of {totals.asked_in[client]}" for client, count in totals.mostly_left_out.items()]


def _why(status: str, last: RoundEvent) -> str:
    if status == "pareto-stationary":
        if not last.certificate:
            return "every gradient is 0"
        return (
            f"no step lowers every loss; the unit gradients of clients {_weighted(last.certificate)}, weighted so, sum "
            f"to a vector of length {last.distance:.2g}"
        )
    if not last.refused:
        return "no length of its step was accepted"
    clients = listed(last.refused)
    who = f"{'clients' if len(last.refused) > 1 else 'client'} {clients} refused"
    common = f"; a common direction exists, its cosine with every gradient is {last.distance:.2g}"
    return f"{who} its step, until no length was left to try{common if last.certificate else ''}"


def _weighted(weights: Mapping[int, float]) -> str:
    falling = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return listed([f"{client} ({weight:.2f})" for client, weight in falling])


def listed(names: Sequence[object], most: int = NAMED) -> str:
    """The first `most` of these, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more
