"""Progress over all runs: bars on a terminal, one line a finished run in a pipe."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.report.progress import Standing
from dqnfed_flwr.telemetry.events import RoundEvent


class CompareProgress:
    """Shows where a comparison stands.

    Parameters
    ----------
    console : Console
        Where to.
    total : int
        Runs in all.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._done, self._failed, self._began = 0, 0, time.monotonic()
        self._standings: dict[Job, tuple[Standing, float]] = {}
        self._live = _bars(console) if console.is_terminal else None
        self._all = self._live.add_task("all runs", total=total, standing="") if self._live else TaskID(0)
        self._tasks: dict[Job, TaskID] = {}

    def __enter__(self) -> CompareProgress:
        """Begin to show."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._standings[job] = Standing(), time.monotonic()
        if self._live:
            self._tasks[job] = self._live.add_task(
                escape(job.name), total=job.settings.rounds, standing=str(Standing())
            )

    def on_round(self, job: Job, event: RoundEvent) -> None:
        """It finished a round."""
        standing, _ = self._standings[job]
        standing.update(event)
        if self._live:
            self._live.update(self._tasks[job], completed=event.round, standing=str(standing))

    def on_end(self, job: Job, failure: str) -> None:
        """It is over."""
        self._done += 1
        self._failed += bool(failure)
        standing, since = self._standings.pop(job)
        if self._live:
            self._live.remove_task(self._tasks.pop(job))
        result = f"failed: {failure}" if failure else f"{standing.round} rounds, {standing}"
        seconds = f"{time.monotonic() - since:.1f} s"
        if failure or not self._live:
            left = f"{self._total - self._done} to go, {time.monotonic() - self._began:.0f} s so far"
            self._say(f"[{self._done}/{self._total}] {job.name}: {result}, {seconds}; {left}")
        self._show_total()

    def _show_total(self) -> None:
        if self._live:
            failed = f", {self._failed} failed" if self._failed else ""
            standing = f"{self._total - self._done} to go{failed}"
            self._live.update(self._all, total=self._total, completed=self._done, standing=standing)

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[standing]}"),
        TimeElapsedColumn(),
        console=console,
    )
