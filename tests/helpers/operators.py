"""The commands of an operator, typed at a federation on loopback."""

from __future__ import annotations

import subprocess

from benchmarks._federation import RUN_SECONDS, Loopback
from dqnfed_flwr.engine.flwr_command import flwr_environment, program

SETTINGS = {"clients": 3, "rounds": 4, "local.threads": 1, "deadline": 120}
"""Of runs of three nodes."""


def dqnfed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as an operator types it."""
    return subprocess.run(
        [program("dqnfed"), *arguments],
        env={**flwr_environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def submit(federation: Loopback, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    given = [f"--set={key}={value}" for key, value in {**SETTINGS, **settings}.items()]
    return dqnfed("submit", "digits", str(federation.directory), *given, *arguments)
