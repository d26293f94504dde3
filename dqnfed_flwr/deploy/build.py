"""Make a federation's folder, add and remove nodes."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

import tomli_w

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.commands import command_files, node_files, server_environment
from dqnfed_flwr.deploy.files import (
    changing,
    demand,
    give_away,
    is_there,
    make_directory,
    make_way,
    write_private,
    write_public,
)
from dqnfed_flwr.deploy.plan import CONNECTION, Federation, Node
from dqnfed_flwr.deploy.plan_files import PLAN, read_plan, write_plan
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
    if federation.local and (shared := federation.shared_ports()):
        raise ConfigError(f"one port, two programs on this machine: {', '.join(shared)}; give another --node-port")
    if is_there(directory / PLAN):
        raise ConfigError(
            f"{directory} holds a federation already, and its keys are not replaced. Name another folder, or change "
            f"this one with `dqnfed deploy add-node`, `remove-node` or `rotate`"
        )
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"{directory} is not empty; name a new folder")
        make_way(directory.parent)
        with tempfile.TemporaryDirectory(prefix=".dqnfed-", dir=directory.parent) as place:
            give_away(Path(place), directory if directory.exists() else None)
            staging = make_directory(Path(place) / directory.name)
            _fill(staging, directory, federation)
            staging.replace(directory)
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot be made ({error.strerror}); name a new folder in one that you may write to"
        ) from None


def add_node(directory: Path, name: str = "", data: str = "") -> Node:
    """Give a further node its key and folder; the number of its client is the smallest that is free.

    Raises
    ------
    ConfigError
        If the name is taken or unfit, or `server/ca.crt` is missing.
    RunError
        If the machine fails half way.
    """
    federation = read_plan(directory)
    taken = {node.partition for node in federation.nodes}
    partition = next(number for number in range(len(taken) + 1) if number not in taken)
    first = min((one.port - one.partition for one in federation.nodes), default=NODE_PORT)
    taken_ports = {federation.fleet_port, federation.control_port, *(one.port for one in federation.nodes)}
    port = next(port for port in count(first + partition) if port not in taken_ports)
    node = Node(name or f"node-{partition}", partition, port, data)
    if any(node.name == other.name for other in federation.nodes):
        raise ConfigError(f"there is a node {node.name!r} already; give another --name, or remove that one first")
    federation = replace(federation, nodes=tuple(sorted((*federation.nodes, node), key=lambda one: one.partition)))
    federation.check()
    with changing(directory):
        demand([directory, directory / "nodes", directory / "commands"])
        _make_node(directory / "nodes", federation, node, trusted(directory))
        write_plan(directory, federation)
        _write_commands(directory, directory, federation)
    return node


def remove_node(directory: Path, name: str) -> Node:
    """Delete a node's keys and folder. Its registration at the SuperLink is another matter; see `registry`.

    Raises
    ------
    ConfigError
        If there is no such node.
    RunError
        If the machine fails half way.
    """
    federation = read_plan(directory)
    node = federation.node(name)
    federation = replace(federation, nodes=tuple(one for one in federation.nodes if one.name != name))
    with changing(directory):
        write_plan(directory, federation)
        shutil.rmtree(directory / "nodes" / name, ignore_errors=True)
        (directory / "commands" / f"{name}.txt").unlink(missing_ok=True)
        if (directory / "commands").is_dir():
            _write_commands(directory, directory, federation)
    return node


def trusted(directory: Path) -> bytes:
    """The authorities that the server's folder trusts, as PEM.

    Raises
    ------
    ConfigError
        If the file is missing.
    """
    path, same = directory / "server" / "ca.crt", directory / "operator" / "ca.crt"
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing; nothing was changed. Copy {same} there") from None


def _fill(place: Path, final: Path, federation: Federation) -> None:
    """Write all files to `place`; texts name `final`, where it will lie."""
    authority = pki.make_authority(federation.days)
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
    for name, text in node_files(federation, node).items():
        write_public(place / name, text)


def _write_commands(place: Path, final: Path, federation: Federation) -> None:
    for name, text in command_files(final, federation).items():
        write_public(place / "commands" / name, text)


def _connection(final: Path, federation: Federation) -> str:
    address = f"127.0.0.1:{federation.control_port}"
    mine = {"address": address, "root-certificates": str(final / "operator" / "ca.crt")}
    return tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: mine}})


def _secret() -> bytes:
    return secrets.token_urlsafe(SECRET_BYTES).encode()
