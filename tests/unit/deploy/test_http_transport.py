"""The door of the Fleet API over HTTP, with an app of a few lines behind it, and checks of the gate before it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from benchmarks._gate import gate
from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import node_certificates, pki
from dqnfed_flwr.deploy.check_network import server_ports
from dqnfed_flwr.deploy.findings import Level
from dqnfed_flwr.deploy.http_transport import HEADER, NOTHING_SHOWN, FleetHttpDoor, Http
from dqnfed_flwr.deploy.node_certificates import identity_of
from dqnfed_flwr.deploy.orders import CERTIFICATE
from dqnfed_flwr.deploy.plan import read_plan
from tests.helpers.checks import server

ACTIVATE, PULL = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"


class Called:
    """A federation's folder, a door, and what was read and refused there."""

    def __init__(self, place: Path) -> None:
        self.place, self.read, self.refused = place, 0, list[tuple[str, ...]]()
        self.door = FleetHttpDoor(self._app, place / "server" / "nodes", lambda *said: self.refused.append(said))

    @staticmethod
    async def _app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200})

    def __call__(self, certificate: bytes | None, path: str = PULL, **scope: Any) -> list[dict[str, Any]]:
        """What a call is answered with, for which the gate hands on `certificate`."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            self.read += 1
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(dict(message))

        headers = [] if certificate is None else [(HEADER, quote(certificate).encode())]
        given = {"type": "http", "path": path, "headers": headers, "client": ("192.0.2.1", 9), **scope}
        asyncio.run(self.door(given, receive, send))
        return sent

    def certificate(self, name: str) -> bytes:
        return (self.place / "nodes" / name / "node.crt").read_bytes()


@pytest.fixture
def called(place: Path) -> Called:
    return Called(place)


def test_a_node_on_the_list_is_let_in_until_struck_off(called: Called) -> None:
    mine = called.certificate("node-0")
    assert called(mine)[0]["status"] == 200
    node_certificates.strike(called.place, "node-0")
    start, body = called(mine, ACTIVATE)
    said = json.loads(body["body"])
    assert (start["status"], said["code"], "was removed" in said["detail"]) == (412, 412, True)
    assert called(mine)[0]["status"] == 401
    assert called.read == 1  # what it sent was not read
    assert called.refused[0] == (ACTIVATE, "192.0.2.1", "a certificate that is not on the list")
    assert called(called.certificate("node-1"))[0]["status"] == 200


@pytest.mark.parametrize("handed_on", [None, b"", b"no certificate", b"%zz\xff"])
def test_who_has_shown_nothing(called: Called, handed_on: bytes | None) -> None:
    start, body = called(handed_on, ACTIVATE)
    assert (start["status"], "the gate before it" in str(body["body"])) == (412, True)
    assert (called.read, called.refused[0][2]) == (0, "no certificate")


def test_what_nobody_can_read_is_no_certificate(called: Called, caplog: pytest.LogCaptureFixture) -> None:
    der = x509.load_pem_x509_certificate(called.certificate("node-0")).public_bytes(Encoding.DER)
    of_no_version = der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07", 1)
    curve = b"\x06\x05\x2b\x81\x04\x00\x22", b"\x06\x05\x2b\x81\x04\x00\x7f"
    of_no_curve, of_no_text = der.replace(*curve), der.replace(b"node-0", b"node\xff\xff")
    assert len({der, of_no_version, of_no_curve, of_no_text}) == 4
    for wrong in (of_no_version, of_no_curve, of_no_text):
        pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(wrong) + b"-----END CERTIFICATE-----\n"
        assert called(pem, f"{PULL}\nforged")[0]["status"] == 401
    assert called.read == 0
    assert [line.startswith("forged") for line in caplog.text.splitlines()] == [False] * 3  # a line for each refusal


def test_an_operator_is_no_node(called: Called) -> None:
    assert called((called.place / "operator" / "operator.crt").read_bytes())[0]["status"] == 401


def test_what_a_connection_shows_itself_goes_before_what_is_handed_on(called: Called) -> None:
    stranger = x509.load_pem_x509_certificate(pki.make_operator(pki.make_authority(), "node-0", 9).certificate)
    for own, status in ((stranger.public_bytes(Encoding.DER), 401), (None, 200)):
        assert called(called.certificate("node-0"), PULL, **{CERTIFICATE: own})[0]["status"] == status


@pytest.mark.parametrize("scope", [{"path": "/health"}, {"path": "/v1/control/x"}, {"type": "lifespan", "path": ""}])
def test_all_else_is_another_doors(called: Called, scope: dict[str, str]) -> None:
    assert called(None, **scope)[0]["status"] == 200


class SuperLink(ThreadingHTTPServer):
    """Answers each call with `status` and `body`; `handed_on` has what the gate handed on."""

    status, body, handed_on = 401, b"", ""


class Handler(BaseHTTPRequestHandler):
    server: SuperLink

    def do_POST(self) -> None:
        self.server.handed_on = self.headers[HEADER.decode()]
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def superlink(place: Path) -> Iterator[SuperLink]:
    with SuperLink(("127.0.0.1", 0), Handler) as found:
        context = SSLContext(PROTOCOL_TLS_SERVER)
        context.load_cert_chain(place / "server" / "server.crt", place / "server" / "server.key")
        found.socket = context.wrap_socket(found.socket, server_side=True)
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def port(place: Path, superlink: SuperLink) -> Iterator[int]:
    (port,) = free_ports(1)
    with gate(port, superlink.server_port, place / "server"):
        yield port


def ask(place: Path, port: int, identity: pki.Identity | None = None) -> tuple[Level, str]:
    home = place / "nodes" / "node-0"
    mine = identity_of(home / "node.crt", home / "node.key")
    found = next(Http().admitted("localhost", port, home / "ca.crt", identity or mine))
    return found.level, found.what


def test_a_device_is_told_whether_it_is_let_in(place: Path, superlink: SuperLink, port: int) -> None:
    assert ask(place, port) == (Level.OK, f"localhost:{port} takes this node's certificate")
    assert superlink.handed_on.startswith("-----BEGIN%20CERTIFICATE")
    superlink.status, superlink.body = 412, b'{"code": 412, "detail": "removed"}'
    assert ask(place, port) == (Level.FAILURE, f"localhost:{port} turns this node away: removed")
    superlink.body = b"[]"
    assert ask(place, port) == (Level.FAILURE, f"localhost:{port} turns this node away: ")
    superlink.status = 400
    level, words = ask(place, port)
    assert (level, "its authority does not know it" in words) == (Level.FAILURE, True)
    level, words = ask(place, port, pki.make_operator(pki.make_authority(), "node-0", 9))
    assert (level, "does not take this node's certificate (" in words) == (Level.FAILURE, True)


def test_a_superlink_that_is_away_behind_its_gate(place: Path) -> None:
    port, nobody = free_ports(2)
    with gate(port, nobody, place / "server"):
        level, words = ask(place, port)
        assert Http().closed(port, place / "server" / "ca.crt", "fl").level is Level.OK
    assert (level, words.endswith("the SuperLink behind the gate is away")) == (Level.WARNING, True)


def test_an_open_gate_is_found(place: Path, tmp_path: Path, superlink: SuperLink, port: int) -> None:
    ca = place / "server" / "ca.crt"
    federation = replace(read_plan(place), flwr="1.40.0", fleet_port=port)
    words = [one.what for one in server_ports(federation, ca, str(place))]
    assert f"Fleet port {port} takes calls from nodes with a certificate alone" in words
    found = Http().closed(superlink.server_port, ca, "fl")
    assert (found.level, "from anybody (status 401)" in found.what) == (Level.FAILURE, True)
    superlink.status = 412
    superlink.body = json.dumps({"code": 412, "detail": NOTHING_SHOWN}).encode()
    found = Http().closed(superlink.server_port, ca, "fl")
    assert (found.level, "through to the SuperLink" in found.what) == (Level.FAILURE, True)
    with server(None, tmp_path) as plain:  # cut in the handshake, as a gate may do
        assert Http().closed(plain, ca, "fl").level is Level.OK
