"""Commands that change one folder at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dqnfed_flwr.deploy.files import alone, at_home
from dqnfed_flwr.deploy.plan import read_plan
from dqnfed_flwr.errors import ConfigError


def test_nodes_that_are_added_at_once_are_all_in_the_plan(place: Path) -> None:
    before = len(read_plan(place).nodes)
    program = "from dqnfed_flwr.cli import main; main()"
    command = [sys.executable, "-c", program, "deploy", "add-node", str(place)]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0] * 2
    nodes = read_plan(place).nodes
    assert len(nodes) == before + 2
    assert len({node.partition for node in nodes}) == len({node.name for node in nodes}) == len(nodes)


def test_one_waits_for_the_other(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with alone(tmp_path):
            order.append("second")

    with alone(tmp_path):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.2)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_a_folder_that_is_missing_is_told_by_the_command(tmp_path: Path) -> None:
    with alone(tmp_path / "absent"):
        pass


def test_a_home_that_nobody_has() -> None:
    with pytest.raises(ConfigError, match="~no-such-user/x: "):
        at_home("~no-such-user/x")
