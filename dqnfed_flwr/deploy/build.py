"""Make a federation's folder, add and remove nodes, renew certificates."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tomli_w

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.commands import command_files, node_environment, node_text, server_environment
from dqnfed_flwr.deploy.files import make_directory, write_private, write_public
from dqnfed_flwr.deploy.plan import CONNECTION, PLAN, Federation, Node, read_plan, write_bundle, write_plan
from dqnfed_flwr.errors import ConfigError

SECRET_BYTES = 48
NODE_PORT = 9094
"""Flower's default; node k takes this plus k, so that several fit on one machine."""


def create(directory: Path, federation: Federation) -> None:
    """Write everything that `federation` needs into `directory`, or nothing.

    Raises
    ------
    ConfigError
        If the directory holds anything already, cannot be written, or the plan is unfit.
    """
    federation.check()
    if (directory / PLAN).exists():
        raise ConfigError(
            f"{directory} holds a federation already, and its keys are not replaced. Name another folder, or change "
            f"this one with `dqnfed deploy add-node`, `remove-node` or `rotate`"
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not empty; name a new folder")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".dqnfed-", dir=directory.parent) as place:
            staging = make_directory(Path(place) / directory.name)
            _fill(staging, directory, federation)
            staging.replace(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be written ({error.strerror}); name another folder") from None


def add_node(directory: Path, name: str = "", data: str = "") -> Node:
    """Give a further node its key and folder; the number of its client is the smallest that is free.

    Raises
    ------
    ConfigError
        If the name is taken or unfit.
    """
    federation = read_plan(directory)
    taken = {node.partition for node in federation.nodes}
    partition = next(number for number in range(len(taken) + 1) if number not in taken)
    first = min((one.port - one.partition for one in federation.nodes), default=NODE_PORT)
    node = Node(name or f"node-{partition}", partition, first + partition, data)
    if any(node.name == other.name for other in federation.nodes):
        raise ConfigError(f"there is a node {node.name!r} already; give another --name, or remove that one first")
    federation = replace(federation, nodes=tuple(sorted((*federation.nodes, node), key=lambda one: one.partition)))
    federation.check()
    _make_node(directory / "nodes", federation, node, (directory / "server" / "ca.crt").read_bytes())
    write_plan(directory, federation)
    _write_commands(directory, directory, federation)
    return node


def remove_node(directory: Path, name: str) -> Node:
    """Delete a node's keys and folder. Its registration at the SuperLink is another matter; see `registry`.

    Raises
    ------
    ConfigError
        If there is no such node.
    """
    federation = read_plan(directory)
    node = federation.node(name)
    federation = replace(federation, nodes=tuple(one for one in federation.nodes if one.name != name))
    write_plan(directory, federation)
    shutil.rmtree(directory / "nodes" / name, ignore_errors=True)
    (directory / "commands" / f"{name}.txt").unlink(missing_ok=True)
    return node


def rotate(directory: Path, *, authority: bool = False, days: int = 0) -> Federation:
    """Make a new server certificate and key, signed by the same authority, or by a new one.

    With a new authority, the `ca.crt` of every folder holds the new and the old one, so that nodes which have the new
    file trust the server before and after it changes over.

    Raises
    ------
    ConfigError
        If the authority's key or another file is missing.
    """
    federation = read_plan(directory)
    if days:
        federation = replace(federation, days=days)
        federation.check()
    try:
        _renew(directory, federation, authority=authority)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}; `dqnfed deploy check {directory}` tells what else is missing"
        ) from None
    return federation


def _renew(directory: Path, federation: Federation, *, authority: bool) -> None:
    if authority:
        make_directory(directory / "ca")
        fresh = pki.make_authority()
        trusted = pki.bundle(fresh.certificate, (directory / "server" / "ca.crt").read_bytes())
        write_private(directory / "ca" / "ca.key", fresh.key)
        write_public(directory / "ca" / "ca.crt", trusted)
        for place in _trusting(directory, federation):
            write_public(place / "ca.crt", trusted)
    server = pki.make_server(_authority(directory), federation.host, federation.others, federation.days)
    write_private(directory / "server" / "server.key", server.key)
    write_public(directory / "server" / "server.crt", server.certificate)
    write_plan(directory, federation)


def _fill(place: Path, final: Path, federation: Federation) -> None:
    """Write all files to `place`; texts name `final`, where it will lie."""
    authority = pki.make_authority(max(pki.CA_DAYS, federation.days))
    server = pki.make_server(authority, federation.host, federation.others, federation.days)
    for name in ("ca", "server", "server/state", "server/state/runs", "nodes", "operator", "commands"):
        make_directory(place / name)
    write_private(place / "ca" / "ca.key", authority.key)
    write_public(place / "ca" / "ca.crt", authority.certificate)
    write_private(place / "server" / "server.key", server.key)
    write_public(place / "server" / "server.crt", server.certificate)
    write_public(place / "server" / "ca.crt", authority.certificate)
    write_private(place / "server" / "superexec.secret", _secret())
    write_public(place / "server" / "environment", server_environment(federation))
    write_public(place / "operator" / "ca.crt", authority.certificate)
    write_public(place / "operator" / "config.toml", _connection(final, federation))
    for node in federation.nodes:
        _make_node(place / "nodes", federation, node, authority.certificate)
    _write_commands(place, final, federation)
    write_plan(place, federation)


def _make_node(nodes: Path, federation: Federation, node: Node, ca: bytes) -> None:
    place = make_directory(nodes / node.name)
    private, public = pki.make_node_key(node.name)
    write_private(place / "node.key", private)
    write_public(place / "node.pub", public)
    write_private(place / "superexec.secret", _secret())
    write_public(place / "ca.crt", ca)
    write_public(place / "environment", node_environment(federation, node))
    write_public(place / "commands.txt", node_text(federation, node, Path("/etc/dqnfed/nodes") / node.name))
    write_bundle(place, federation, node)


def _write_commands(place: Path, final: Path, federation: Federation) -> None:
    for name, text in command_files(final, federation).items():
        write_public(place / "commands" / name, text)


def _connection(final: Path, federation: Federation) -> str:
    address = f"127.0.0.1:{federation.control_port}"
    mine = {"address": address, "root-certificates": str(final / "operator" / "ca.crt")}
    return tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: mine}})


def _authority(directory: Path) -> pki.Identity:
    try:
        return pki.Identity((directory / "ca" / "ca.crt").read_bytes(), (directory / "ca" / "ca.key").read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{directory / 'ca'}: {error.strerror}; put the authority's key back for this, or make a new authority "
            "with --ca"
        ) from None


def _trusting(directory: Path, federation: Federation) -> Sequence[Path]:
    nodes = [directory / "nodes" / node.name for node in federation.nodes]
    return [directory / "server", directory / "operator", *nodes]


def _secret() -> bytes:
    return secrets.token_urlsafe(SECRET_BYTES).encode()
