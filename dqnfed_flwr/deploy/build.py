"""A federation's folder: make it, add and remove nodes, renew its certificates, bring it to the installed versions.

All of these raise `ConfigError` if names are unfit or a folder is incomplete or another user's, and change nothing
then. Those that change a folder raise `RunError` if the machine fails half way.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import count
from pathlib import Path

from dqnfed_flwr.deploy import apps, identities, node_certificates, operators, pki
from dqnfed_flwr.deploy.audit_log import AuditLog
from dqnfed_flwr.deploy.commands import command_files, limits_in, limits_of, node_files, server_environment
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
from dqnfed_flwr.deploy.plan import (
    BUNDLE,
    PLAN,
    Federation,
    Node,
    plan_text,
    read_bundle,
    read_plan,
    write_plan,
)
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.version import package_version

SECRET_BYTES = 48
NODE_PORT = 9094
"""Flower's default; node k takes this plus k, so that several fit on one machine."""


def create(directory: Path, federation: Federation) -> None:
    """Write everything that `federation` needs into `directory`, which must be new or empty, or write nothing."""
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
    """Give a further node its key, certificate and folder; the number of its client is the smallest that is free."""
    federation = read_plan(directory)
    taken = {node.partition for node in federation.nodes}
    partition = next(number for number in count() if number not in taken)
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
        limits = limits_in(directory, federation)
        trusted, signer = node_certificates.trusted(directory), node_certificates.authority(directory)
        _make_node(directory, federation, node, trusted)
        node_certificates.certify(directory, signer, [node])
        identities.write(directory, federation.nodes)
        write_plan(directory, federation)
        _write_commands(directory, directory, federation, limits)
    return node


def remove_node(directory: Path, name: str) -> Node:
    """Delete a node's keys and folder. Its registration at the SuperLink is another matter; see `registry`."""
    federation = read_plan(directory)
    node = federation.node(name)
    federation = replace(federation, nodes=tuple(one for one in federation.nodes if one.name != name))
    with changing(directory):
        limits = limits_in(directory, federation)
        write_plan(directory, federation)
        node_certificates.strike(directory, name)
        shutil.rmtree(directory / "nodes" / name, ignore_errors=True)
        identities.write(directory, federation.nodes)
        (directory / "commands" / f"{name}.txt").unlink(missing_ok=True)
        if (directory / "commands").is_dir():
            _write_commands(directory, directory, federation, limits)
    return node


def refresh(directory: Path) -> list[Path]:
    """After an upgrade, set a federation's versions to those installed, and rewrite plan, environments and commands.

    Keys and certificates stay; those of nodes that are missing are made, for which the authority's key is needed.
    Limits of a site in its node config stay. In the folder of one node, its files are rewritten as its node.toml says.
    Returned are the files that were written, which are those that have changed.
    """
    directory = directory.absolute()
    if is_there(directory / BUNDLE):
        return _refresh_node(directory)
    federation = replace(read_plan(directory), flwr=version("flwr"), dqnfed=package_version())
    with changing(directory):
        limits = limits_in(directory, federation)
        texts = {directory / "server" / "environment": server_environment(federation)}
        commands = command_files(directory, federation, limits)
        texts |= {directory / "commands" / name: text for name, text in commands.items()}
        for node in federation.nodes:
            place = directory / "nodes" / node.name
            texts |= {place / name: text for name, text in node_files(federation, node, limits[node.name]).items()}
        texts[directory / PLAN] = plan_text(federation)
        demand(list(dict.fromkeys(path.parent for path in texts)))
        for node in federation.nodes:  # the nodes decide: this is for those that are copied from here
            apps.write(directory / "nodes" / node.name, apps.own_hash())
        certified: list[Path] = []
        if new := node_certificates.without(directory, federation):
            certified = node_certificates.certify(directory, node_certificates.authority(directory), new)
        stale = _rewrite(texts)
        known = identities.write(directory, federation.nodes)
    return [*stale, *certified, *known]


def refreshed(directory: Path, written: Sequence[Path]) -> list[str]:
    """What `refresh` did, and what is to be done then, in lines."""
    on_device = is_there(directory / BUNDLE)
    if on_device:
        node, federation = read_bundle(directory)
        limits = {node.name: limits_of(directory)}
    else:
        federation = read_plan(directory)
        limits = limits_in(directory, federation)
    lines = [f"wrote {path.relative_to(directory)}" for path in written]
    lines += [f"kept the limits that the site of {name} set:{found}" for name, found in limits.items() if found]
    lines.append(f"the federation is of flwr {federation.flwr} and dqnfed-flwr {federation.dqnfed}")
    if on_device:
        lines.append("restart both programs of the node to use what was written")
    elif any("nodes" in path.relative_to(directory).parts for path in written):
        lines.append("copy node.toml, node.crt and peers.toml from each nodes/NAME to its device, with identity.key")
        lines.append("where it was made now; `dqnfed deploy refresh` the folder there, which keeps its site's limits")
    return lines


def rotate(directory: Path, *, authority: bool = False, days: int = 0, others: Sequence[str] = ()) -> Federation:
    """Make a new server certificate and key, signed by the same authority, or by a new one; renew the operators' too.

    With a new authority, the `ca.crt` of every folder holds the new and the old one, so that nodes which have the new
    file trust the server before and after it changes over. Nodes' certificates, which last as long as the authority,
    are renewed then too; the old ones serve until the authority after next.

    Parameters
    ----------
    directory : Path
        Of the federation.
    authority : bool
        Whether the authority is new too.
    days : int
        How long the certificate is valid, though no longer than the authority; 0 for as long as the one before.
    others : Sequence[str]
        Names and addresses of the server that the certificate gets in addition to those it has; kept in the plan.
    """
    federation = read_plan(directory)
    names = tuple(name for name in dict.fromkeys((*federation.others, *others)) if name != federation.host)
    federation = replace(federation, days=days or federation.days, others=names)
    federation.check()
    server, nodes = directory / "server", [directory / "nodes" / node.name for node in federation.nodes]
    trusting = [server, *operators.homes(directory), *nodes]
    with changing(directory):
        demand([directory, *(trusting if authority else [server])])
        signer = (
            node_certificates.new_authority(directory, federation.days)
            if authority
            else node_certificates.authority(directory)
        )
        identity = pki.make_server(signer, federation.host, federation.others, federation.days)
        if authority:
            write_private(make_directory(directory / "ca") / "ca.key", signer.key)
            for place in (directory / "ca", *trusting):
                write_public(place / "ca.crt", signer.certificate)
            node_certificates.certify(directory, signer, federation.nodes)
        write_private(server / "server.key", identity.key)
        write_public(server / "server.crt", identity.certificate)
        operators.renew(directory, signer, federation.days)
        write_plan(directory, federation)
    return federation


def _refresh_node(place: Path) -> list[Path]:
    """Write a node's files but for its node.toml, which says what is in them."""
    node, federation = read_bundle(place)
    with changing(place):
        texts = node_files(federation, node, limits_of(place))
        return _rewrite({place / name: text for name, text in texts.items() if name != BUNDLE})


def _rewrite(texts: Mapping[Path, str]) -> list[Path]:
    """Write those that have changed; which these are."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_bytes() != text.encode()]
    for path in stale:
        write_public(path, texts[path])
    return stale


def _fill(place: Path, final: Path, federation: Federation) -> None:
    """Write all files to `place`; texts name `final`, where it will lie."""
    write_public(place / ".gitignore", "*\n")  # private keys belong into no repository
    authority = pki.make_authority(federation.days)
    server = pki.make_server(authority, federation.host, federation.others, federation.days)
    for name in ("ca", "server", "server/state", "server/state/runs", "nodes", "commands"):
        make_directory(place / name)
    write_private(place / "ca" / "ca.key", authority.key)
    for name in ("ca", "server"):
        write_public(place / name / "ca.crt", authority.certificate)
    write_private(place / "server" / "server.key", server.key)
    write_public(place / "server" / "server.crt", server.certificate)
    write_private(place / "server" / "superexec.secret", _secret())
    write_public(place / "server" / "environment", server_environment(federation))
    operators.write(place, final, federation, authority, operators.FIRST)
    for node in federation.nodes:
        _make_node(place, federation, node, authority.certificate)
    node_certificates.certify(place, authority, federation.nodes)
    identities.write(place, federation.nodes)
    _write_commands(place, final, federation, {})
    write_plan(place, federation)
    _begin_audit_log(place, federation)


def _begin_audit_log(place: Path, federation: Federation) -> None:
    """The first line; keys and operators are added by the SuperLink, when it sees them."""
    public = {node.name: place / "nodes" / node.name / "node.pub" for node in federation.nodes}
    nodes = {name: pki.fingerprint(path.read_bytes()) for name, path in public.items()}
    log = AuditLog(place / "server" / "state")
    log.append("federation made", host=federation.host, nodes=nodes, dqnfed=federation.dqnfed, flwr=federation.flwr)
    log.close()


def _make_node(directory: Path, federation: Federation, node: Node, ca: bytes) -> None:
    place = make_directory(directory / "nodes" / node.name)
    private, public = pki.make_node_key(node.name)
    write_private(place / "node.key", private)
    write_public(place / "node.pub", public)
    write_private(place / "superexec.secret", _secret())
    write_public(place / "ca.crt", ca)
    apps.write(place, apps.own_hash())
    for name, text in node_files(federation, node).items():
        write_public(place / name, text)


def _write_commands(place: Path, final: Path, federation: Federation, limits: Mapping[str, str]) -> None:
    for name, text in command_files(final, federation, limits).items():
        write_public(place / "commands" / name, text)


def _secret() -> bytes:
    return secrets.token_urlsafe(SECRET_BYTES).encode()
