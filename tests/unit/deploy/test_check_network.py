"""Checks of what answers: ports, certificates as they are served, and a clock measured by what another tells."""

from __future__ import annotations

import datetime as dt
import math
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import check, check_network, pki
from dqnfed_flwr.deploy.build import rotate
from dqnfed_flwr.deploy.check_network import (
    AHEAD,
    BEHIND,
    Port,
    ahead_by_date,
    look,
    node_port,
    reach,
    server_ports,
    skew,
)
from dqnfed_flwr.deploy.findings import Level, failed
from dqnfed_flwr.deploy.grpc_transport import measured
from dqnfed_flwr.deploy.plan import read_plan, write_plan
from tests.helpers.checks import only, server, troubles


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
        assert look("127.0.0.1", port, ca)[0] is found
        finding = reach("127.0.0.1", port, ca, "the SuperLink")
    assert words in finding.what
    assert (finding.level is Level.OK) is (what == "ours")
    assert finding.fix or what == "ours"


def test_a_certificate_that_was_replaced_and_is_still_served(place: Path, tmp_path: Path) -> None:
    old = pki.Identity((place / "server/server.crt").read_bytes(), (place / "server/server.key").read_bytes())
    end = x509.load_pem_x509_certificate(old.certificate).not_valid_after_utc
    with server(old, tmp_path) as port:
        write_plan(place, replace(read_plan(place), fleet_port=port))
        assert troubles(check.check(place)) == {}
        rotate(place, days=3650)
        what, fix = only(check.check(place))
    assert (
        what
        == f"Fleet port {port} still serves an older certificate than server.crt: the one that ends on {end:%Y-%m-%d}"
    )
    assert fix.startswith(f"restart {read_plan(place).transport.endpoints};")


def test_a_name_that_the_certificate_lacks(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda address, *rest: connect(("127.0.0.1", address[1]), *rest))
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        finding = reach("elsewhere.example.org", port, place / "server" / "ca.crt", "the SuperLink and the gate")
    assert finding.what.endswith("has a certificate for other names")
    assert (
        "`dqnfed deploy rotate DIR --address elsewhere.example.org`; restart the SuperLink and the gate" in finding.fix
    )


def test_a_name_that_only_containers_know(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    look_up = socket.getaddrinfo

    def unknown(host: str, *rest: Any) -> object:
        if host == "superlink":
            raise socket.gaierror(-2, "Name or service not known")
        return look_up(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with server(pki.make_server(authority, "superlink", [], 1), tmp_path) as port:
        federation = replace(read_plan(place), host="superlink", fleet_port=port)
        found = list(server_ports(federation, place / "server" / "ca.crt", str(place)))
    assert not failed(found)
    (finding,) = [one for one in found if "superlink is not known on this machine" in one.what]
    assert finding.level is Level.WARNING


def test_a_port_that_somebody_else_has(place: Path, tmp_path: Path) -> None:
    with server(None, tmp_path) as port:
        write_plan(place, replace(read_plan(place), fleet_port=port))
        what, fix = only(check.check(place))
    assert what == f"Fleet port {port} answers without TLS"
    assert "change the port" in fix


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
        finding = node_port(listener.server_port if answer is not None else free_ports(1)[0])
        if answer is not None:
            thread.join(10)
    assert finding.level is level
    assert finding.what.endswith(words) or words in finding.what
    assert bool(finding.fix) is (level is Level.FAILURE)


def test_the_port_of_a_node_where_no_http_is_spoken(tmp_path: Path) -> None:
    with server(pki.make_server(pki.make_authority(), "localhost", [], 1), tmp_path) as port:
        finding = node_port(port)
    assert finding.level is Level.FAILURE


def believer(skew: float) -> Callable[[float], bool]:
    """Flower's rule, at a server behind whose clock this one is `-skew` seconds."""
    return lambda ahead: -BEHIND < skew + ahead < AHEAD


@given(st.floats(-80_000, 80_000))
def test_it_finds_by_how_much_clocks_differ(skew: float) -> None:
    assert measured(believer(skew)) == pytest.approx(skew, abs=0.5)


@pytest.mark.parametrize("skew", [90_000, -90_000, 1e9])
def test_beyond_a_day_it_gives_up(skew: float) -> None:
    assert measured(believer(skew)) == math.inf


def test_a_server_that_says_nothing_is_asked_once() -> None:
    asked: list[float] = []
    assert measured(asked.append) is None  # append returns None
    assert asked == [0.0]


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


def test_the_clock_of_a_server(place: Path, tmp_path: Path) -> None:
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    ca = place / "server" / "ca.crt"
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        ahead = ahead_by_date("127.0.0.1", port, ca)
    there = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    assert ahead == pytest.approx((dt.datetime.now(dt.UTC) - there).total_seconds(), abs=30)
    assert ahead_by_date("127.0.0.1", free_ports(1)[0], ca) is None


@pytest.mark.parametrize(("fraction", "ahead"), [(0.0, -0.5), (0.9, 0.4)])
def test_the_date_of_a_server_has_its_fraction_cut_off(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float, ahead: float
) -> None:
    there = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    monkeypatch.setattr(check_network, "now", lambda: there + dt.timedelta(seconds=fraction))
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        found = ahead_by_date("127.0.0.1", port, place / "server" / "ca.crt")
    assert found == pytest.approx(ahead)
    (finding,) = skew(found)
    assert finding.what.startswith("this clock is 0 s ")
