"""Flower's programs: its command line, called as another process, and others, become in this one with changes."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from dqnfed_flwr.errors import ConfigError, RunError

CONNECTION = "dqnfed"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment of Flower's programs: no calls home, no installs at run time."""


class TimedOutError(RunError):
    """The command took too long; the SuperLink may have done what it was asked, or may do so yet."""


class FlwrCommand:
    """The `flwr` command, in an environment that points to one SuperLink.

    It is the one of this environment, unless `command` says how else it is started.
    """

    seconds = 120.0
    """How long a call may take."""

    def __init__(self, environment: dict[str, str], command: Sequence[str] = ()) -> None:
        self.environment = environment
        self.command = list(command) or [program("flwr")]

    def __call__(self, *arguments: str) -> str:
        """What the command prints; `TimedOutError` if it takes too long, `RunError` if it fails."""
        command = [*self.command, *arguments]
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=self.seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TimedOutError(f"flwr {arguments[0]} failed: {error}") from None
        except OSError as error:
            raise RunError(f"flwr {arguments[0]} failed: {error}") from None
        if done.returncode:
            raise RunError(f"flwr {arguments[0]} failed: {_complaint(done.stderr or done.stdout)}")
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        """What the command prints as JSON, after whatever else it has to say."""
        answer = self(*arguments, "--format", "json")
        try:
            found: dict[str, Any] = json.loads(answer[answer.index("{") :])
        except ValueError:
            raise RunError(f"flwr {arguments[0]} gave no JSON: {answer.strip()[-2000:]}") from None
        return found


def _complaint(text: str) -> str:
    """What Flower puts into a box, as one line; all it said where there is no box."""
    _, box, rest = text.partition("╭─ Error")
    inside = [line.strip("│ ") for line in rest.splitlines() if line.startswith("│")]
    return " ".join(inside) if box and inside else text.strip()[-2000:]


def program(name: str) -> str:
    """Path of a console script of this environment."""
    path = Path(sys.executable).with_name(name)
    return str(path) if path.exists() else name


def flwr_environment(home: Path | None = None) -> dict[str, str]:
    """Environment of Flower's programs: quiet, this environment's scripts first, `home` as Flower's own directory."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {} if home is None else {"FLWR_HOME": str(home)}
    return {**os.environ, "PATH": path, **QUIET, **own}


def run_status(flwr: FlwrCommand, run_id: str) -> str:
    """Flower's word on a run: `running`, `finished:completed`, `finished:failed` and so on."""
    return str(run_record(flwr, run_id).get("status", "unknown"))


def run_record(flwr: FlwrCommand, run_id: str, connection: str = CONNECTION) -> dict[str, Any]:
    """What Flower knows about a run; empty if it does not know the run."""
    runs: list[dict[str, Any]] = flwr.json("list", connection, "--run-id", run_id).get("runs") or [{}]
    return runs[0]


def given(command: Sequence[str], program: str, *options: str) -> list[str]:
    """Values of options with which a program is to be started.

    `ConfigError` if it is another program, without TLS, or one of the options is missing.
    """
    if not command or command[0] != program:
        raise ConfigError(f"found {' '.join(command[:1]) or 'no command'!r}; give {program} and its options")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--insecure", action="store_true")
    for option in options:
        parser.add_argument(option, default="", dest=option)
    found = vars(parser.parse_known_args(command[1:])[0])
    if found["insecure"] or not all(found[option] for option in options):
        raise ConfigError(f"certificates say who calls: give {' and '.join(options)}, and no --insecure")
    return [found[option] for option in options]


def start(command: Sequence[str], logger: logging.Logger) -> None:
    """Be that program, which seldom returns; `logger` speaks on stderr."""
    said = logging.StreamHandler()
    said.setFormatter(logging.Formatter("dqnfed: %(message)s"))
    logger.addHandler(said)
    logger.propagate = False
    sys.argv = list(command)
    (found,) = distribution("flwr").entry_points.select(group="console_scripts", name=command[0])
    found.load()()
