"""What a worker process of a comparison does: the runs that it is given, each with its output in its own folder."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from dqnfed_flwr.compare.plan import LOG
from dqnfed_flwr.config import Scalar, Settings
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.run_files import CHECKPOINT
from dqnfed_flwr.telemetry.events import RoundEvent


def labour(line: Connection) -> None:
    """What a worker process does: runs, until nobody sends any more."""
    with contextlib.suppress(EOFError, OSError):  # the other end is gone
        while True:
            settings, folder, engine = line.recv()
            line.send(("end", run_in(Path(folder), settings, engine, line)))


def run_in(folder: Path, settings: Mapping[str, Scalar], engine: Engine, line: Connection) -> str:
    """Carry out one run, with everything it prints in its folder; the reason if it fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _output_to(folder / LOG):
            try:
                _run(folder, settings, engine, line)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except DQNFedError as error:
                traceback.print_exc()
                return brief(str(error))
            except Exception as error:  # whatever a user's model or data raise costs only their own run
                traceback.print_exc()
                return brief(f"{type(error).__name__}: {error}")
    except (BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        return f"{folder}: cannot be written ({error.strerror})"
    return ""


def brief(reason: str) -> str:
    """The first and the last line of a reason, for one that holds a whole traceback."""
    lines = [" ".join(line.split()) for line in reason.splitlines() if line.strip()] or [reason]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ... {lines[-1]}"


def _run(folder: Path, flat: Mapping[str, Scalar], engine: Engine, line: Connection) -> None:
    from dqnfed_flwr.client.app import forget_clients
    from dqnfed_flwr.engine.run import run
    from dqnfed_flwr.engine.run_folder import TAKEOVER_SECONDS, directory_lock

    logging.getLogger("flwr").setLevel(logging.WARNING)
    with directory_lock(folder, TAKEOVER_SECONDS):  # the worker of a comparison that was killed ends with its round
        settings = Settings.from_mapping({**flat, "resume": (folder / CHECKPOINT).exists()})
    try:
        run(settings, engine=engine, overwrite=not settings.resume, jobs=1, listeners=[_Reporter(line)])
    finally:
        forget_clients()


class _Reporter:
    """Sends every round to the other end, without what nobody looks at there."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Tell where a resumed run goes on, after the last accuracies that are known."""
        del rounds
        known = [event for event in done if event.accuracy][-1:]
        for event in [*known, *(event for event in done[-1:] if not event.accuracy)]:
            self._line.send(("round", event))

    def on_round(self, event: RoundEvent) -> None:
        """Tell of a round."""
        self._line.send(("round", event))

    def on_end(self) -> None:
        """The end is told by the worker."""


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
