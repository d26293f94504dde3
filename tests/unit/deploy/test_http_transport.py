"""The door of the Fleet API over HTTP, with an app of a few lines behind it."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dqnfed_flwr.deploy import node_certificates, pki
from dqnfed_flwr.deploy.build import create
from dqnfed_flwr.deploy.http_transport import HEADER, FleetHttpDoor
from dqnfed_flwr.deploy.orders import CERTIFICATE
from dqnfed_flwr.deploy.plan import Federation, Node

ACTIVATE, PULL = "/v1/fleet/activate-node", "/v1/fleet/pull-messages"


class Called:
    """A federation's folder, a door, and what was read and refused there."""

    def __init__(self, place: Path) -> None:
        create(place, Federation("localhost", nodes=(Node("node-0", 0, 9094), Node("node-1", 1, 9095))))
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
def called(tmp_path: Path) -> Called:
    return Called(tmp_path / "fl")


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
