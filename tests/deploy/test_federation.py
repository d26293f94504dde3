"""Real processes on loopback, with TLS and keys: runs that complete, fail and are stopped, as an operator sees them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from benchmarks._programs import wait_for
from dqnfed_flwr.deploy.check import check
from dqnfed_flwr.deploy.findings import failed
from dqnfed_flwr.engine.flwr_command import flwr_environment, program
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import RUN_ID
from dqnfed_flwr.run_files import MODEL, RUN

pytestmark = pytest.mark.deploy

STOP_SECONDS = 60.0
SETTINGS = {"clients": 3, "rounds": 3, "local.threads": 1, "deadline": 120}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("three"), [node(k) for k in range(3)]) as federation:
        federation.start()
        yield federation


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


def test_a_deployed_run_ends_with_the_bits_of_a_run_in_one_process(federation: Loopback, tmp_path: Path) -> None:
    done = submit(federation, "--output", str(tmp_path / "deployed"))
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    assert "round 3/3" in done.stdout
    assert done.stdout.rstrip().endswith("is completed")
    assert "Test accuracy of the clients, and what it took" in done.stdout
    assert "Results, on the server: " in done.stdout
    run({**SETTINGS, "local.batch-size": 32, "output": str(tmp_path / "here")})  # as the experiment has it
    assert (tmp_path / "deployed" / MODEL).read_bytes() == (tmp_path / "here" / MODEL).read_bytes()
    number = (tmp_path / "deployed" / RUN_ID).read_text().strip()
    listed = dqnfed("runs", str(federation.directory))
    assert f"{number}  finished:completed" in listed.stdout


def test_short_messages_over_nodes_have_the_bits_and_the_bytes_of_a_run_in_one_process(
    federation: Loopback, tmp_path: Path
) -> None:
    """Nodes keep the model between messages, each of which may be worked off by another process."""
    short = {"rounds": 5, "messages.row": 8, "messages.step": 4, "local.batch-size": 32}
    done = submit(federation, "--output", str(tmp_path / "deployed"), **short)
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    here = run({**SETTINGS, **short, "output": str(tmp_path / "here")})
    deployed = read_result(tmp_path / "deployed")
    assert (tmp_path / "deployed" / MODEL).read_bytes() == (tmp_path / "here" / MODEL).read_bytes()
    assert (deployed.bytes_up, deployed.bytes_down) == (here.bytes_up, here.bytes_down)
    assert {drop.reason for event in deployed.events for drop in event.dropped} == set()


def test_nodes_audit_a_deployed_run_and_sign_with_the_keys_they_train_with(
    federation: Loopback, tmp_path: Path
) -> None:
    done = submit(federation, "--output", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    nodes, lines = federation.directory / "nodes", tmp_path / "lines"
    lines.mkdir()
    keys = sorted(nodes.glob("*/node.key"))
    assert len(keys) == 3
    for client, key in enumerate(keys):
        own = tmp_path / f"node-{client}"  # a node has two files of the run, not the server's folder
        own.mkdir()
        for name in (MODEL, RUN):
            shutil.copy(tmp_path / "run" / name, own)
        written = dqnfed(
            *("audit", str(own), "--client", "--partition", str(client)),
            *("--sign", str(key), "--output", str(lines / f"{client}.jsonl")),
        )
        assert written.returncode == 0, written.stderr
    verified = dqnfed("audit", str(tmp_path / "run"), "--verify", str(lines), "--keys", str(nodes))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    judged = dqnfed("audit", str(tmp_path / "run"), "--records", str(lines))
    here = dqnfed("audit", str(tmp_path / "run"))
    assert (judged.returncode, judged.stderr) == (here.returncode, here.stderr)
    assert judged.returncode in (0, 3)  # after three rounds some client may be better off alone
    verdicts = [
        [line for line in found.stdout.splitlines() if "clients could be judged" in line] for found in (judged, here)
    ]
    assert verdicts[0] == verdicts[1] != []
    changed = (lines / "1.jsonl").read_text().replace('"correct":', '"correct": ', 1)
    (lines / "1.jsonl").write_text(changed)
    found = dqnfed("audit", str(tmp_path / "run"), "--verify", str(lines), "--keys", str(nodes))
    assert found.returncode == 3
    assert "1.jsonl:1" in found.stdout + found.stderr


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


def test_check_finds_a_running_federation_well(federation: Loopback) -> None:
    findings = check(federation.directory)
    assert not failed(findings), findings
    words = [finding.what for finding in findings]
    assert any("3 keys are registered, 3" in line for line in words), words
    assert f"Fleet port {federation.federation.fleet_port} answers with our certificate" in words
    mine = check(federation.directory / "nodes" / "node-0")
    assert not failed(mine), mine
    assert any(finding.what.startswith("this clock is 0 s") for finding in mine), mine


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
