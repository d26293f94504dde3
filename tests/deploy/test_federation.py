"""Real processes on loopback, with TLS and keys: what an operator sees of runs that complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks._federation import Loopback, loopback, node
from dqnfed_flwr.deploy.check import check
from dqnfed_flwr.deploy.findings import failed
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import RUN_ID
from dqnfed_flwr.run_files import MODEL, RUN
from tests.helpers.operators import SETTINGS, dqnfed, submit
from tests.helpers.runs import WHOLE

pytestmark = pytest.mark.deploy


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("three"), [node(k) for k in range(3)]) as federation:
        federation.start()
        yield federation


@pytest.fixture(scope="module")
def deployed(federation: Loopback, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run of the default settings over nodes, and what was printed."""
    folder = tmp_path_factory.mktemp("deployed") / "run"
    done = submit(federation, "--output", str(folder))
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    return folder, done.stdout


def check_run(folder: Path, here: Path, **settings: Any) -> None:
    """A deployed run has the bits and the bytes of one in this process; batches are those of the experiment."""
    run({**SETTINGS, "local.batch-size": 32, **settings, "output": str(here)})
    assert (folder / MODEL).read_bytes() == (here / MODEL).read_bytes()
    deployed, mine = read_result(folder), read_result(here)
    assert (deployed.bytes_up, deployed.bytes_down) == (mine.bytes_up, mine.bytes_down)
    assert {drop.reason for event in deployed.events for drop in event.dropped} == set()


def test_a_deployed_run_has_the_bits_and_the_bytes_of_a_run_in_one_process(
    federation: Loopback, deployed: tuple[Path, str], tmp_path: Path
) -> None:
    """Nodes keep the model between messages, each of which may be worked off by another process."""
    folder, printed = deployed
    assert "round 4/4" in printed
    assert printed.rstrip().endswith("is completed")
    assert "Test accuracy of the clients, and what it took" in printed
    assert "Results, on the server: " in printed
    check_run(folder, tmp_path / "here")
    number = (folder / RUN_ID).read_text().strip()
    listed = dqnfed("runs", str(federation.directory))
    assert f"{number}  finished:completed" in listed.stdout


@pytest.mark.slow
def test_so_has_one_with_whole_messages(federation: Loopback, tmp_path: Path) -> None:
    done = submit(federation, "--output", str(tmp_path / "deployed"), **WHOLE)
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    check_run(tmp_path / "deployed", tmp_path / "here", **WHOLE)


def test_nodes_audit_a_deployed_run_and_sign_with_the_keys_they_train_with(
    federation: Loopback, deployed: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = deployed
    nodes, lines = federation.directory / "nodes", tmp_path / "lines"
    lines.mkdir()
    keys = sorted(nodes.glob("*/node.key"))
    assert len(keys) == 3
    for client, key in enumerate(keys):
        own = tmp_path / f"node-{client}"  # a node has two files of the run, not the server's folder
        own.mkdir()
        for name in (MODEL, RUN):
            shutil.copy(folder / name, own)
        written = dqnfed(
            *("audit", str(own), "--client", "--partition", str(client)),
            *("--sign", str(key), "--output", str(lines / f"{client}.jsonl")),
        )
        assert written.returncode == 0, written.stderr
    verified = dqnfed("audit", str(folder), "--verify", str(lines), "--keys", str(nodes))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    judged = dqnfed("audit", str(folder), "--records", str(lines))
    here = dqnfed("audit", str(folder))
    assert (judged.returncode, judged.stderr) == (here.returncode, here.stderr)
    assert judged.returncode in (0, 3)  # after four rounds some client may be better off alone
    verdicts = [
        [line for line in found.stdout.splitlines() if "clients could be judged" in line] for found in (judged, here)
    ]
    assert verdicts[0] == verdicts[1] != []
    changed = (lines / "1.jsonl").read_text().replace('"correct":', '"correct": ', 1)
    (lines / "1.jsonl").write_text(changed)
    found = dqnfed("audit", str(folder), "--verify", str(lines), "--keys", str(nodes))
    assert found.returncode == 3
    assert "1.jsonl:1" in found.stdout + found.stderr


def test_check_finds_a_running_federation_well(federation: Loopback) -> None:
    findings = check(federation.directory)
    assert not failed(findings), findings
    words = [finding.what for finding in findings]
    assert any("3 keys are registered, 3" in line for line in words), words
    assert f"Fleet port {federation.federation.fleet_port} answers with our certificate" in words
    mine = check(federation.directory / "nodes" / "node-0")
    assert not failed(mine), mine
    assert any(finding.what.startswith("this clock is 0 s") for finding in mine), mine
