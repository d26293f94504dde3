"""A comparison on three Ray nodes, each a host of its own; one of them is killed in the middle of its run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._hosts import SERVER, Host, Missing, hosts
from benchmarks._programs import Program, wait_for
from dqnfed_flwr.engine.flwr_command import program
from dqnfed_flwr.run_files import EVENTS, MODEL, RUN

pytest.importorskip("ray", reason="Ray comes with the extra `simulation`")
pytestmark = pytest.mark.deploy

PORT = 26379
SECONDS, RUN_SECONDS = 90.0, 400.0
HEAD = ("--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
WORKER = (f"--address={SERVER}:{PORT}", "--num-cpus=2")
SIZE = ("--object-store-memory=80000000", "--block", "--disable-usage-stats")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_health_check_period_ms": "1000"}
COMPARISON = ("compare", "digits", "--methods", "dqn-fed,fedavg", "--seeds", "0", "--set", "clients=4")
ON_RAY = ("--ray", f"{SERVER}:{PORT}", "--cpus-per-run", "2")


class Node:
    """A Ray node on a host: its program, and the address that Ray knows it by."""

    def __init__(self, place: Path, number: int, host: Host | None, address: str) -> None:
        words = ["ray", "start", *(WORKER if host else HEAD), f"--node-ip-address={address}", *SIZE]
        words += [f"--temp-dir={place / 'ray'}"] if host is None else []
        self.address, self.program = address, Program(words, place, place / f"ray-{number}.log", ENVIRONMENT)
        if host:
            host.move(self.program)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    place = tmp_path_factory.mktemp("r")
    try:
        with hosts(2) as found:
            nodes = [Node(place, 0, None, SERVER)]
            nodes += [Node(place, k, host, f"{SERVER.rpartition('.')[0]}.{9 + k}") for k, host in enumerate(found, 1)]
            try:
                for node in nodes:
                    node.program.start()
                    wait_for(lambda: _alive() >= len([n for n in nodes if n.program.process]), SECONDS, lambda: "", 2)
                yield nodes
            finally:
                for node in reversed(nodes):
                    node.program.end()
    except Missing as missing:
        pytest.skip(str(missing))


def _alive() -> int:
    done = subprocess.run(
        [program("ray"), "status", f"--address={SERVER}:{PORT}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return len(re.findall(r"^ 1 node_", done.stdout.partition("Active:")[2].partition("Pending:")[0], re.MULTILINE))


def compare(output: Path, *more: str) -> subprocess.Popen[str]:
    words = [program("dqnfed"), *COMPARISON, "--output", str(output), *more]
    return subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_run_whose_node_is_killed_goes_on_elsewhere_with_the_same_bits(cluster: list[Node], tmp_path: Path) -> None:
    rounds = ("--set", "rounds=400")
    done = compare(tmp_path / "ray", *rounds, *ON_RAY)
    runs = tmp_path / "ray" / "runs"

    def under_way() -> list[Path]:
        return [log for log in runs.glob(f"**/{EVENTS}") if log.read_bytes().count(b"\n") > 20]

    try:
        wait_for(
            lambda: len(under_way()) == 2 or done.poll() is not None, RUN_SECONDS, lambda: str(list(runs.glob("**/*")))
        )
        assert not list(runs.glob(f"**/{RUN}"))
        cluster[1].program.end()
        printed, _ = done.communicate(timeout=RUN_SECONDS)
    finally:
        done.kill()
    assert done.returncode == 0, printed
    assert "its worker or node was lost; begun anew on" in printed
    here = compare(tmp_path / "here", *rounds, "--jobs", "2")
    said, _ = here.communicate(timeout=RUN_SECONDS)
    assert here.returncode == 0, said
    models = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").glob(f"**/{MODEL}"))
    assert len(models) == 2
    for model in models:
        assert (tmp_path / "ray" / model).read_bytes() == (tmp_path / "here" / model).read_bytes()


def test_what_no_node_has_is_refused_before_the_first_run(cluster: list[Node], tmp_path: Path) -> None:
    done = compare(tmp_path / "out", *ON_RAY, "--gpus-per-run", "0.25")
    printed, _ = done.communicate(timeout=SECONDS)
    assert done.returncode == 1
    assert "a run asks for 2 CPU, 0.25 GPU, which no node has; there are: " in " ".join(printed.split())
    assert not list((tmp_path / "out").glob("runs/*"))


def test_clients_of_one_run_are_spread_over_the_nodes(cluster: list[Node], tmp_path: Path) -> None:
    for node in cluster[1:]:
        if node.program.process is None or node.program.process.poll() is not None:
            node.program.start()
    wait_for(lambda: _alive() == len(cluster), SECONDS, lambda: "", 2)
    settings = ("--set", "clients=4", "--set", "rounds=3", "--set", "method=fedavg")
    here, there = (tmp_path / name for name in ("here", "there"))
    for words in (("--output", str(here)), ("--output", str(there), "--engine", "flower", "--ray", f"{SERVER}:{PORT}")):
        done = subprocess.run(
            [program("dqnfed"), "run", "digits", *settings, *words],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert (here / MODEL).read_bytes() == (there / MODEL).read_bytes()
