"""Whose files are whose: what root makes for a service, and folders that are another user's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.deploy import build, check, files, registry
from dqnfed_flwr.deploy.findings import Finding, Level
from dqnfed_flwr.deploy.plan import Federation, Node, bundle_text, read_plan
from dqnfed_flwr.deploy.superlink import SuperLink, connect
from dqnfed_flwr.engine.flwr_command import FlwrCommand
from dqnfed_flwr.errors import ConfigError, RunError

SERVICE = 65534


class Idle(FlwrCommand):
    """A `flwr` whose SuperLink knows no node."""

    def json(self, *arguments: str) -> dict[str, object]:
        return {"success": True, "nodes": []}


PLAN = Federation("localhost", (), 40911, 40912, nodes=(Node("node-0", 0, 40913),))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which root alone may")


@pytest.fixture
def place() -> Iterator[Path]:
    """A federation in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        build.create(Path(above) / "fl", PLAN)
        yield Path(above) / "fl"


def give(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, SERVICE, SERVICE)


def owners(place: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in (place, *place.rglob("*"))}


@as_root
def test_what_root_makes_is_the_services(place: Path) -> None:
    give(place)
    shutil.rmtree(place / "ca")
    build.rotate(place, authority=True)
    build.rotate(place)
    build.add_node(place)
    build.remove_node(place, "node-0")
    assert len(list(place.rglob("*.key"))) == 5
    assert owners(place) == {(SERVICE, SERVICE)}


def test_who_is_not_root_gives_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: object) -> None:
        raise PermissionError(given)  # what the units' filter of system calls says, whatever is asked for

    for name in ("chown", "fchown", "lchown"):
        monkeypatch.setattr(os, name, forbidden)
    monkeypatch.setattr(os, "geteuid", lambda: SERVICE)
    files.write_private(tmp_path / "head", b"1")
    files.make_way(tmp_path / "new" / "folder")
    assert (tmp_path / "head").read_bytes() == b"1"


@as_root
def test_a_federation_is_of_whom_the_folder_is_that_it_lies_in(tmp_path: Path) -> None:
    os.chown(tmp_path, SERVICE, SERVICE)
    build.create(tmp_path / "deep" / "fl", PLAN)
    assert owners(tmp_path) == {(SERVICE, SERVICE)}
    os.chown(tmp_path, 0, 0)
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", SERVICE, SERVICE)
    build.create(tmp_path / "theirs", PLAN)
    assert owners(tmp_path / "theirs") == {(SERVICE, SERVICE)}
    assert (tmp_path / "deep" / "fl" / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600


def ownership(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if "not its owner's" in finding.what]


@as_root
def test_check_finds_what_is_not_the_services(place: Path) -> None:
    give(place)
    assert ownership(check.check(place)) == []
    late = place / "nodes" / "node-0"
    for path in (place / "server" / "server.key", place / "server" / "server.crt", late, *late.iterdir()):
        os.chown(path, 0, 0)
    server, nodes = ownership(check.check(place))
    assert (server.level, nodes.level) == (Level.FAILURE, Level.FAILURE)
    assert server.what == f"in {place / 'server'}, not its owner's: server.crt, server.key"
    assert server.fix == (
        f"chown -R {SERVICE}:{SERVICE} {place / 'server' / 'server.crt'} {place / 'server' / 'server.key'}"
    )
    assert nodes.what == f"in {place / 'nodes'}, not its owner's: node-0"
    os.chown(place / "server" / "server.key", SERVICE, SERVICE)
    assert ownership(check.check(place))[0].level is Level.WARNING  # anybody may read a certificate
    give(place)
    os.chown(place / "nodes" / "node-0" / "node.key", 0, 0)
    assert [one.what for one in ownership(check.check(place / "nodes" / "node-0"))] == [
        f"in {place / 'nodes' / 'node-0'}, not its owner's: node.key"
    ]


@contextmanager
def another_user(*closed: Path) -> Iterator[None]:
    """Be somebody who may not look into `closed`."""
    modes = {path: path.stat().st_mode for path in closed}
    for path in closed:
        path.chmod(0)
    was = os.geteuid()
    try:
        if was == 0:
            os.seteuid(SERVICE)
        yield
    finally:
        os.seteuid(was)
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.parametrize(
    "work",
    [
        check.check,
        build.rotate,
        build.refresh,
        build.add_node,
        lambda place: build.create(place, PLAN),
        lambda place: build.remove_node(place, "node-0"),
        lambda place: connect(str(place)),
    ],
)
def test_the_folder_of_another_user(place: Path, work: Callable[[Path], object]) -> None:
    words = rf"cannot be read.*run this as the owner of {place}, \w"
    with another_user(place), pytest.raises(ConfigError, match=words):
        work(place)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("federation.toml", read_plan),
        ("server/ca.crt", build.add_node),
        ("ca/ca.key", build.rotate),
        ("server", check.check),
        ("registered.json", lambda place: registry.register(place, PLAN)),
    ],
)
def test_a_file_of_another_user(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, work: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(registry, "link_of", lambda _: SuperLink(Idle({}), "dqnfed"))
    (place / "registered.json").write_text("{}")
    if os.geteuid() == 0:
        give(place)
        os.chown(place / name, 0, 0)
    with another_user(place / name), pytest.raises(ConfigError, match=rf"{name}.*: cannot be read.*as the owner of"):
        work(place)


@pytest.mark.parametrize("name", ["nodes/node-0/node.key", "nodes/node-0", "ca"])
def test_check_goes_on_after_what_it_may_not_read(place: Path, name: str) -> None:
    closed = place / name
    if os.geteuid() == 0:
        give(place)
        os.chown(closed, 0, 0)
    with another_user(closed):
        found = {finding.what: finding.fix for finding in check.check(place)}
    assert "chown" in found[f"{closed} cannot be read by this user"]
    assert any("server certificate is valid until" in what for what in found)


def test_data_of_another_user(place: Path) -> None:
    node, data = place / "nodes" / "node-0", place.parent / "data"
    data.mkdir()
    (node / "node.toml").write_text(bundle_text(PLAN, Node("node-0", 0, 40913, f"{data}/site.npz")))
    if os.geteuid() == 0:
        give(place)
    with another_user(data):
        found = [finding.what for finding in check.check(node)]
    assert f"{data}/site.npz cannot be read by this user" in found


@pytest.mark.parametrize("command", [["deploy", "check"], ["deploy", "rotate"], ["deploy", "add-node"], ["runs"]])
def test_commands_say_so_without_a_traceback(place: Path, command: list[str]) -> None:
    with another_user(place):
        result = CliRunner().invoke(app, [*command, str(place)], prog_name="dqnfed")
    assert result.exit_code == 2, result.exception
    assert result.output.startswith(f"dqnfed: {place}")
    assert "run this as the owner" in result.output


def test_a_machine_that_fails_half_way(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = sorted(place.rglob("*"))
    with pytest.raises(RunError, match=r"No space left on device; some files of .* may be changed.*once more"):
        build.rotate(place)
    assert sorted(place.rglob("*")) == before
