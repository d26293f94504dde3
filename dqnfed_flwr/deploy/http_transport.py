"""Nodes that speak HTTP, as from Flower 1.40 on: the door of their Fleet API, and what they show there themselves.

Nodes and operators share the SuperLink's one port, and a gate before it ends TLS. The gate asks for a certificate of
the federation's authority, and hands it on in a header. Here it is looked up on the list before a message is read:
nothing is read from who is not a node on it. Flower's own look at the node's key comes after that; so who reaches this
port past the gate, and makes up the header, gains that a message of his is read, and no more.
"""

from __future__ import annotations

import http.client
import logging
import re
import ssl
import tempfile
from collections.abc import Callable, Sequence
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.audit_log import shortened
from dqnfed_flwr.deploy.check_network import ahead_by_date, asked, skew
from dqnfed_flwr.deploy.findings import Finding, Findings, failure, ok, warning
from dqnfed_flwr.deploy.node_certificates import COPY_AGAIN, NO_TLS, REFUSAL, name_of
from dqnfed_flwr.deploy.orders import CERTIFICATE, App, Receive, Refused, Scope, Send, answer, caller
from dqnfed_flwr.deploy.plan import Transport
from dqnfed_flwr.errors import RunError

FLEET = "/v1/fleet/"
HEADER = b"x-dqnfed-certificate"
"""Where the gate hands on what a node has shown: PEM, with percent signs."""
FIRST = (f"{FLEET}register-node", f"{FLEET}activate-node")
"""A node's calls when it starts."""
AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""What a gate answers in place of a SuperLink."""
REFUSED, AT_WORK = 412, 401
"""Flower's node shows the words of the former when it starts, but would hang at work; after the latter it ends."""
NOTHING_SHOWN = (
    "this SuperLink was shown no certificate of a node: the gate before it must ask for one and hand it on, as "
    "docker/gate/nginx.conf does"
)

CLIENT = ("flwr.supernode.fleet_http_connection", "FleetHttpClient")
"""The client of the Fleet, of which a SuperNode makes one, by `from_server_address`."""
RETRIES = "make_simple_http_retry_invoker"
"""There, what tells when a SuperNode gives a call up."""
CUT = re.compile("UNEXPECTED_EOF|handshake operation timed out")
"""How the ssl module says that a handshake ended before it came to certificates."""

logger = logging.getLogger("dqnfed")


class FleetHttpDoor:
    """An ASGI app that passes calls on to `app`, but those of the Fleet only if they are of a node on the list.

    `listed` is the folder of the list.
    """

    def __init__(self, app: App, listed: Path, refused: Refused = lambda *_: None) -> None:
        self.app, self.listed, self.refused = app, listed, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        of_nodes = scope["type"] == "http" and scope["path"].startswith(FLEET)
        certificate = shown(scope) if of_nodes else None
        if not of_nodes or (certificate is not None and name_of(self.listed, certificate) is not None):
            await self.app(scope, receive, send)
        else:
            await self._refuse(scope, send, certificate is not None)

    async def _refuse(self, scope: Scope, send: Send, has_shown: bool) -> None:
        client = caller(scope)
        what = "a certificate that is not on the list" if has_shown else "no certificate"
        logger.warning("refused %r from %r, which showed %s", shortened(scope["path"]), client, what)
        self.refused(scope["path"], client, what)
        status = REFUSED if scope["path"] in FIRST else AT_WORK
        await answer(send, status, code=REFUSED, detail=REFUSAL if has_shown else NOTHING_SHOWN)


def shown(scope: Scope) -> x509.Certificate | None:
    """The certificate of a call's own connection, or else the one that the gate hands on; None if there is none."""
    own, handed_on = scope.get(CERTIFICATE), dict(scope["headers"]).get(HEADER, b"")
    try:
        if own:
            return x509.load_der_x509_certificate(own)
        return x509.load_pem_x509_certificate(unquote(handed_on.decode("latin-1")).encode("latin-1"))
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return None


def _patient(retries: Callable[[], Any]) -> Callable[[], Any]:
    """`retries`, which makes Flower's `RetryInvoker`, but for a cut handshake, after which Flower would hang for good.

    A gate that has no connection left cuts a node like this.
    """

    def made() -> Any:
        invoker = retries()
        given_up = invoker.should_giveup
        invoker.should_giveup = lambda error: CUT.search(str(error)) is None and given_up(error)
        return invoker

    return made


def tls(authorities: bytes, identity: pki.Identity) -> ssl.SSLContext:
    """Of a client that trusts `authorities` (PEM) alone, and shows `identity`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authorities.decode("ascii"))
    with tempfile.NamedTemporaryFile() as pair:  # for its owner alone; `ssl` reads keys from files only
        pair.write(identity.certificate + identity.key)
        pair.flush()
        context.load_cert_chain(pair.name)
    return context


def _client_maker(identity: pki.Identity) -> Callable[..., Any]:
    def client(
        kind: Callable[..., Any],
        server_address: str,
        insecure: bool,
        root_certificates: bytes | str | None,
        interceptors: Sequence[Any],
        **options: Any,
    ) -> Any:
        if insecure or root_certificates is None:
            raise RunError(NO_TLS)
        trusted = root_certificates if isinstance(root_certificates, bytes) else Path(root_certificates).read_bytes()
        return kind(f"https://{server_address}", interceptors=interceptors, verify=tls(trusted, identity), **options)

    return client


class Http(Transport):
    """Nodes share the Control port, before which a gate listens on the Fleet port."""

    listener = "gate"
    endpoints = "the SuperLink and the gate"
    advice = (
        "HTTP on one port for nodes and operators, the Control port",
        "use flwr 1.39, or put a gate on the Fleet port that lets nodes reach /v1/fleet/ and /health only: "
        "docs/transport.md",
    )

    def fleet(self, listed: Path, authorities: Path) -> Callable[[App, Refused], App]:
        """The door before the one server; the gate checks who has certified nodes."""
        del authorities
        return lambda app, refused: FleetHttpDoor(app, listed, refused)

    def show(self, identity: pki.Identity) -> bool:
        """By the client that Flower makes, which also tries again where a gate has cut its handshake."""
        place, name = CLIENT
        try:
            module: Any = import_module(place)
        except ImportError:
            return False
        maker: Any = getattr(module, name, None)
        retries: Any = getattr(module, RETRIES, None)
        if retries is None or not hasattr(maker, "from_server_address"):
            return False
        maker.from_server_address = classmethod(_client_maker(identity))
        setattr(module, RETRIES, _patient(retries))
        return True

    def closed(self, port: int, ca: Path, place: str) -> Finding:
        """The gate turns away who shows no certificate."""
        del place
        try:
            status, words = asked("127.0.0.1", port, ssl.create_default_context(cafile=str(ca)), FIRST[1])
        except TimeoutError:
            return failure(f"Fleet port {port} does not answer", "look at the gate's log")
        except (OSError, http.client.HTTPException):  # a gate may also cut it in the handshake
            status, words = REFUSED, ""
        if words == NOTHING_SHOWN:
            return failure(
                f"Fleet port {port} lets callers without a certificate through to the SuperLink",
                "have the gate ask for one and end TLS, as docker/gate/nginx.conf does, and start it anew",
            )
        if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, REFUSED):
            return ok(f"Fleet port {port} takes calls from nodes with a certificate alone")
        return failure(
            f"Fleet port {port} takes calls from anybody (status {status})",
            "have the gate ask for a certificate, as docker/gate/nginx.conf does, and restart the SuperLink and the "
            "gate",
        )

    def admitted(self, host: str, port: int, ca: Path, identity: pki.Identity) -> Findings:
        """By gate and SuperLink."""
        yield _admitted(host, port, tls(ca.read_bytes(), identity))
        yield from skew(ahead_by_date(host, port, ca))


def _admitted(host: str, port: int, context: ssl.SSLContext) -> Finding:
    where = f"{host}:{port}"
    try:
        status, words = asked(host, port, context, FIRST[1])
    except (OSError, http.client.HTTPException) as error:
        return failure(f"{where} does not take this node's certificate ({error})", COPY_AGAIN)
    if status == HTTPStatus.BAD_REQUEST:
        return failure(f"{where} does not take this node's certificate: its authority does not know it", COPY_AGAIN)
    if status == REFUSED:
        return failure(f"{where} turns this node away: {words}", COPY_AGAIN)
    if status in AWAY:
        return warning(f"{where} answers {status}: the SuperLink behind the gate is away", "start it; look at its log")
    return ok(f"{where} takes this node's certificate")
