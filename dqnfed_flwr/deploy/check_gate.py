"""Checks of the gate before a SuperLink that speaks HTTP: whom it lets through, by what it answers to a call."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing, suppress
from http import HTTPStatus
from pathlib import Path

from dqnfed_flwr.deploy.check_local import Finding, failure, ok, warning
from dqnfed_flwr.deploy.fleet_http_door import FLEET, NOTHING_SHOWN, REFUSED
from dqnfed_flwr.deploy.pki import Identity
from dqnfed_flwr.deploy.supernode import tls

CALL = f"{FLEET}activate-node"
SECONDS = 5.0
AWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)
"""What a gate answers in place of a SuperLink."""


def closed(port: int, ca: Path) -> Finding:
    """Whether the gate on this machine turns away who shows no certificate."""
    try:
        status, words = asked("127.0.0.1", port, ssl.create_default_context(cafile=str(ca)))
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
        "have the gate ask for a certificate, as docker/gate/nginx.conf does, and restart the SuperLink and the gate",
    )


def admitted(host: str, port: int, ca: Path, identity: Identity) -> Finding:
    """Whether gate and SuperLink take calls with this node's certificate; its key is another matter."""
    where = f"{host}:{port}"
    fix = "at the server `dqnfed deploy check DIR`; copy node.crt and ca.crt from its nodes/NAME, and restart the node"
    try:
        status, words = asked(host, port, tls(ca.read_bytes(), identity))
    except (OSError, http.client.HTTPException) as error:
        return failure(f"{where} does not take this node's certificate ({error})", fix)
    if status == HTTPStatus.BAD_REQUEST:
        return failure(f"{where} does not take this node's certificate: its authority does not know it", fix)
    if status == REFUSED:
        return failure(f"{where} turns this node away: {words}", fix)
    if status in AWAY:
        return warning(f"{where} answers {status}: the SuperLink behind the gate is away", "start it; look at its log")
    return ok(f"{where} takes this node's certificate")


def asked(host: str, port: int, context: ssl.SSLContext) -> tuple[int, str]:
    """The status of a call without a key, and the words that came with it; it changes nothing."""
    with closing(http.client.HTTPSConnection(host, port, timeout=SECONDS, context=context)) as connection:
        connection.request("POST", CALL, b"", {"Content-Type": "application/protobuf"})
        answer = connection.getresponse()
        words = answer.read()
    with suppress(ValueError, LookupError, TypeError):
        return answer.status, str(json.loads(words)["detail"])
    return answer.status, ""
