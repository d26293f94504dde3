"""The door of a SuperLink: its Control API is for operators of the federation, whoever else reaches the port.

The SuperLink's own process asks for a client certificate of the federation's authority, and looks at every call. What
nodes, executors and ServerApps use has keys, secrets and tokens of Flower's own and stays open; everything else needs
the certificate of an operator who is on the list. As it is the process itself that looks, no way leads round it: not
over loopback, and not in a Flower whose nodes share the port.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from asyncio import Transport
from collections.abc import MutableMapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dqnfed_flwr.deploy import operators
from dqnfed_flwr.deploy.audit_log import AuditLog, shortened
from dqnfed_flwr.deploy.orders import (
    CERTIFICATE,
    ELSEWHERE,
    OPERATOR,
    App,
    Receive,
    Refused,
    Scope,
    Send,
    answer,
    caller,
)
from dqnfed_flwr.deploy.plan import transport_of
from dqnfed_flwr.deploy.witness import Witness
from dqnfed_flwr.engine import flwr_command
from dqnfed_flwr.errors import ConfigError, RunError

PROGRAM = "flower-superlink"
OPEN = re.compile(r"/health|/v1/(runtime|fleet)/[A-Za-z0-9/_-]+")
"""Paths that need no operator. No other characters: where a `?` was sent with percent signs, Flower looks for the name
of the call before it, and would read the body of a call that its router then does not find."""
UNGUARDED = "FLWR_INTERNAL_GRPC_CONTROL_API"
"""A variable with which Flower 1.39 opens a second Control API over gRPC, which has no door."""
REFUSAL = (
    "this SuperLink takes orders from operators of the federation alone: use the folder that `dqnfed deploy init` or "
    "`dqnfed deploy add-operator` made, and `dqnfed` or `dqnfed deploy flwr` for Flower's own command"
)

logger = logging.getLogger("dqnfed")


class Door:
    """An ASGI app that passes calls on to the SuperLink's, or refuses them and tells `refused` of it."""

    def __init__(self, app: App, folder: Path, refused: Refused = lambda *_: None) -> None:
        self.app, self.folder, self.refused = app, folder, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and is_open(scope["path"])):
            await self.app(scope, receive, send)
            return
        name = self._operator(scope)
        if name is None or scope["type"] != "http":
            await self._refuse(scope, send)
            return
        await self.app({**scope, OPERATOR: name}, receive, self._while_operator(scope, send))

    def _operator(self, scope: Scope) -> str | None:
        return operators.name_of(self.folder, scope.get(CERTIFICATE))

    def _while_operator(self, scope: Scope, send: Send) -> Send:
        """`send`, which ends an answer that goes on after its operator was removed, such as a log that is followed."""
        over = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal over
            if over:
                return
            if message["type"] == "http.response.body" and message.get("more_body") and self._operator(scope) is None:
                over, message = True, {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return watched

    async def _refuse(self, scope: Scope, send: Send) -> None:
        client = caller(scope)
        shown = "a certificate that is not on the list" if scope.get(CERTIFICATE) else "no certificate"
        logger.warning("refused %r from %r, which showed %s", shortened(scope["path"]), client, shown)
        self.refused(scope["path"], client, shown)
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        await answer(send, 403, detail=REFUSAL)


def is_open(path: str) -> bool:
    """Whether what nodes, executors and ServerApps use is asked for."""
    return OPEN.fullmatch(path) is not None


def run_superlink(command: Sequence[str], folder: Path, nodes: Path, audit: Path) -> None:
    """Run Flower's SuperLink in this process, with a door before each of its ports.

    Parameters
    ----------
    command : Sequence[str]
        `flower-superlink` with its options; `--ssl-ca-certfile` names the authorities of operators and nodes.
    folder, nodes : Path
        With the certificates of operators and of nodes who are let in, `NAME.crt`.
    audit : Path
        Folder of the audit log.

    Raises
    ------
    ConfigError
        If it is another program, without TLS, or there is no such folder.
    RunError
        If the audit log cannot be written, or Flower does not ask for the servers that have the doors.
    """
    (authorities,) = flwr_command.given(command, PROGRAM, "--ssl-ca-certfile")
    for option, listed, makes in (("--operators", folder, "add-operator"), ("--nodes", nodes, "refresh")):
        if not listed.is_dir():
            raise ConfigError(f"{option} {listed}: no such folder; `dqnfed deploy {makes}` makes it")
    log = AuditLog(audit)
    os.environ.pop(UNGUARDED, None)
    server: Any = import_module("uvicorn")  # Flower's own server; it is no dependency of this package
    served = False
    serve, transport = server.run, transport_of(version("flwr"))
    before_fleet = transport.fleet(nodes, Path(authorities).expanduser())

    def serve_with_door(*, app: App, **options: Any) -> None:
        nonlocal served
        served = True
        tls = {"ssl_cert_reqs": ssl.CERT_OPTIONAL, "ssl_ca_certs": authorities}
        witness = Witness(app, log, folder)
        door = before_fleet(Door(witness, folder, witness.refused), witness.refused)
        serve(app=door, **options, **tls, **transport.options, http=_protocol())

    server.run = serve_with_door
    flwr_command.start(command, logger)
    if not served:
        raise RunError(ELSEWHERE)


def _protocol() -> type:
    """uvicorn's protocol for HTTP, which tells the app what certificate a connection has shown."""
    base: Any = import_module("uvicorn.protocols.http.auto").AutoHTTPProtocol

    def connection_made(connection: Any, transport: Transport) -> None:
        base.connection_made(connection, transport)
        tls, app = transport.get_extra_info("ssl_object"), connection.app
        shown = tls.getpeercert(binary_form=True) if tls is not None else None  # TLS has verified it

        async def with_certificate(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, CERTIFICATE: shown}, receive, send)

        connection.app = with_certificate

    return type("Protocol", (base,), {"connection_made": connection_made})
