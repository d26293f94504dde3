"""A folder of `deploy init` whose machine is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.deploy import build, check, probe
from dqnfed_flwr.deploy.plan import Federation, Node
from tests.helpers.programs import free_ports


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder: two nodes, free ports."""
    monkeypatch.setattr(probe, "clock_synchronised", lambda: True)
    monkeypatch.setattr(probe, "title_of", lambda port: None)
    monkeypatch.setattr(check, "SERVICES", tmp_path / "services")
    nodes = (Node("node-0", 0, 9094), Node("node-1", 1, 9095))
    fleet, control = free_ports(2)
    build.create(tmp_path / "fl", Federation("localhost", (), fleet, control, nodes=nodes))
    return tmp_path / "fl"
