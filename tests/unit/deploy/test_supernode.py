"""How Flower's SuperNode is made to show a certificate, whichever release is installed."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks._gate import gate
from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import grpc_transport, http_transport, node_certificates, pki
from dqnfed_flwr.deploy.check_network import asked
from dqnfed_flwr.deploy.http_transport import CLIENT, FIRST, RETRIES, tls
from dqnfed_flwr.deploy.node_certificates import identity_of, show
from dqnfed_flwr.errors import RunError


class Client:
    """As Flower's over HTTP."""

    def __init__(self, base_url: str, **given: Any) -> None:
        self.base_url, self.given = base_url, given

    @classmethod
    def from_server_address(cls) -> None:
        """To be replaced in a class derived from this one, and in no other."""


class FleetHttpClient(Client):
    """The one of the Fleet."""


@pytest.fixture
def identity(place: Path) -> pki.Identity:
    return identity_of(place / "nodes" / "node-0" / "node.crt", place / "nodes" / "node-0" / "node.key")


def of_release(monkeypatch: pytest.MonkeyPatch, number: str, where: tuple[str, str], what: Any) -> ModuleType:
    """Let Flower be this release, with `what` in the place where it opens its connections."""
    module = ModuleType("elsewhere")
    setattr(module, RETRIES, lambda: SimpleNamespace(should_giveup=lambda error: "ssl" in str(error).lower()))
    setattr(module, where[1], what)
    monkeypatch.setattr(node_certificates, "version", lambda _: number)
    monkeypatch.setitem(sys.modules, where[0], module)
    return module


def test_the_client_of_http_shows_the_certificate(
    monkeypatch: pytest.MonkeyPatch, place: Path, identity: pki.Identity
) -> None:
    ca = place / "server" / "ca.crt"
    ours: Any = type("Ours", (FleetHttpClient,), {})
    of_release(monkeypatch, "1.40.0", CLIENT, ours)
    show(identity)
    for trusted in (ca.read_bytes(), str(ca)):
        client = ours.from_server_address("fl:1", False, trusted, ["an interceptor"], retry_invoker=None)
        assert client.base_url == "https://fl:1"
        assert client.given.keys() == {"interceptors", "verify", "retry_invoker"}
        assert isinstance(client.given["verify"], ssl.SSLContext)
    assert FleetHttpClient.from_server_address.__func__ is Client.from_server_address.__func__  # type: ignore[attr-defined]
    for insecure, none in ((True, b"PEM"), (False, None)):
        with pytest.raises(RunError, match="needs TLS"):
            ours.from_server_address("fl:1", insecure, none, [])


@pytest.mark.parametrize(
    ("words", "given_up"),
    [
        ("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1016)", False),
        ("_ssl.c:993: The handshake operation timed out", False),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1016)", True),
        ("[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2580)", True),
        ("[Errno 111] Connection refused", False),
    ],
)
def test_a_cut_handshake_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, identity: pki.Identity, words: str, given_up: bool
) -> None:
    module: Any = of_release(monkeypatch, "1.40.0", CLIENT, type("Ours", (FleetHttpClient,), {}))
    show(identity)
    assert getattr(module, RETRIES)().should_giveup(OSError(words)) is given_up


def test_a_gate_takes_what_is_shown(place: Path, identity: pki.Identity) -> None:
    port, nobody = free_ports(2)
    ca = (place / "server" / "ca.crt").read_bytes()
    with gate(port, nobody, place / "server"):
        assert asked("localhost", port, tls(ca, identity), FIRST[1])[0] == 502


@pytest.mark.parametrize(
    ("number", "where", "what"),
    [
        ("1.39.5", grpc_transport.CONNECTION, None),
        ("1.43.0", CLIENT, None),
        ("1.43.0", CLIENT, object()),
        ("1.43.0", ("a.place.without", "name"), None),
    ],
)
def test_a_release_that_opens_its_connections_elsewhere(
    monkeypatch: pytest.MonkeyPatch, identity: pki.Identity, number: str, where: tuple[str, str], what: Any
) -> None:
    of_release(monkeypatch, number, where, what)
    if where[0] not in (grpc_transport.CONNECTION[0], CLIENT[0]):
        monkeypatch.setattr(http_transport, "CLIENT", ("a.place.that.is.gone", "name"))
    with pytest.raises(RunError, match=rf"flwr {number} opens its connections elsewhere; see docs/transport.md"):
        show(identity)


def test_the_channel_of_grpc_shows_the_certificate(monkeypatch: pytest.MonkeyPatch, identity: pki.Identity) -> None:
    module: Any = of_release(monkeypatch, "1.39.0", grpc_transport.CONNECTION, print)
    show(identity)
    with pytest.raises(RunError, match="needs TLS"):
        module.create_channel("fl:1", True, None, 9, [])
    module.create_channel("fl:1", False, identity.certificate, 9, []).close()
