"""Somebody at a shell, for whom a test types what a page or a file of commands says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks._federation import RUN_SECONDS
from benchmarks._programs import Program
from dqnfed_flwr.engine.flwr_command import flwr_environment

ENVIRONMENT = {
    **flwr_environment(),
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def commands(text: str) -> list[str]:
    """The commands of a file of `deploy init`: parts between empty lines and remarks."""
    return [part for part in re.split(r"(?m)^(?:#.*)?\n", text) if part.strip()]


class Shells:
    """A folder in which somebody types; shells that stay open are killed at the end.

    Attributes
    ----------
    shells : dict[str, Program]
        Those that stay open, by the name under which they were opened and a number.
    """

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place, self._stack = place, stack
        self.shells: dict[str, Program] = {}

    def type(self, line: str, *, on: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Carry out a line, which must succeed; `on` are words that lead to another machine."""
        done = subprocess.run(
            [*on, "sh", "-c", line],
            cwd=self.place,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self.texts()}"
        return done

    def open(self, name: str, text: str, *, on: Sequence[str] = ()) -> None:
        """Start each command of a file of commands in a shell of its own, as it stands there."""
        for number, command in enumerate(commands(text)):
            log = self.place / f"{name}-{number}.log"
            shell = Program([*on, "sh", "-c", command], self.place, log, ENVIRONMENT)
            self.shells[f"{name}-{number}"] = shell
            self._stack.callback(shell.end)
            shell.start()

    def texts(self) -> str:
        """The end of what every open shell has said."""
        return "\n".join(f"{name}: {shell.text()[-1000:]}" for name, shell in self.shells.items())
