"""A listener that keeps a run's metrics in one Prometheus text file, replaced every round."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.telemetry.rounds import RoundFile, short
from dqnfed_flwr.telemetry.run_samples import RunCard, RunSamples
from dqnfed_flwr.telemetry.textfile import HEADER, METRICS_SUFFIX, ROUNDS_SUFFIX, TRAILER, replace_file

PAUSE = 1.0
"""Least seconds between two files of a run: no Prometheus looks more often, and a file costs milliseconds."""

logger = logging.getLogger("flwr")


class RunMetrics:
    """Writes `<name>.prom` and `<name>.rounds.jsonl` in a directory, at the start, after every round and at the end.

    Rounds that follow each other faster than `pause` share a file, which is then written by a timer, so that the cost
    stays below a hundredth of the run's time. A file that cannot be written is told once in the log and tried again
    next round: metrics never end a run.

    Parameters
    ----------
    directory : Path
        Exists.
    card : RunCard
        Of the run.
    clients : int
        Series of clients 0 to clients - 1 are written beside the others; 0 for none.
    pause : float
        Least seconds between two files.
    clock : Callable[[], float]
        Seconds since 1970.
    """

    def __init__(
        self,
        directory: Path,
        card: RunCard,
        clients: int = 0,
        *,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = directory / f"{card.name}{METRICS_SUFFIX}"
        self._rounds = RoundFile(directory / f"{card.name}{ROUNDS_SUFFIX}")
        self._card, self._clients, self._pause, self._clock = card, clients, pause, clock
        self._samples = RunSamples(card, 0, clock(), clients)
        self._pending: list[tuple[RoundEvent, float]] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._written = -math.inf
        self._began = self._told = False

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Make every series, count what a resumed run had done, and write the first file."""
        self._samples = RunSamples(self._card, rounds, self._clock(), self._clients)
        self._samples.state("running")
        self._began = True
        self._try(self._rounds.begin)
        for event in done:
            self._samples.count(event)
        if done:
            self._go_on_counting()
        self._pending = [(event, math.nan) for event in done]
        self._publish()

    def _go_on_counting(self) -> None:
        """Begin no counter below what the file says: rounds after the checkpoint were counted, and are done again."""
        try:
            self._samples.not_below(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError) as error:
            logger.warning("metrics: %s cannot be read (%s); its counters begin anew", self._path, error)

    def on_round(self, event: RoundEvent) -> None:
        """Take the round over, and replace the file at once or when the pause is over."""
        with self._lock:
            self._pending.append((event, self._clock()))
            left = self._written + self._pause - time.monotonic()
            if left > 0:
                if self._timer is None:
                    self._timer = threading.Timer(left, self._publish)
                    self._timer.daemon = True
                    self._timer.start()
                return
        self._publish()

    def on_end(self) -> None:
        """Write what the last rounds left to be written; `conclude` says how the run ended."""
        self._stop_timer()
        if self._began:
            self._publish()

    def on_pause(self) -> None:
        """Show that the run waits for room on a disk; in vain where it is the disk of the metrics."""
        self._show("paused")

    def on_resume(self) -> None:
        """Show that it goes on."""
        self._show("running")

    def conclude(self, status: str) -> None:
        """Write down how the run ended; one that never began leaves the file of the run before it as it is.

        Parameters
        ----------
        status : str
            That of `strategy.outcome.Outcome`, `stopped` or `failed`.
        """
        self._stop_timer()
        if self._began or not self._path.exists():
            self._show(status)

    def _stop_timer(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _show(self, state: str) -> None:
        with self._lock:
            self._samples.state(state)
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            pending, self._pending, self._timer = self._pending, [], None
            for event, at in pending:
                self._rounds.append(short(event, at))
                if not math.isnan(at):  # those of before are counted
                    self._samples.count(event)
                    self._samples.set("dqnfed_last_round_timestamp_seconds", at)
            self._samples.show([event for event, _ in pending])
            self._try(self._rounds.flush)
            content = f"{HEADER}{self._card.name}\n".encode() + self._samples.exposition() + TRAILER.encode()
            self._try(lambda: replace_file(self._path, content))
            self._written = time.monotonic()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._told:
                logger.warning("metrics: cannot write %s (%s); the run goes on, see to it", self._path, error.strerror)
            self._told = True


def check_directory(directory: Path) -> None:
    """Make the directory of the metrics and try it.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f".{os.getpid()}.tmp"
    probe.write_bytes(b"")
    probe.unlink()
