"""Nodes that speak HTTP, as from Flower 1.40 on: the door of their Fleet API, and what they show there themselves.

Nodes and operators share the SuperLink's one port, and a gate before it ends TLS. The gate asks for a certificate of
the federation's authority, and hands it on in a header. Here it is looked up on the list before a message is read:
nothing is read from who is not a node on it. Flower's own look at the node's key comes after that; so who reaches this
port past the gate, and makes up the header, gains that a message of his is read, and no more.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.audit_log import shortened
from dqnfed_flwr.deploy.node_certificates import NO_TLS, REFUSAL, name_of
from dqnfed_flwr.deploy.orders import CERTIFICATE, App, Receive, Scope, Send, caller
from dqnfed_flwr.errors import RunError

FLEET = "/v1/fleet/"
HEADER = b"x-dqnfed-certificate"
"""Where the gate hands on what a node has shown: PEM, with percent signs."""
FIRST = (f"{FLEET}register-node", f"{FLEET}activate-node")
"""A node's calls when it starts."""
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

    `listed` is the folder of the list; `refused` is told of the call, the caller and what was shown.
    """

    def __init__(self, app: App, listed: Path, refused: Callable[[str, str, str], None] = lambda *_: None) -> None:
        self.app, self.listed, self.refused = app, listed, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http" or not scope["path"].startswith(FLEET):
            await self.app(scope, receive, send)
            return
        certificate = shown(scope)
        if certificate is not None and name_of(self.listed, certificate) is not None:
            await self.app(scope, receive, send)
            return
        await self._refuse(scope, send, certificate is not None)

    async def _refuse(self, scope: Scope, send: Send, has_shown: bool) -> None:
        client = caller(scope)
        what = "a certificate that is not on the list" if has_shown else "no certificate"
        logger.warning("refused %r from %r, which showed %s", shortened(scope["path"]), client, what)
        self.refused(scope["path"], client, what)
        body = json.dumps({"code": REFUSED, "detail": REFUSAL if has_shown else NOTHING_SHOWN}).encode()
        status = REFUSED if scope["path"] in FIRST else AT_WORK
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def shown(scope: Scope) -> x509.Certificate | None:
    """The certificate of a call's own connection, or else the one that the gate hands on; None if there is none."""
    own, handed_on = scope.get(CERTIFICATE), dict(scope["headers"]).get(HEADER, b"")
    try:
        if own:
            return x509.load_der_x509_certificate(own)
        return x509.load_pem_x509_certificate(unquote(handed_on.decode("latin-1")).encode("latin-1"))
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
        return None


def show(identity: pki.Identity) -> bool:
    """Have Flower's SuperNode show `identity` when it opens its connection; False if it opens it elsewhere."""
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
