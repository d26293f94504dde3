"""Runs on a SuperLink: start, list, follow, stop. Flower's own commands do the work; what they leave unsaid is added.

`flwr run --stream` and `flwr log` end with 0 whatever became of the run. Here the SuperLink is asked for the run's
state, and what a log says of clients that failed is shown once more at the end. All that ask it raise `RunError` where
it refuses or knows no such run, and `AwayError`, which is one, where it does not answer.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dqnfed_flwr.config import KNOWN, Scalar, Settings, check_for_nodes
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.deploy import apps
from dqnfed_flwr.deploy.files import is_there
from dqnfed_flwr.deploy.plan import PLAN
from dqnfed_flwr.deploy.superlink import AwayError, SuperLink, UnsureError
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.errors import ConfigError, RunError

COMPLETED = "finished:completed"
NO_LOG_YET = ("pending", "starting")
"""States in which Flower would keep a call for the log until there is one."""
PENDING_SECONDS = 30.0
"""After which a follower of a run that does not begin reads what may be missing."""
FIRST_PAUSE = 1.0
NEWS_PAUSE, QUIET_PAUSE = 4.0, 10.0
"""Longest pauses while a run is followed, after new lines and without: each call of `flwr` costs a second of a core."""
GIVE_UP_SECONDS = 600.0
"""How long a SuperLink may be away while a run is followed; a restart takes seconds."""
MOST_COMPLAINTS = 12
LOST = ("No heartbeat received", "Task failed with unknown error")
"""What Flower says of a run whose ServerApp was killed, or was ended because its SuperExec was."""
NO_CHECKPOINT = "no checkpoint there"
NO_DETAILS = "N/A"
"""What Flower says of a run's end where it has nothing to say."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_COMPLAINT = re.compile(
    r"is left out: |does not take part: |usable replies|clients came within|clients can take part|Error\b: "
)


def server_settings(flat: Mapping[str, Scalar], output: str, *, resume: bool) -> Settings:
    """Settings of a run elsewhere, whose paths are the server's and the devices'.

    `ConfigError` if a path is relative, `resume` has no output folder, or a setting is the in-process engine's alone.
    """
    keys = {**flat, **({"output": output} if output else {}), **({"resume": True} if resume else {})}
    settings = Settings.from_mapping(keys)
    check_for_nodes(settings)
    for key in (key for key, known in KNOWN.items() if known.path):
        if (found := str(settings.flat().get(key, ""))) and not found.startswith("/"):
            raise ConfigError(f"{key}: found {found!r}; the run is on another machine: give an absolute path there")
    if not all(path.is_absolute() for path in source_of(settings.data).paths):
        raise ConfigError(f"data: found {settings.data!r}; clients look for it: give an absolute path on the devices")
    if settings.resume and not settings.output:
        raise ConfigError("--resume needs --output, the folder on the server that holds the checkpoint")
    return settings


def check_number(run_id: str) -> None:
    """Refuse what is no number of a run, with a `ConfigError`."""
    if not (run_id.isascii() and run_id.isdigit()):
        raise ConfigError(f"RUN: found {run_id!r}; give the number that `dqnfed submit` and `dqnfed runs` show")


def submit(link: SuperLink, settings: Settings) -> str:
    """Start a run; Flower's id for it.

    Where the SuperLink may have started it all the same, the error is no `AwayError`, so that `patiently` does not ask
    again.
    """
    with tempfile.TemporaryDirectory(prefix="dqnfed-") as place:
        write_app(Path(place) / "app", settings)
        try:
            return str(link.ask("run", str(Path(place) / "app"), link.connection)["run-id"])
        except UnsureError as error:
            raise RunError(f"{error}. The run may have been started: look with `dqnfed runs` before a repeat") from None


def not_allowed(place: str) -> str:
    """What is to be said where a federation's folder lists nodes that do not run this package's app as it is now."""
    folder = Path(place).expanduser()
    if not is_there(folder / PLAN):
        return ""
    found = apps.own_hash()
    names = apps.untold(folder, found)
    if not names:
        return ""
    return (
        f"{', '.join(names)} may refuse this app, which is not on the lists here. On each device, with the folder of "
        f"its node: dqnfed deploy allow DIR {found}"
    )


def runs(link: SuperLink) -> list[dict[str, Any]]:
    """All runs that the SuperLink knows, the newest last."""
    found: list[dict[str, Any]] = link.ask("list", link.connection)["runs"]
    return sorted(found, key=lambda run: str(run.get("pending-at", "")))


def stop(link: SuperLink, run_id: str) -> None:
    """Stop a run that is not over."""
    link.ask("stop", run_id, link.connection)


def record_of(link: SuperLink, run_id: str) -> dict[str, Any]:
    """What Flower says of a run."""
    record: dict[str, Any] = link.ask("list", link.connection, "--run-id", run_id)["runs"][0]
    return record


def log_of(link: SuperLink, run_id: str) -> str:
    """What a run has logged by now."""
    return link.text("log", run_id, link.connection, "--show")


def waiting(record: Mapping[str, Any]) -> str:
    """What is to be said of a run that has no log yet."""
    return f"run {record['run-id']} is {record['status']}; if it stays so, see that the server's SuperExec is running"


def follow(link: SuperLink, run_id: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Show a run's log as it grows, until the run is over; what Flower says of it then.

    The log is asked for again and again and lines that were shown are left out: a stream would keep the SuperLink from
    ending until the run is over. A SuperLink may be away for `GIVE_UP_SECONDS`.
    """
    shown, begun, warned, pause = 0, False, False, FIRST_PAUSE
    since = heard = time.monotonic()
    while True:
        before = shown
        try:
            if begun:
                shown = _show_new(log_of(link, run_id), shown, show, whole=False)
            if shown == before:
                record = record_of(link, run_id)
                if str(record["status"]).startswith("finished"):
                    _show_new(log_of(link, run_id), shown, show, whole=True)
                    return record
                begun = record["status"] not in NO_LOG_YET
                if not (begun or warned) and time.monotonic() - since > PENDING_SECONDS:
                    show(waiting(record))
                    warned = True
            heard = time.monotonic()
        except AwayError as error:
            if time.monotonic() - heard > GIVE_UP_SECONDS:
                raise RunError(f"the SuperLink is away for {GIVE_UP_SECONDS:.0f} s. {error}") from None
        time.sleep(pause)
        pause = min(2 * pause, NEWS_PAUSE if shown > before else QUIET_PAUSE)


def _show_new(text: str, shown: int, show: Callable[[str], None], *, whole: bool) -> int:
    """Show the lines of a log after the first `shown`, each when it is complete; how many are shown then.

    `text` is the log and the end of line that `flwr log --show` puts after it; if it is `whole`, its last line is
    complete, too.
    """
    *lines, last = text.removesuffix("\n").split("\n")
    if whole and last:
        lines.append(last)
    for line in lines[shown:]:
        show(line)
    return max(shown, len(lines))


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that did not complete: Flower's id for it, what Flower says of it, and what it has logged."""

    run_id: str
    record: dict[str, Any]
    log: str

    @property
    def words(self) -> str:
        """Why, in Flower's words and in those of the clients."""
        details = str(self.record.get("status-details") or NO_DETAILS).strip()
        if details == NO_DETAILS:
            details = "the SuperLink gives no reason"
        complaints = (f"  {line}" for line in _complaints_in(self.log))
        return "\n".join([f"run {self.run_id} ended as {self.record['status']}: {details}", *complaints])

    def next_settings(self, settings: Settings) -> Settings | None:
        """Settings of the run that goes on after this one; None where going on would end in the same way.

        A ServerApp that was lost with its process goes on from its checkpoint. If it was lost before the first one, it
        begins anew, unless the operator asked in `settings` for a checkpoint.
        """
        details = str(self.record.get("status-details"))
        if any(words in details for words in LOST):
            return settings.model_copy(update={"resume": True})
        return settings if NO_CHECKPOINT in details and not settings.resume else None


def _complaints_in(log: str) -> list[str]:
    """Lines of a log about clients left out and about errors, each once, the last ones."""
    plain = (_STYLE.sub("", line).strip() for line in log.splitlines())
    found = dict.fromkeys(line for line in plain if _COMPLAINT.search(line))
    return list(found)[-MOST_COMPLAINTS:]
