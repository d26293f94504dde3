"""Forked clients are what Flower started: same arguments, folder, environment, output, status; and they end with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks._programs import wait_for
from dqnfed_flwr.deploy.prefork import run_preforked
from dqnfed_flwr.errors import RunError
from tests.helpers.processes import child, children, resident_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="clients are forked on Linux alone")
SECONDS = 60.0
EXECUTOR = f"""#!{sys.executable}
import json, os, subprocess, sys
for line in sys.stdin:
    given = json.loads(line)
    client = subprocess.Popen(
        ["flwr-clientapp", *given["arguments"]],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={{**os.environ, **given["variables"]}},
    )
    print(client.pid, flush=True)
    if given["wait"]:
        out, err = client.communicate()
        print(json.dumps({{"status": client.returncode, "out": out, "err": err}}), flush=True)
"""
NOBODY = ["--insecure", "--token", "t", "--runtime-api-address", "127.0.0.1:1"]
"""Arguments with which a client calls in vain until it is killed."""


class Executor:
    """A program that starts clients as Flower's executor does, under `dqnfed deploy warm`."""

    def __init__(self, place: Path, keep: float) -> None:
        command = [sys.executable, "-c", "from dqnfed_flwr.cli.app import app; app()", "deploy", "warm"]
        self.process = subprocess.Popen(
            [*command, "--keep", str(keep), str(place / "executor")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=place,
            env={**os.environ, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def begin(self, *arguments: str, variables: Mapping[str, str] | None = None, wait: bool = False) -> int:
        """Start a client; its process number, as the executor sees it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"arguments": arguments, "variables": dict(variables or {}), "wait": wait}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def run(self, *arguments: str, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Start a client and wait; its status and what it wrote."""
        assert self.process.stdout is not None
        self.begin(*arguments, variables=variables, wait=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    @property
    def fork_server(self) -> int:
        """Its process number, once it is there."""
        found: int = wait_for(lambda: child(self.process.pid, "fork_server.py"), SECONDS, pause=0.05)
        return found

    def forks(self) -> list[int]:
        """Clients that run warm."""
        return [number for number, _ in children(self.fork_server)]

    def end(self) -> None:
        """Let it end as if it had nothing more to do."""
        self.process.kill()
        self.process.communicate(timeout=SECONDS)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with the executor's program, which is written once: several executors may be about to read it.

    Its name is short: a socket's path has room for a hundred letters, which pytest's own folder may fill.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        script = Path(folder) / "executor"
        script.write_text(EXECUTOR)
        script.chmod(0o700)
        yield Path(folder)


@pytest.fixture
def executor(place: Path) -> Iterator[Executor]:
    one = Executor(place, keep=600.0)
    yield one
    one.end()


def test_a_client_ends_as_flowers_own_does(executor: Executor) -> None:
    helped = executor.run("--help", variables={"COLUMNS": "72"})
    assert (helped["status"], helped["err"]) == (0, "")
    assert helped["out"].startswith("usage: flwr-clientapp")
    assert max(map(len, helped["out"].splitlines())) <= 72
    refused = executor.run(*NOBODY, "--no-such-option")
    assert refused["status"] == 2
    assert "--no-such-option" in refused["err"]


def test_a_killed_client_takes_its_fork_along_and_a_signal_reaches_it(executor: Executor) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        client = executor.begin(*NOBODY)
        wait_for(executor.forks, SECONDS)
        os.kill(client, number)
        wait_for(lambda: not executor.forks(), SECONDS)


def test_nothing_outlives_the_executor(executor: Executor, place: Path) -> None:
    executor.begin(*NOBODY)
    server = executor.fork_server
    forked = wait_for(executor.forks, SECONDS)
    executor.end()
    wait_for(lambda: not any(Path(f"/proc/{number}").exists() for number in (server, *forked)), SECONDS)
    assert not list(place.glob("dqnfed-warm-*"))


def test_without_a_fork_server_clients_start_cold_and_say_so(executor: Executor) -> None:
    os.kill(executor.fork_server, signal.SIGKILL)
    helped = executor.run("--help")
    assert helped["status"] == 0
    assert "starts cold" in helped["err"]


@pytest.mark.slow
def test_what_a_killed_fork_server_left_is_removed_by_the_next(place: Path) -> None:
    first, killed = Executor(place, keep=600.0), Executor(place, keep=600.0)
    try:
        os.kill(killed.fork_server, signal.SIGKILL)
        killed.end()
        assert first.fork_server
        folders = list(place.glob("dqnfed-warm-*"))
        assert len(folders) == 2
        for folder in folders:
            os.utime(folder, (0, 0))
        second = Executor(place, keep=600.0)
        try:
            assert second.fork_server
            left = [folder for folder in folders if folder.exists()]
            assert len(left) == 1
            assert first.run("--help")["err"] == ""
        finally:
            second.end()
    finally:
        first.end()


@pytest.mark.slow
def test_the_libraries_are_given_up_when_nobody_asks(place: Path) -> None:
    executor = Executor(place, keep=0.0)
    try:
        for _ in range(2):
            assert executor.run("--help")["status"] == 0
            wait_for(lambda: resident_bytes(executor.fork_server) < 40e6, SECONDS)
    finally:
        executor.end()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(RunError, match="no program 'flower-nothing'"):
        run_preforked(["flower-nothing"], 1.0)
