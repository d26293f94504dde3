"""Processes of a test: each in a session of its own, killed at the end with all that it started."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dqnfed_flwr.engine.flwr_command import program

PR_SET_PDEATHSIG = 1


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_for(what: Callable[[], Any], seconds: float, why: Callable[[], str] = lambda: "", pause: float = 0.3) -> Any:
    """The first true answer of `what`, asked until `seconds` are over; then fail and say `why`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s\n{why()}"
        time.sleep(pause)
    return found


class Program:
    """One process and all that it starts; its output goes to a file."""

    def __init__(self, arguments: Sequence[str], place: Path, log: Path, environment: Mapping[str, str]) -> None:
        self.arguments, self.place, self.log, self.environment = list(arguments), place, log, dict(environment)
        self.process: subprocess.Popen[bytes] | None = None
        self._groups: list[int] = []

    @property
    def command(self) -> list[str]:
        """The arguments, with this environment's script in front."""
        return [program(self.arguments[0]), *self.arguments[1:]]

    def start(self) -> None:
        """Start it, once more where it was before."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=self.place,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self._groups.append(self.process.pid)

    def signal(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to this process alone, and wait where it cannot survive it."""
        assert self.process is not None
        self.process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait(20)

    def end(self) -> None:
        """Kill it and what it started, in this life and in those before."""
        self.signal_all(signal.SIGKILL)
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)

    def signal_all(self, number: int) -> None:
        """Send a signal to this process and to what it started."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return None if self.process is None else self.process.poll()

    def text(self) -> str:
        """What it has written."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def die_with_parent() -> Callable[[], None] | None:
    """What a child calls so that it is killed when this process dies, in whatever way; None where that cannot be.

    Linux sends the signal when the thread that started the child ends, so only the main thread can use it.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def listening(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
