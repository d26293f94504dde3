"""A comparison from its plan to its rows: searches first, then the final runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dqnfed_flwr.compare.plan import Job, Plan, each_once
from dqnfed_flwr.compare.record import Select, choose, read_record, trial_of
from dqnfed_flwr.compare.results import Row
from dqnfed_flwr.compare.workers import Watcher, carry_out
from dqnfed_flwr.engine.run import Engine, usable_cores

CarryOut = Callable[[Sequence[Job], int, Engine, Watcher], dict[Path, str]]


class Progress(Watcher, Protocol):
    """Follows the whole comparison."""

    def found(self, count: int) -> None:
        """So many runs were finished before."""
        return

    def not_needed(self, count: int) -> None:
        """So many runs will not take place."""
        return


@dataclass(frozen=True, slots=True)
class How:
    """How the runs of a plan are carried out and judged.

    Attributes
    ----------
    command : str
        The one that goes on after an interrupt.
    jobs : int | None
        Runs at a time; None for one a core, or all that a cluster takes.
    elsewhere : CarryOut | None
        What carries them out in place of processes of this machine.
    select, last
        What a grid chooses by, and how many evaluations stand behind a figure.
    since : float
        When it began.
    """

    command: str
    jobs: int | None = None
    elsewhere: CarryOut | None = None
    engine: Engine = "in-process"
    select: Select = "mean"
    last: int = 1
    since: float = field(default_factory=time.perf_counter)

    def workers(self, most: int) -> int:
        """Runs at a time of a plan that has at `most` so many."""
        return self.jobs or (most if self.elsewhere else usable_cores())


def execute(plan: Plan, progress: Progress, how: How) -> list[Row]:
    """Carry out what is not there yet, and read everything back, a row for each of the plan."""

    def finish(jobs: Sequence[Job]) -> dict[Path, str]:
        missing = [job for job in jobs if not job.finished]
        progress.found(len(jobs) - len(missing))
        workers = how.workers(plan.most_runs)
        return (how.elsewhere or carry_out)(missing, workers, how.engine, progress) if missing else {}

    searches = [plan.search(spec) for spec in plan.specs]
    searched = each_once(job for jobs in searches for job in jobs)
    failed = finish(searched)
    trials = [
        tuple(trial_of(read_record(job, failed.get(job.folder, "")), how.last) for job in jobs) for jobs in searches
    ]
    places = [choose(tried, how.select) if tried else 0 for tried in trials]
    points = [None if place is None else spec.points[place] for spec, place in zip(plan.specs, places, strict=True)]
    finals = [[] if point is None else plan.final(spec, point) for spec, point in zip(plan.specs, points, strict=True)]
    progress.not_needed(sum(len(plan.seeds) for jobs in finals if not jobs))
    known = {job.folder for job in searched}
    again = each_once(job for jobs in finals for job in jobs if job.folder not in known)
    progress.not_needed(sum(len(jobs) for jobs in finals) - len(again))
    failed |= finish(again)
    return [
        Row(
            spec,
            point or {},
            tuple(read_record(job, failed.get(job.folder, ""), how.last) for job in jobs),
            tried,
            f"every point of its grid failed; the first: {tried[0].reason}" if point is None else "",
        )
        for spec, point, jobs, tried in zip(plan.specs, points, finals, trials, strict=True)
    ]
