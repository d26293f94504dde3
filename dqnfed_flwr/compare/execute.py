"""A comparison from its plan to its rows: searches first, then the final runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from dqnfed_flwr.compare.plan import Job, Plan, each_once
from dqnfed_flwr.compare.record import Select, choose, read_record, trial_of
from dqnfed_flwr.compare.results import Row
from dqnfed_flwr.compare.workers import Watcher, carry_out
from dqnfed_flwr.engine.run import Engine

CarryOut = Callable[[Sequence[Job], int, Engine, Watcher], dict[Path, str]]


class Progress(Watcher, Protocol):
    """Follows the whole comparison."""

    def found(self, count: int) -> None:
        """So many runs were finished before."""
        return

    def not_needed(self, count: int) -> None:
        """So many runs will not take place."""
        return


def execute(
    plan: Plan,
    progress: Progress,
    *,
    workers: int,
    engine: Engine,
    select: Select,
    last: int,
    carry_out: CarryOut = carry_out,
) -> list[Row]:
    """Carry out what is not there yet in so many processes, and read everything back, a row for each of the plan.

    A grid chooses by the validation figure `select`; `last` evaluations stand behind each accuracy.
    """

    def finish(jobs: Sequence[Job]) -> dict[Path, str]:
        missing = [job for job in jobs if not job.finished]
        progress.found(len(jobs) - len(missing))
        return carry_out(missing, workers, engine, progress) if missing else {}

    searches = [plan.search(spec) for spec in plan.specs]
    searched = each_once(job for jobs in searches for job in jobs)
    failed = finish(searched)
    trials = [tuple(trial_of(read_record(job, failed.get(job.folder, "")), last) for job in jobs) for jobs in searches]
    places = [choose(tried, select) if tried else 0 for tried in trials]
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
            tuple(read_record(job, failed.get(job.folder, ""), last) for job in jobs),
            tried,
            f"every point of its grid failed; the first: {tried[0].reason}" if point is None else "",
        )
        for spec, point, jobs, tried in zip(plan.specs, points, finals, trials, strict=True)
    ]
