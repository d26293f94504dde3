"""Each thing that can be wrong is found, and told with its mend."""

from __future__ import annotations

import datetime as dt
import json
import math
import shutil
import socket
import ssl
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509

from dqnfed_flwr.deploy import build, check, pki, probe, registry
from dqnfed_flwr.deploy.check_network import node_port, reach, registered, skew
from dqnfed_flwr.deploy.findings import Finding, Level, failed
from dqnfed_flwr.deploy.plan import Federation, Node, bundle_text, read_plan, write_plan
from dqnfed_flwr.deploy.probe import Port
from dqnfed_flwr.deploy.renew import rotate
from dqnfed_flwr.engine.flwr_command import FlwrCommand
from dqnfed_flwr.errors import ConfigError, RunError


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(probe, "clock_synchronised", lambda: True)
    monkeypatch.setattr(probe, "title_of", lambda port: None)
    monkeypatch.setattr(check, "SERVICES", tmp_path / "services")
    nodes = (Node("node-0", 0, 9094), Node("node-1", 1, 9095))
    build.create(tmp_path / "fl", Federation("localhost", (), free_port(), free_port(), nodes=nodes))
    return tmp_path / "fl"


def troubles(findings: list[Finding]) -> dict[str, str]:
    """What is not well, with its mend."""
    return {finding.what: finding.mend for finding in findings if finding.level is not Level.OK}


def only(findings: list[Finding]) -> tuple[str, str]:
    found = troubles(findings)
    assert len(found) == 1, found
    return next(iter(found.items()))


def test_a_new_federation_is_well(place: Path) -> None:
    findings = check.check(place)
    assert troubles(findings) == {}
    assert sum("is free" in finding.what for finding in findings) == 2


@pytest.mark.parametrize("name", ["server/server.key", "ca/ca.key", "server/superexec.secret", "nodes/node-1/node.key"])
def test_a_secret_that_others_can_read(place: Path, name: str) -> None:
    (place / name).chmod(0o640)
    what, mend = only(check.check(place))
    assert what == f"{place / name} is open to other users (640)"
    assert mend.startswith(f"chmod 600 {place / name}")
    assert failed(check.check(place))


def test_a_folder_that_others_can_enter(place: Path) -> None:
    (place / "server").chmod(0o755)
    what, mend = only(check.check(place))
    assert "is open to other users (755)" in what
    assert mend.startswith("chmod 700")


@pytest.mark.parametrize("name", ["server/superexec.secret", "operator/config.toml", "nodes/node-0/node.pub"])
def test_a_file_that_is_missing(place: Path, name: str) -> None:
    (place / name).unlink()
    what, mend = only(check.check(place))
    assert what == f"{place / name} is missing"
    assert mend


def test_keys_may_be_kept_elsewhere_but_not_on_the_device(place: Path) -> None:
    (place / "ca" / "ca.key").unlink()
    (place / "nodes" / "node-0" / "node.key").unlink()
    (place / "nodes" / "node-0" / "superexec.secret").unlink()
    findings = check.check(place)
    assert troubles(findings) == {}
    assert {f"the {what} is kept elsewhere" for what in ("key of node-0", "secret of node-0")} <= {
        finding.what for finding in findings
    }
    on_device = troubles(check.check(place / "nodes" / "node-0"))
    assert "copy the node's folder again" in on_device[f"{place / 'nodes/node-0/node.key'} is missing"]
    assert "put any random text there" in on_device[f"{place / 'nodes/node-0/superexec.secret'} is missing"]


def test_a_missing_certificate(place: Path) -> None:
    (place / "server" / "server.crt").unlink()
    assert any("dqnfed deploy rotate" in mend for mend in troubles(check.check(place)).values())


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (0, Level.OK, "is valid until"),
        (340, Level.WARNING, "expires in 24 days"),
        (366, Level.FAILURE, "expired on"),
        (-1, Level.FAILURE, "not valid before"),
    ],
)
def test_dates_of_the_server_certificate(place: Path, days: int, level: Level, words: str) -> None:
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    found = [finding for finding in check.check(place, now=now) if finding.what.startswith("the server certificate")]
    assert [(finding.level, words in finding.what) for finding in found] == [(level, True)]
    if days > 0:
        assert "rotate" in found[0].mend
    if days < 0:
        assert "clock" in found[0].mend


def test_a_certificate_of_another_authority(place: Path) -> None:
    other = pki.make_authority()
    (place / "server" / "ca.crt").write_bytes(other.certificate)
    assert "the server certificate is not signed by server/ca.crt" in troubles(check.check(place))


def test_a_key_of_another_certificate(place: Path) -> None:
    other = pki.make_server(pki.make_authority(), "localhost", [], 1)
    (place / "server" / "server.key").write_bytes(other.key)
    assert only(check.check(place))[0] == "server.key is not the key of server.crt"


def test_a_host_that_the_certificate_lacks(place: Path) -> None:
    plan = read_plan(place)
    write_plan(place, replace(plan, others=("fl.example.org",)))
    what, mend = only(check.check(place))
    assert what == "the server certificate lacks fl.example.org"
    assert "rotate" in mend


def test_keys_that_were_mixed_up(place: Path) -> None:
    first, second = place / "nodes" / "node-0", place / "nodes" / "node-1"
    (first / "node.pub").write_bytes((second / "node.pub").read_bytes())
    assert only(check.check(place))[0].endswith("node.key and node.pub do not belong together")


def test_little_space(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, int(1e9)))
    what, mend = only(check.check(place))
    assert what.startswith("1.0 GB are free")
    assert "delete" in mend
    assert not failed(check.check(place))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, int(1e8)))
    assert failed(check.check(place))


def test_little_space_where_the_services_write(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services = place.parent / "services"
    services.mkdir()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, int(1e9 if path == services else 1e11)))
    findings = check.check(place)
    what, mend = only(findings)
    assert what == f"1.0 GB are free in {services}"
    assert str(services / "server" / "runs") in mend
    assert f"100 GB are free in {place / 'server' / 'state'}" in [finding.what for finding in findings]
    assert f"1.0 GB are free in {services}" in troubles(check.check(place / "nodes" / "node-0"))


def test_a_superlink_that_is_gone_from_a_registered_federation(place: Path) -> None:
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11", "node-1": "12"}))
    findings = check.check(place)
    what, mend = only(findings)
    assert what == "no SuperLink runs here, and 2 nodes are registered"
    assert "start it" in mend
    assert not failed(findings)


def test_another_version_of_flower(place: Path) -> None:
    write_plan(place, replace(read_plan(place), flwr="1.38.2"))
    what, mend = only(check.check(place))
    assert "made for 1.38.2" in what
    assert "flwr==1.38.2" in mend


def test_a_clock_that_nobody_sets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "clock_synchronised", lambda: False)
    what, mend = only(check.check(place))
    assert "clock" in what
    assert "timedatectl" in mend


@pytest.mark.parametrize(
    ("ahead", "level", "words"),
    [
        (1.0, Level.OK, "1 s ahead"),
        (3.0, Level.WARNING, "3 s ahead"),
        (6.0, Level.FAILURE, "6 s ahead"),
        (-20.0, Level.OK, "20 s behind"),
        (-60.0, Level.WARNING, "60 s behind"),
        (-400.0, Level.FAILURE, "400 s behind"),
        (math.inf, Level.FAILURE, "more than a day off"),
    ],
)
def test_clock_skew(ahead: float, level: Level, words: str) -> None:
    (found,) = skew(ahead)
    assert found.level is level
    assert words in found.what
    assert list(skew(None)) == []


@contextmanager
def server(identity: pki.Identity | None, tmp_path: Path) -> Iterator[int]:
    """Somebody who listens: with TLS, or with plain text."""
    context = None
    if identity is not None:
        (tmp_path / "pair.pem").write_bytes(identity.certificate + identity.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "pair.pem")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(listener, context, over))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join(10)


def _serve(listener: socket.socket, context: ssl.SSLContext | None, over: threading.Event) -> None:
    while not over.is_set():
        try:
            end, _ = listener.accept()
        except TimeoutError:
            continue
        end.settimeout(2)
        with end:
            try:
                if context is None:
                    end.recv(64)
                    end.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    continue
                with context.wrap_socket(end, server_side=True) as secure:
                    secure.recv(1024)
                    date = b"Wed, 01 Jan 2020 00:00:00 GMT"
                    secure.sendall(b"HTTP/1.1 200 OK\r\nDate: " + date + b"\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                continue


@pytest.mark.parametrize(
    ("what", "found", "words"),
    [
        ("ours", Port.OURS, "answers with our certificate"),
        ("plain", Port.PLAIN, "answers without TLS"),
        ("foreign", Port.FOREIGN, "another authority"),
        ("expired", Port.EXPIRED, "out of date"),
    ],
)
def test_who_listens_at_our_port(place: Path, tmp_path: Path, what: str, found: Port, words: str) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    past = dt.datetime.now(dt.UTC) - dt.timedelta(days=9)
    identities = {
        "ours": pki.make_server(authority, "localhost", [], 1),
        "plain": None,
        "foreign": pki.make_server(pki.make_authority(), "localhost", [], 1),
        "expired": pki.make_server(authority, "localhost", [], 1, now=past),
    }
    ca = place / "server" / "ca.crt"
    with server(identities[what], tmp_path) as port:
        assert probe.look("127.0.0.1", port, ca)[0] is found
        (finding,) = reach("127.0.0.1", port, ca)
    assert words in finding.what
    assert (finding.level is Level.OK) is (what == "ours")
    assert finding.mend or what == "ours"


def test_a_certificate_that_was_replaced_and_is_still_served(place: Path, tmp_path: Path) -> None:
    old = pki.Identity((place / "server/server.crt").read_bytes(), (place / "server/server.key").read_bytes())
    end = x509.load_pem_x509_certificate(old.certificate).not_valid_after_utc
    with server(old, tmp_path) as port:
        write_plan(place, replace(read_plan(place), fleet_port=port))
        assert troubles(check.check(place)) == {}
        rotate(place, days=3650)
        what, mend = only(check.check(place))
    assert (
        what
        == f"Fleet port {port} still serves an older certificate than server.crt: the one that ends on {end:%Y-%m-%d}"
    )
    assert mend.startswith("restart the SuperLink")


def test_a_name_that_the_certificate_lacks(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda address, *rest: connect(("127.0.0.1", address[1]), *rest))
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        (finding,) = reach("elsewhere.example.org", port, place / "server" / "ca.crt")
    assert finding.what.endswith("has a certificate for other names")
    assert "`dqnfed deploy rotate DIR --address elsewhere.example.org`" in finding.mend


def test_the_clock_of_a_server(place: Path, tmp_path: Path) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    ca = place / "server" / "ca.crt"
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        ahead = probe.clock_ahead("127.0.0.1", port, ca)
    there = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert ahead == pytest.approx((dt.datetime.now(dt.UTC) - there).total_seconds(), abs=30)
    assert probe.clock_ahead("127.0.0.1", free_port(), ca) is None


@pytest.mark.parametrize(("fraction", "ahead"), [(0.0, -0.5), (0.9, 0.4)])
def test_the_date_of_a_server_has_its_fraction_cut_off(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float, ahead: float
) -> None:
    there = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    monkeypatch.setattr(probe, "now", lambda: there + dt.timedelta(seconds=fraction))
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        found = probe.clock_ahead("127.0.0.1", port, place / "server" / "ca.crt")
    assert found == pytest.approx(ahead)
    (finding,) = skew(found)
    assert finding.what.startswith("this clock is 0 s ")


def test_a_port_that_somebody_else_has(place: Path, tmp_path: Path) -> None:
    with server(None, tmp_path) as port:
        write_plan(place, replace(read_plan(place), fleet_port=port))
        what, mend = only(check.check(place))
    assert what == f"Fleet port {port} answers without TLS"
    assert "change the port" in mend


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        ('{"info": {"title": "SuperNode API"}}', Level.OK, "is a SuperNode's"),
        ('{"info": {"title": "Shop"}}', Level.FAILURE, "is taken by another program, Shop"),
        ("[]", Level.FAILURE, "is taken by another program"),
        (None, Level.OK, "is free"),
    ],
)
def test_who_has_the_port_of_a_node(answer: str | None, level: Level, words: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(str(answer).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=answer is not None) as listener:
        thread = threading.Thread(target=listener.handle_request)
        if answer is not None:
            thread.start()
        (finding,) = node_port(listener.server_port if answer is not None else free_port())
        if answer is not None:
            thread.join(10)
    assert finding.level is level
    assert finding.what.endswith(words) or words in finding.what
    assert bool(finding.mend) is (level is Level.FAILURE)


def test_the_port_of_a_node_where_no_http_is_spoken(tmp_path: Path) -> None:
    with server(pki.make_server(pki.make_authority(), "localhost", [], 1), tmp_path) as port:
        (finding,) = node_port(port)
    assert finding.level is Level.FAILURE


def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """A `flwr supernode` that gives these answers, by its second word."""
    cases = "\n".join(f"{word}) echo '{json.dumps(answer)}' ;;" for word, answer in answers.items())
    command = tmp_path / "flwr"
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$2" in\n{cases}\nesac\n')
    command.chmod(0o755)
    monkeypatch.setattr("dqnfed_flwr.engine.flwr_command.program", lambda name: str(command))


def listing(**states: str) -> dict[str, object]:
    return {"success": True, "nodes": [{"node-id": name[1:], "status": state} for name, state in states.items()]}


def test_keys_and_what_the_superlink_knows_of_them(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11"}))
    scripted(tmp_path, monkeypatch, list=listing(_11="offline", _77="online", _5="unregistered"))
    found = troubles(list(registered(place, read_plan(place), str(place))))
    assert found["not registered: node-1"] == f"`dqnfed deploy register {place}`"
    assert "not online: node-0" in found
    assert "registered, but as no node of this folder: 77" in found


def test_register_tells_only_what_is_new(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(place)
    scripted(tmp_path, monkeypatch, list=listing(), register={"success": True, "node-id": 11})
    assert registry.register(place, replace(plan, nodes=plan.nodes[:1])) == {"node-0": "registered"}
    (tmp_path / "calls").unlink()
    scripted(tmp_path, monkeypatch, list=listing(_11="online"), register={"success": True, "node-id": 12})
    assert registry.register(place, plan) == {"node-0": "known", "node-1": "registered"}
    assert registry.known(place) == {"node-0": "11", "node-1": "12"}
    calls = (tmp_path / "calls").read_text()
    assert f"register {place / 'nodes/node-1/node.pub'} dqnfed --name node-1" in calls
    assert "node-0/node.pub" not in calls


def test_a_key_that_the_superlink_has_and_the_folder_forgot(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = {"success": False, "error-message": "Using SuperLink: x\\nPublic key already in use."}
    scripted(tmp_path, monkeypatch, list=listing(_11="online"), register=refusal)
    outcome = registry.register(place, read_plan(place))
    assert all("restore that file" in words for words in outcome.values())
    assert registry.known(place) == {}


def test_a_new_node_of_an_old_name_is_registered(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(tmp_path, monkeypatch, list=listing(), register={"success": True, "node-id": 11})
    assert set(registry.register(place, read_plan(place)).values()) == {"registered"}
    build.remove_node(place, "node-0")
    scripted(tmp_path, monkeypatch, list=listing(_11="online"), register={"success": True, "node-id": 12})
    assert "registered, but as no node of this folder: 11" in troubles(
        list(registered(place, replace(read_plan(place), nodes=()), str(place)))
    )
    assert build.add_node(place).name == "node-0"
    plan = replace(read_plan(place), nodes=read_plan(place).nodes[:1])
    assert "not registered: node-0" in troubles(list(registered(place, plan, str(place))))
    assert registry.register(place, plan) == {"node-0": "registered"}
    scripted(tmp_path, monkeypatch, list=listing(_11="online", _12="online"))
    assert list(troubles(list(registered(place, plan, str(place))))) == [
        "registered, but as no node of this folder: 11"
    ]


def test_a_file_without_fingerprints_is_believed_once_the_superlink_has_the_key(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11", "node-1": "12"}))
    plan = read_plan(place)
    refusal = {"success": False, "error-message": "Public key already in use."}
    scripted(tmp_path, monkeypatch, list=listing(_11="online", _12="online"), register=refusal)
    assert troubles(list(registered(place, plan, str(place)))) == {}
    assert registry.register(place, plan) == {"node-0": "known", "node-1": "known"}
    (tmp_path / "calls").unlink()
    assert registry.register(place, plan) == {"node-0": "known", "node-1": "known"}
    assert "register" not in (tmp_path / "calls").read_text()
    assert registry.known(place) == {"node-0": "11", "node-1": "12"}


def test_a_key_that_replaced_one_without_fingerprint_is_registered(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11", "node-1": "11"}))
    scripted(tmp_path, monkeypatch, list=listing(_11="online"), register={"success": True, "node-id": 13})
    assert registry.register(place, read_plan(place)) == {"node-0": "registered", "node-1": "registered"}


def test_a_superlink_that_lost_its_database_is_told_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11", "node-1": "12"}))
    scripted(tmp_path, monkeypatch, list=listing(), register={"success": True, "node-id": 13})
    assert set(registry.register(place, read_plan(place)).values()) == {"registered"}


def test_unregister(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(tmp_path, monkeypatch, list=listing(_11="online"), unregister={"success": False, "error-message": "no"})
    assert not registry.unregister(place, "node-0")
    (place / registry.REGISTERED).write_text(json.dumps({"node-0": "11", "node-1": "12"}))
    with pytest.raises(RunError, match="node-0 could not be unregistered: no"):
        registry.unregister(place, "node-0")
    assert registry.unregister(place, "node-1")
    assert registry.known(place) == {"node-0": "11"}


def test_no_superlink(place: Path) -> None:
    with pytest.raises(RunError) as caught:
        registry.listed(Gone({}))
    assert str(caught.value) == "flwr supernode list dqnfed: Connection to the SuperLink is unavailable."


class Gone(FlwrCommand):
    """A `flwr` without a SuperLink."""

    def json(self, *arguments: str) -> dict[str, object]:
        words = "Using SuperLink: dqnfed\n Listing all nodes...\n\nConnection to the SuperLink is unavailable.\n"
        return {"success": False, "error-message": words}


def test_a_device_checks_its_own_folder(place: Path) -> None:
    found = troubles(check.check(place / "nodes" / "node-0"))
    assert len(found) == 1
    what, mend = next(iter(found.items()))
    assert what.startswith("localhost:")
    assert "cannot be reached" in what
    assert "firewall" in mend


def test_a_device_of_another_version_and_without_its_data(place: Path) -> None:
    plan = replace(read_plan(place), dqnfed="9.9.9")
    text = bundle_text(plan, Node("node-0", 0, 9094, "/nowhere/site.npz"))
    (place / "nodes" / "node-0" / "node.toml").write_text(text)
    found = troubles(check.check(place / "nodes" / "node-0"))
    assert any("9.9.9 at the server" in what for what in found)
    assert "put the file there" in found["no data at /nowhere/site.npz"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dqnfed deploy init"):
        check.check(tmp_path)
