"""A folder of `deploy init` whose machine is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import build, check, check_local, check_network
from dqnfed_flwr.deploy.plan import Federation, Node

GRPC = "1.39.0"
"""The Flower of these federations, whichever is installed: it has a port for nodes alone."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder: two nodes, free ports, Flower with gRPC."""
    monkeypatch.setattr(check_local, "version", lambda name: GRPC)
    monkeypatch.setattr(check_local, "clock_synchronised", lambda: True)
    monkeypatch.setattr(check_network, "title_of", lambda port: None)
    monkeypatch.setattr(check, "SERVICES", tmp_path / "services")
    fleet, control, *own = free_ports(4)
    nodes = tuple(Node(f"node-{k}", k, port) for k, port in enumerate(own))
    build.create(tmp_path / "fl", Federation("localhost", (), fleet, control, flwr=GRPC, nodes=nodes))
    return tmp_path / "fl"
