"""A comparison from its plan to its figures: searches first, then the final runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dqnfed_flwr.compare.crew import Watcher, carry_out
from dqnfed_flwr.compare.grid import Select, Trial, choose, trial_of
from dqnfed_flwr.compare.plan import Job, Plan, each_once
from dqnfed_flwr.compare.progress import CompareProgress
from dqnfed_flwr.compare.record import read_record
from dqnfed_flwr.compare.results import Row
from dqnfed_flwr.engine.run import Engine

CarryOut = Callable[[Sequence[Job], int, Engine, Watcher], dict[Path, str]]


def conduct(
    plan: Plan,
    progress: CompareProgress,
    *,
    workers: int,
    engine: Engine,
    select: Select,
    last: int,
    carry_out: CarryOut = carry_out,
) -> list[Row]:
    """Carry out what is not there yet, and read everything back.

    Parameters
    ----------
    plan : Plan
        Checked.
    progress : CompareProgress
        Told of every run.
    workers : int
        Processes.
    engine : Engine
        Of every run.
    select : Select
        Validation figure by which a grid chooses.
    last : int
        Evaluations behind each accuracy.
    carry_out : Callable
        Carries out runs and returns the failed ones.
    """

    def finish(jobs: Sequence[Job]) -> dict[Path, str]:
        missing = [job for job in jobs if not job.finished]
        progress.found(len(jobs) - len(missing))
        return carry_out(missing, workers, engine, progress) if missing else {}

    searches = each_once(job for entry in plan.entries for job in plan.search(entry))
    failed = finish(searches)
    trials = [
        [trial_of(read_record(job, failed.get(job.folder, "")), last) for job in plan.search(entry)]
        for entry in plan.entries
    ]
    places = [choose(tried, select) if tried else 0 for tried in trials]
    finals = [
        plan.final(entry, entry.points[place]) if place is not None else []
        for entry, place in zip(plan.entries, places, strict=True)
    ]
    progress.not_needed(sum(len(plan.seeds) for jobs in finals if not jobs))
    known = {job.folder for job in searches}
    again = each_once(job for jobs in finals for job in jobs if job.folder not in known)
    progress.not_needed(sum(len(jobs) for jobs in finals) - len(again))
    failed |= finish(again)
    return [
        Row(
            entry,
            entry.points[place] if place is not None else {},
            tuple(read_record(job, failed.get(job.folder, ""), last) for job in jobs),
            tuple(tried),
            _all_failed(tried) if place is None else "",
        )
        for entry, place, jobs, tried in zip(plan.entries, places, finals, trials, strict=True)
    ]


def number_of_runs(plan: Plan) -> int:
    """How many runs a comparison has at most."""
    return sum(len(plan.search(entry)) + len(plan.seeds) for entry in plan.entries)


def _all_failed(trials: Sequence[Trial]) -> str:
    return f"every point of its grid failed; the first: {trials[0].reason}"
