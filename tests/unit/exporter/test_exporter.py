"""The exporter's HTTP server: what it answers, to whom, and how long it waits."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dqnfed_flwr.cli import monitoring
from dqnfed_flwr.cli.app import app
from dqnfed_flwr.deploy.build import create
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.exporter import HOST, Exporter, ExporterOptions, Handler, Server
from dqnfed_flwr.telemetry.metrics import EXPORTER_METRICS
from tests.helpers.served import certificate, polling, series, serving, write_run


def get(server: Server, path: str, method: str = "GET", host: str = "") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.server_address[1]), timeout=10)
    try:
        connection.request(method, path, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.server_address[1])), timeout=10)


def test_paths(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    with serving(Exporter(ExporterOptions(tmp_path))) as server:
        status, headers, body = get(server, "/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert series(body.decode())["dqnfed_round", frozenset({("run", "a")})] == 3
        assert get(server, "/health")[::2] == (200, b"ok\n")
        status, headers, body = get(server, "/")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in headers["content-security-policy"]
        state = json.loads(get(server, "/api/state.json")[2])
        assert [(run["name"], run["state"], run["round"]) for run in state["runs"]] == [("a", "running", 3)]
        figures = ("asked_clients", "heard_clients", "unharmed_clients_ratio", "moved_rounds")
        assert [state["runs"][0][key] for key in (*figures, "clients_overruled_total")] == [4, 4, 1, 3, 0]
        assert [record["round"] for record in json.loads(get(server, "/api/rounds/a")[2])] == [1, 2, 3]
        assert get(server, "/metrics", "HEAD")[::2] == (200, b"")
        assert get(server, "/metrics", "POST")[0] == 501
        for path in ("/nothing", "/api/rounds/b", "/api/rounds/../a", "/api/rounds/%2e%2e%2fa", "/api/rounds/"):
            assert get(server, path)[0] == 404


def test_a_figure_that_is_infinite_is_none_on_the_page(tmp_path: Path) -> None:
    file = write_run(tmp_path, "a")
    file.write_text(re.sub(r"(?m)^dqnfed_round .*$", "dqnfed_round +Inf", file.read_text()))
    with serving(Exporter(ExporterOptions(tmp_path))) as server:
        assert [run["round"] for run in json.loads(get(server, "/api/state.json")[2])["runs"]] == [None]


def test_exactly_the_declared_metrics_are_added(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path / "tls", "x")
    exporter = Exporter(ExporterOptions(tmp_path, certificates=(cert,)))
    exporter.look()
    found = {name for name, _ in series(exporter.exposition().decode())}
    of_superlink = {
        m.name for m in EXPORTER_METRICS if m.name.startswith(("dqnfed_superlink", "dqnfed_node", "dqnfed_fl"))
    }
    assert found == {metric.name for metric in EXPORTER_METRICS} - of_superlink


def test_a_damaged_file_breaks_no_scrape(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    (tmp_path / "b.prom").write_bytes(b"\x00half")
    with serving(Exporter(ExporterOptions(tmp_path))) as server:
        status, _, body = get(server, "/metrics")
        found = series(body.decode())
        assert status == 200
        assert found["dqnfed_exporter_damaged_files", frozenset()] == 1
        assert found["dqnfed_exporter_runs", frozenset()] == 1
        assert json.loads(get(server, "/api/state.json")[2])["damaged"][0]["name"] == "b"


def test_a_damage_that_comes_back_is_told_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    exporter = Exporter(ExporterOptions(tmp_path))
    whole = write_run(tmp_path, "a").read_bytes()
    for content in (b"half", b"half", whole, b"half"):
        (tmp_path / "a.prom").write_bytes(content)
        exporter.exposition()
        exporter.exposition()
    assert [record.getMessage() for record in caplog.records] == ["a: not a metrics file of dqnfed-flwr"] * 2


def test_what_nobody_foresaw_is_a_500_and_stands_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Exporter) -> bytes:
        raise RuntimeError("what is this?")

    monkeypatch.setattr(Exporter, "exposition", broken)
    with serving(Exporter(ExporterOptions(tmp_path))) as server:
        assert get(server, "/metrics")[::2] == (500, b"the exporter failed; its log says why\n")
        assert get(server, "/health")[0] == 200
    assert "/metrics: RuntimeError('what is this?')" in caplog.text


def test_a_directory_that_is_gone_is_a_503_and_no_end(tmp_path: Path) -> None:
    place = tmp_path / "m"
    place.mkdir()
    with serving(Exporter(ExporterOptions(place))) as server:
        place.rmdir()
        assert get(server, "/health")[0] == get(server, "/metrics")[0] == 503
        place.mkdir()
        assert get(server, "/health")[0] == 200


def test_disks_and_certificates(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path / "tls", "x", days=10)
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    exporter = Exporter(ExporterOptions(tmp_path, certificates=(cert, bad), disks=(tmp_path / "gone",)))
    exporter.look()
    found = series(exporter.exposition().decode())
    left = found["dqnfed_certificate_expiry_timestamp_seconds", frozenset({("file", str(cert))})] - time.time()
    assert left == pytest.approx(10 * 86_400, abs=120)
    assert found["dqnfed_certificate_expiry_timestamp_seconds", frozenset({("file", str(bad))})] != 0
    size = os.statvfs(tmp_path)
    total = found["dqnfed_disk_size_bytes", frozenset({("path", str(tmp_path))})]
    assert total == size.f_frsize * size.f_blocks
    assert [dict(labels)["path"] for name, labels in found if name == "dqnfed_disk_free_bytes"] == [str(tmp_path)]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9464", "192.0.2.7", "127.0.0.1:9464", "[::1]:1", "exporter:1"]
)
def test_addresses_and_names_that_nobody_can_register_are_known(host: str) -> None:
    assert HOST.fullmatch(host)


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example:9464",
        "127.0.0.1.attacker.example",
        "localhost:9464@attacker.example",
        "localhost.attacker.example",
        "[::1",
        "[attacker.example]:1",
        "",
    ],
)
def test_a_foreign_name_is_told_nothing(tmp_path: Path, host: str) -> None:
    write_run(tmp_path, "a")
    with serving(Exporter(ExporterOptions(tmp_path))) as server, connected(server) as end:
        for path in ("/", "/metrics", "/api/state.json", "/api/rounds/a"):
            assert get(server, path, host=host or " ")[0] == 421
        assert get(server, "/health", host=host or " ")[0] == 200
        end.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: {host}\r\n\r\n".encode())
        assert b" 421 " in end.recv(100)


def test_a_client_that_sends_or_reads_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.3)
    monkeypatch.setattr(Exporter, "exposition", lambda self: bytes(50_000_000))
    with serving(Exporter(ExporterOptions(tmp_path))) as server:
        threads = threading.active_count()
        clients = [connected(server) for _ in range(4)]
        for client in clients[:2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.1)
        assert threading.active_count() == threads + 4
        end = time.monotonic() + 5
        while threading.active_count() > threads and time.monotonic() < end:
            time.sleep(0.05)
        assert threading.active_count() == threads
        for client in clients:
            client.close()


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"--bind 127\.0\.0\.1 --port \d+: cannot listen there .*in use"):
            Server(Exporter(ExporterOptions(tmp_path)), "127.0.0.1", taken.getsockname()[1])


def test_a_poll_never_delays_a_scrape(tmp_path: Path) -> None:
    command = tmp_path / "flwr"
    command.write_text("#!/bin/sh\nexec sleep 5\n")
    command.chmod(0o755)
    exporter = Exporter(ExporterOptions(tmp_path), polling(command))
    exporter.start()
    time.sleep(0.2)
    since = time.monotonic()
    exporter.exposition()
    assert time.monotonic() - since < 1
    exporter.stop()


@pytest.mark.parametrize("command", ["exporter", "dashboard"])
def test_commands_serve_until_they_are_ended(tmp_path: Path, command: str) -> None:
    if command == "dashboard":
        (tmp_path / "new").mkdir()
    program = [str(Path(sys.executable).with_name("dqnfed")), command, str(tmp_path / "new"), "--port", "0"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
            assert address, said
            connection = http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=10)
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
            connection.close()
            process.terminate()
            assert process.wait(10) == 0
        finally:
            process.kill()


class Nothing:
    """A server that ends at once."""

    url = ""

    def __init__(self, exporter: Exporter, *_: object) -> None:
        self.serve_forever = exporter.look


@pytest.fixture
def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `flwr` answers, which notes its home and words in `calls`; `m` is a folder of metrics that nobody serves."""
    script = tmp_path / "flwr"
    script.write_text(f'#!/bin/sh\necho "$FLWR_HOME: $@" >> {tmp_path}/calls\ncat {tmp_path}/answer\n')
    script.chmod(0o755)
    monkeypatch.setattr("dqnfed_flwr.deploy.superlink.OPERATOR_FLWR", [str(script)])
    monkeypatch.setattr("dqnfed_flwr.exporter.exporter.Server", lambda *given: nullcontext(Nothing(*given)))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "m").mkdir()
    return tmp_path / "answer"


@pytest.mark.parametrize("command", ["exporter", "dashboard"])
@pytest.mark.parametrize("given", ["folder", "name"])
def test_a_superlink_is_a_folder_or_a_name(
    tmp_path: Path, answer: Path, monkeypatch: pytest.MonkeyPatch, command: str, given: str
) -> None:
    create(tmp_path / "fl", Federation("localhost", nodes=(Node("a", 0, 1),)))
    answer.write_text('{"success": true, "runs": []}')
    monkeypatch.setenv("FLWR_HOME", "/etc/flwr")
    place = str(tmp_path / "fl") if given == "folder" else "dqnfed"
    result = CliRunner().invoke(app, [command, str(tmp_path / "m"), place])
    assert result.exit_code == 0, result.output
    home = str(tmp_path / "fl" / "operator") if given == "folder" else "/etc/flwr"
    assert {line.split(": ")[0] for line in (tmp_path / "calls").read_text().splitlines()} == {home}
    assert " dqnfed --format json" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("command", ["exporter", "dashboard"])
def test_a_connection_that_is_not_there_is_refused(tmp_path: Path, answer: Path, command: str) -> None:
    words = "SuperLink connection 'nope' not found in the Flower configuration file (/x/config.toml)."
    answer.write_text(json.dumps({"success": False, "error-message": words}))
    result = CliRunner().invoke(app, [command, str(tmp_path / "m"), "nope"])
    assert result.exit_code == 2
    assert words in result.stderr
    assert CliRunner().invoke(app, [command, str(tmp_path / "m"), "./nowhere"]).exit_code == 2
    answer.write_text(json.dumps({"success": False, "error-message": "the SuperLink is unavailable"}))
    assert CliRunner().invoke(app, [command, str(tmp_path / "m"), "nope"]).exit_code == 0


def test_a_superlink_that_does_not_answer_is_waited_for_in_bounded_time(
    tmp_path: Path, answer: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(monitoring, "POLL_SECONDS", 0.2)
    os.mkfifo(answer)  # who reads it waits for somebody who writes
    assert CliRunner().invoke(app, ["exporter", str(tmp_path / "m"), "dqnfed"]).exit_code == 0
    os.close(os.open(answer, os.O_RDWR | os.O_NONBLOCK))
    assert "timed out after 0.2 seconds" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{dir}/file"], "cannot be read"),
        (["{dir}", "--certificate", "{dir}/none.pem"], "no such file"),
        (["{dir}", "--disk", "{dir}/none"], "name a folder on the disk"),
        (["{dir}", "--bind", "256.1.1.1"], "cannot listen there"),
    ],
)
def test_commands_say_what_is_wrong(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").write_text("")
    given = ["exporter", *(argument.format(dir=tmp_path) for argument in arguments)]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert said in result.output
