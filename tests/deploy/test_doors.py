"""Who is not let in, each by a real SuperLink."""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks._federation import Loopback, loopback, node
from benchmarks._programs import Program, free_ports, wait_for
from dqnfed_flwr.deploy import check, check_network, node_certificates, pki
from dqnfed_flwr.deploy.check_network import Port, look
from dqnfed_flwr.deploy.commands import superexec_arguments, supernode_arguments
from dqnfed_flwr.deploy.files import write_private, write_public
from dqnfed_flwr.deploy.findings import Level
from dqnfed_flwr.deploy.node_certificates import authority
from dqnfed_flwr.deploy.plan import Node, transport_of
from dqnfed_flwr.deploy.registry import listed, register
from dqnfed_flwr.deploy.superlink import connect, link_of
from dqnfed_flwr.engine.flwr_command import CONNECTION
from dqnfed_flwr.errors import RunError

pytestmark = pytest.mark.deploy
OVER_HTTP = transport_of(version("flwr")).listener == "gate"
over_grpc = pytest.mark.skipif(OVER_HTTP, reason="the attack speaks gRPC; that of HTTP is in test_gate.py")

BOUND = ["--max-retries", "1", "--max-wait-time", "15"]
STAMPS = {
    False: "flwr.client.grpc_rere_client.node_auth_client_interceptor",
    True: "flwr.supernode.node_auth_http_interceptor",
}
"""Flower's module that signs a node's calls over gRPC and over HTTP."""
RECORDED = """
import datetime, importlib, sys
from pathlib import Path
from dqnfed_flwr.deploy.node_certificates import run_supernode
signer = importlib.import_module(sys.argv[1])
now = signer.now
signer.now = lambda: now() - datetime.timedelta(minutes=10)
run_supernode(sys.argv[2:], Path("node.crt"))
"""
KEYLESS = """
import sys
from pathlib import Path
from dqnfed_flwr.deploy.node_certificates import identity_of, show
show(identity_of(Path("node.crt"), Path("node.key")))
from flwr.supernode.cli import flower_supernode
flower_supernode()
"""
"""A SuperNode with a certificate, and without Flower's own key."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("doors"), [node(0), node(1)]) as federation:
        federation.programs["superlink"].start()
        federation.await_server()
        assert register(federation.directory, federation.federation) == {
            "node-0": "registered",
            "node-1": "registered",
        }
        yield federation


def flowers(program: Program) -> list[str]:
    """The arguments of a SuperNode as Flower's own program has them, without the node's certificate."""
    return program.arguments[program.arguments.index("flower-supernode") :]


def stranger(server: Loopback, name: str) -> Program:
    """A SuperNode like node-0, with a folder of its own to spoil; not started."""
    place = server.directory / "nodes" / name
    shutil.copytree(server.directory / "nodes" / "node-0", place)
    port = free_ports(1)[0]
    arguments = supernode_arguments(server.federation, server.federation.nodes[0])
    arguments[arguments.index("--port") + 1] = str(port)
    return server.define(name, [*arguments, *BOUND], place, {"FLWR_HOME": str(place / "flwr")})


def refused(server: Loopback, program: Program, words: str) -> None:
    """Wait until the program gave up, and no node came online by it."""
    wait_for(lambda: program.status is not None or words in program.text(), 90, program.text)
    assert words in program.text(), program.text()
    assert "online" not in listed(link_of(server.directory)).values()
    program.end()


def test_a_key_that_is_not_registered(server: Loopback) -> None:
    program = stranger(server, "unknown")
    private, public = pki.make_node_key("unknown")
    write_private(program.place / "node.key", private)
    write_public(program.place / "node.pub", public)
    node_certificates.certify(server.directory, authority(server.directory), [Node("unknown", 9, 1)])
    program.start()
    refused(server, program, "Failed to activate SuperNode")
    assert "[ApiError:2004] Attempted to register SuperNode" in server.programs["superlink"].text()


@pytest.mark.slow
def test_a_call_recorded_ten_minutes_ago(server: Loopback) -> None:
    """The signature covers a time stamp alone, so an old stamp and its signature are what somebody could replay."""
    program = stranger(server, "recorded")
    program.arguments = ["python", "-c", RECORDED, STAMPS[OVER_HTTP], *flowers(program)]
    program.start()
    wait_for(lambda: program.status is not None, 90, program.text)
    log = server.programs["superlink"].text()
    assert "SuperNode ID" not in program.text()
    assert "Activated node_id" not in log
    if OVER_HTTP:  # over gRPC Flower turns it away without a word
        assert '/v1/fleet/register-node HTTP/1.1" 401' in log or '/v1/fleet/activate-node HTTP/1.1" 401' in log


@pytest.mark.parametrize(("ahead", "words"), [(8.0, "ahead of"), (-2000.0, "behind")])
def test_a_clock_that_is_off_is_found_on_the_device(
    server: Loopback, monkeypatch: pytest.MonkeyPatch, ahead: float, words: str
) -> None:
    monkeypatch.setattr(check_network, "now", lambda: dt.datetime.now(dt.UTC) + dt.timedelta(seconds=ahead))
    found = [one for one in check.check(server.directory / "nodes" / "node-0") if one.what.startswith("this clock")]
    assert [one.level for one in found] == [Level.FAILURE]
    seconds, *side = found[0].what.removeprefix("this clock is ").split()
    assert float(seconds) == pytest.approx(abs(ahead), abs=2.0)  # HTTP tells whole seconds
    assert " ".join(side).startswith(f"s {words}")
    assert "5 s ahead or 5 minutes behind" in found[0].fix


def test_a_key_that_is_registered_again(server: Loopback) -> None:
    key = server.directory / "nodes" / "node-0" / "node.pub"
    answer = server.flwr.json("supernode", "register", str(key), CONNECTION, "--name", "again")
    assert not answer["success"]
    assert "already in use" in answer["error-message"]
    assert "Public key already in use" in server.programs["superlink"].text()


def test_a_node_without_a_key(server: Loopback) -> None:
    program = stranger(server, "keyless")
    where = program.arguments.index("--auth-supernode-private-key")
    del program.arguments[where : where + 2]
    program.arguments = ["python", "-c", KEYLESS, *flowers(program)[1:]]
    program.start()
    refused(server, program, "Exit Code: 305")
    assert "[ApiError:2001] Attempted to register SuperNode" in server.programs["superlink"].text()


@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_a_node_without_a_certificate_of_the_authority(server: Loopback, shown: str) -> None:
    program = stranger(server, f"shows-{len(shown)}")
    if shown == "nothing":
        program.arguments = flowers(program)
    else:
        public = pki.load_node_public_key((program.place / "node.pub").read_bytes())
        write_public(program.place / "node.crt", pki.client_certificate(pki.make_authority(), "node-0", public, 9))
        (trouble,) = [one.what for one in check.check(program.place) if "does not take this node's" in one.what]
        assert trouble.startswith(server.federation.superlink)
    program.start()
    no = "takes calls from nodes with a certificate alone" if shown == "nothing" else "SSL/TLS handshake error"
    refused(server, program, no if OVER_HTTP else "Connection attempt failed, retrying")
    assert "SuperNode ID" not in program.text()
    assert any(one.what.endswith("with a certificate alone") for one in check.check(server.directory))


def test_a_node_that_was_removed_and_is_still_registered(server: Loopback) -> None:
    node_certificates.strike(server.directory, "node-0")
    try:
        program = stranger(server, "removed")
        program.start()
        refused(server, program, "does not have this node on its list")
        assert any("turns this node away" in one.what for one in check.check(program.place))
    finally:
        node_certificates.certify(server.directory, authority(server.directory), [server.federation.nodes[0]])
    assert f"refused '{'/v1/fleet/' if OVER_HTTP else '/flwr.proto.Fleet/'}" in server.programs["superlink"].text()
    log = (server.directory / "server" / "state" / "audit.log").read_text()
    assert "a certificate that is not on the list" in log


def test_a_node_that_trusts_another_authority(server: Loopback) -> None:
    program = stranger(server, "elsewhere")
    write_public(program.place / "ca.crt", pki.make_authority().certificate)
    program.start()
    refused(server, program, "SSL")


def test_a_node_without_tls(server: Loopback) -> None:
    program = stranger(server, "plain")
    where = program.arguments.index("--root-certificates")
    program.arguments[where : where + 2] = ["--insecure"]
    program.start()
    wait_for(lambda: program.status is not None, 90, program.text)
    assert program.status != 0
    assert "online" not in listed(link_of(server.directory)).values()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["fleet_port", "control_port"])
def test_plain_text_at_a_tls_port(server: Loopback, which: str) -> None:
    with socket.create_connection(("127.0.0.1", getattr(server.federation, which)), 5) as end:
        end.settimeout(10)
        end.sendall(b"POST /v1/control/list-runs HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        try:
            answer = end.recv(1024)
        except ConnectionResetError:
            answer = b""
    assert b"200" not in answer


def test_an_operator_who_trusts_another_authority(server: Loopback, tmp_path: Path) -> None:
    home = server.directory / "operator"
    shutil.copytree(home, tmp_path / "operator")
    (tmp_path / "operator" / "ca.crt").write_bytes(pki.make_authority().certificate)
    config = (home / "config.toml").read_text().replace(str(home), str(tmp_path / "operator"))
    (tmp_path / "operator" / "config.toml").write_text(config)
    heard = server.programs["superlink"].text().count("ControlServicer.ListNodes")
    with pytest.raises(RunError):
        listed(connect(str(tmp_path / "operator")))
    assert server.programs["superlink"].text().count("ControlServicer.ListNodes") == heard
    listed(link_of(server.directory))
    assert server.programs["superlink"].text().count("ControlServicer.ListNodes") == heard + 1


@pytest.mark.slow
def test_an_executor_with_another_secret(server: Loopback) -> None:
    place = server.directory / "server"
    write_private(place / "wrong.secret", b"wrong")
    arguments = superexec_arguments(server.federation)
    arguments[arguments.index("--superexec-auth-secret-file") + 1] = "wrong.secret"
    program = server.define("wrong-secret", arguments, place, {})
    program.start()
    superlink = server.programs["superlink"]
    wait_for(lambda: "SuperExec authentication failed" in superlink.text(), 90, program.text)
    assert 'acquire-task HTTP/1.1" 200' not in superlink.text()
    program.end()


def test_the_control_port_is_on_loopback_only(server: Loopback) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))  # sends nothing; tells this machine's own address
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe_socket.getsockname()[0]
    with pytest.raises(OSError, match=r"refused|unreachable|timed out"):
        socket.create_connection((address, server.federation.control_port), 3).close()


def test_a_key_that_is_online_already(server: Loopback) -> None:
    first = server.programs["node-0"]
    first.start()
    server.await_online(["node-0"])
    twin = stranger(server, "twin")
    twin.start()
    wait_for(lambda: twin.status is not None, 90, twin.text)
    assert "Failed to activate SuperNode" in twin.text()
    first.signal(signal.SIGTERM)


def test_a_server_whose_certificate_is_out_of_date(server: Loopback) -> None:
    place = server.directory / "server"
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=30)
    expired = pki.make_server(authority(server.directory), "127.0.0.1", [], 7, now=past)
    write_private(place / "server.key", expired.key)
    write_public(place / "server.crt", expired.certificate)
    server.programs["superlink"].signal()
    server.programs["superlink"].start()
    server.await_server()
    program = stranger(server, "careful")
    program.start()
    wait_for(lambda: program.status is not None or "SSL" in program.text(), 90, program.text)
    assert "SuperNode ID" not in program.text()
    assert look("127.0.0.1", server.federation.fleet_port, place / "ca.crt")[0] is Port.EXPIRED
    assert "the server certificate expired" in "\n".join(one.what for one in check.check(server.directory))
