"""Attacks on the exporter's server: slow clients, floods of passwords, foreign names, endless heads."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dqnfed_flwr.exporter import passwords
from dqnfed_flwr.exporter import server as server_module
from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from dqnfed_flwr.exporter.hosts import Hosts
from dqnfed_flwr.exporter.passwords import Admission, BasicAuth
from dqnfed_flwr.exporter.server import Server
from dqnfed_flwr.exporter.webconfig import WebConfig, read_web_config
from tests.helpers.served import certificate, serving, write_run


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def port(server: Server) -> int:
    return int(server.server_address[1])


def slow(
    stack: ExitStack, server: Server, sent: bytes = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-"
) -> socket.socket:
    """A client that sends the beginning of a request, and nothing more."""
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port(server)), timeout=10))
    client.sendall(sent)
    return client


def ask(server: Server, path: str = "/health", headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port(server), timeout=10)
    try:
        connection.request("GET", path, headers=headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def credentials(pair: bytes) -> str:
    return "Basic " + base64.b64encode(pair).decode()


def served_threads() -> int:
    return sum("_serve" in thread.name for thread in threading.enumerate())


def test_slow_clients_shut_nobody_out(tmp_path: Path, stack: ExitStack) -> None:
    write_run(tmp_path, "a")
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    clients = [slow(stack, server) for _ in range(80)]
    since = time.monotonic()
    assert [ask(server), ask(server, "/metrics"), ask(server)] == [200, 200, 200]
    assert time.monotonic() - since < 2
    assert served_threads() <= 2 * server_module.CONNECTIONS
    assert clients[0].recv(1) == b""  # the first came first to its end
    clients[-1].settimeout(0.1)
    with pytest.raises(TimeoutError):
        clients[-1].recv(1)


def test_slow_clients_of_tls_shut_nobody_out(tmp_path: Path, stack: ExitStack) -> None:
    cert, _ = certificate(tmp_path / "tls", "x")
    (tmp_path / "web.yml").write_text("tls_server_config:\n  cert_file: tls/cert.pem\n  key_file: tls/key.pem\n")
    web = read_web_config(tmp_path / "web.yml")
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path)), web))
    for _ in range(40):
        slow(stack, server, b"\x16\x03\x01")  # a handshake that begins
    context = ssl.create_default_context(cafile=cert)
    connection = http.client.HTTPSConnection("127.0.0.1", port(server), timeout=10, context=context)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.parametrize("drip", [False, True])
def test_a_request_has_a_deadline(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, drip: bool
) -> None:
    monkeypatch.setattr(server_module, "SECONDS", 0.5)
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    client = slow(stack, server)
    since = time.monotonic()
    client.settimeout(0.1)
    while time.monotonic() - since < 10:
        try:
            if drip:
                client.sendall(b"a")
            if client.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    assert 0.4 < time.monotonic() - since < 5


def test_a_client_that_does_not_read_its_answer_has_a_deadline(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SECONDS", 0.5)
    monkeypatch.setattr(Exporter, "exposition", lambda self: bytes(50_000_000))
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    slow(stack, server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    end = time.monotonic() + 5
    while served_threads() and time.monotonic() < end:
        time.sleep(0.05)
    assert served_threads() == 0


def test_a_connection_that_is_kept_has_a_deadline_for_each_request(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SECONDS", 1.0)
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    connection = http.client.HTTPConnection("127.0.0.1", port(server), timeout=10)
    for _ in range(4):
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b"ok\n"
        time.sleep(0.5)
    connection.close()


def test_answers_in_the_making_are_not_cut_for_others(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS", 2)
    go_on = threading.Event()
    monkeypatch.setattr(Exporter, "exposition", lambda self: b"found\n" if go_on.wait(10) else b"")
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    whole = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    first = slow(stack, server, whole)
    time.sleep(0.2)
    others = [slow(stack, server) for _ in range(4)]
    assert others[0].recv(1) == b""
    go_on.set()
    with first.makefile("rb") as answer:
        assert answer.read().endswith(b"found\n")


@pytest.mark.parametrize("head", [b"GET /" + b"a" * 40_000, b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 40_000])
def test_an_endless_head_is_cut_short(tmp_path: Path, stack: ExitStack, head: bytes) -> None:
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    client = slow(stack, server, head)
    try:
        answer = client.recv(65_536)
    except ConnectionResetError:
        answer = b""
    assert answer == b"" or b" 414 " in answer or b" 431 " in answer
    assert ask(server) == 200


def test_many_short_header_lines_are_cut_short(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    client = slow(stack, server, b"GET /health HTTP/1.1\r\n" + (b"X: " + b"y" * 1_000 + b"\r\n") * 40)
    assert b" 431 " in client.recv(65_536)


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        (["localhost"], True),
        (["LOCALHOST.:9464"], True),
        (["127.0.0.1:9464"], True),
        (["192.0.2.7"], True),
        (["[::1]:9464"], True),
        (["exporter:9464"], True),
        ([socket.gethostname()], True),
        (["attacker.example:9464"], False),
        (["127.0.0.1.attacker.example"], False),
        (["localhost:9464@attacker.example"], False),
        (["[::1"], False),
        (["[attacker.example]:1"], False),
        ([""], False),
        ([], False),
        (["localhost", "attacker.example"], False),
    ],
)
def test_known_names(headers: list[str], known: bool) -> None:
    assert Hosts(["Exporter"]).know(headers) is known


def test_a_foreign_name_is_told_nothing(tmp_path: Path, stack: ExitStack) -> None:
    write_run(tmp_path, "a")
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path))))
    for path in ("/", "/metrics", "/api/state.json", "/api/rounds/a"):
        assert ask(server, path, {"Host": f"attacker.example:{port(server)}"}) == 421
        assert ask(server, path, {"Host": f"localhost:{port(server)}"}) == 200
    assert ask(server, "/health", {"Host": "attacker.example"}) == 200


def test_a_flood_of_passwords_neither_delays_the_known_nor_health(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    bcrypt = pytest.importorskip("bcrypt")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(5)).decode()
    write_run(tmp_path, "a")
    server = stack.enter_context(serving(Exporter(ExporterOptions(tmp_path)), WebConfig(users={"me": hashed})))
    right, wrong = (
        {"Authorization": "Basic " + base64.b64encode(b"me:" + word).decode()} for word in (b"secret", b"x")
    )
    assert ask(server, "/metrics", right) == 200
    at_once: list[int] = []
    release, count, lock = threading.Event(), [0], threading.Lock()

    def checked(self: BasicAuth, name: str, password: bytes) -> bool:
        with lock:
            count[0] += 1
            at_once.append(count[0])
        release.wait(10)
        with lock:
            count[0] -= 1
        return False

    monkeypatch.setattr(BasicAuth, "_is_right", checked)
    found: list[int] = []
    flood = [threading.Thread(target=lambda: found.append(ask(server, "/metrics", wrong))) for _ in range(20)]
    for thread in flood:
        thread.start()
    end = time.monotonic() + 5
    while len(found) < 20 - passwords.WAITING and time.monotonic() < end:
        time.sleep(0.01)
    assert found == [429] * (20 - passwords.WAITING)
    assert [ask(server, "/metrics", right), ask(server)] == [200, 200]
    release.set()
    for thread in flood:
        thread.join(10)
    assert sorted(found) == [401] * passwords.WAITING + [429] * (20 - passwords.WAITING)
    assert max(at_once) == passwords.ATTEMPTS


def test_what_is_remembered_of_a_password_does_not_grow() -> None:
    bcrypt = pytest.importorskip("bcrypt")
    auth = BasicAuth({"me": bcrypt.hashpw(b"p" * 72, bcrypt.gensalt(4)).decode()})
    for more in range(5):
        assert auth.admits(credentials(b"me:" + b"p" * (72 + more))) is Admission.YES
    assert len(auth._known) == 1
