"""A federation after an upgrade."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.deploy import build, check
from dqnfed_flwr.deploy.build import refresh
from dqnfed_flwr.deploy.files import write_public
from dqnfed_flwr.deploy.plan import Federation, Node, read_bundle, read_plan
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version

NODES = (Node("node-0", 0, 40923), Node("ward-b", 1, 40924, "/d/s.npz"))
OLD = Federation("localhost", ("192.0.2.7",), 40921, 40922, nodes=NODES, flwr="1.38.0", dqnfed="0.0.1")
UNSECRET = {"federation.toml", "environment", "commands.txt", "node.toml"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """As the version before made it."""
    build.create(tmp_path / "fl", OLD)
    for path in (tmp_path / "fl" / "commands" / "superlink.txt", tmp_path / "fl" / "server" / "environment"):
        write_public(path, "of the version before")
    return tmp_path / "fl"


def contents(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_afterwards_it_is_as_if_made_by_this_version(place: Path, tmp_path: Path) -> None:
    before = contents(place)
    assert any("made for 1.38.0" in finding.what for finding in check.check(place))
    written = refresh(place)
    now = replace(OLD, flwr=version("flwr"), dqnfed=package_version())
    assert read_plan(place) == now
    assert {read_bundle(place / "nodes" / node.name)[1].flwr for node in NODES} == {version("flwr")}
    assert not any("made for" in finding.what for finding in check.check(place))
    shutil.move(place, tmp_path / "upgraded")
    build.create(place, now)
    fresh, upgraded = contents(place), contents(tmp_path / "upgraded")
    names = [path for path in fresh if path.name in UNSECRET or path.parent.name == "commands"]
    assert len(names) == 1 + 1 + 2 * 3 + 5
    assert [path for path in names if upgraded[tmp_path / "upgraded" / path.relative_to(place)] != fresh[path]] == []
    changed = [path for path in before if upgraded[tmp_path / "upgraded" / path.relative_to(place)] != before[path]]
    assert sorted(written) == sorted(changed)
    assert {path.relative_to(place).as_posix() for path in written} == {
        "federation.toml",
        "server/environment",
        "commands/superlink.txt",
        "nodes/node-0/node.toml",
        "nodes/ward-b/node.toml",
    }


def test_a_second_time_there_is_nothing_to_write(place: Path) -> None:
    assert refresh(place)
    before = contents(place)
    assert refresh(place) == []
    assert contents(place) == before


def test_a_missing_file_is_written_and_a_missing_folder_refused(place: Path) -> None:
    (place / "nodes" / "ward-b" / "commands.txt").unlink()
    assert place / "nodes" / "ward-b" / "commands.txt" in refresh(place)
    shutil.rmtree(place / "nodes" / "ward-b")
    write_public(place / "server" / "environment", "mine")
    with pytest.raises(ConfigError, match="ward-b: No such folder; nothing was changed"):
        refresh(place)
    assert (place / "server" / "environment").read_text() == "mine"


def test_a_nodes_folder_is_refreshed_at_the_server(place: Path) -> None:
    with pytest.raises(ConfigError, match=r"folder of one node.*at the server, and copy environment, commands.txt"):
        refresh(place / "nodes" / "node-0")


def test_the_command_says_what_it_wrote(place: Path) -> None:
    def call() -> str:
        result = CliRunner().invoke(app, ["deploy", "refresh", str(place)], prog_name="dqnfed")
        assert result.exit_code == 0
        return result.output

    first, second = call(), call()
    assert "wrote commands/superlink.txt\n" in first
    assert "wrote federation.toml\n" in first
    assert "copy environment, commands.txt, node.toml and node.crt" in first
    assert second == f"the federation is of flwr {version('flwr')} and dqnfed-flwr {package_version()}\n"
