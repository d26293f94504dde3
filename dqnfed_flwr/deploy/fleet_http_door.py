"""The door of the Fleet API where nodes speak HTTP: nothing is read from who is not a node on the list.

From Flower 1.40 on, nodes and operators share the SuperLink's one port, and a gate before it ends TLS. The gate asks
for a certificate of the federation's authority, and hands it on in a header. Here it is looked up on the list before a
message is read. Flower's own look at the node's key comes after that; so who reaches this port past the gate, and makes
up the header, gains that a message of his is read, and no more.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from dqnfed_flwr.deploy.audit_log import shortened
from dqnfed_flwr.deploy.fleet_door import REFUSAL
from dqnfed_flwr.deploy.node_certificates import name_of
from dqnfed_flwr.deploy.orders import CERTIFICATE, App, Receive, Scope, Send, caller

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
