"""A clock measured by the dates that another tells, or by what it is willing to believe; and what the answer means."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._programs import free_ports
from dqnfed_flwr.deploy import clock_skew, pki
from dqnfed_flwr.deploy.clock_skew import AHEAD, BEHIND, ahead_by_date, measured, skew
from dqnfed_flwr.deploy.findings import Level
from tests.helpers.checks import server


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
    monkeypatch.setattr(clock_skew, "now", lambda: there + dt.timedelta(seconds=fraction))
    authority = pki.Identity((place / "ca/ca.crt").read_bytes(), (place / "ca/ca.key").read_bytes())
    with server(pki.make_server(authority, "localhost", [], 1), tmp_path) as port:
        found = ahead_by_date("127.0.0.1", port, place / "server" / "ca.crt")
    assert found == pytest.approx(ahead)
    (finding,) = skew(found)
    assert finding.what.startswith("this clock is 0 s ")
