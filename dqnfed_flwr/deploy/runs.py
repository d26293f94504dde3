"""Runs on a SuperLink: start, list, follow, stop. Flower's own commands do the work; what they leave unsaid is added.

`flwr run --stream` and `flwr log` end with 0 whatever became of the run. Here the SuperLink is asked for the run's
state, and what a log says of clients that failed is shown once more at the end.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dqnfed_flwr.config import KNOWN, Scalar, Settings, check_for_nodes
from dqnfed_flwr.data.sources import paths_in
from dqnfed_flwr.deploy.superlink import AwayError, SuperLink, UnsureError, ask, kind_of
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.errors import ConfigError, RunError

COMPLETED, STOPPED = "finished:completed", "finished:stopped"
NO_LOG_YET = ("pending", "starting")
"""States in which Flower would keep a call for the log until there is one."""
PENDING_SECONDS = 30.0
"""After which whoever follows a run that does not begin is told what may be missing."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
NEWS_PAUSE, QUIET_PAUSE = 4.0, 10.0
"""Longest pauses while a run is followed, after new lines and without: each call of `flwr` costs a second of a core."""
GIVE_UP_SECONDS = 600.0
"""How long a SuperLink may be away while a run is followed; a restart takes seconds."""
T = TypeVar("T")


def server_settings(flat: Mapping[str, Scalar], output: str, *, resume: bool) -> Settings:
    """Settings of a run elsewhere, whose paths are the server's and the devices'.

    Raises
    ------
    ConfigError
        If a path is relative, a run is to be resumed without an output folder, or the settings are of the in-process
        engine alone.
    """
    keys = {**flat, **({"output": output} if output else {}), **({"resume": True} if resume else {})}
    settings = Settings.from_mapping(keys)
    check_for_nodes(settings)
    for key in (key for key, known in KNOWN.items() if known.path):
        if (found := str(settings.flat().get(key, ""))) and not found.startswith("/"):
            raise ConfigError(f"{key}: found {found!r}; the run is on another machine: give an absolute path there")
    if not all(path.is_absolute() for path in paths_in(settings.data)):
        raise ConfigError(f"data: found {settings.data!r}; clients look for it: give an absolute path on the devices")
    if settings.resume and not settings.output:
        raise ConfigError("--resume needs --output, the folder on the server that holds the checkpoint")
    return settings


def check_number(run_id: str) -> None:
    """Refuse what is no number of a run.

    Raises
    ------
    ConfigError
        If so.
    """
    if not (run_id.isascii() and run_id.isdigit()):
        raise ConfigError(f"RUN: found {run_id!r}; give the number that `dqnfed submit` and `dqnfed runs` show")


def submit(link: SuperLink, settings: Settings) -> str:
    """Start a run; Flower's id for it.

    Raises
    ------
    RunError
        If the SuperLink does not answer or refuses it. One that may have started the run all the same is not asked
        again by `patiently`.
    """
    with tempfile.TemporaryDirectory(prefix="dqnfed-") as place:
        write_app(Path(place) / "app", settings)
        try:
            return str(ask(link, "run", str(Path(place) / "app"), link.connection)["run-id"])
        except UnsureError as error:
            raise RunError(f"{error}. The run may have been started: look with `dqnfed runs` before a repeat") from None


def runs(link: SuperLink) -> list[dict[str, Any]]:
    """All runs that the SuperLink knows, the newest last.

    Raises
    ------
    RunError
        If it does not answer.
    """
    found: list[dict[str, Any]] = ask(link, "list", link.connection)["runs"]
    return sorted(found, key=lambda run: str(run.get("pending-at", "")))


def stop(link: SuperLink, run_id: str) -> None:
    """Stop a run.

    Raises
    ------
    RunError
        If there is no such run, or it is over.
    """
    ask(link, "stop", run_id, link.connection)


def record_of(link: SuperLink, run_id: str) -> dict[str, Any]:
    """What Flower says of a run.

    Raises
    ------
    RunError
        If the SuperLink does not answer, or knows no such run.
    """
    record: dict[str, Any] = ask(link, "list", link.connection, "--run-id", run_id)["runs"][0]
    return record


def waiting(record: Mapping[str, Any]) -> str:
    """What is to be said of a run that has no log yet."""
    return f"run {record['run-id']} is {record['status']}; if it stays so, see that the server's SuperExec is running"


def log_of(link: SuperLink, run_id: str) -> str:
    """What a run has logged by now.

    Raises
    ------
    RunError
        If the SuperLink does not answer.
    """
    try:
        return link.flwr("log", run_id, link.connection, "--show")
    except RunError as error:
        raise kind_of(error)(str(error)) from None


def patiently(ask: Callable[[], T]) -> T:
    """What `ask` answers, asked again as long as the SuperLink is away or overloaded, be it some minutes.

    Raises
    ------
    RunError
        If it stays away, or refuses.
    """
    pause, since = FIRST_PAUSE, time.monotonic()
    while True:
        try:
            return ask()
        except AwayError:
            if time.monotonic() - since > GIVE_UP_SECONDS:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def follow(link: SuperLink, run_id: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Show a run's log as it grows, until the run is over; what Flower says of it then.

    The log is asked for again and again and lines that were shown are left out: a stream would keep the SuperLink from
    ending until the run is over.

    Raises
    ------
    RunError
        If the SuperLink stays away, or knows no such run.
    """
    tail, begun, told, pause = _Tail(show), False, False, FIRST_PAUSE
    since = heard = time.monotonic()
    while True:
        news = False
        try:
            news = begun and tail.take(log_of(link, run_id), whole=False)
            if not news:
                record = record_of(link, run_id)
                if str(record["status"]).startswith("finished"):
                    tail.take(log_of(link, run_id), whole=True)
                    return record
                begun = record["status"] not in NO_LOG_YET
                if not (begun or told) and time.monotonic() - since > PENDING_SECONDS:
                    show(waiting(record))
                    told = True
            heard = time.monotonic()
        except AwayError as error:
            if time.monotonic() - heard > GIVE_UP_SECONDS:
                raise RunError(f"the SuperLink is away for {GIVE_UP_SECONDS:.0f} s. {error}") from None
        time.sleep(pause)
        pause = min(2 * pause, NEWS_PAUSE if news else QUIET_PAUSE)


class _Tail:
    """Shows a log that is read from its beginning each time: every line once, and none before it is complete."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._shown = show, 0

    def take(self, text: str, *, whole: bool) -> bool:
        """Show what is new in what `flwr log --show` printed; whether there was anything.

        Parameters
        ----------
        text : str
            The log, and the end of line that Flower puts after it.
        whole : bool
            Nothing comes after it: its last line is complete, too.
        """
        *lines, last = text.removesuffix("\n").split("\n")
        if whole and last:
            lines.append(last)
        new, self._shown = lines[self._shown :], max(self._shown, len(lines))
        for line in new:
            self._show(line)
        return bool(new)
