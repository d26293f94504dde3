"""A line in the log as soon as most clients of a round are left out, which figures of the others do not show."""

from __future__ import annotations

from collections import Counter
from logging import WARNING

from flwr.common.logger import log

from dqnfed_flwr.engine.ending import one_line
from dqnfed_flwr.strategy.compatibility import REASONS
from dqnfed_flwr.telemetry.events import Listener, RoundEvent


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

    Nodes that are not asked because they do not fit the others count as clients of every round.
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
