"""Whose rows and whose votes count in a round: one record, from the hearing to the event of the round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dqnfed_flwr.types import Probe


@dataclass(slots=True)
class Votes:
    """What is known of the participants of a step as judges of it.

    `heard` and `voteless` rise; the others are in the order in which they came, and all but `aside` grow from candidate
    to candidate.
    """

    heard: tuple[int, ...]  # whose rows made the step
    voteless: tuple[int, ...] = ()  # without a vote from the start
    aside: tuple[int, ...] = ()  # whose row was set aside
    overruled: tuple[int, ...] = ()
    caught: tuple[int, ...] = ()  # contradicted themselves
    refused: tuple[int, ...] = ()  # refused a candidate
    refused_training: tuple[int, ...] = ()  # by their training losses alone
    refused_held_out: tuple[int, ...] = ()  # by their held-out parts, here or at a shorter length
    unable: tuple[int, ...] = ()  # asked to judge by a held-out part, and could not
    unreadable: int = 0  # clients that were asked and answered without saying what their loss is
    blocked: dict[int, int] = field(default_factory=dict)  # ladders refused against the own gradient
    promised: dict[int, tuple[float, float]] = field(default_factory=dict)  # factor named last time, and the loss there

    def counted(self, probes: Mapping[int, Probe]) -> dict[int, Probe]:
        """Those of the probes that count; all of them where none would."""
        out = {*self.voteless, *self.overruled, *self.caught}
        return {client: probe for client, probe in probes.items() if client not in out} or dict(probes)

    def note_refusals(self, refusing: Mapping[int, Probe]) -> None:
        """Keep who refused a candidate, and by which test."""
        by_held_out = [client for client, probe in refusing.items() if probe.held_out is False]
        by_training = [client for client in refusing if client not in by_held_out]
        self.refused = _joined(self.refused, refusing)
        self.refused_training = _joined(self.refused_training, by_training)
        self.refused_held_out = _joined(self.refused_held_out, by_held_out)

    def note_unable(self, probes: Mapping[int, Probe]) -> None:
        """Keep who answered without a test on a held-out part, where one was asked for."""
        self.unable = _joined(self.unable, [client for client, probe in probes.items() if probe.held_out is None])


def _joined(clients: tuple[int, ...], more: Iterable[int]) -> tuple[int, ...]:
    return (*clients, *(client for client in more if client not in clients))
