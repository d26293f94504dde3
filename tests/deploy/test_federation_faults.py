"""Real processes on loopback: runs that fail, are stopped, and go on where the SuperLink is restarted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from benchmarks._programs import wait_for
from tests.helpers.operators import SETTINGS, dqnfed, submit

pytestmark = pytest.mark.deploy

STOP_SECONDS = 60.0


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("three"), [node(k) for k in range(3)]) as federation:
        federation.start()
        yield federation


def test_a_failed_run_says_what_the_client_said(federation: Loopback, tmp_path: Path) -> None:
    done = submit(federation, data=str(tmp_path / "absent.npz"), **{"min-clients": 3})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "finished:failed" in done.stderr
    assert "none of 3 clients can take part" in done.stderr
    assert f"no file '{tmp_path / 'absent.npz'}'" in done.stderr


def test_a_run_is_stopped(federation: Loopback, tmp_path: Path) -> None:
    started = submit(federation, "--detach", rounds=1000, metrics=str(tmp_path / "metrics"))
    assert started.returncode == 0, started.stderr
    number = started.stdout.strip()
    file = wait_for(lambda: next((tmp_path / "metrics").glob("*.prom"), None), RUN_SECONDS, federation.texts)
    assert 'state="running"} 1' in file.read_text()
    stopped = dqnfed("stop", number, str(federation.directory))
    assert stopped.returncode == 0, stopped.stderr
    followed = dqnfed("logs", number, str(federation.directory), "--follow")
    assert followed.returncode == 1
    assert "finished:stopped" in followed.stderr
    wait_for(lambda: 'state="stopped"} 1' in file.read_text(), STOP_SECONDS, file.read_text)
    unknown = dqnfed("stop", "17", str(federation.directory))
    assert unknown.returncode == 1
    assert "17" in unknown.stderr


@pytest.mark.slow
def test_a_superlink_is_restarted_while_a_run_is_followed(federation: Loopback, tmp_path: Path) -> None:
    with federation.submitted({**SETTINGS, "rounds": 9}, tmp_path / "followed") as follower:
        wait_for(lambda: "round 1/9" in follower.text(), RUN_SECONDS, federation.texts)
        superlink = federation.programs["superlink"]
        superlink.signal(signal.SIGTERM)  # and waits 20 s for its end, as the units do
        superlink.start()
        federation.await_server()
        federation.await_exit(follower, RUN_SECONDS)
        assert follower.status == 0, follower.text() + federation.texts()
        said = follower.text()
    assert [said.count(f"round {number}/9 ") for number in range(1, 10)] == [1] * 9, said
