"""Checks of what answers: ports, certificates as others see them, registered keys, and the server's clock."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import json
import math
import socket
import ssl
from contextlib import closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dqnfed_flwr.deploy.findings import Finding, Findings, Level, failure, ok, warning
from dqnfed_flwr.deploy.plan import Federation
from dqnfed_flwr.deploy.registry import known_now, listed
from dqnfed_flwr.deploy.superlink import link_of
from dqnfed_flwr.engine.flwr_command import CONNECTION
from dqnfed_flwr.errors import RunError

SECONDS = 5.0
AHEAD, BEHIND = 5.0, 305.0
"""Seconds: Flower signs the time of each call of a node, and refuses a stamp so far off its server's clock."""
AHEAD_WARN, BEHIND_WARN = 2.0, 30.0
HALF_A_SECOND = 0.5


class Port(StrEnum):
    """What is behind a port."""

    FREE = "free"
    OURS = "ours"
    PLAIN = "plain"
    FOREIGN = "foreign"
    EXPIRED = "expired"
    NAME = "name"
    UNREACHABLE = "unreachable"


class Seen(NamedTuple):
    """What was found behind a port, the reason where it is not `OURS`, and the certificate where it is, as DER."""

    port: Port
    why: str = ""
    certificate: bytes = b""


def look(host: str, port: int, ca: Path) -> Seen:
    """Connect with TLS, trusting `ca` alone."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        return Seen(Port.UNREACHABLE, f"{ca}: {error}")
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            socket.create_connection((host, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return Seen(Port.OURS, certificate=secure.getpeercert(binary_form=True) or b"")
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message or str(error)
        if "expired" in why or "not yet valid" in why:
            return Seen(Port.EXPIRED, why)
        return Seen(Port.NAME if "match" in why else Port.FOREIGN, why)
    except ConnectionRefusedError as error:
        return Seen(Port.FREE, str(error))
    except (ssl.SSLError, ConnectionResetError) as error:
        return Seen(Port.PLAIN, str(error))
    except OSError as error:
        return Seen(Port.UNREACHABLE, str(error))


def server_ports(federation: Federation, ca: Path, place: str) -> Findings:
    """The server's two ports: free, or ours."""
    transport = federation.transport
    for what, host, port in (
        ("Fleet", federation.host, federation.fleet_port),
        ("Control", "127.0.0.1", federation.control_port),
    ):
        found, why, served = look("127.0.0.1", port, ca)
        if found is Port.FREE:
            absent = transport.listener if what == "Fleet" else "SuperLink"
            yield ok(f"{what} port {port} is free: the {absent} is not running")
            continue
        if found is not Port.OURS:
            fix = f"change the port in {place}, or end what listens there"
            yield _trouble(found, f"{what} port {port}", why, fix, transport.endpoints)
            continue
        yield _served(served, ca.with_name("server.crt"), f"{what} port {port}", transport.endpoints)
        if what == "Fleet":
            yield transport.closed(port, ca, place)
        if host == "127.0.0.1":
            continue
        if _resolves(host):
            yield reach(host, port, ca, transport.endpoints)
        else:
            yield warning(
                f"{host} is not known on this machine, so that it cannot be tried from here",
                "if it is the name of a container, all is well; else see that the devices' DNS has it",
            )


def _resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True


def _served(served: bytes, file: Path, where: str, endpoints: str) -> Finding:
    """Whether the certificate that is served is that of the folder; it is read at the start alone."""
    try:
        mine = x509.load_pem_x509_certificate(file.read_bytes()).public_bytes(Encoding.DER)
    except (OSError, ValueError):  # the checks of files find this
        mine = served
    if mine == served:
        return ok(f"{where} answers with our certificate")
    end = x509.load_der_x509_certificate(served).not_valid_after_utc
    return warning(
        f"{where} still serves an older certificate than server.crt: the one that ends on {end:%Y-%m-%d}",
        f"restart {endpoints}; after `rotate --ca` only when every device has the new ca.crt",
    )


def reach(host: str, port: int, ca: Path, endpoints: str) -> Finding:
    """Whether the server answers there, with a certificate of ours; `endpoints` serve it, in words."""
    found, why, _ = look(host, port, ca)
    if found is Port.OURS:
        return ok(f"{host}:{port} answers with our certificate")
    fix = f"start {endpoints}, open port {port} in its firewall, and see that {host} leads to it"
    return _trouble(Port.UNREACHABLE if found is Port.FREE else found, f"{host}:{port}", why, fix, endpoints, name=host)


def _trouble(found: Port, where: str, why: str, fix: str, endpoints: str, name: str = "127.0.0.1") -> Finding:
    """What is wrong with the program that answers, in words."""
    what, fix = {
        Port.PLAIN: ("answers without TLS", fix),
        Port.FOREIGN: ("has a certificate of another authority", f"copy ca.crt of this federation there, or {fix}"),
        Port.EXPIRED: (
            f"has a certificate that is out of date ({why})",
            f"rotate it, restart {endpoints}; or set this clock",
        ),
        Port.NAME: (
            "has a certificate for other names",
            f"use a name it has, or at the server `dqnfed deploy rotate DIR --address {name}`; restart {endpoints}",
        ),
        Port.UNREACHABLE: (f"cannot be reached ({why})", fix),
    }[found]
    return failure(f"{where} {what}", fix)


def node_port(port: int) -> Finding:
    """The Runtime port of a device's SuperNode: free, or a SuperNode's."""
    title = title_of(port)
    if title is None:
        return ok(f"Runtime port {port} is free: the SuperNode is not running")
    if title.startswith("SuperNode"):
        return ok(f"Runtime port {port} is a SuperNode's")
    return failure(
        f"Runtime port {port} is taken by another program{f', {title}' if title else ''}",
        "end it; or change the port in node.toml, environment and commands.txt here, and restart both programs",
    )


def title_of(port: int) -> str | None:
    """What a program on this machine calls its HTTP interface; empty where it has none, None where none listens."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
            connection.request("GET", "/openapi.json")
            return str(json.loads(connection.getresponse().read())["info"]["title"])
    except ConnectionRefusedError:
        return None
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return ""


def door(federation: Federation, ca: Path, place: str) -> Finding:
    """Whether the SuperLink turns away who shows no certificate."""
    context = ssl.create_default_context(cafile=str(ca))
    port = federation.control_port
    try:
        status, _ = asked("127.0.0.1", port, context, "/v1/control/list-runs")
    except (OSError, http.client.HTTPException) as error:
        return failure(f"Control port {port} does not answer a call ({error})", "look at the SuperLink's log")
    if status == http.HTTPStatus.FORBIDDEN:
        return ok(f"Control port {port} takes calls from operators alone")
    return failure(
        f"Control port {port} takes calls from anybody (status {status})",
        f"`dqnfed deploy refresh {place}`, then start the SuperLink with commands/superlink.txt or the unit",
    )


def asked(host: str, port: int, context: ssl.SSLContext, path: str) -> tuple[int, str]:
    """The status of an empty call without a key, and the words that came with it; it changes nothing."""
    with closing(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)) as connection:
        connection.request("POST", path, b"", {"Content-Type": "application/x-protobuf"})
        answer = connection.getresponse()
        words = answer.read()
    with suppress(ValueError, LookupError, TypeError):
        return answer.status, str(json.loads(words)["detail"])
    return answer.status, ""


def registered(directory: Path, federation: Federation, place: str) -> Findings:
    """Whether the SuperLink knows the keys, and which nodes are online."""
    try:
        present = listed(link_of(directory))
    except RunError as error:
        yield failure(f"the SuperLink does not list its nodes: {error}", "look at the SuperLink's log")
        return
    ids = known_now(directory, federation)
    states = {node.name: present.get(ids.get(node.name, "")) for node in federation.nodes}
    absent = [name for name, state in states.items() if state is None]
    offline = [name for name, state in states.items() if state in ("offline", "registered")]
    if absent:
        yield failure(f"not registered: {', '.join(absent)}", f"`dqnfed deploy register {place}`")
    if offline:
        none = len(offline) == len(states)
        words = f"no node is online, so that no run could begin: {', '.join(offline)}"
        yield (failure if none else warning)(
            words if none else f"not online: {', '.join(offline)}", "start them, and look at their logs"
        )
    if unregistered := sorted(set(present) - set(ids.values())):
        yield warning(
            f"registered, but as no node of this folder: {', '.join(unregistered)}",
            f"if they should not take part: `dqnfed deploy flwr {place} supernode unregister ID {CONNECTION}`",
        )
    if not absent:
        yield ok(f"{len(states)} keys are registered, {len(states) - len(offline)} online")


def skew(ahead: float | None) -> Findings:
    """What it means that this clock is so many seconds ahead of the server's; nothing where that is not known."""
    if ahead is None:
        return
    warn, limit = (AHEAD_WARN, AHEAD) if ahead > 0 else (BEHIND_WARN, BEHIND)
    level = Level.OK if abs(ahead) < warn else Level.WARNING if abs(ahead) < limit else Level.FAILURE
    seconds = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    fix = "set both clocks right, for instance with chrony: Flower refuses a node 5 s ahead or 5 minutes behind"
    yield Finding(
        level,
        f"this clock is {seconds if math.isfinite(ahead) else 'more than a day off'}",
        "" if level is Level.OK else fix,
    )


def now() -> dt.datetime:
    """What this clock says."""
    return dt.datetime.now(dt.UTC)


def ahead_by_date(host: str, port: int, ca: Path) -> float | None:
    """Seconds by which this clock is ahead of that of a server of HTTP; None where the server does not say.

    The date of an answer has its seconds cut off, and is of some moment between question and answer: half a second
    either way. A SuperLink that answers itself renews its date once a second only, so that this clock may seem to be up
    to a second further ahead.
    """
    try:
        context = ssl.create_default_context(cafile=str(ca))
        with closing(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)) as connection:
            connection.connect()
            asked = now()
            connection.request("GET", "/health")
            date = connection.getresponse().getheader("Date", "")
            answered = now()
        server = email.utils.parsedate_to_datetime(date).replace(tzinfo=dt.UTC)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return ((asked - server) + (answered - server)).total_seconds() / 2 - HALF_A_SECOND
