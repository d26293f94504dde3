"""The door of the Fleet port: a real server of gRPC on loopback, with a servicer of a few lines behind it."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dqnfed_flwr.deploy import grpc_transport, node_certificates, pki
from dqnfed_flwr.deploy.build import create, rotate
from dqnfed_flwr.deploy.findings import Level
from dqnfed_flwr.deploy.grpc_transport import CALL, CALLS, LARGEST_MESSAGE, Fleet, FleetDoor, Grpc
from dqnfed_flwr.deploy.node_certificates import identity_of
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.errors import RunError


class Served:
    """A federation's folder, and a server of its Fleet that counts the messages it read."""

    def __init__(self, place: Path) -> None:
        create(place, Federation("localhost", nodes=(Node("node-0", 0, 9094), Node("node-1", 1, 9095))))
        self.place, self.read, self.refused = place, [0], list[tuple[str, ...]]()
        self.answering = threading.Event()
        self.answering.set()
        server = place / "server"
        door = FleetDoor(server / "nodes", lambda *said: self.refused.append(said))
        self.fleet = Fleet(door, server / "ca.crt")
        certificates = tuple((server / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key"))
        self.server = self.fleet.serve((self, self._add), "127.0.0.1:0", -1, certificates)  # type: ignore[arg-type]
        self.server.start()

    @staticmethod
    def _add(served: Any, server: Any) -> None:
        def read(message: bytes) -> bytes:
            served.read[0] += 1
            return message

        def answer(message: bytes, _: object) -> bytes:
            assert served.answering.wait(20)
            return message[:3]

        one = {"PullMessages": grpc.unary_unary_rpc_method_handler(answer, read)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("flwr.proto.Fleet", one),))

    @property
    def port(self) -> int:
        return int(self.server.bound_address.rpartition(":")[2])

    def identity(self, name: str) -> pki.Identity:
        place = self.place / "nodes" / name
        return identity_of(place / "node.crt", place / "node.key")

    def channel(self, identity: pki.Identity | None) -> Any:
        pair = (None, None) if identity is None else (identity.key, identity.certificate)
        credentials = grpc.ssl_channel_credentials((self.place / "server" / "ca.crt").read_bytes(), *pair)
        return grpc.secure_channel(f"localhost:{self.port}", credentials, [("grpc.max_send_message_length", -1)])

    def call(self, identity: pki.Identity | None, message: bytes = b"abcdef") -> Any:
        """The answer, or the status and its words."""
        with self.channel(identity) as channel:
            try:
                return channel.unary_unary(CALL)(message, timeout=20)
            except grpc.RpcError as error:
                return error.code(), str(error.details())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "fl")
    try:
        yield found
    finally:
        found.answering.set()
        found.server.stop(None).wait(10)


def test_nodes_on_the_list_are_let_in_until_struck_off(served: Served) -> None:
    mine = served.identity("node-0")
    assert served.call(mine) == b"abc"
    node_certificates.strike(served.place, "node-0")
    code, words = served.call(mine, bytes(LARGEST_MESSAGE // 2))
    assert (code, "was removed" in words) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    assert served.read == [1]  # what it sent was not read
    assert served.refused == [(CALL, "ipv4:127.0.0.1", "a certificate that is not on the list")]
    assert served.call(served.identity("node-1")) == b"abc"


def test_who_has_no_certificate_of_the_authority_does_not_get_through_the_handshake(served: Served) -> None:
    for stranger in (None, pki.make_operator(pki.make_authority(), "node-0", 9)):
        assert served.call(stranger)[0] is grpc.StatusCode.UNAVAILABLE
    assert (served.read, served.refused) == ([0], [])


def test_an_operator_is_no_node(served: Served) -> None:
    place = served.place / "operator"
    operator = pki.Identity((place / "operator.crt").read_bytes(), (place / "operator.key").read_bytes())
    assert served.call(operator)[0] is grpc.StatusCode.FAILED_PRECONDITION


def test_messages_have_a_largest_size(served: Served) -> None:
    mine = served.identity("node-0")
    assert served.call(mine, bytes(LARGEST_MESSAGE)) == bytes(3)
    assert served.call(mine, bytes(LARGEST_MESSAGE + 1))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_calls_of_one_node_are_bounded_over_all_its_connections(served: Served) -> None:
    served.answering.clear()
    mine = served.identity("node-0")
    channels = [served.channel(mine) for _ in range(2)]
    calls = [channel.unary_unary(CALL) for channel in channels]
    waiting = [calls[k % 2].future(b"abc", timeout=20) for k in range(CALLS)]
    while served.read[0] < CALLS:
        threading.Event().wait(0.05)
    code, words = served.call(mine)
    assert (code, f"{CALLS} calls" in words) == (grpc.StatusCode.UNAVAILABLE, True)
    other = served.channel(served.identity("node-1"))
    beside = other.unary_unary(CALL).future(b"abc", timeout=20)
    while served.read[0] < CALLS + 1:
        threading.Event().wait(0.05)
    served.answering.set()
    assert [one.result() for one in (*waiting, beside)] == [b"abc"] * (CALLS + 1)
    assert served.call(mine) == b"abc"
    for channel in (*channels, other):
        channel.close()


def test_a_stream_without_a_message(served: Served) -> None:
    with served.channel(served.identity("node-0")) as channel, pytest.raises(grpc.RpcError) as refused:
        channel.stream_unary(CALL)(iter(()), timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_new_authority_is_trusted_without_a_restart(served: Served) -> None:
    old = served.identity("node-0")
    rotate(served.place, authority=True)
    for identity in (served.identity("node-0"), old):
        assert served.call(identity) == b"abc"
    (served.place / "server" / "ca.crt").write_text("damaged")
    rest = grpc.ssl_channel_credentials((served.place / "ca" / "ca.crt").read_bytes(), old.key, old.certificate)
    with grpc.secure_channel(f"localhost:{served.port}", rest) as channel:
        assert channel.unary_unary(CALL)(b"abc", timeout=20) == b"abc"


def test_a_device_is_told_whether_it_is_let_in(served: Served) -> None:
    def ask(identity: pki.Identity) -> tuple[Level, str]:
        found = next(Grpc().admitted("localhost", served.port, served.place / "server" / "ca.crt", identity))
        return found.level, found.what

    assert ask(served.identity("node-0")) == (Level.OK, f"localhost:{served.port} takes this node's certificate")
    node_certificates.strike(served.place, "node-0")
    level, words = ask(served.identity("node-0"))
    assert (level, words.startswith(f"localhost:{served.port} turns this node away: this SuperLink")) == (
        Level.FAILURE,
        True,
    )
    level, words = ask(pki.make_operator(pki.make_authority(), "node-0", 9))
    assert (level, "does not take this node's certificate" in words) == (Level.FAILURE, True)


def test_an_open_port_is_found(served: Served, tmp_path: Path) -> None:
    def found(port: int) -> Level:
        return Grpc().closed(port, served.place / "server" / "ca.crt", "fl").level

    assert found(served.port) is Level.OK
    pair = tuple((served.place / "server" / name).read_bytes() for name in ("server.key", "server.crt"))
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials((pair,)))
    server.start()
    try:
        assert found(port) is Level.FAILURE
    finally:
        server.stop(None).wait(10)


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "found"),
    [
        (1024, 4096, 4096, 4096 - 256),
        (1024, 10**6, 12_256, 12_000),
        (20_000, 20_000, None, 12_000),
        (1024, -1, 12_256, 12_000),
        (-1, -1, None, 12_000),
        (300, 300, 300, 256),
    ],
)
def test_files_are_left_for_the_superlink(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, found: int
) -> None:
    said: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: said.append(both))
    assert grpc_transport.connections() == found
    assert said == ([] if raised is None else [(raised, hard)])


def test_a_release_that_is_unlike_those_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_transport, "version", lambda _: "1.39.5")
    monkeypatch.setattr(grpc_transport, "MAKER", "make_something_else")
    with pytest.raises(RunError, match=r"flwr 1\.39\.5 makes .*docs/transport\.md"):
        Grpc().fleet(tmp_path, tmp_path)
    with pytest.raises(RunError, match="no TLS"):
        Fleet(FleetDoor(tmp_path), tmp_path).serve((None, print), "127.0.0.1:0", -1, None)
