"""The rounds of a run under Flower's engine, as the process that waits for it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.run_files import EVENTS
from dqnfed_flwr.telemetry.event_log import EventReader
from dqnfed_flwr.telemetry.events import Listener, RoundEvent

DEAD_WORKER = ("ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError")
"""What Ray says of a message for a worker process that is gone."""
ROUNDS_WITH_LOSSES = 2
"""An engine that replaces a worker loses messages in one round; one that does not, in each."""


class FlowerRounds:
    """Calls listeners for each round as the event log in `output` grows, and watches for workers that died.

    Flower's engine hands its messages on to a worker process that was killed as well: they fail at once, so that it is
    free for the next one, and draws most of them.
    """

    def __init__(self, output: Path, settings: Settings, listeners: Sequence[Listener]) -> None:
        self._output, self._settings, self._listeners = output, settings, listeners
        self._reader = EventReader(output / EVENTS)
        self._reported = -1
        self._failed: dict[int, int] = {}  # messages for dead workers, by round

    def report(self) -> None:
        """Report the beginning, once there is a log, and the rounds that were not reported yet.

        Raises
        ------
        RunError
            If messages for a dead worker failed in several rounds.
        """
        found = self._reader.read()
        if found is None:
            return
        first, events = found
        if self._reported < 0:
            done = events if self._settings.resume else []
            self._reported = len(done)
            for listener in self._listeners:
                listener.on_start(self._settings.rounds, done)
        for event in events[max(0, self._reported - first) :]:
            self._reported += 1
            for listener in self._listeners:
                listener.on_round(event)
            self._watch(event)

    def _watch(self, event: RoundEvent) -> None:
        if lost := [drop for drop in event.dropped if any(sign in drop.detail for sign in DEAD_WORKER)]:
            self._failed[event.round] = len(lost)
        if len(self._failed) >= ROUNDS_WITH_LOSSES:
            raise RunError(self._words())

    def _words(self) -> str:
        last = max(self._failed)
        kept = f"What was reached is in {self._output}" if self._settings.output else "Nothing was kept without output"
        return (
            f"a worker process of Flower's engine died in round {min(self._failed)}, and the engine replaces none: up "
            f"to round {last}, {sum(self._failed.values())} messages failed with {DEAD_WORKER[0]}, and their clients "
            "were left out. The system often kills one for want of memory: take a smaller model, fewer cores (taskset) "
            f"or engine in-process. {kept}"
        )
