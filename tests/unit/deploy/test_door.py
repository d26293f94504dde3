"""The door before a SuperLink's Control API, with an app of a few lines behind it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from dqnfed_flwr.deploy import operators
from dqnfed_flwr.deploy.door import Door, is_open, run_superlink
from dqnfed_flwr.deploy.grpc_transport import Fleet, FleetDoor
from dqnfed_flwr.deploy.http_transport import Http
from dqnfed_flwr.deploy.orders import CERTIFICATE, OPERATOR
from dqnfed_flwr.errors import ConfigError

CONTROL = "/v1/control/list-runs"


def listed(place: Path) -> Path:
    return place / "server" / operators.FOLDER


def shown(path: Path) -> bytes:
    return x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)


def call(door: Any, **scope: Any) -> list[dict[str, Any]]:
    """All messages that one call is answered with."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    asyncio.run(door({"type": "http", "method": "POST", "path": CONTROL, **scope}, receive, send))
    return sent


async def greet(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": str(scope.get(OPERATOR)).encode()})


@pytest.mark.parametrize("path", ["/health", "/v1/runtime/push-logs", "/v1/fleet/x"])
def test_what_nodes_and_executors_use_needs_no_operator(place: Path, path: str) -> None:
    assert call(Door(greet, listed(place)), path=path)[0]["status"] == 200


@pytest.mark.parametrize(
    "path",
    [
        CONTROL,
        "/",
        "/docs",
        "/openapi.json",
        "/health/",
        "/healthy",
        "/v1/runtime",
        "/V1/RUNTIME/x",
        "//v1/runtime/x",
        "/v1/runtime/push-object?/../../../health",
        "/v1/fleet/push-messages?/x",
        "/v1/fleet/../control/x",
        "/v1/fleet/a\nb",
        "",
    ],
)
def test_all_else_does(place: Path, path: str) -> None:
    assert not is_open(path)
    assert call(Door(greet, listed(place)), path=path)[0]["status"] == 403


def test_an_operator_is_let_in_by_name_until_removed(place: Path) -> None:
    door, mine = Door(greet, listed(place)), shown(place / "operator" / "operator.crt")
    assert call(door, **{CERTIFICATE: mine})[1]["body"] == b"operator"
    operators.add(place, "alice")
    hers = shown(place / "operators" / "alice" / "operator.crt")
    assert call(door, **{CERTIFICATE: hers})[1]["body"] == b"alice"
    operators.remove(place, "alice")
    assert call(door, **{CERTIFICATE: hers})[0]["status"] == 403
    assert call(door, **{CERTIFICATE: mine})[0]["status"] == 200
    assert not (place / "operators" / "alice").exists()


def test_a_stream_ends_when_its_operator_is_removed(place: Path) -> None:
    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        for number in range(6):
            if number == 3:
                operators.remove(place, "alice")
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})

    operators.add(place, "alice")
    sent = call(Door(stream, listed(place)), **{CERTIFICATE: shown(place / "operators" / "alice" / "operator.crt")})
    assert [message.get("body") for message in sent] == [None, b"0", b"1", b"2", b""]
    assert sent[-1]["more_body"] is False


def test_nobody_is_let_in_where_the_list_is_gone_or_unreadable(place: Path) -> None:
    door, mine = Door(greet, listed(place)), shown(place / "operator" / "operator.crt")
    (listed(place) / "operator.crt").write_text("no certificate")
    assert call(door, **{CERTIFICATE: mine})[0]["status"] == 403
    (listed(place) / "operator.crt").unlink()
    listed(place).rmdir()
    assert call(door, **{CERTIFICATE: mine})[0]["status"] == 403


def test_an_address_that_a_caller_made_up_is_shortened(place: Path) -> None:
    told: list[str] = []
    door = Door(greet, listed(place), lambda _, client, __: told.append(client))
    assert call(door, client=("x" * 30_000, 1))[0]["status"] == 403
    assert call(door)[0]["status"] == 403
    assert [len(told[0]) < 2_100, told[1]] == [True, "unknown"]


def test_a_socket_is_refused(place: Path) -> None:
    assert call(Door(greet, listed(place)), type="websocket") == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["sh", "-c", "true"], "give flower-superlink"),
        (["flower-superlink", "--insecure"], "no --insecure"),
        (["flower-superlink", "--port", "1"], "--ssl-ca-certfile"),
    ],
)
def test_a_superlink_without_certificates_is_not_started(place: Path, command: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run_superlink(command, listed(place), place / "server" / "nodes", place)


@pytest.mark.parametrize("which", ["operators", "nodes"])
def test_a_superlink_without_a_list_is_not_started(tmp_path: Path, which: str) -> None:
    lists = dict.fromkeys(("operators", "nodes"), tmp_path) | {which: tmp_path / "absent"}
    with pytest.raises(ConfigError, match=f"--{which} .*absent: no such folder"):
        run_superlink(["flower-superlink", "--ssl-ca-certfile=ca.crt"], lists["operators"], lists["nodes"], tmp_path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [(True, "lifespan.startup.complete"), (False, "lifespan.startup.failed"), (None, "lifespan.startup.complete")],
)
def test_a_superlink_that_serves_nodes_without_the_door_does_not_begin(
    place: Path, asked: bool | None, said: str
) -> None:
    async def flower(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.complete"})

    fleet = Fleet(FleetDoor(place), place)
    fleet.asked = bool(asked)
    before = Http().fleet(place, place) if asked is None else fleet.before
    (sent,) = call(before(flower, print), type="lifespan")
    assert sent["type"] == said
    assert asked is not False or "docs/transport.md" in sent["message"]
