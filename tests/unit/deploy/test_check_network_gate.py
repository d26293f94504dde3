"""Checks of the gate before a SuperLink that speaks HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from threading import Thread

import pytest

from benchmarks._gate import gate
from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.check_network import server_ports
from dqnfed_flwr.deploy.findings import Level
from dqnfed_flwr.deploy.http_transport import HEADER, NOTHING_SHOWN, Http
from dqnfed_flwr.deploy.node_certificates import identity_of
from dqnfed_flwr.deploy.plan import read_plan
from tests.helpers.checks import server


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
