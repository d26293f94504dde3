"""A crew of worker processes: each carries out one run after the other, and is replaced when it dies."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from dqnfed_flwr.compare.labour import labour
from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.telemetry.events import RoundEvent

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
END_SECONDS = 5.0


class Watcher(Protocol):
    """Told of every run, in this process."""

    def on_begin(self, job: Job) -> None:
        """A worker took up a run."""

    def on_round(self, job: Job, event: RoundEvent) -> None:
        """It settled a round, or, right after it began, had settled one before it was interrupted."""

    def on_end(self, job: Job, failure: str) -> None:
        """It is over; `failure` is empty or says why it failed."""


def carry_out(jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher) -> dict[Path, str]:
    """Carry out runs in at most `workers` processes.

    Parameters
    ----------
    jobs : Sequence[Job]
        In the order in which they begin. One with a checkpoint goes on from there.
    workers : int
        Processes, at least 1.
    engine : Engine
        Of every run.
    watcher : Watcher
        Told of what happens.

    Returns
    -------
    dict[Path, str]
        Of the failed runs: folder and reason. A run that fails, or takes its process with it, stops no other.
    """
    waiting, failures = list(jobs), dict[Path, str]()
    crew: list[_Worker] = []
    one_thread = all(job.settings.local.threads == 1 for job in jobs)
    try:
        while waiting or crew:
            while waiting and len(crew) < workers:
                crew.append(_Worker(one_thread=one_thread))
                _give(crew[-1], waiting, engine, watcher)
            for worker in _ready(crew):
                if worker.job is None or not worker.hear(watcher):
                    continue
                if worker.failure:
                    failures[worker.job.folder] = worker.failure
                if worker.alive and waiting:
                    _give(worker, waiting, engine, watcher)
                else:
                    worker.stop()
                    crew.remove(worker)
    finally:
        for worker in crew:
            worker.stop()
    return failures


def _give(worker: _Worker, waiting: list[Job], engine: Engine, watcher: Watcher) -> None:
    job = waiting.pop(0)
    watcher.on_begin(job)
    worker.give(job, engine)


def _ready(crew: Sequence[_Worker]) -> list[_Worker]:
    heard = wait([worker.connection for worker in crew])
    return [worker for worker in crew if worker.connection in heard]


class _Worker:
    """A process and the line to it, seen from here."""

    def __init__(self, *, one_thread: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.job: Job | None = None
        self.failure = ""
        self.alive = True
        self._process: SpawnProcess = context.Process(target=labour, args=(theirs,))
        with _environment(dict.fromkeys(THREADS, "1") if one_thread else {}), _deaf_to_interrupts():
            self._process.start()
        theirs.close()

    def give(self, job: Job, engine: Engine) -> None:
        """Hand over a run."""
        self.job, self.failure = job, ""
        with contextlib.suppress(OSError):  # it died; `hear` finds out
            self.connection.send((job.settings.flat(), str(job.folder), engine))

    def hear(self, watcher: Watcher) -> bool:
        """Take one message in; True if the run is over."""
        if self.job is None:
            return False
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self._process.join(END_SECONDS)
            kind, content = "end", _cause_of_death(self._process.exitcode)
        if kind == "round":
            watcher.on_round(self.job, content)
            return False
        self.failure = content
        watcher.on_end(self.job, content)
        return True

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.connection.close()
        self._process.terminate()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


def _cause_of_death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"its process was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"its process was ended by signal {-code}"
    return f"its process ended with status {code}"


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that a process started meanwhile gets."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal; those started meanwhile leave it to this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
