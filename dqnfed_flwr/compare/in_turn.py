"""The runs of a comparison one after the other in this process: for objects that no other process can be handed."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dqnfed_flwr.compare.plan import LOG, Job
from dqnfed_flwr.compare.workers import Watcher, reason_of, run_into
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.run_files import private_folder
from dqnfed_flwr.telemetry.events import RoundEvent


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
