from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from dqnfed_flwr.report import progress
from dqnfed_flwr.report.progress import LineProgress, LiveProgress, progress_listener
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from tests.helpers.runs import changed, make_event


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None), stream


def follow(listener: Listener, rounds: int, events: list[RoundEvent], done: list[RoundEvent] | None = None) -> None:
    listener.on_start(rounds, done or [])
    for event in events:
        listener.on_round(event)
    listener.on_end()


def test_lines_carry_the_latest_known_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    out, stream = console()
    follow(
        LineProgress(out, "DQN-Fed"),
        3,
        [make_event(1, (0.5, 0.7)), make_event(2, None, rho=0.75), make_event(3, (0.9, 0.9), rho=math.nan)],
    )
    lines = [re.sub(r" +\d+\.\d s$", "", line) for line in stream.getvalue().splitlines()]
    assert lines == [
        "DQN-Fed: round 1/3  mean  60.0 %  worst  50.0 %  ρ 1.00  unharmed 1.00  heard 4 of 4  moved 1 of 1, ρ there "
        "1.00",
        "DQN-Fed: round 2/3  mean  60.0 %  worst  50.0 %  ρ 0.75  unharmed 0.75  heard 4 of 4  moved 2 of 2, ρ there "
        "0.88",
        "DQN-Fed: round 3/3  mean  90.0 %  worst  90.0 %  ρ 0.75  unharmed 0.75  heard 4 of 4  moved 3 of 3, ρ there "
        "0.88",
    ]


def test_lines_count_rounds_that_moved_and_votes_that_were_overruled() -> None:
    latest = progress.LatestFigures()
    assert str(latest) == "mean     –   worst     –   ρ –"
    latest.update(changed(make_event(1, None, rho=0.5), entitlement=2.0, heard=[0, 1, 2], overruled=[3]))
    assert str(latest).endswith("ρ 0.50  unharmed 1.00  heard 3 of 4  moved 1 of 1, ρ there 0.50  overruled 1")
    latest.update(replace(make_event(2, None), factor=0.0))
    assert str(latest).endswith("ρ 1.00  unharmed 1.00  heard 4 of 4  moved 1 of 2, ρ there 0.50  overruled 1")


def test_fast_rounds_leave_the_first_and_the_last_line() -> None:
    out, stream = console()
    follow(LineProgress(out), 1000, [make_event(t, (0.5,)) for t in range(1, 1001)])
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("round    1/1000")
    assert lines[-1].startswith("round 1000/1000")
    assert len(lines) < 10


def test_resumed_run_says_where_it_goes_on() -> None:
    out, stream = console()
    follow(LineProgress(out), 9, [make_event(5, None)], done=[make_event(4, (0.25, 0.75))])
    assert stream.getvalue().splitlines()[0] == "goes on after round 4 of 9"
    assert "round 5/9  mean  50.0 %  worst  25.0 %" in stream.getvalue()


def test_live_bar_ends_with_the_last_round() -> None:
    out, stream = console(terminal=True)
    follow(LiveProgress(out, "DQN-Fed"), 2, [make_event(1, (0.5, 0.7)), make_event(2, (0.8, 0.9), rho=0.5)])
    last = stream.getvalue().split("\r")[-1]
    assert "DQN-Fed" in last
    assert "round 2/2 mean  85.0 %  worst  80.0 %  ρ 0.50" in last
    assert "unharmed 0.50  heard 4 of 4  moved 2 of 2, ρ there 0.75" in last


def test_terminal_gets_the_bar_and_a_pipe_gets_lines() -> None:
    assert isinstance(progress_listener(console(terminal=True)[0]), LiveProgress)
    assert isinstance(progress_listener(console()[0]), LineProgress)


@pytest.mark.parametrize("terminal", [True, False])
def test_end_without_a_start_is_quiet(terminal: bool) -> None:
    out, stream = console(terminal=terminal)
    progress_listener(out).on_end()
    assert stream.getvalue().strip() == ""
