"""Who gets nothing through the gate of an HTTP federation, and what an attack on it costs the SuperLink."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from benchmarks import _flood
from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from benchmarks._gate import gate
from benchmarks._programs import wait_for
from dqnfed_flwr.deploy import check, node_certificates
from dqnfed_flwr.deploy.findings import failed
from dqnfed_flwr.deploy.registry import listed
from dqnfed_flwr.deploy.superlink import link_of
from tests.deploy.test_doors import OVER_HTTP
from tests.helpers.http_flood import CALL, CUT, attack, client, status_of
from tests.helpers.nginx import NGINX, nginx
from tests.helpers.superlink_memory import BOUND, growth, strange_pair

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not OVER_HTTP, reason="gRPC needs no gate")]

SECONDS = 25.0
"""Longer than the gate waits for the end of a handshake."""
CALLS = 16
WHO = ["nobody", "a stranger", "a removed node", "an operator"]
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@pytest.fixture(scope="module", params=["stand-in", pytest.param("nginx", marks=needs_nginx)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    before = gate if request.param == "stand-in" else nginx
    with loopback(tmp_path_factory.mktemp(request.param), [node(0)], before) as federation:
        federation.start()
        time.sleep(5)  # until it has answered calls of every kind, and its memory is what it stays
        yield federation


def is_nginx(server: Loopback) -> bool:
    return server.directory.parent.name.startswith("nginx")


def shown_by(server: Loopback, place: Path, who: str) -> ssl.SSLContext:
    """The TLS of one of `WHO`, or of a node that is on the list and has a key of its own."""
    if who == "nobody":
        return client(server.directory / "server" / "ca.crt", None)
    if who == "a stranger":
        pair = strange_pair(place)
    elif who == "an operator":
        pair = (server.directory / "operator" / "operator.crt", server.directory / "operator" / "operator.key")
    else:
        name = f"node-{len(list((server.directory / 'nodes').iterdir()))}"
        pair = _flood.listed_pair(server, name)
        if who == "a removed node":
            node_certificates.strike(server.directory, name)
    return client(server.directory / "server" / "ca.crt", pair)


def refusals(server: Loopback, who: str) -> set[int | str]:
    """How a call of `who` may end."""
    if who == "a stranger":
        return {400, *CUT} if is_nginx(server) else {*CUT}
    return {412}


@pytest.mark.parametrize("who", WHO)
def test_others_than_nodes_get_nothing(server: Loopback, tmp_path: Path, who: str) -> None:
    context, superlink = shown_by(server, tmp_path, who), server.programs["superlink"]
    mine = quote((server.directory / "server" / "nodes" / "node-0.crt").read_text())
    heard = superlink.text().count("POST /health")
    assert status_of(server.federation.fleet_port, context, b"x") in refusals(server, who)
    made_up = {"X-Dqnfed-Certificate": mine, "X-Forwarded-For": "198.51.100.7"}
    assert status_of(server.federation.fleet_port, context, b"x", **made_up) in refusals(server, who)
    assert "198.51.100.7" not in superlink.text()
    health = status_of(server.federation.fleet_port, context, path="/health")
    if who in ("nobody", "a stranger"):
        assert health in refusals(server, who)
        assert superlink.text().count("POST /health") == heard
    assert list(listed(link_of(server.directory)).values()) == ["online"]


@pytest.mark.parametrize("path", ["/v1/fleet/push-messages%3F/../../../health", "/v1/runtime/x%3F/../../../health"])
def test_a_path_that_is_not_read_alike_by_all(server: Loopback, tmp_path: Path, path: str) -> None:
    context, superlink = shown_by(server, tmp_path, "a removed node"), server.programs["superlink"]
    mine = quote((server.directory / "server" / "nodes" / "node-0.crt").read_text())
    heard = superlink.text().count("POST /health")
    said = status_of(server.federation.fleet_port, context, bytes(2**20), path, **{"X-Dqnfed-Certificate": mine})
    assert said == (405 if is_nginx(server) else 404)  # as for `/health`; the stand-in goes by what was sent
    assert superlink.text().count("POST /health") == heard + is_nginx(server)


def test_a_node_gets_through_and_check_finds_nothing(server: Loopback, tmp_path: Path) -> None:
    context, port = shown_by(server, tmp_path, "a node"), server.federation.fleet_port
    assert status_of(port, context) == 401  # its key has signed nothing
    assert status_of(port, context, bytes(16 * 2**20 + 1)) in {413, *CUT}
    assert status_of(port, context, path="/v1/control/list-runs") == 404
    for place in (server.directory / "nodes" / "node-0", server.directory):
        found = check.check(place)
        assert not failed(found), found
        assert any("certificate alone" in one.what or "takes this node's" in one.what for one in found)


@pytest.mark.parametrize("who", WHO[:3])
def test_an_attack_costs_little_memory_and_no_node(server: Loopback, tmp_path: Path, who: str) -> None:
    context = shown_by(server, tmp_path, who)
    grown = growth(server)
    with attack(server.federation.fleet_port, context) as said:
        time.sleep(SECONDS)
    factor = grown()
    assert factor <= BOUND, (factor, said)
    assert set(said) <= {503, *refusals(server, who), *CUT}, said  # a removed node is also one with many calls
    assert list(listed(link_of(server.directory)).values()) == ["online"]


def test_a_node_trains_while_strangers_attack(server: Loopback, tmp_path: Path) -> None:
    settings = {"clients": 1, "rounds": 2, "local.threads": 1, "deadline": 120}
    with (
        attack(server.federation.fleet_port, shown_by(server, tmp_path, "nobody")),
        server.submitted(settings, tmp_path / "run") as submit,
    ):
        server.await_exit(submit, RUN_SECONDS)
    assert submit.status == 0, submit.text()
    assert server.rounds_done() == 2


def test_calls_of_one_node_are_bounded(server: Loopback, tmp_path: Path) -> None:
    if not is_nginx(server):
        pytest.skip("the stand-in has no such bound")
    context, port = shown_by(server, tmp_path, "a node"), server.federation.fleet_port
    head = f"POST {CALL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n".encode()
    ends = []
    for _ in range(CALLS):
        ends.append(context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost"))
        ends[-1].sendall(head)
    time.sleep(1)
    assert status_of(port, context) == 503
    for end in ends:
        end.close()
    time.sleep(1)
    assert status_of(port, context) == 401


def test_a_removed_node_is_out_at_its_next_call(server: Loopback) -> None:
    node_certificates.strike(server.directory, "node-0")
    program = server.programs["node-0"]
    wait_for(lambda: program.status is not None, 60, program.text)
    program.start()
    wait_for(lambda: program.status is not None, 60, program.text)
    assert "does not have this node on its list" in program.text()
