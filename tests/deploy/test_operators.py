"""Who may give orders to a real SuperLink: accounts that have only the public ca.crt, removed operators, strangers."""

from __future__ import annotations

import http.client
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks._federation import Loopback, loopback, node
from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy import operators, pki
from dqnfed_flwr.deploy.check import check
from dqnfed_flwr.deploy.findings import failed
from dqnfed_flwr.deploy.registry import listed, register
from dqnfed_flwr.deploy.superlink import as_operator, link_of
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, flwr_environment
from dqnfed_flwr.errors import RunError

pytestmark = pytest.mark.deploy

CALLS = (("list",), ("supernode", "list"), ("stop", "1"), ("log", "1"))
DETOURS = (
    "/v1/runtime/../control/list-runs",
    "/v1/runtime/%2e%2e/control/list-runs",
    "/health/../v1/control/list-runs",
    "//v1/control/list-runs",
    "/v1/control/list-runs/",
    "/v1//control/list-runs",
    "/openapi.json",
    "/docs",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("operators"), [node(0)]) as federation:
        superlink = federation.programs["superlink"]
        superlink.environment["FLWR_INTERNAL_GRPC_CONTROL_API"] = "1"  # Flower's second Control API, without a door
        superlink.start()
        federation.await_server()
        yield federation


def home(server: Loopback, place: Path, *names: str, of: str = "operator") -> Path:
    """A directory of Flower's with the connection, and with those files of an operator's folder."""
    source = operators.home(server.directory, of)
    place.mkdir(exist_ok=True)
    for name in ("ca.crt", *names):
        shutil.copy(source / name, place / name)
    (place / "config.toml").write_text((source / "config.toml").read_text().replace(str(source), str(place)))
    return place


def connection(server: Loopback, context: ssl.SSLContext) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("127.0.0.1", server.federation.control_port, timeout=10, context=context)


def status(server: Loopback, path: str, context: ssl.SSLContext) -> int:
    with closing(
        http.client.HTTPSConnection("127.0.0.1", server.federation.control_port, timeout=10, context=context)
    ) as one:
        one.request("POST", path, b"", {"Content-Type": "application/x-protobuf", "Accept": "application/x-protobuf"})
        return one.getresponse().status


def trusting(server: Loopback, *identity: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(server.directory / "server" / "ca.crt"))
    if identity:
        certificate, key = identity
        context.load_cert_chain(certificate, key)
    return context


def test_the_first_operator_is_let_in_without_further_words(server: Loopback) -> None:
    assert register(server.directory, server.federation) == {"node-0": "registered"}
    assert len(listed(link_of(server.directory))) == 1
    found = check(server.directory)
    bad = [finding for finding in found if failed([finding])]
    assert [finding.what.partition(",")[0] for finding in bad] == ["no node is online"]  # none is started here
    assert any("takes calls from operators alone" in finding.what for finding in found)


@pytest.mark.parametrize("stock", [True, False], ids=["flwr", "dqnfed"])
def test_an_account_that_has_only_the_public_certificate(server: Loopback, tmp_path: Path, stock: bool) -> None:
    place = home(server, tmp_path / "home")
    flwr = FlwrCommand(flwr_environment(place)) if stock else as_operator(place)
    for words in CALLS:
        with pytest.raises(RunError, match="operators of the federation alone"):
            flwr(*words, CONNECTION)
    write_app(tmp_path / "app", Settings.from_mapping({"data": "digits", "clients": 1}))
    answer = flwr.json("run", str(tmp_path / "app"), CONNECTION)
    assert not answer["success"]
    assert "operators of the federation alone" in answer["error-message"]
    assert server.flwr.json("list", CONNECTION)["runs"] == []


def test_no_path_leads_round_the_door(server: Loopback) -> None:
    for path in DETOURS:
        assert status(server, path, trusting(server)) in (403, 404, 405), path
    assert status(server, "/v1/control/list-runs", trusting(server)) == 403
    assert "Flower Control API (gRPC)" not in server.programs["superlink"].text()


def test_a_removed_operator_is_out_at_once(server: Loopback, tmp_path: Path) -> None:
    operators.add(server.directory, "alice")
    place = home(server, tmp_path / "alice", operators.KEY, operators.CERTIFICATE, of="alice")
    assert as_operator(place).json("list", CONNECTION)["success"]
    identity = (place / operators.CERTIFICATE, place / operators.KEY)
    with closing(connection(server, trusting(server, *identity))) as kept:
        found = []
        for removed in (False, True):
            if removed:
                operators.remove(server.directory, "alice")
            kept.request("POST", "/v1/control/list-runs", b"", {"Content-Type": "application/x-protobuf"})
            answer = kept.getresponse()
            answer.read()
            found.append(answer.status)
    assert found[0] != 403
    assert found[1] == 403  # on the connection that was open
    assert not as_operator(place).json("list", CONNECTION)["success"]


def test_an_operator_of_another_authority(server: Loopback, tmp_path: Path) -> None:
    place = home(server, tmp_path / "forged")
    forged = pki.make_operator(pki.make_authority(), "operator", 30)
    (place / operators.KEY).write_bytes(forged.key)
    (place / operators.CERTIFICATE).write_bytes(forged.certificate)
    assert not as_operator(place).json("list", CONNECTION)["success"]


def test_the_servers_own_certificate_is_no_operators(server: Loopback) -> None:
    identity = (server.directory / "server" / "server.crt", server.directory / "server" / "server.key")
    with pytest.raises((ssl.SSLError, ConnectionError)):  # it is for servers, and TLS refuses it already
        status(server, "/v1/control/list-runs", trusting(server, *identity))
