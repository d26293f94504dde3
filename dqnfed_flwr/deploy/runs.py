"""Runs on a SuperLink: start, list, follow, stop. Flower's own commands do the work; what they leave unsaid is added.

`flwr run --stream` and `flwr log` end with 0 whatever became of the run. Here the SuperLink is asked for the run's
state, and what a log says of clients that failed is shown once more at the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dqnfed_flwr.config import Scalar, Settings, check_for_nodes
from dqnfed_flwr.data.sources import paths_in
from dqnfed_flwr.deploy.files import is_there
from dqnfed_flwr.deploy.plan import CONNECTION, PLAN
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.engine.flwr_command import FlwrCommand, TimedOutError, flwr_environment, program
from dqnfed_flwr.errors import ConfigError, RunError

COMPLETED, STOPPED = "finished:completed", "finished:stopped"
PATHS = ("output", "metrics", "start.model")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
GIVE_UP_SECONDS = 600.0
"""How long a SuperLink may be away while a run is followed; a restart takes seconds."""
MOST_COMPLAINTS = 12
LOST = ("No heartbeat received", "Task failed with unknown error")
"""What Flower says of a run whose ServerApp was killed, or was ended because its SuperExec was."""
NO_CHECKPOINT = "no checkpoint there"
UNAVAILABLE = "is unavailable"
SERVER_ERRORS = ("Server error '5", "Internal server error")
"""Flower's words for an answer with a status of 500 or more: that of a gate before the SuperLink, and its own."""
T = TypeVar("T")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(r"is left out: |does not take part: |usable replies|clients came within|Error\b: ")


@dataclass(frozen=True, slots=True)
class SuperLink:
    """A connection to a SuperLink.

    Attributes
    ----------
    flwr : FlwrCommand
        Flower's command, which finds the connection.
    connection : str
        Its name.
    """

    flwr: FlwrCommand
    connection: str


def connect(place: str) -> SuperLink:
    """The connection that `place` means: the folder of a federation, or a name in Flower's own config.toml.

    Raises
    ------
    ConfigError
        If it looks like a folder, but there is no federation, or it is another user's.
    """
    folder = Path(place).expanduser()
    if is_there(folder / PLAN):
        return SuperLink(FlwrCommand(flwr_environment(folder.absolute() / "operator")), CONNECTION)
    if os.sep in place or folder.is_dir():
        raise ConfigError(f"{place}: no {PLAN} there; name the folder of `dqnfed deploy init`, or a Flower connection")
    return SuperLink(FlwrCommand(flwr_environment()), place)


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
    for key in PATHS:
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
            return str(_ask(link, "run", str(Path(place) / "app"), link.connection)["run-id"])
        except _UnsureError as error:
            raise RunError(f"{error}. The run may have been started: look with `dqnfed runs` before a repeat") from None


def runs(link: SuperLink) -> list[dict[str, Any]]:
    """All runs that the SuperLink knows, the newest last.

    Raises
    ------
    RunError
        If it does not answer.
    """
    found: list[dict[str, Any]] = _ask(link, "list", link.connection)["runs"]
    return sorted(found, key=lambda run: str(run.get("pending-at", "")))


def stop(link: SuperLink, run_id: str) -> None:
    """Stop a run.

    Raises
    ------
    RunError
        If there is no such run, or it is over.
    """
    _ask(link, "stop", run_id, link.connection)


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
        raise _kind(error)(str(error)) from None


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
        except _AwayError:
            if time.monotonic() - since > GIVE_UP_SECONDS:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def follow(link: SuperLink, run_id: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Show a run's log as it grows, until the run is over; what Flower says of it then.

    The log is read anew where the SuperLink was away in between, and lines that were shown are left out.

    Raises
    ------
    RunError
        If the SuperLink stays away, or knows no such run.
    """
    shown, pause, heard = 0, FIRST_PAUSE, time.monotonic()
    while True:
        number = 0
        for number, line in enumerate(_stream(link, run_id), start=1):
            if number > shown:
                show(line)
        shown = max(shown, number)
        try:
            record: dict[str, Any] = _ask(link, "list", link.connection, "--run-id", run_id)["runs"][0]
            if str(record["status"]).startswith("finished"):
                return record
            heard = time.monotonic()
        except _AwayError as error:
            if time.monotonic() - heard > GIVE_UP_SECONDS:
                raise RunError(f"the SuperLink is away for {GIVE_UP_SECONDS:.0f} s. {error}") from None
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not complete.

    Attributes
    ----------
    run_id : str
        Flower's.
    record : dict[str, Any]
        What Flower says of it.
    log : str
        What it has logged.
    """

    run_id: str
    record: dict[str, Any]
    log: str

    @property
    def words(self) -> str:
        """Why, in Flower's words and in those of the clients."""
        details = str(self.record.get("status-details") or "").strip() or "the SuperLink gives no reason"
        complaints = (f"  {line}" for line in complaints_in(self.log))
        return "\n".join([f"run {self.run_id} ended as {self.record['status']}: {details}", *complaints])

    def next_settings(self, settings: Settings) -> Settings | None:
        """Settings of the run that goes on after this one; None where going on would end in the same way.

        A ServerApp that was lost with its process goes on from its checkpoint. If it was lost before the first one, and
        nobody but us asked for that, it begins anew.

        Parameters
        ----------
        settings : Settings
            As the operator gave them.
        """
        details = str(self.record.get("status-details"))
        if any(words in details for words in LOST):
            return Settings.from_mapping({**settings.flat(), "resume": True})
        return settings if NO_CHECKPOINT in details and not settings.resume else None


def complaints_in(log: str) -> list[str]:
    """Lines of a log that tell of clients left out and of errors, each once, the last ones."""
    plain = (_STYLE.sub("", line).strip() for line in log.splitlines())
    found = dict.fromkeys(line for line in plain if _COMPLAINT.search(line))
    return list(found)[-MOST_COMPLAINTS:]


class _AwayError(RunError):
    """The SuperLink cannot be reached, which may pass."""


class _UnsureError(_AwayError):
    """It was reached and gave no answer, or an error of its own: it may have done what it was asked."""


def _kind(error: RunError) -> type[RunError]:
    """What a failure of Flower's command means."""
    if isinstance(error, TimedOutError) or _blames_server(str(error)):
        return _UnsureError
    return _AwayError if UNAVAILABLE in str(error) else RunError


def _blames_server(words: str) -> bool:
    return any(error in words for error in SERVER_ERRORS)


def _ask(link: SuperLink, *arguments: str) -> dict[str, Any]:
    """What Flower's command answers, where it answers with success; the last line of its complaint says most.

    That of a server error only names a page on the web; there the line with the status is shown.
    """
    try:
        answer = link.flwr.json(*arguments)
    except RunError as error:
        raise _kind(error)(str(error)) from None
    if answer.get("success"):
        return answer
    told = [line.strip() for line in str(answer.get("error-message") or answer).splitlines() if line.strip()]
    said = " ".join(word for word in arguments if os.sep not in word)
    most = next(filter(_blames_server, told), told[-1] if told else "failed without a reason")
    words = f"flwr {said}: {most}"
    if "not found in the Flower configuration file" in words:
        raise ConfigError(f"{words} CONNECTION may also be the folder of `dqnfed deploy init`")
    raise _kind(RunError(words))(words)


def _stream(link: SuperLink, run_id: str) -> Iterator[str]:
    """Lines of the log until it ends, or the connection does."""
    command = [program("flwr"), "log", run_id, link.connection, "--stream"]
    environment = {**link.flwr.environment, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    )
    try:
        for line in process.stdout or ():
            yield line.rstrip("\n")
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
