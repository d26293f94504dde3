"""The worker processes of a comparison: each carries out one run after the other, and is replaced when it dies.

A process keeps its libraries and the data between runs. The pools of the standard library do not fit: where a process
is killed, `ProcessPoolExecutor` gives up all runs and `multiprocessing.Pool` waits for ever.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

from dqnfed_flwr.compare.plan import LOG, Job
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.config.combinations import OBJECT
from dqnfed_flwr.data.user import holding
from dqnfed_flwr.engine.run import Engine, objects_of
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.run_files import CHECKPOINT, private_folder
from dqnfed_flwr.telemetry.events import RoundEvent

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
END_SECONDS = 5.0
WRITER = "cloudpickle"
"""The package that also writes classes and functions of a notebook, where it is installed."""


class Watcher(Protocol):
    """Follows the runs, in the process that started the workers."""

    def on_begin(self, job: Job) -> None:
        """A worker took up a run."""
        return

    def on_round(self, job: Job, event: RoundEvent) -> None:
        """It finished a round, or, right after it began, had finished one before it was interrupted."""
        return

    def on_end(self, job: Job, failure: str) -> None:
        """It is over; `failure` is empty or says why it failed."""
        return


def carry_out(
    jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher, package: Package | None = None
) -> dict[Path, str]:
    """Carry out runs, in their order, in at most `workers` >= 1 processes; one with a checkpoint goes on from there.

    `package` has the objects that the settings name.

    Returns folder and reason of the failed ones. A run that fails, or takes its process with it, stops no other.
    """
    waiting, failures = list(jobs), dict[Path, str]()
    pool: dict[Connection, _Worker] = {}
    one_thread = all(job.settings.local.threads == 1 for job in jobs)
    try:
        while waiting or pool:
            while waiting and len(pool) < workers:
                worker = _Worker(package, one_thread=one_thread)
                pool[worker.connection] = worker
                worker.begin(waiting.pop(0), engine, watcher)
            ready = wait(list(pool))
            for worker in [pool[connection] for connection in list(pool) if connection in ready]:
                if not worker.receive(watcher):
                    continue
                if worker.failure:
                    failures[worker.job.folder] = worker.failure
                if worker.alive and waiting:
                    worker.begin(waiting.pop(0), engine, watcher)
                else:
                    del pool[worker.connection]
                    worker.stop()
    finally:
        for worker in pool.values():
            worker.stop()
    return failures


class _Worker:
    """A process and the connection to it, seen from the process that started it."""

    job: Job

    def __init__(self, package: Package | None = None, *, one_thread: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.failure, self.alive = "", True
        self._process = context.Process(target=_work, args=(theirs, package))
        with _inherited(dict.fromkeys(THREADS, "1") if one_thread else {}):
            self._process.start()
        theirs.close()

    def begin(self, job: Job, engine: Engine, watcher: Watcher) -> None:
        """Hand over a run."""
        self.job = job
        watcher.on_begin(job)
        with contextlib.suppress(OSError):  # the process died; `receive` finds out
            self.connection.send((job.folder, job.settings.flat(), engine))

    def receive(self, watcher: Watcher) -> bool:
        """Take one message in; True if the run is over."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self._process.join(END_SECONDS)
            message = _cause_of_death(self._process.exitcode)
        if isinstance(message, RoundEvent):
            watcher.on_round(self.job, message)
            return False
        self.failure = message
        watcher.on_end(self.job, message)
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
    if code is None or code >= 0:
        return f"its process ended with status {code}"
    known = {int(each): each.name for each in signal.Signals}
    return f"its process was ended by {known.get(-code, f'signal {-code}')}"


@contextlib.contextmanager
def _inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """What processes started meanwhile get: these variables, and no Ctrl-C, which all processes of a terminal see."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(connection: Connection, package: Package | None = None) -> None:
    """What a worker process does: runs, until the other end is gone.

    It sends the event of each round, and at the end of each run the reason for its failure, empty if there is none.
    """
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        unfit = ""
        try:
            if package is not None:
                stack.enter_context(held_as(package))
        except Exception as error:  # whatever the user's objects do when they are read
            unfit = f"the objects given cannot be read by a worker process ({error}); give jobs=1"
        while True:
            folder, settings, engine = connection.recv()
            connection.send(unfit or failure_of(folder, settings, engine, connection))


def failure_of(folder: Path, settings: Mapping[str, Scalar], engine: Engine, sink: EventSink, jobs: int = 1) -> str:
    """Carry out one run, with everything that this process prints in its folder; the reason if it fails.

    `jobs` clients compute at the same time. Where `sink` breaks, so does the run.
    """
    try:
        private_folder(folder)
        with _output_to(folder / LOG):
            try:
                _run(folder, settings, engine, sink, jobs)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # whatever a user's model or data raise costs only their own run
                traceback.print_exc()
                return reason_of(error)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        return f"{folder}: cannot be written ({error.strerror})"
    return ""


def reason_of(error: Exception) -> str:
    """Why a run failed: the text of an error of this package, and of any other its type, too."""
    return brief(str(error) if isinstance(error, DQNFedError) else f"{type(error).__name__}: {error}")


def brief(reason: str) -> str:
    """The first and the last line of a reason, for one that holds a whole traceback."""
    lines = [" ".join(line.split()) for line in reason.splitlines() if line.strip()] or [reason]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def _run(folder: Path, flat: Mapping[str, Scalar], engine: Engine, sink: EventSink, jobs: int) -> None:
    from flwr.common.logger import update_console_handler

    logging.getLogger("flwr").setLevel(logging.WARNING)
    update_console_handler(colored=False)  # its messages go to a file
    run_into(folder, flat, engine, sink, jobs=jobs)


class EventSink(Protocol):
    """Where events of rounds are sent."""

    def send(self, event: RoundEvent, /) -> None:
        """Send one."""


def run_into(folder: Path, flat: Mapping[str, Scalar], engine: Engine, sink: EventSink, *, jobs: int) -> None:
    """Carry out one run, or go on with it from the checkpoint in its folder, and send the events of its rounds."""
    from dqnfed_flwr.client.app import forget_clients
    from dqnfed_flwr.engine.run import run
    from dqnfed_flwr.engine.run_folder import TAKEOVER_SECONDS, directory_lock

    with directory_lock(folder, TAKEOVER_SECONDS):  # the worker of a comparison that was killed ends with its round
        settings = Settings.from_mapping({**flat, "resume": (folder / CHECKPOINT).exists()})
    try:
        run(settings, engine=engine, overwrite=not settings.resume, jobs=jobs, listeners=[_Reporter(sink)])
    finally:
        forget_clients()


class _Reporter:
    """Sends the event of every round to the other end."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Send where a resumed run goes on, after the last accuracies that are known."""
        del rounds
        known = [event for event in done if event.evaluated.test][-1:]
        for event in [*known, *(event for event in done[-1:] if not event.evaluated.test)]:
            self._sink.send(event)

    def on_round(self, event: RoundEvent) -> None:
        """Send the event."""
        self._sink.send(event)

    def on_end(self) -> None:
        """Do nothing: the worker sends the end."""


@contextlib.contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Send what this process prints to a file, also from below Python."""
    saved = [(stream, os.dup(stream.fileno())) for stream in (sys.stdout, sys.stderr)]
    with file.open("ab") as target:
        for stream, _ in saved:
            os.dup2(target.fileno(), stream.fileno())
    try:
        yield
    finally:
        for stream, copy in saved:
            stream.flush()
            os.dup2(copy, stream.fileno())
            os.close(copy)


@dataclass(frozen=True, slots=True)
class Package:
    """What was given, written down, and how the settings name each of them."""

    content: bytes
    names: Mapping[str, str]


def packed(given: Mapping[str, Any], names: Mapping[str, str]) -> Package | None:
    """What was given for `task`, `data` and `model`, for other processes of this machine; None where it cannot be.

    Without `WRITER`, nothing of a notebook or of the script that was started can be written.
    """
    writer = import_module(WRITER) if find_spec(WRITER) else pickle
    if writer is pickle and any(_home(value) == "__main__" for value in given.values()):
        return None
    try:
        return Package(writer.dumps(dict(given)), dict(names))
    except Exception:  # whatever an object says to being written
        return None


@contextmanager
def held_as(package: Package) -> Iterator[None]:
    """Hold what was packed in this process, under the names that the settings have."""
    _, objects = objects_of(**pickle.loads(package.content))
    wished = {key: (package.names[key].removeprefix(OBJECT), value) for key, (_, value) in objects.items()}
    with holding(wished):
        yield


def _home(value: Any) -> str:
    return str(getattr(value, "__module__", None) or type(value).__module__)
