"""`dqnfed deploy` as it is typed: what it prints, and what it never prints."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import pytest
from click.testing import Result
from typer.testing import CliRunner

from benchmarks._programs import free_ports
from dqnfed_flwr.cli.app import app, imported
from dqnfed_flwr.deploy import registry
from dqnfed_flwr.deploy.plan import read_plan
from dqnfed_flwr.engine.flwr_command import FlwrCommand
from dqnfed_flwr.errors import RunError
from tests.helpers.checks import remember


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["deploy", *arguments], prog_name="dqnfed")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A federation of two nodes."""
    assert call("init", str(tmp_path / "fl"), "--nodes", "2", "--host", "localhost", *free()).exit_code == 0
    return tmp_path / "fl"


def free() -> list[str]:
    """Options with ports that nobody listens on."""
    options = ("--fleet-port", "--control-port", "--node-port")
    return [word for option, port in zip(options, free_ports(3), strict=True) for word in (option, str(port))]


def test_the_commands_are_those_of_the_docs() -> None:
    group = imported("deploy")
    assert isinstance(group, click.Group)
    assert set(group.commands) == {
        *("init", "add-node", "remove-node", "register", "rotate", "refresh", "check", "warm"),
        *("add-operator", "remove-operator", "flwr", "superlink", "supernode", "allow", "audit"),
        "identity",
    }


def test_nothing_secret_is_printed_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = str(tmp_path / "fl")
    with caplog.at_level(logging.DEBUG):
        results = [
            call("init", place, "--nodes", "2", "--host", "localhost", "--address", "192.0.2.1", *free()),
            call("add-node", place, "--name", "late"),
            call("rotate", place, "--ca"),
            call("check", place),
            call("remove-node", place, "late", "--offline"),
            call("init", place, "--nodes", "2", "--host", "localhost"),
        ]
    assert [result.exit_code for result in results] == [0, 0, 0, 0, 0, 2]
    said = "".join(result.output for result in results) + caplog.text
    assert "PRIVATE" not in said
    for path in (tmp_path / "fl").rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o077 == 0:
            lines = [line for line in path.read_text().splitlines() if not line.startswith("-----")]
            assert not any(line in said for line in lines if line)


def test_init_says_what_to_do_next(tmp_path: Path) -> None:
    result = call("init", str(tmp_path / "fl"), "--nodes", "3", "--host", "fl.example.org", "--data", "/data/site.npz")
    assert result.exit_code == 0
    assert f"dqnfed deploy register {tmp_path / 'fl'}" in result.stdout
    assert [node.data for node in read_plan(tmp_path / "fl").nodes] == ["/data/site.npz"] * 3


def test_init_writes_no_detours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert call("init", "../f l", "--nodes", "1", "--host", "localhost").exit_code == 0
    written = (tmp_path / "f l" / "operator" / "config.toml").read_text()
    assert str(tmp_path / "f l" / "operator" / "ca.crt") in written
    result = call("add-node", "../f l")
    assert result.stdout.endswith("dqnfed deploy register '../f l'\n")


def test_init_warns_of_ports_that_meet_on_one_machine(tmp_path: Path) -> None:
    ports = ("--nodes", "1", "--fleet-port", "21051", "--node-port", "21051")
    assert call("init", str(tmp_path / "a"), "--host", "localhost", *ports).exit_code == 2
    result = call("init", str(tmp_path / "b"), "--host", "fl.example.org", *ports)
    assert result.exit_code == 0
    assert "node-0 and --fleet-port have 21051; if they run on the server's machine" in result.stderr


def test_rotate_adds_names(place: Path) -> None:
    result = call("rotate", str(place), "--address", "fl.example.org", "--address", "192.0.2.1")
    assert result.exit_code == 0
    assert "for localhost, fl.example.org, 192.0.2.1 is valid" in result.stdout
    assert read_plan(place).others == ("fl.example.org", "192.0.2.1")


def test_check_tells_by_its_status(place: Path) -> None:
    (place / "server" / "server.key").chmod(0o644)
    result = call("check", str(place), "--quiet")
    assert result.exit_code == 1
    assert result.stdout.startswith("failure  ")
    assert "mend: chmod 600" in result.stdout
    assert call("check", str(place.parent)).exit_code == 2


def test_register_tells_by_its_status(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "register", lambda *_: {"node-0": "already in use"})
    result = call("register", str(place))
    assert (result.exit_code, result.stdout) == (1, "node-0: already in use\n")


def test_a_node_stays_when_it_cannot_be_unregistered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> bool:
        raise RunError("the SuperLink does not answer")

    monkeypatch.setattr(registry, "unregister", away)
    assert call("remove-node", str(place), "node-0").exit_code == 1
    assert (place / "nodes" / "node-0" / "node.key").exists()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"success": True, "nodes": [{"node-id": "77", "status": "online"}]}, "does not know: 77"),
        ({"success": False, "error-message": "gone"}, "supernode list dqnfed: gone"),
    ],
)
def test_a_node_stays_when_its_key_may_be_registered(
    place: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], words: str
) -> None:
    monkeypatch.setattr(FlwrCommand, "json", lambda *_: answer)
    result = call("remove-node", str(place), "node-0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert (place / "nodes" / "node-0" / "node.pub").exists()
    assert [node.name for node in read_plan(place).nodes] == ["node-0", "node-1"]


def test_a_node_whose_key_is_nowhere_registered_is_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(place, {"node-1": "12"})
    monkeypatch.setattr(
        FlwrCommand, "json", lambda *_: {"success": True, "nodes": [{"node-id": "12", "status": "online"}]}
    )
    result = call("remove-node", str(place), "node-0")
    assert (result.exit_code, result.stdout) == (0, "node-0 is removed\n")
    assert [node.name for node in read_plan(place).nodes] == ["node-1"]
