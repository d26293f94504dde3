"""What nodes of a masked run hold: a key of their own, and those of their peers."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.client.masks import read_identity, read_peers
from dqnfed_flwr.deploy import identities
from dqnfed_flwr.deploy.build import add_node, create, refresh, remove_node
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST
from dqnfed_flwr.masked.secrets import signing_public


@pytest.fixture
def place(tmp_path: Path) -> Path:
    nodes = tuple(Node(f"node-{number}", number, 9100 + number) for number in range(3))
    create(tmp_path / "federation", Federation("127.0.0.1", nodes=nodes))
    return tmp_path / "federation" / "nodes"


def peers(place: Path) -> dict[int, bytes]:
    """The list of every node, which is one."""
    found = [read_peers(folder / PEERS_LIST) for folder in sorted(place.iterdir())]
    assert all(each == found[0] for each in found)
    return found[0]


def test_each_node_has_a_key_of_its_own_that_only_it_can_read_and_those_of_all(place: Path) -> None:
    keys = {number: read_identity(place / f"node-{number}" / IDENTITY) for number in range(3)}
    assert len({*keys.values()}) == 3
    assert peers(place) == {number: signing_public(key) for number, key in keys.items()}
    assert all((place / f"node-{number}" / IDENTITY).stat().st_mode & 0o077 == 0 for number in range(3))


def test_lists_follow_who_comes_and_goes_and_keys_stay(place: Path) -> None:
    before = peers(place)
    add_node(place.parent, "late")
    assert {number: key for number, key in peers(place).items() if number < 3} == before
    remove_node(place.parent, "node-1")
    assert sorted(peers(place)) == [0, 2, 3]


def test_refresh_makes_what_an_older_federation_lacks(place: Path) -> None:
    before = peers(place)
    for name in (IDENTITY, identities.PUBLIC):
        (place / "node-2" / name).unlink()
    (place / "node-0" / PEERS_LIST).unlink()
    changed = refresh(place.parent)
    assert place / "node-2" / IDENTITY in changed
    after = peers(place)
    assert after[2] != before[2]
    assert {0: after[0], 1: after[1]} == {0: before[0], 1: before[1]}
    assert not [path for path in refresh(place.parent) if path.name in (IDENTITY, PEERS_LIST)]


def test_key_that_is_kept_elsewhere_is_not_made_anew(place: Path) -> None:
    before = peers(place)
    (place / "node-1" / IDENTITY).unlink()
    refresh(place.parent)
    assert peers(place) == before
    assert not (place / "node-1" / IDENTITY).exists()


def test_site_makes_its_own_key_and_the_server_takes_the_public_half(place: Path, tmp_path: Path) -> None:
    site, before = tmp_path / "site", peers(place)
    site.mkdir()
    said = CliRunner().invoke(app, ["deploy", "identity", str(site)])
    private = read_identity(site / IDENTITY)
    assert (said.exit_code, said.stdout.strip()) == (0, signing_public(private).hex())
    assert stat.S_IMODE((site / IDENTITY).stat().st_mode) == 0o600
    (place / "node-1" / identities.PUBLIC).write_bytes((site / identities.PUBLIC).read_bytes())
    (place / "node-1" / IDENTITY).unlink()
    refresh(place.parent)
    add_node(place.parent, "late")
    assert peers(place) == {**before, 1: signing_public(private), 3: peers(place)[3]}
    assert not (place / "node-1" / IDENTITY).exists()
    again = CliRunner().invoke(app, ["deploy", "identity", str(site)])
    assert again.exit_code != 0
    assert "has identity.key and identity.pub already, and no key is replaced" in again.stderr
    assert read_identity(site / IDENTITY) == private
    nowhere = CliRunner().invoke(app, ["deploy", "identity", str(tmp_path / "none")])
    assert "No such folder" in nowhere.stderr


@pytest.mark.parametrize(
    "text",
    ["", "peers = 3", '[peers.a]\npartition = 0\nkey = "00"', '[peers.a]\nkey = "00"', "[peers.a]\npartition = 1"],
)
def test_list_that_cannot_be_read_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / PEERS_LIST).write_text(text)
    with pytest.raises(ConfigError, match=r"peers: .*peers\.toml"):
        read_peers(tmp_path / PEERS_LIST)
    (tmp_path / IDENTITY).write_text("00ff")
    with pytest.raises(ConfigError, match="2 bytes; need 32"):
        read_identity(tmp_path / IDENTITY)
    (tmp_path / IDENTITY).write_text("no key")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_identity(tmp_path / IDENTITY)


def test_two_peers_with_one_partition_are_refused(tmp_path: Path) -> None:
    key = "ab" * 32
    (tmp_path / PEERS_LIST).write_text(
        f'[peers.a]\npartition = 1\nkey = "{key}"\n[peers.b]\npartition = 1\nkey = "{key}"'
    )
    with pytest.raises(ConfigError, match="partitions of their own"):
        read_peers(tmp_path / PEERS_LIST)
