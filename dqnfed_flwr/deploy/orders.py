"""Orders at the Control API, as the audit log has them: who gives which, with what, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any

from dqnfed_flwr.deploy.audit_log import AuditLog, shortened
from dqnfed_flwr.deploy.pki import fingerprint_of, load_node_public_key
from dqnfed_flwr.deploy.prefork.allowed import app_hash, bundle_files, settings_in
from dqnfed_flwr.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refused = Callable[[str, str, str], None]
"""Told of a call, the caller and what was shown, where that was not enough."""

CONTROL, OPERATOR = "/v1/control/", "dqnfed.operator"
CERTIFICATE = "dqnfed.certificate"
"""Where a call's scope holds the certificate that its connection showed."""
READING = ("list-", "stream-", "show-", "get-", "pull-")
"""Calls that begin so change nothing."""
REQUESTS = {
    "start-run": "StartRunRequest",
    "stop-run": "StopRunRequest",
    "register-node": "RegisterNodeRequest",
    "unregister-node": "UnregisterNodeRequest",
}
ANSWERS = {"start-run": "StartRunResponse", "register-node": "RegisterNodeResponse"}
LARGEST_ORDER = 64_000_000
"""Bytes of a call; Flower takes apps of 10 MB."""
UNAVAILABLE = "the audit log cannot be written, and no order is carried out without a line in it"
ELSEWHERE = "this release of Flower has another server, before which there is no door; see docs/transport.md"


def is_order(path: str) -> bool:
    """Whether a call may change something."""
    return path.startswith(CONTROL) and not path.removeprefix(CONTROL).startswith(READING)


def caller(scope: Scope) -> str:
    """Where a call comes from, as far as a log takes it: behind a gate a header says so, which others can send too."""
    address: str = (scope.get("client") or ("unknown",))[0]
    return shortened(address)


async def pass_on(app: App, log: AuditLog, scope: Scope, receive: Receive, send: Send) -> None:
    """Write an order down, hand it on, and write down what became of it."""
    body, call = bytearray(), scope["path"].removeprefix(CONTROL)
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return  # cut off: half an order may read as a whole one
        body.extend(message.get("body", b""))
        more = bool(message.get("more_body"))
        if len(body) > LARGEST_ORDER:
            await answer(send, 413, detail="the call is too large")
            return
    who = {"operator": scope.get(OPERATOR), "call": shortened(call)}
    try:
        log.append("order", **who, **about(call, bytes(body)))
    except OSError:
        await answer(send, 503, detail=UNAVAILABLE)
        return
    status, answered, given = 0, bytearray(), False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    async def watched(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        answered.extend(message.get("body", b"") if len(answered) < LARGEST_ORDER else b"")
        await send(message)

    try:
        await app(scope, again, watched)
    finally:
        log.append("order done", **who, status=status, **outcome(call, status, bytes(answered)))


def about(call: str, body: bytes) -> dict[str, Any]:
    """What an order asks for."""
    if call not in REQUESTS:
        return {"bytes": len(body)}
    try:
        return _asked(call, getattr(import_module("flwr.proto.control_pb2"), REQUESTS[call]).FromString(body))
    except Exception as error:  # whatever is wrong with somebody's bytes: the order is in the log all the same
        return {"unreadable": shortened(f"{type(error).__name__}: {error}"), "body": digest(body)}


def _asked(call: str, request: Any) -> dict[str, Any]:
    if call == "start-run":
        return _about_app(request)
    if call == "register-node":
        return {"key": node_key(request.public_key), "name": shortened(request.name)}
    return {"run": str(request.run_id)} if call == "stop-run" else {"node": str(request.node_id)}


def _about_app(request: Any) -> dict[str, Any]:
    """Hash and settings of an app that is to run."""
    bundle = bytes(request.fab.content)
    found: dict[str, Any] = {"bundle": digest(bundle) if bundle else request.fab.hash_str}
    if request.app_spec:
        found["named"] = shortened(request.app_spec)
    changed = {key: _scalar(value) for key, value in request.override_config.items()}
    try:
        files = bundle_files(bundle)
        return {**found, "app": app_hash(files), "settings": {**settings_in(files), **changed}}
    except Exception as error:  # as above; Flower itself refuses such an app
        return {**found, "app": f"unreadable: {shortened(str(error))}", "settings": changed}


def outcome(call: str, status: int, body: bytes) -> dict[str, Any]:
    """What became of an order."""
    if status != 200:
        return {"why": shortened(body.decode("utf-8", "replace"))}
    if call not in ANSWERS:
        return {}
    found = getattr(import_module("flwr.proto.control_pb2"), ANSWERS[call]).FromString(body)
    return {"run": str(found.run_id)} if call == "start-run" else {"node": str(found.node_id)}


def digest(content: bytes) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def node_key(public: bytes) -> str:
    """Fingerprint of a node's key as `ssh-keygen -l` shows it; a hash of what is no such key."""
    try:
        return fingerprint_of(load_node_public_key(public))
    except ConfigError:
        return digest(public)


def _scalar(value: Any) -> Any:
    kind = value.WhichOneof("scalar")
    return getattr(value, kind) if kind else None


async def answer(send: Send, status: int, **body: object) -> None:
    """Answer a call that is not handed on."""
    text = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
