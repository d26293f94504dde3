"""Checks of what answers: ports, certificates as others see them, clocks, registered keys."""

from __future__ import annotations

import math
import socket
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dqnfed_flwr.deploy import probe, stamps
from dqnfed_flwr.deploy.findings import Finding, Findings, Level
from dqnfed_flwr.deploy.plan import CONNECTION, Federation
from dqnfed_flwr.deploy.probe import Port
from dqnfed_flwr.deploy.registry import known_now, listed, operator_command
from dqnfed_flwr.errors import RunError

AHEAD_WARN, BEHIND_WARN = 2.0, 30.0


def skew(ahead: float | None) -> Findings:
    """The clock of this machine beside the server's; Flower lets it be 5 seconds ahead, and 305 behind."""
    if ahead is None:
        return
    warn, limit = (AHEAD_WARN, stamps.AHEAD) if ahead > 0 else (BEHIND_WARN, stamps.BEHIND)
    level = Level.OK if abs(ahead) < warn else Level.WARNING if abs(ahead) < limit else Level.FAILURE
    words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    mend = "set both clocks right, for instance with chrony: Flower refuses a node 5 s ahead or 5 minutes behind"
    yield Finding(
        level,
        f"this clock is {words if math.isfinite(ahead) else 'more than a day off'}",
        "" if level is Level.OK else mend,
    )


def server_ports(federation: Federation, ca: Path, place: str) -> Findings:
    """The server's two ports: free, or ours."""
    for what, host, port in (
        ("Fleet", federation.host, federation.fleet_port),
        ("Control", "127.0.0.1", federation.control_port),
    ):
        found, why, served = probe.look("127.0.0.1", port, ca)
        if found is Port.FREE:
            absent = "gate" if what == "Fleet" and federation.over_http else "SuperLink"
            yield Finding(Level.OK, f"{what} port {port} is free: the {absent} is not running")
            continue
        if found is not Port.OURS:
            mend = f"change the port in {place}, or end what listens there"
            yield _trouble(found, f"{what} port {port}", why, mend, federation.doors)
            continue
        yield _served(served, ca.with_name("server.crt"), f"{what} port {port}", federation.doors)
        if host == "127.0.0.1":
            continue
        if _is_known(host):
            yield from reach(host, port, ca, federation.doors)
        else:
            yield Finding(
                Level.WARNING,
                f"{host} is not known on this machine, so that it cannot be tried from here",
                "if it is the name of a container, all is well; else see that the devices' DNS has it",
            )


def _is_known(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def _served(served: bytes, file: Path, where: str, doors: str) -> Finding:
    """Whether the certificate that is served is that of the folder; it is read at the start alone."""
    try:
        mine = x509.load_pem_x509_certificate(file.read_bytes()).public_bytes(Encoding.DER)
    except (OSError, ValueError):  # told by the checks of files
        mine = served
    if mine == served:
        return Finding(Level.OK, f"{where} answers with our certificate")
    end = x509.load_der_x509_certificate(served).not_valid_after_utc
    return Finding(
        Level.WARNING,
        f"{where} still serves an older certificate than server.crt: the one that ends on {end:%Y-%m-%d}",
        f"restart {doors}; after `rotate --ca` only when every device has the new ca.crt",
    )


def reach(host: str, port: int, ca: Path, doors: str) -> Findings:
    """Whether the server answers there, with a certificate of ours; `doors` are who serves it, in words."""
    found, why, _ = probe.look(host, port, ca)
    if found is Port.OURS:
        yield Finding(Level.OK, f"{host}:{port} answers with our certificate")
        return
    mend = f"start {doors}, open port {port} in its firewall, and see that {host} leads to it"
    yield _trouble(Port.UNREACHABLE if found is Port.FREE else found, f"{host}:{port}", why, mend, doors, name=host)


def node_port(port: int) -> Findings:
    """The Runtime port of a device's SuperNode: free, or a SuperNode's."""
    title = probe.title_of(port)
    if title is None:
        yield Finding(Level.OK, f"Runtime port {port} is free: the SuperNode is not running")
    elif title.startswith("SuperNode"):
        yield Finding(Level.OK, f"Runtime port {port} is a SuperNode's")
    else:
        yield Finding(
            Level.FAILURE,
            f"Runtime port {port} is taken by another program{f', {title}' if title else ''}",
            "end it; or change the port in node.toml, environment and commands.txt here, and restart both programs",
        )


def _trouble(found: Port, where: str, why: str, mend: str, doors: str, name: str = "127.0.0.1") -> Finding:
    """What is wrong with who answers, in words."""
    words = {
        Port.PLAIN: ("answers without TLS", mend),
        Port.FOREIGN: ("has a certificate of another authority", "copy ca.crt of this federation there, or " + mend),
        Port.EXPIRED: (
            f"has a certificate that is out of date ({why})",
            f"rotate it, restart {doors}; or set this clock",
        ),
        Port.NAME: (
            "has a certificate for other names",
            f"use a name it has, or at the server `dqnfed deploy rotate DIR --address {name}`; restart {doors}",
        ),
        Port.UNREACHABLE: (f"cannot be reached ({why})", mend),
    }[found]
    return Finding(Level.FAILURE, f"{where} {words[0]}", words[1])


def registered(directory: Path, federation: Federation, place: str) -> Findings:
    """Whether the SuperLink knows the keys, and which nodes are online."""
    try:
        present = listed(operator_command(directory))
    except RunError as error:
        yield Finding(Level.FAILURE, f"the SuperLink does not list its nodes: {error}", "look at the SuperLink's log")
        return
    ids = known_now(directory, federation)
    absent = [node.name for node in federation.nodes if ids.get(node.name) not in present]
    offline = [
        node.name for node in federation.nodes if present.get(ids.get(node.name, "")) in ("offline", "registered")
    ]
    strangers = sorted(set(present) - set(ids.values()))
    if absent:
        yield Finding(Level.FAILURE, f"not registered: {', '.join(absent)}", f"`dqnfed deploy register {place}`")
    if offline:
        yield Finding(Level.WARNING, f"not online: {', '.join(offline)}", "start them, and look at their logs")
    if strangers:
        yield Finding(
            Level.WARNING,
            f"registered, but as no node of this folder: {', '.join(strangers)}",
            f"if they should not take part: `FLWR_HOME={place}/operator flwr supernode unregister ID {CONNECTION}`",
        )
    if not absent:
        yield Finding(
            Level.OK, f"{len(federation.nodes)} keys are registered, {len(federation.nodes) - len(offline)} online"
        )
