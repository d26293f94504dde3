"""`compare`: one call from Python to a comparison, and what `dqnfed compare` shares with it."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dqnfed_flwr.compare.execute import CarryOut, How, Progress, execute
from dqnfed_flwr.compare.files import as_json, write_files
from dqnfed_flwr.compare.plan import LOG, Job, Plan, make_plan
from dqnfed_flwr.compare.record import Select
from dqnfed_flwr.compare.results import Comparison, reference_of
from dqnfed_flwr.compare.row_specs import RowSpec
from dqnfed_flwr.compare.tables import markdown, tables
from dqnfed_flwr.compare.workers import Watcher, carry_out, packed, reason_of, run_into
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.data.own_folder import own_settings
from dqnfed_flwr.data.user import holding
from dqnfed_flwr.engine.run import Engine, objects_of
from dqnfed_flwr.engine.run_folder import directory_lock
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.run_files import private_folder
from dqnfed_flwr.telemetry.events import RoundEvent

if TYPE_CHECKING:
    from dqnfed_flwr.engine.run import GivenData, GivenModel, GivenTask


logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Compared:
    """A comparison that took place; printed, it is its tables.

    Attributes
    ----------
    comparison : Comparison
        Rows, runs and figures.
    figures : dict[str, Any]
        All figures, as `comparison.json` holds them.
    files : list[Path]
        What was written next to the runs.
    """

    comparison: Comparison
    figures: dict[str, Any]
    files: list[Path]

    def __str__(self) -> str:
        """The tables, in Markdown."""
        return markdown(tables(self.comparison))

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return str(self)


def compare(
    config: Settings | Mapping[str, Any] | str | Path,
    methods: str | Sequence[str] = "dqn-fed,fedavg",
    *,
    seeds: str | Sequence[int] = (0, 1, 2),
    output: str | Path = "runs/compare",
    jobs: int = 1,
    task: GivenTask = None,
    data: GivenData = None,
    model: GivenModel = None,
    grids: Sequence[str] = (),
    select: Select = "mean",
    reference: str | None = None,
    last: int = 1,
) -> Compared:
    """Compare methods on the same clients over several seeds.

    Parameters
    ----------
    config : Settings | Mapping | str | Path
        What all rows share, as `run` takes it; method, seed and output in it are ignored.
    methods, seeds : str | Sequence
        Rows and seeds, as on the command line or one by one.
    output : str | Path
        Folder of the results. The same call again goes on where it was interrupted.
    jobs : int
        1 carries out all runs in this process. More are that many processes of this machine; objects are handed to
        them where they can be pickled. A script that asks for them begins below `if __name__ == "__main__"`.
    task, data, model
        Objects, as `run` takes them.
    grids : Sequence[str]
        Each `KEY=V1,V2`: settings to choose by validation samples.
    select, reference, last
        As `--select`, `--reference` and `--last`.

    Returns
    -------
    Compared
        Rows, figures and files; printed, the tables.

    Raises
    ------
    ConfigError
        If settings or rows are at fault, or the folder holds another comparison.
    RunError
        If every run failed.
    """
    since, directory = time.perf_counter(), Path(output).expanduser().resolve()
    given = {"task": task, "data": data, "model": model}
    names, objects = objects_of(task=task, data=data, model=model)
    with ExitStack() as stack:
        held = stack.enter_context(holding(objects))
        stack.enter_context(directory_lock(directory))
        flat = {**_flat(config), **names, **held}
        plan = make_plan(flat, _joined(methods), _joined(seeds), directory, grids)
        carrier = _carrier({key: given[key] for key in held}, held, jobs)
        how = How("compare(...) from Python", jobs, carrier, select=select, last=last, since=since)
        compared = carried_out(plan, reference_of(plan, reference), _Quiet(), how)
    if not any(row.good for row in compared.comparison.rows):
        raise RunError(f"every run failed; the first: {compared.comparison.rows[0].reason}")
    return compared


def carried_out(plan: Plan, reference: RowSpec | None, progress: Progress, how: How) -> Compared:
    """Carry out the runs of a plan, and write tables and figures into its folder."""
    comparison = Comparison(plan, execute(plan, progress, how), reference, how.select, how.last)
    figures = as_json(comparison, how.command, time.perf_counter() - how.since)
    return Compared(comparison, figures, write_files(plan.directory, comparison, figures, tables(comparison)))


def _flat(config: Settings | Mapping[str, Any] | str | Path) -> dict[str, Scalar]:
    """Dotted keys, unchecked; of `Settings` those that are not at their default, as nobody can tell who set them."""
    if isinstance(config, Settings):
        defaults = Settings().flat()
        return {key: value for key, value in config.flat().items() if value != defaults[key]}
    return own_settings(config)


def _joined(values: str | Sequence[object]) -> str:
    """As the command line has them."""
    return values if isinstance(values, str) else ",".join(map(str, values))


def _carrier(given: Mapping[str, Any], names: Mapping[str, str], jobs: int) -> CarryOut:
    """What carries out the runs: this process, or others that are handed the objects."""
    if jobs <= 1:
        return carry_out_in_turn
    if not given:
        return carry_out
    package = packed(given, names)
    if package is None:
        logger.warning(
            "%s cannot be pickled, so that the runs go on one after the other in this process; put the class or "
            "function into a module for jobs=%d",
            ", ".join(given),
            jobs,
        )
        return carry_out_in_turn
    return partial(carry_out, package=package)


class _Quiet(Progress):
    """Follows a comparison and says only what failed."""

    def on_end(self, job: Job, failure: str) -> None:
        """Say why it failed."""
        if failure:
            logger.warning("%s failed: %s", job.name, failure)


def carry_out_in_turn(jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher) -> dict[Path, str]:
    """As `workers.carry_out`, in this process; a run that fails stops no other, and `log.txt` in its folder says why.

    The log of Flower is quiet meanwhile.
    """
    del workers
    logger, failures = logging.getLogger("flwr"), dict[Path, str]()
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        for job in jobs:
            watcher.on_begin(job)
            failure = _failure_of(job, engine, watcher)
            if failure:
                failures[job.folder] = failure
            watcher.on_end(job, failure)
    finally:
        logger.setLevel(before)
    return failures


def _failure_of(job: Job, engine: Engine, watcher: Watcher) -> str:
    try:
        private_folder(job.folder)
        run_into(job.folder, job.settings.flat(), engine, _ToWatcher(job, watcher), jobs=0)
    except OSError as error:
        return f"{job.folder}: cannot be written ({error.strerror})"
    except Exception as error:  # whatever a user's model or data raise costs only their own run
        with suppress(OSError):  # a full disk, say, which is told where it matters
            (job.folder / LOG).write_text(traceback.format_exc(), "utf-8")
        return reason_of(error)
    return ""


class _ToWatcher:
    """Hands the events of a run to the watcher."""

    def __init__(self, job: Job, watcher: Watcher) -> None:
        self._job, self._watcher = job, watcher

    def send(self, event: RoundEvent, /) -> None:
        """Hand one over."""
        self._watcher.on_round(self._job, event)
