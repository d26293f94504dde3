"""Checks of a machine: programs, versions, space, clock."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from dqnfed_flwr.deploy import probe
from dqnfed_flwr.deploy.findings import Finding, Findings, Level
from dqnfed_flwr.deploy.plan import HTTP_SINCE, minor
from dqnfed_flwr.engine.flwr_command import program

DISK_WARN, DISK_LIMIT = 5e9, 5e8
PROGRAMS = {
    "server": ("flower-superlink", "flower-superexec", "flwr-serverapp", "flwr"),
    "node": ("flower-supernode", "flower-superexec", "flwr-clientapp"),
}


def programs(role: str) -> Findings:
    """Programs of Flower that a role starts."""
    missing = [name for name in PROGRAMS[role] if not _found(name)]
    if missing:
        yield Finding(
            Level.FAILURE,
            f"no program {', '.join(missing)} in this environment",
            "install dqnfed-flwr here, and have the environment's bin folder in PATH where the commands run",
        )


def _found(name: str) -> bool:
    return Path(program(name)).is_absolute() or shutil.which(name) is not None


def flower(wanted: str) -> Findings:
    """The installed release of Flower, beside the one that the folder was made for."""
    found = version("flwr")
    pin = f"pip install 'flwr=={wanted}' here; or upgrade all machines, then `dqnfed deploy refresh`: docs/deploy.md"
    if minor(found) >= HTTP_SINCE:
        yield Finding(
            Level.WARNING,
            f"flwr {found} speaks HTTP on one port for nodes and operators, the Control port",
            "use flwr 1.39, or put a gate on the Fleet port that lets nodes reach /v1/fleet/ and /health only: "
            "docs/transport.md",
        )
    if minor(found) != minor(wanted):
        yield Finding(Level.FAILURE, f"flwr is {found} here; this folder was made for {wanted}", pin)
    else:
        yield Finding(Level.OK, f"flwr is {found}")


def disk(path: Path, mend: str) -> Findings:
    """Space left where `path` lies; `mend` says how to make room."""
    if not path.is_dir():
        yield Finding(Level.FAILURE, f"{path} is missing", "restore it from your backup, or make it anew with mode 700")
        return
    free = probe.free_bytes(path)
    if free < DISK_WARN:
        level = Level.FAILURE if free < DISK_LIMIT else Level.WARNING
        yield Finding(level, f"{free / 1e9:.1f} GB are free in {path}", mend)
    else:
        yield Finding(Level.OK, f"{free / 1e9:.0f} GB are free in {path}")


def clock() -> Findings:
    """Whether the system keeps its clock right by itself."""
    if probe.clock_synchronised() is False:
        yield Finding(
            Level.WARNING,
            "this machine's clock is not kept by the network",
            "start a time service (timedatectl set-ntp true): Flower refuses nodes 5 s ahead or 5 minutes behind",
        )
