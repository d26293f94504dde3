"""Certificates of nodes: made, listed, struck off the list, renewed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from dqnfed_flwr.deploy import node_certificates, pki
from dqnfed_flwr.deploy.build import add_node, refresh, remove_node, rotate
from dqnfed_flwr.deploy.node_certificates import identity_of, run_supernode
from dqnfed_flwr.errors import ConfigError


def shown(place: Path, name: str) -> x509.Certificate:
    return pki.first_certificate((place / "nodes" / name / "node.crt").read_bytes())


def known(place: Path, certificate: x509.Certificate) -> str | None:
    return node_certificates.name_of(place / "server" / "nodes", certificate)


def test_init_makes_one_for_the_key_that_a_node_has(place: Path) -> None:
    mine, node = shown(place, "node-0"), place / "nodes" / "node-0"
    assert pki.belongs_to(mine, pki.private_pem(pki.load_node_key((node / "node.key").read_bytes())))
    assert pki.signed_by(mine, pki.certificates((place / "ca" / "ca.crt").read_bytes()))
    use = mine.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    authority = pki.first_certificate((place / "ca" / "ca.crt").read_bytes())
    assert mine.not_valid_after_utc == authority.not_valid_after_utc
    assert known(place, mine) == "node-0"


def test_a_node_is_known_by_name_and_key(place: Path) -> None:
    mine, listed = shown(place, "node-0"), place / "server" / "nodes"
    shutil.copy(listed / "node-1.crt", listed / "node-0.crt")
    assert known(place, mine) is None
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    for name in ("../nodes/node-1", "", "operator", "node-1"):
        other = pki.make_operator(authority, name or " ", 9)
        assert known(place, pki.first_certificate(other.certificate)) is None


def test_nodes_come_and_go(place: Path) -> None:
    add_node(place, "ward-b")
    hers = shown(place, "ward-b")
    assert known(place, hers) == "ward-b"
    remove_node(place, "ward-b")
    assert known(place, hers) is None
    assert known(place, shown(place, "node-0")) == "node-0"


def test_without_the_authoritys_key_none_is_added(place: Path) -> None:
    (place / "ca" / "ca.key").unlink()
    with pytest.raises(ConfigError, match="put the authority's key back"):
        add_node(place, "ward-b")
    assert sorted(path.name for path in (place / "nodes").iterdir()) == ["node-0", "node-1"]


def test_a_new_authority_signs_anew_and_old_certificates_serve_meanwhile(place: Path) -> None:
    old = shown(place, "node-0")
    rotate(place)
    assert shown(place, "node-0") == old  # nodes need nothing new
    rotate(place, authority=True)
    new, trusted = shown(place, "node-0"), pki.certificates((place / "server" / "ca.crt").read_bytes())
    assert new.serial_number != old.serial_number
    for one in (old, new):
        assert pki.signed_by(one, trusted)
        assert known(place, one) == "node-0"


def test_refresh_makes_what_is_missing(place: Path) -> None:
    (place / "nodes" / "node-1" / "node.key").unlink()  # it is on the device; the public key is enough
    shutil.rmtree(place / "server" / "nodes")
    for path in place.glob("nodes/*/node.crt"):
        path.unlink()
    written = refresh(place)
    assert {place / "nodes" / f"node-{k}" / "node.crt" for k in range(2)} <= set(written)
    assert [known(place, shown(place, f"node-{k}")) for k in range(2)] == ["node-0", "node-1"]
    assert "--nodes" in (place / "commands" / "superlink.txt").read_text()
    assert "--certificate node.crt" in (place / "commands" / "node-1.txt").read_text()
    assert refresh(place) == []


def test_refresh_says_what_it_needs(place: Path) -> None:
    (place / "nodes" / "node-1" / "node.crt").unlink()
    (place / "nodes" / "node-1" / "node.pub").unlink()
    with pytest.raises(ConfigError, match=r"node-1/node.pub is missing; restore it"):
        refresh(place)
    (place / "ca" / "ca.key").unlink()
    with pytest.raises(ConfigError, match="put the authority's key back"):
        refresh(place)


def test_a_node_shows_what_belongs_to_its_key(place: Path) -> None:
    node, other = (place / "nodes" / f"node-{k}" for k in range(2))
    assert pki.belongs_to(shown(place, "node-0"), identity_of(node / "node.crt", node / "node.key").key)
    with pytest.raises(ConfigError, match=r"is of another key than .*node.key; copy node.crt"):
        identity_of(other / "node.crt", node / "node.key")
    with pytest.raises(ConfigError, match=r"absent.crt: No such file.*; copy node.crt"):
        identity_of(node / "absent.crt", node / "node.key")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "-c", "true"], "give flower-supernode"),
        (["flower-supernode", "--insecure"], "no --insecure"),
        (["flower-supernode", "--root-certificates", "ca.crt"], "--auth-supernode-private-key"),
    ],
)
def test_a_supernode_without_tls_or_key_is_not_started(place: Path, command: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_supernode(command, place / "nodes" / "node-0" / "node.crt")
