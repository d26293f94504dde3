"""Processes killed in the middle of a run, on devices with data of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dqnfed_flwr.engine.flwr_command import program
from dqnfed_flwr.engine.result import MODEL, read_result
from dqnfed_flwr.engine.run import run
from tests.helpers.federation import RUN_SECONDS, loopback, node

pytestmark = pytest.mark.deploy

SETTINGS: dict[str, Any] = {
    "clients": 3,
    "model": "logistic",
    "partition": "file",
    "num-classes": 10,
    "local.threads": 1,
    "deadline": 60,
}


def sites(place: Path, count: int) -> list[Path]:
    """A file for each device."""
    x, y = load_digits(return_X_y=True)
    paths = [place / f"site-{k}.npz" for k in range(count)]
    for k, path in enumerate(paths):
        np.savez(path, x_train=(x[k::count] / 16).astype(np.float32), y_train=y[k::count])
    return paths


def own_file(settings: dict[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """The same samples for a run in one process."""
    del settings
    x, y = load_digits(return_X_y=True)
    return {"x_train": (x[partition::clients] / 16).astype(np.float32), "y_train": y[partition::clients]}


def test_a_run_outlives_its_superlink_and_a_node(tmp_path: Path) -> None:
    files = sites(tmp_path, 3)
    with loopback(tmp_path, [node(k, str(path)) for k, path in enumerate(files)]) as federation:
        federation.start()
        output = tmp_path / "deployed"
        run_id = federation.submit({**SETTINGS, "rounds": 4, "output": str(output)}, tmp_path / "app")

        federation.await_round(1)
        federation.programs["superlink"].signal()
        time.sleep(2)
        federation.programs["superlink"].start()
        federation.await_server()
        assert federation.await_end(run_id) == "finished:completed", federation.story(run_id)
        result = read_result(output)
        assert [event.round for event in result.events] == [1, 2, 3, 4]
        assert {tuple(event.participants) for event in result.events} == {(0, 1, 2)}
        run({**SETTINGS, "rounds": 4, "data": "tests.deploy.test_kills:own_file", "output": str(tmp_path / "here")})
        assert (output / MODEL).read_bytes() == (tmp_path / "here" / MODEL).read_bytes()

        output = tmp_path / "without"
        settings = {**SETTINGS, "rounds": 3, "min-clients": 2, "deadline": 20, "output": str(output)}
        run_id = federation.submit(settings, tmp_path / "app2")
        federation.await_round(1)
        with federation.kept_running("node-2"):
            federation.programs["node-2"].signal()
            assert federation.await_end(run_id) == "finished:completed", federation.story(run_id)
            result = read_result(output)
            assert [event.round for event in result.events] == [1, 2, 3]
            assert all({0, 1} <= set(event.participants) for event in result.events)
            federation.await_online(["node-0", "node-1", "node-2"])


def serverapp_of(superexec: int) -> int | None:
    """The ServerApp that this SuperExec started."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rsplit(")", 1)[1].split()[1])
            command = (entry.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue
        if parent == superexec and b"flwr-serverapp" in command:
            return int(entry.parent.name)
    return None


@pytest.mark.parametrize("victim", ["serverapp", "superexec"])
def test_a_followed_run_outlives_its_server_process(tmp_path: Path, victim: str) -> None:
    files = sites(tmp_path, 2)
    settings = {**SETTINGS, "clients": 2, "rounds": 3}
    output = tmp_path / "deployed"
    with loopback(tmp_path, [node(k, str(path)) for k, path in enumerate(files)]) as federation:
        federation.start()
        federation.output = output
        given = [f"--set={key}={value}" for key, value in settings.items()]
        command = [program("dqnfed"), "submit", "digits", str(federation.directory), *given, "--output", str(output)]
        with (
            federation.kept_running("superexec"),
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as submitted,
        ):
            try:
                federation.await_round(1)
                process = federation.programs["superexec"].process
                assert process is not None
                serverapp = serverapp_of(process.pid)
                assert serverapp is not None
                os.kill(serverapp if victim == "serverapp" else process.pid, signal.SIGKILL)
                said, _ = submitted.communicate(timeout=RUN_SECONDS)
            finally:
                submitted.kill()
        assert submitted.returncode == 0, said + federation.texts()
    assert "goes on as run" in said
    assert [event.round for event in read_result(output).events] == [1, 2, 3]
    run({**settings, "data": "tests.deploy.test_kills:own_file", "output": str(tmp_path / "here")})
    assert (output / MODEL).read_bytes() == (tmp_path / "here" / MODEL).read_bytes()
