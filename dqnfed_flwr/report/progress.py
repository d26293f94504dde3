"""Progress of a run: a live bar on a terminal, plain lines in a pipe. Both only listen."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dqnfed_flwr.telemetry.events import Listener, RoundEvent

SECONDS_BETWEEN_LINES = 0.5


def progress_listener(console: Console, label: str = "") -> Listener:
    """The listener that suits where `console` writes to; `label` names the run where there are several."""
    return LiveProgress(console, label) if console.is_terminal else LineProgress(console, label)


@dataclass
class Standing:
    """Latest known figures: an event carries accuracies only where the clients were evaluated."""

    round: int = 0
    mean: float = math.nan
    worst: float = math.nan
    rho: float = math.nan
    unharmed: float = math.nan
    asked: int = 0
    heard: int = 0
    overruled: int = 0
    moved: int = 0
    settled: int = 0

    def update(self, event: RoundEvent) -> None:
        """Take over what `event` has."""
        self.round = event.round
        if event.accuracy:
            self.mean = sum(event.accuracy.values()) / len(event.accuracy)
            self.worst = min(event.accuracy.values())
        if not math.isnan(event.improved_ratio):
            self.rho, self.unharmed = event.improved_ratio, event.unharmed_ratio
        self.asked, self.heard = event.asked, len(event.heard)
        self.overruled += len(event.overruled)
        self.moved += event.moved
        self.settled += 1

    def __str__(self) -> str:
        """All figures in a line."""
        return f"{self.accuracies}  {self.conduct}" if self.round else self.accuracies

    @property
    def accuracies(self) -> str:
        """Mean and worst accuracy, and rho_t, with a dash for what is not known yet."""
        mean, worst = (f"{100 * value:5.1f} %" if value == value else "    – " for value in (self.mean, self.worst))
        return f"mean {mean}  worst {worst}  ρ {_ratio(self.rho)}"

    @property
    def conduct(self) -> str:
        """What the last round did to the clients; and in how many rounds the model moved, and a vote was overruled."""
        overruled = f"  overruled {self.overruled}" if self.overruled else ""
        heard = f"unharmed {_ratio(self.unharmed)}  heard {self.heard} of {self.asked}"
        return f"{heard}  moved {self.moved} of {self.settled}{overruled}"

    @property
    def lines(self) -> str:
        """All figures in two lines, for a terminal."""
        return f"{self.accuracies}\n{self.conduct}" if self.round else self.accuracies


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value == value else "–"


class LiveProgress:
    """A bar that is redrawn in place."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._standing = Standing()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[standing]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._label = label
        self._task: TaskID | None = None

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Draw the bar, at the round that a resumed run had reached."""
        for event in done:
            self._standing.update(event)
        self._task = self._progress.add_task(
            self._label, total=rounds, completed=self._standing.round, standing=self._standing.lines
        )
        self._progress.start()

    def on_round(self, event: RoundEvent) -> None:
        """Move on."""
        self._standing.update(event)
        if self._task is not None:
            self._progress.update(self._task, completed=event.round, standing=self._standing.lines)

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


class LineProgress:
    """One line a round, at most two a second; the first and the last round always get theirs."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._console, self._label = console, label
        self._standing = Standing()
        self._rounds = 0
        self._began = self._written = -math.inf
        self._pending = False

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Note where a resumed run goes on."""
        self._rounds, self._began = rounds, time.monotonic()
        for event in done:
            self._standing.update(event)
        if done:
            self._console.print(
                f"{self._prefix()}goes on after round {self._standing.round} of {rounds}", soft_wrap=True
            )

    def on_round(self, event: RoundEvent) -> None:
        """Write the round's line, unless the last one is too fresh."""
        self._standing.update(event)
        self._pending = True
        if time.monotonic() - self._written >= SECONDS_BETWEEN_LINES:
            self._write()

    def on_end(self) -> None:
        """Write the line of the last round if it was held back."""
        if self._pending:
            self._write()

    def _write(self) -> None:
        self._written, self._pending = time.monotonic(), False
        done = f"{self._standing.round:{len(str(self._rounds))}}/{self._rounds}"
        line = f"{self._prefix()}round {done}  {self._standing}  {self._written - self._began:.1f} s"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _prefix(self) -> str:
        return f"{self._label}: " if self._label else ""
