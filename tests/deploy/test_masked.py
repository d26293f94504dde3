"""Real nodes that show their server no gradient, by keys of `deploy init` and of a site; and one nobody knows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from dqnfed_flwr.deploy.build import refresh
from dqnfed_flwr.deploy.identities import PUBLIC, make
from dqnfed_flwr.engine.flwr_command import flwr_environment, program
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST
from dqnfed_flwr.masked.secrets import from_system

pytestmark = pytest.mark.deploy

SETTINGS = {"clients": 5, "rounds": 2, "local.threads": 1, "deadline": 120, "privacy.mode": "masked"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("masked"), [node(k) for k in range(5)]) as federation:
        made_at_the_site(federation.directory, "node-4")
        federation.start()
        yield federation


def made_at_the_site(directory: Path, name: str) -> None:
    """Give a node a key of its own; the server's folder has the public half alone as it makes the lists."""
    place = directory / "nodes" / name
    for half in (IDENTITY, PUBLIC):
        (place / half).unlink()
    public = make(place)
    kept = (place / IDENTITY).rename(directory.parent / IDENTITY)
    refresh(directory)
    assert not (place / IDENTITY).exists()
    assert public in (directory / "nodes" / "node-0" / PEERS_LIST).read_text("ascii")
    kept.rename(place / IDENTITY)


def submit(federation: Loopback, output: Path, **more: int) -> subprocess.CompletedProcess[str]:
    given = [f"--set={key}={value}" for key, value in {**SETTINGS, **more}.items()]
    return subprocess.run(
        [program("dqnfed"), "submit", "digits", str(federation.directory), *given, "--output", str(output)],
        env={**flwr_environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("more", [{}, {"messages.row": 16, "messages.step": 16}], ids=["whole", "short"])
def test_nodes_agree_and_train_as_in_one_process_to_rounding(
    federation: Loopback, tmp_path: Path, more: dict[str, int]
) -> None:
    done = submit(federation, tmp_path / "run", **more)
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    here = run({**SETTINGS, **more, "local.batch-size": 32})  # as the experiment has it
    found = read_result(tmp_path / "run")
    np.testing.assert_allclose(found.theta, here.theta, rtol=0.05, atol=1e-4)
    assert [len(event.votes.heard) for event in found.events] == [5, 5]


def test_nodes_add_noise_of_their_own_and_keep_the_ledger(federation: Loopback, tmp_path: Path) -> None:
    done = submit(federation, tmp_path / "run", **{"privacy.epsilon": 30, "privacy.min-records": 1})
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    found = read_result(tmp_path / "run")
    spent = [event.privacy.epsilon for event in found.events if event.privacy is not None]
    assert 0 < spent[0] < spent[1] <= 30
    assert [len(event.votes.heard) for event in found.events] == [5, 5]


def test_node_whose_key_the_others_do_not_know_is_refused_and_they_go_on(federation: Loopback, tmp_path: Path) -> None:
    place = federation.directory / "nodes" / "node-3"
    assert (place / PUBLIC).exists()
    (place / IDENTITY).write_text(from_system("another").hex())
    done = submit(federation, tmp_path / "run")
    assert done.returncode == 0, done.stderr + done.stdout + federation.texts()
    found = read_result(tmp_path / "run")
    assert all(event.votes.heard == (0, 1, 2, 4) for event in found.events)
    assert any("no agreement with peers" in drop.detail for drop in found.events[0].dropped if drop.client == 3)
