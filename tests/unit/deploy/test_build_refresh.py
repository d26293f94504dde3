"""A federation after an upgrade."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
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


def said_of(place: Path) -> str:
    """What the command says."""
    result = CliRunner().invoke(app, ["deploy", "refresh", str(place)], prog_name="dqnfed")
    assert result.exit_code == 0
    return result.output


def node_config_of(path: Path) -> dict[str, object]:
    """The node config in a file of a node's folder, as a shell and then Flower read it."""
    words = shlex.split(path.read_text(), comments=True)
    given = [word.partition("=")[2] for word in words if word.startswith("DQNFED_NODE_CONFIG=")]
    return parse_config_args(given or [words[words.index("--node-config") + 1]])


def add_limits(path: Path, limits: str) -> None:
    """As a site adds them to a file of its node's folder, behind the node's name."""
    quoted = limits.replace('"', '\\"') if path.name == "environment" else limits
    path.write_text(re.sub(r'(name=\\?"[\w-]+\\?")', lambda found: f"{found[1]} {quoted}", path.read_text()))


def test_limits_that_a_site_set_stay_and_nothing_else_does(place: Path) -> None:
    device = place / "nodes" / "ward-b"
    add_limits(device / "environment", 'min-samples="1000" colour="red" epsilon=3')
    add_limits(device / "commands.txt", 'delta="1e-6" privacy="masked"')
    refresh(place)
    wanted = {"min-samples": "1000", "epsilon": "3", "delta": "1e-6", "privacy": "masked"}
    plain = parse_config_args([NODES[1].config])
    for path in (device / "environment", device / "commands.txt", place / "commands" / "ward-b.txt"):
        assert node_config_of(path) == {**plain, **wanted}, path
    assert node_config_of(place / "nodes" / "node-0" / "environment") == parse_config_args([NODES[0].config])
    assert refresh(place) == []
    build.add_node(place, "late")
    build.remove_node(place, "node-0")
    assert node_config_of(place / "commands" / "ward-b.txt") == {**plain, **wanted}


def test_limits_of_two_files_must_agree_and_be_readable(place: Path) -> None:
    device = place / "nodes" / "node-0"
    add_limits(device / "environment", "epsilon=3")
    add_limits(device / "commands.txt", 'epsilon="3"')
    refresh(place)
    before = contents(place)
    (place / "commands" / "node-0.txt").write_text("x --node-config 'epsilon=1'\n")
    words = r"commands/node-0\.txt: found epsilon=1 in the node config, and epsilon=3 in another file"
    for change in (refresh, build.add_node):
        with pytest.raises(ConfigError, match=words):
            change(place)
    (place / "commands" / "node-0.txt").write_text("x --node-config 'epsilon=1\n")
    with pytest.raises(
        ConfigError, match=r"node-0\.txt: its node config cannot be read \(No closing quotation\); mend"
    ):
        refresh(place)
    (place / "commands" / "node-0.txt").unlink()
    refresh(place)
    assert contents(place) == before


def test_a_nodes_folder_is_rewritten_on_its_device_as_its_node_toml_says(place: Path) -> None:
    device = place / "nodes" / "ward-b"
    add_limits(device / "environment", 'min-samples="1000"')
    shutil.copytree(device, place.parent / "ward-b")
    (device / "environment").unlink()
    refresh(place)  # at the server, which knows of no limit
    device = place.parent / "ward-b"
    shutil.copy(place / "nodes" / "ward-b" / "node.toml", device)
    said = said_of(device)
    assert said.startswith("wrote environment\nwrote commands.txt\n")
    assert 'kept the limits that the site of ward-b set: min-samples="1000"\n' in said
    assert said.endswith("restart both programs of the node to use what was written\n")
    for name in ("environment", "commands.txt"):
        assert node_config_of(device / name) == {**parse_config_args([NODES[1].config]), "min-samples": "1000"}
    add_limits(place / "nodes" / "ward-b" / "environment", 'min-samples="1000"')
    refresh(place)
    assert refresh(device) == []
    for name in ("environment", "commands.txt", "node.toml"):  # what the server would write with these limits
        assert (device / name).read_bytes() == (place / "nodes" / "ward-b" / name).read_bytes()


def test_the_command_says_what_it_wrote(place: Path) -> None:
    first, second = said_of(place), said_of(place)
    assert "wrote commands/superlink.txt\n" in first
    assert "wrote federation.toml\n" in first
    assert "copy node.toml, node.crt and peers.toml from each nodes/NAME to its device" in first
    assert "kept" not in first + second
    assert second == f"the federation is of flwr {version('flwr')} and dqnfed-flwr {package_version()}\n"
