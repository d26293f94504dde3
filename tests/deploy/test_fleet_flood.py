"""What an attack on the Fleet port costs the SuperLink in memory, and that its node stays."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import _flood
from benchmarks._federation import ROOT, Loopback, loopback, node
from dqnfed_flwr.deploy import node_certificates
from dqnfed_flwr.deploy.registry import listed, register
from dqnfed_flwr.deploy.superlink import link_of
from tests.deploy.test_doors import over_grpc
from tests.helpers.superlink_memory import BOUND, growth, strange_pair

pytestmark = [pytest.mark.deploy, over_grpc]

SECONDS = 25.0
"""Longer than the SuperLink waits for the end of a handshake."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("flood"), [node(0)]) as federation:
        federation.programs["superlink"].start()
        federation.await_server()
        assert register(federation.directory, federation.federation) == {"node-0": "registered"}
        federation.programs["node-0"].start()
        federation.await_online(["node-0"])
        time.sleep(5)  # until it has answered calls of every kind, and its memory is what it stays
        yield federation


def attacked(server: Loopback, pair: tuple[Path, Path] | None) -> tuple[float, str]:
    """By how much memory grew at most under an attack, as a factor, and what became of the huge call."""
    grown = growth(server)
    command = _flood.command(server, SECONDS, pair)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=4 * SECONDS, check=True)
    return grown(), done.stdout


SELDOM = [pytest.param(who, marks=pytest.mark.slow) for who in ("nobody", "a stranger", "a removed node")]
"""Half a minute each: `make test-deploy` has them, CI only the attacker who gets furthest in."""


@pytest.mark.parametrize("who", [*SELDOM, "a node"])
def test_an_attack_costs_little_memory_and_no_node(server: Loopback, tmp_path: Path, who: str) -> None:
    pair = None
    if who == "a stranger":
        pair = strange_pair(tmp_path)
    elif who != "nobody":
        name = who.replace(" ", "-")
        pair = _flood.listed_pair(server, name)
        if who == "a removed node":
            node_certificates.strike(server.directory, name)
    factor, said = attacked(server, pair)
    assert factor <= BOUND, (factor, said)
    assert "OK" not in said
    assert list(listed(link_of(server.directory)).values()) == ["online"]
