"""ClientApps that start from a process with torch already loaded.

Flower starts a process a message, and most of its time goes into loading torch and Flower itself. `run_preforked` puts
a `flwr-clientapp` of ours before Flower's on the PATH of an executor: it asks the fork server, a process that ends with
the executor, for a fork of itself that has the libraries loaded. App code is loaded in the fork alone, from the app
that the run brought, so a run sees nothing of the runs before it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dqnfed_flwr.errors import ConfigError, RunError

HERE = Path(__file__).parent
PREFIX, SOCKET = "dqnfed-warm-", "socket"
LONGEST_ADDRESS = 100
"""Bytes of a socket's path that every Unix takes."""
SETTLED_SECONDS = 60.0
"""Younger folders may be those of a fork server that is about to listen."""


def run_preforked(command: Sequence[str], keep_seconds: float, apps: Path | None = None) -> None:
    """Become `command`, whose ClientApps are forked; return only by an exception.

    The process keeps its number, so a program that watches or stops the executor need not know of the fork server.
    Where processes cannot be forked safely, that is anywhere but on Linux, clients start as usual.

    Parameters
    ----------
    command : Sequence[str]
        `flower-superexec`, or `flower-supernode` that starts one, with their options.
    keep_seconds : float
        How long after the last client the libraries stay loaded.
    apps : Path | None
        Folder whose files are named after the hashes of apps that clients may be; None for any app.

    Raises
    ------
    RunError
        If there is no such program.
    ConfigError
        If there is no folder `apps`.
    """
    if apps is not None and not apps.is_dir():
        raise ConfigError(f"--apps {apps}: no such folder; `dqnfed deploy allow` makes it")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    program = shutil.which(command[0], path=path)
    if program is None:
        raise RunError(f"there is no program {command[0]!r} on the PATH; is flwr installed in this environment?")
    environment = {**os.environ, "PATH": path}
    shims = [HERE / "bin"]
    if apps is not None:
        shims.append(HERE / "closed")
        environment["DQNFED_APPS"] = str(apps.absolute())
    environment |= _start_fork_server(environment, keep_seconds) if sys.platform == "linux" else {}
    environment |= {
        "PATH": os.pathsep.join([*map(str, shims), path]),
        "DQNFED_WARM_PATH": path,
        "DQNFED_WARM_PYTHON": sys.executable,
    }
    os.execve(program, list(command), environment)


def _start_fork_server(environment: dict[str, str], keep_seconds: float) -> dict[str, str]:
    """Start it; the variable with which clients find it."""
    _sweep()
    address = Path(tempfile.mkdtemp(prefix=PREFIX)) / SOCKET
    if len(os.fsencode(address)) > LONGEST_ADDRESS:
        address.parent.rmdir()
        raise RunError(f"the path {address} is too long for a socket; set TMPDIR to a folder with a shorter name")
    alive, held = os.pipe()  # `held` is closed by the system when this process, whatever it has become, is gone
    os.set_inheritable(held, True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen()
        given = [listener.fileno(), alive]
        subprocess.Popen(
            [sys.executable, "-P", str(HERE / "fork_server.py"), *map(str, given), str(keep_seconds)],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    os.close(alive)
    return {"DQNFED_WARM_ADDRESS": str(address)}


def _sweep() -> None:
    """Remove the folders of fork servers that were killed: none listens there any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime > SETTLED_SECONDS:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.connect(str(folder / SOCKET))
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # another user's, or gone meanwhile
            continue
