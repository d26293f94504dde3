"""Progress of a run and of a comparison: live bars on a terminal, plain lines in a pipe. They only listen."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.types import ACCURACY, Figure

if TYPE_CHECKING:
    from dqnfed_flwr.compare.plan import Job

SECONDS_BETWEEN_LINES = 0.5


def progress_listener(console: Console, label: str = "") -> Listener:
    """The listener that suits where `console` writes to; `label` names the run where there are several."""
    return LiveProgress(console, label) if console.is_terminal else LineProgress(console, label)


@dataclass
class LatestFigures:
    """Latest known figures: an event carries those of the clients only where they were evaluated."""

    figure: Figure = ACCURACY
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
    judged: int = 0
    of_moved: float = math.nan

    def update(self, event: RoundEvent) -> None:
        """Take over what `event` has."""
        self.round = event.round
        self.figure = event.evaluated.figure
        if event.evaluated.test:
            values = event.evaluated.test.values()
            self.mean = sum(values) / len(values)
            self.worst = min(values) if event.evaluated.figure.higher else max(values)
        if not math.isnan(event.improved_ratio):
            self.rho, self.unharmed = event.improved_of_asked, event.unharmed_ratio
        self.asked, self.heard = event.asked, len(event.votes.heard)
        self.overruled += len(event.votes.overruled)
        self.moved += event.moved
        self.settled += 1
        if event.moved and not math.isnan(event.improved_ratio):
            before = self.of_moved if self.judged else 0.0
            self.judged += 1
            self.of_moved = before + (event.improved_of_asked - before) / self.judged

    def __str__(self) -> str:
        """All figures in a line: after the first round also what the last one did to the clients, and counts."""
        return self.text("  ")

    def text(self, between: str) -> str:
        """Mean and worst figure, `between`, and what became of the clients, with a dash for what is not known yet.

        A figure other than accuracy is named.
        """
        mean, worst = (
            f"{self.figure.text(value):>7}" if value == value else "    – " for value in (self.mean, self.worst)
        )
        name = "" if self.figure == ACCURACY else f"{self.figure.name} "
        figures = f"{name}mean {mean}  worst {worst}  ρ {_ratio(self.rho)}"
        if not self.round:
            return figures
        overruled = f"  overruled {self.overruled}" if self.overruled else ""
        heard = f"unharmed {_ratio(self.unharmed)}  heard {self.heard} of {self.asked}"
        moved = f"moved {self.moved} of {self.settled}, ρ there {_ratio(self.of_moved)}"
        return f"{figures}{between}{heard}  {moved}{overruled}"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value == value else "–"


def _bars(console: Console, unit: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn(unit + "{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=console,
    )


class LiveProgress:
    """A bar that is redrawn in place."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._latest = LatestFigures()
        self._progress = _bars(console, "round ")
        self._label = label
        self._task: TaskID | None = None

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Draw the bar, at the round that a resumed run had reached."""
        for event in done:
            self._latest.update(event)
        done_rounds, figures = self._latest.round, self._latest.text("\n")
        self._task = self._progress.add_task(self._label, total=rounds, completed=done_rounds, figures=figures)
        self._progress.start()

    def on_round(self, event: RoundEvent) -> None:
        """Move on."""
        self._latest.update(event)
        if self._task is not None:
            self._progress.update(self._task, completed=event.round, figures=self._latest.text("\n"))

    def on_end(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


class LineProgress:
    """One line a round, at most two a second; the first and the last round always get theirs."""

    def __init__(self, console: Console, label: str = "") -> None:
        self._console, self._label = console, label
        self._latest = LatestFigures()
        self._rounds = 0
        self._began = self._written = -math.inf
        self._pending = False

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Note where a resumed run goes on."""
        self._rounds, self._began = rounds, time.monotonic()
        for event in done:
            self._latest.update(event)
        if done:
            self._console.print(f"{self._prefix()}goes on after round {self._latest.round} of {rounds}", soft_wrap=True)

    def on_round(self, event: RoundEvent) -> None:
        """Write the round's line, unless the last one is too fresh."""
        self._latest.update(event)
        self._pending = True
        if time.monotonic() - self._written >= SECONDS_BETWEEN_LINES:
            self._write()

    def on_end(self) -> None:
        """Write the line of the last round if it was held back."""
        if self._pending:
            self._write()

    def _write(self) -> None:
        self._written, self._pending = time.monotonic(), False
        done = f"{self._latest.round:{len(str(self._rounds))}}/{self._rounds}"
        line = f"{self._prefix()}round {done}  {self._latest}  {self._written - self._began:.1f} s"
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _prefix(self) -> str:
        return f"{self._label}: " if self._label else ""


class CompareProgress:
    """Progress over all `total` runs of a comparison: bars on a terminal, one line a finished run in a pipe."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._done, self._failed, self._began = 0, 0, time.monotonic()
        self._running: dict[Job, tuple[LatestFigures, float]] = {}
        self._live = _bars(console, "") if console.is_terminal else None
        self._all = self._live.add_task("all runs", total=total, figures="") if self._live else TaskID(0)
        self._tasks: dict[Job, TaskID] = {}

    def __enter__(self) -> CompareProgress:
        """Begin to show."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        if self._live:
            self._live.stop()

    def found(self, count: int) -> None:
        """So many runs were finished before."""
        self._done += count
        if count:
            self._say(f"{count} of {self._total} runs are there already")
        self._show_total()

    def not_needed(self, count: int) -> None:
        """So many runs will not take place."""
        self._total -= count
        self._show_total()

    def on_begin(self, job: Job) -> None:
        """A worker took up a run."""
        latest = LatestFigures()
        self._running[job] = latest, time.monotonic()
        if self._live:
            rounds = job.settings.rounds
            self._tasks[job] = self._live.add_task(escape(job.name), total=rounds, figures=str(latest))

    def on_round(self, job: Job, event: RoundEvent) -> None:
        """It finished a round."""
        latest, _ = self._running[job]
        latest.update(event)
        if self._live:
            self._live.update(self._tasks[job], completed=event.round, figures=str(latest))

    def on_end(self, job: Job, failure: str) -> None:
        """It is over."""
        self._done += 1
        self._failed += bool(failure)
        latest, since = self._running.pop(job)
        if self._live:
            self._live.remove_task(self._tasks.pop(job))
        result = f"failed: {failure}" if failure else f"{latest.round} rounds, {latest}"
        seconds = f"{time.monotonic() - since:.1f} s"
        if failure or not self._live:
            left = f"{self._total - self._done} to go, {time.monotonic() - self._began:.0f} s so far"
            self._say(f"[{self._done}/{self._total}] {job.name}: {result}, {seconds}; {left}")
        self._show_total()

    def _show_total(self) -> None:
        if self._live:
            failed = f", {self._failed} failed" if self._failed else ""
            figures = f"{self._total - self._done} to go{failed}"
            self._live.update(self._all, total=self._total, completed=self._done, figures=figures)

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)
