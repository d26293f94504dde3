"""Flower's own command and simulation engine: success, failure, continuation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.flower import superlink
from dqnfed_flwr.engine.flwr_command import FlwrCommand, run_status
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.processes import children
from tests.helpers.runs import TINY

pytest.importorskip("ray", reason="Flower's simulation engine needs the extra `simulation`")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TWO: dict[str, Any] = {**TINY, "clients": 2}


def test_a_run_begins_at_a_file_that_a_relative_path_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = run({**TWO, "output": "first"})
    following = run({**TWO, "start.model": "first/model.npz"}, engine="flower")
    assert following.events[0].losses_before == first.events[-1].losses_after


def ended(flwr: FlwrCommand, run_id: str) -> str:
    """How the run ended, after waiting for it."""
    end = time.monotonic() + 240
    while not (status := run_status(flwr, run_id)).startswith("finished"):
        assert time.monotonic() < end, f"still {status}"
        time.sleep(1)
    return status


def run_config(**settings: Any) -> str:
    return " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())


def test_flwr_run_runs_the_project_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    before = (ROOT / "pyproject.toml").read_bytes()
    output = tmp_path / "results"
    (tmp_path / "home").mkdir()
    with superlink(tmp_path / "home") as flwr:
        settings = {"rounds": 2, "output": str(output), "local.threads": 1}
        answer = flwr.json(
            "run", ".", "--run-config", run_config(**settings), "--federation-config", "num-supernodes=10"
        )
        status = ended(flwr, str(answer["run-id"]))
        assert status == "finished:completed", flwr("log", str(answer["run-id"]), "--show")
    assert (ROOT / "pyproject.toml").read_bytes() == before
    result = read_result(output)
    assert [event.participants for event in result.events] == [list(range(10))] * 2
    assert result.improved_ratio == [1.0, 1.0]
    assert np.array_equal(result.theta, run({"rounds": 2, "local.threads": 1}).theta)


def test_an_unknown_key_is_refused_by_flwr_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with superlink(tmp_path) as flwr:
        answer = flwr.json("run", ".", "--run-config", "round=2")
        assert answer["success"] is False
        assert "Invalid run configuration" in answer["error-message"]


def test_a_failed_run_is_an_error_that_tells_why(tmp_path: Path) -> None:
    settings = {**TWO, "data": str(tmp_path / "absent.npz"), "deadline": 3, "min-clients": 2}
    with pytest.raises(RunError) as caught:
        run(settings, engine="flower")
    assert "finished:failed" in str(caught.value)
    assert "at least 2 are needed (min-clients)" in str(caught.value)
    assert f"no file '{tmp_path / 'absent.npz'}'" in str(caught.value)


def running(pid: int) -> bool:
    """Whether a process is there and no mere entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent died")
def test_the_superlink_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from dqnfed_flwr.engine import flower

popen = flower.subprocess.Popen
flower.subprocess.Popen = lambda *given, **named: print((child := popen(*given, **named)).pid, flush=True) or child
with flower.superlink(Path({str(tmp_path)!r})):
    print("up", flush=True)
    time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        superlink_pid = int(process.stdout.readline())
        assert process.stdout.readline() == "up\n"
        assert running(superlink_pid)
        process.kill()
        process.wait()
    end = time.monotonic() + 30
    while running(superlink_pid) and time.monotonic() < end:
        time.sleep(0.2)
    assert not running(superlink_pid)


def test_a_run_goes_on_under_either_engine(tmp_path: Path) -> None:
    settings = {**TWO, "method": "fedavg", "model": "tests.helpers.models:norm_mlp", "local.batch-size": 16}
    whole = run({**settings, "rounds": 4})
    output = {**settings, "output": str(tmp_path)}
    run({**output, "rounds": 1}, engine="flower")
    run({**output, "rounds": 3}, resume=True)
    result = run({**output, "rounds": 4}, engine="flower", resume=True)
    assert [event.round for event in result.events] == [1, 2, 3, 4]
    assert np.array_equal(result.theta, whole.theta)
    assert {name: value.tobytes() for name, value in result.buffers.items()} == {
        name: value.tobytes() for name, value in whole.buffers.items()
    }


def workers(parent: int) -> list[int]:
    """Worker processes of Flower's engine below a process."""
    found = []
    for number, command in children(parent):
        found += [number] if command.startswith("ray::ClientAppActor") else workers(number)
    return found


class Killer:
    """Kills a worker after round 1."""

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        pass

    def on_round(self, event: RoundEvent) -> None:
        if event.round == 1:
            os.kill(workers(os.getpid())[0], signal.SIGKILL)

    def on_end(self) -> None:
        pass


def test_a_worker_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    many = {**TINY, "clients": 4, "rounds": 1000, "evaluate-every": 0, "output": str(tmp_path / "out")}
    with pytest.raises(RunError, match="a worker process of Flower's engine died") as caught:
        run(many, engine="flower", listeners=[Killer()])
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "out" / "run.json").exists()
