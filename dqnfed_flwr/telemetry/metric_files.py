"""The files of a run in the metrics directory: its metrics for Prometheus, and its last rounds in short for the page.

Prometheus' file is replaced every round, the other one grows by a line; both are bounded.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dqnfed_flwr.fairness import tail_size
from dqnfed_flwr.run_files import replacing
from dqnfed_flwr.telemetry.events import RoundEvent, finite, mean
from dqnfed_flwr.telemetry.run_samples import RunCard, RunSamples
from dqnfed_flwr.types import ACCURACY

HEADER = "# dqnfed-flwr metrics of run "
"""First words of a metrics file; the exporter removes no file that does not begin so."""
TRAILER = "# EOF\n"
"""Last line of a whole metrics file."""
METRICS_SUFFIX, ROUNDS_SUFFIX = ".prom", ".rounds.jsonl"
KEPT = 500
"""Rounds in the file at least; it is made anew when it holds twice as many."""
MOST_NAMED = 10
"""Clients named in a round at most: the worst, those left out, and those that refused."""
PAUSE = 1.0
"""Least seconds between two files of a run: no Prometheus looks more often, and a file costs milliseconds."""
_STATE = re.compile(rb'(?m)^(dqnfed_run_state\{state="([a-z-]+)"\} )[01]\.0(?=\n)')

logger = logging.getLogger("flwr")


class RunMetrics:
    """Writes `<name>.prom` and `<name>.rounds.jsonl` in a directory, at the start, after every round and at the end.

    Rounds that follow each other faster than `pause` seconds share a file, which is then written by a timer, so that
    the cost stays below a hundredth of the run's time. A file that cannot be written is logged once and tried again
    next round: metrics never end a run. The directory exists. Clients 0 to `clients` - 1 have series of their own. The
    clock gives seconds since 1970.
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
        self._lock = threading.RLock()  # a signal's handler concludes, and may interrupt whoever holds it
        self._timer: threading.Timer | None = None
        self._written = -math.inf
        self._state = "running"
        self._began = self._warned = self._concluded = False

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
        """Show that the run waits for room on a disk, also where the metrics lie on it."""
        self._show("paused")

    def on_resume(self) -> None:
        """Show that it goes on."""
        self._show("running")

    def conclude(self, status: str) -> None:
        """Write down how the run ended; one that never began leaves the file of the run before it as it is.

        The status is that of a `RunResult`, `stopped` or `failed`; the first that is given stays.
        """
        if self._concluded:
            return
        self._concluded = True
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
            self._state = state
            self._samples.state(state)
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            pending, self._pending, self._timer = self._pending, [], None
            for event, at in pending:
                self._rounds.append(round_summary(event, at))
                if not math.isnan(at):  # those of before are counted
                    self._samples.count(event)
                    self._samples.set("dqnfed_last_round_timestamp_seconds", at)
            self._samples.show([event for event, _ in pending])
            self._try(self._rounds.flush)
            content = f"{HEADER}{self._card.name}\n".encode() + self._samples.exposition() + TRAILER.encode()
            if not self._try(lambda: _replace(self._path, content)) and self._began:
                self._try(lambda: put_state(self._path, self._state))
            self._written = time.monotonic()

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            if not self._warned:
                logger.warning("metrics: cannot write %s (%s); the run goes on, see to it", self._path, error.strerror)
            self._warned = True
            return False
        return True


def put_state(path: Path, state: str) -> None:
    """Change the state in a metrics file where it stands: that takes no room on a disk, which may be full.

    The other figures stay as they were. OSError if the file cannot be written.
    """
    with path.open("r+b") as file:
        before = file.read()
        after = _STATE.sub(lambda found: found[1] + (b"1.0" if found[2] == state.encode() else b"0.0"), before)
        places = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        if places:
            file.seek(places[0])
            file.write(after[places[0] : places[-1] + 1])


def make_directory(directory: Path) -> None:
    """Make the directory of the metrics and try it; OSError if it cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=directory).close()


def round_summary(event: RoundEvent, at: float) -> dict[str, Any]:
    """What the page shows of a round; its size does not depend on the number of clients.

    The round was settled at `at`, in seconds since 1970; NaN if that is not known.
    """
    before, after = ([v for v in losses if v == v] for losses in (event.losses_before, event.losses_after))
    record: dict[str, Any] = {
        "round": event.round,
        "at": at,
        "ratio": event.improved_of_asked,
        "unharmed": event.unharmed_ratio,
        "asked": event.asked,
        "participants": len(event.participants),
        "heard": len(event.votes.heard),
        "overruled": len(event.votes.overruled),
        "harmed": len(event.harmed),
        "refused": event.votes.refused[:MOST_NAMED],
        "moved": event.moved,
        "loss": [mean(before), mean(after)],
        "factor": event.factor,
        "status": event.status,
        "seconds": event.cost.seconds.get("total", math.nan),
        "dropped": dict(Counter(drop.reason for drop in event.dropped)),
        "left_out": [[drop.client, drop.reason] for drop in event.dropped[:MOST_NAMED]],
    }
    if event.evaluated.test:
        sign = event.evaluated.figure.sign
        worst_first = sorted(event.evaluated.test.items(), key=lambda item: (sign * item[1], item[0]))
        values = [value for _, value in worst_first]
        tail = tail_size(10, len(values))
        tails = {"worst10": mean(values[:tail]), "best10": mean(values[-tail:])}
        if event.evaluated.figure == ACCURACY:
            record["accuracy"] = {"mean": mean(values), "min": values[0], **tails, "max": values[-1]}
        else:
            ends = {"worst": values[0], "best": values[-1]}
            record["figure"] = {**event.evaluated.figure.to_json(), "mean": mean(values), **ends, **tails}
        record["worst"] = [list(item) for item in worst_first[:MOST_NAMED]]
    if event.evaluated.without_figure:
        record["without_figure"] = {part: len(clients) for part, clients in event.evaluated.without_figure.items()}
    return {key: finite(value) for key, value in record.items()}


class RoundFile:
    """Lines of `round_summary`, appended round by round; older ones fall out.

    The directory exists. A reader finds `kept` rounds at least, once there were so many. Where `begin` and `flush`
    cannot write (OSError), the rounds are kept for the next `flush`.
    """

    def __init__(self, path: Path, kept: int = KEPT) -> None:
        self._path = path
        self._lines: deque[str] = deque(maxlen=kept)
        self._fresh = 0
        self._written = 0

    def begin(self) -> None:
        """Replace what there is, as an earlier process may have left it, by the rounds that are kept."""
        _replace(self._path, "".join(f"{line}\n" for line in self._lines).encode())
        self._written = len(self._lines)

    def append(self, record: dict[str, Any]) -> None:
        """Add a round, for the next `flush` to write."""
        self._lines.append(json.dumps(record, separators=(",", ":")))
        self._fresh += 1

    def flush(self) -> None:
        """Write the rounds that were added."""
        kept = self._lines.maxlen or 1
        if self._written + self._fresh > 2 * kept or self._fresh > len(self._lines) or not self._path.exists():
            self.begin()
        elif self._fresh:
            lines = list(self._lines)[-self._fresh :]
            with self._path.open("a") as file:
                file.write("".join(f"{line}\n" for line in lines))
            self._written += self._fresh
        self._fresh = 0


def read_rounds(path: Path, last: int = KEPT) -> list[dict[str, Any]]:
    """The last rounds of a file (OSError if it is unreadable), without lines that are none, such as one cut short."""
    found: list[dict[str, Any]] = []
    for line in path.read_text("utf-8", "replace").splitlines()[-last:]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            found.append(record)
    return found


def run_name(output: Path | None, fallback: str) -> str:
    """Name of a run, good for a file and a label.

    The last part of the output directory's path with six characters of a hash of all of it: equal for a run and its
    resumption, different for two runs. `fallback` stands where a run has no output directory.
    """
    if output is None:
        return _plain(fallback)
    path = output.expanduser().resolve()
    return f"{_plain(path.name)}-{hashlib.sha256(str(path).encode()).hexdigest()[:6]}"


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip(".-")[:60] or "run"
