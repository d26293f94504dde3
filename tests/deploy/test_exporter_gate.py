"""Who gets what of the exporter through the gate that is shipped, and what slow clients and floods cost the others."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks._flood import Slow, crowd
from benchmarks._programs import free_ports, wait_for
from dqnfed_flwr.deploy.build import create
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from tests.helpers.http_flood import client
from tests.helpers.nginx import NGINX, nginx
from tests.helpers.served import serving, write_run

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(NGINX is None, reason="nginx is not installed")]
USERS = (  # openssl passwd -6 -salt dqnfed secret
    "prometheus:$6$dqnfed$UrZMEJxU9Cntl3bPz6EgKebdBJ7VJf/OiwboW/pvYFvoBd2ThnFxMAI86D65lvdxeZjjfcm75Mjew9YEc9iDZ0\n"
)
RIGHT, WRONG = "prometheus:secret", "prometheus:wrong"
HEAD = "GET {} HTTP/1.1\r\nHost: localhost\r\n"
LARGE = bytes(50_000_000)


@dataclass
class Gate:
    """The gate's port, and the TLS of a caller."""

    port: int
    context: ssl.SSLContext

    def ask(self, path: str, user: str = "", method: str = "GET", body: bytes = b"", source: str = "127.0.0.1") -> int:
        """The status of a call from the address `source`."""
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=10, context=self.context, source_address=(source, 0)
        )
        headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
        try:
            connection.request(method, path, body, headers)
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation's folder."""
    found = tmp_path_factory.mktemp("gate")
    create(found / "fl", Federation("localhost", nodes=(Node("a", 0, 1),)))
    write_run(found, "a")
    return found


def before(place: Path, stack: ExitStack, users: str) -> Gate:
    exporter = stack.enter_context(serving(Exporter(ExporterOptions(place))))
    fleet, superlink, port = free_ports(3)
    server = place / "fl" / "server"
    stack.enter_context(nginx(fleet, superlink, server, (port, int(exporter.server_address[1])), users))
    return Gate(port, client(server / "ca.crt", None))


@pytest.fixture(scope="module")
def gate(place: Path) -> Iterator[Gate]:
    with ExitStack() as stack:
        yield before(place, stack, USERS)


def test_a_password_is_asked_for_but_not_by_health(gate: Gate) -> None:
    for path in ("/metrics", "/", "/api/state.json", "/api/rounds/a"):
        assert [gate.ask(path), gate.ask(path, WRONG), gate.ask(path, RIGHT)] == [401, 401, 200]
    for path in ("/metrics/../health", "//health", "/x/..%2fhealth"):
        assert gate.ask(path) in (200, 401)
    assert gate.ask("/health") == 200
    time.sleep(1)  # so many calls a second


def test_requests_only_read_and_are_small(gate: Gate) -> None:
    assert gate.ask("/metrics", RIGHT, "POST") == 403
    assert gate.ask("/metrics", RIGHT, body=bytes(2_000)) == 413
    assert gate.ask("/" + "a" * 9_000, RIGHT) == 414
    plain = http.client.HTTPConnection("localhost", gate.port, timeout=10)
    plain.request("GET", "/health")
    assert plain.getresponse().status == 400
    plain.close()


def test_without_a_password_file_everybody_is_refused(place: Path) -> None:
    with ExitStack() as stack:
        gate = before(place, stack, "")
        assert [gate.ask("/metrics", RIGHT), gate.ask("/health")] == [403, 200]


def test_slow_clients_shut_nobody_out_and_have_a_deadline(gate: Gate) -> None:
    slow = crowd(gate.port, gate.context, HEAD.format("/metrics").encode() + b"X-", b"a")
    begun = time.monotonic()
    for one in slow:
        one.beat()
    since = time.monotonic()
    assert [gate.ask("/metrics", RIGHT), gate.ask("/health")] == [200, 200]
    assert time.monotonic() - since < 2

    def cut() -> bool:
        for one in slow:
            if one.end is not None:
                one.beat()
        return all(one.end is None for one in slow)

    wait_for(cut, 40, pause=2)
    assert time.monotonic() - begun > 15


def test_who_does_not_read_is_cut_and_has_so_many_calls(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exporter, "exposition", lambda self: LARGE)
    threads = threading.active_count()
    secret = base64.b64encode(RIGHT.encode())
    head = HEAD.format("/metrics").encode() + b"Authorization: Basic " + secret + b"\r\n\r\n"
    readers = [Slow(gate.port, gate.context, head) for _ in range(16)]
    for one in readers:
        one.beat()
    time.sleep(1)
    assert gate.ask("/health") == 503
    assert gate.ask("/health", source="127.0.0.2") == 200
    wait_for(lambda: threading.active_count() <= threads, 30)
    for one in readers:
        one.close()
    wait_for(lambda: gate.ask("/health") == 200, 10)


def test_a_flood_of_passwords_is_bounded_and_delays_nobody(gate: Gate) -> None:
    found: Counter[int] = Counter()

    def flood() -> None:
        for _ in range(40):
            found[gate.ask("/metrics", WRONG, source="127.0.0.3")] += 1

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    since = time.monotonic()
    assert [gate.ask("/metrics", RIGHT), gate.ask("/health")] == [200, 200]
    assert time.monotonic() - since < 2
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - since
    assert set(found) == {401, 429}
    assert found[401] <= 42 + 20 * seconds
