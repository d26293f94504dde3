from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.report import progress
from dqnfed_flwr.report.page import write_report
from dqnfed_flwr.report.page.blocks import about
from dqnfed_flwr.report.page.document import Section
from dqnfed_flwr.report.plots import COLOURS, plot_runs
from dqnfed_flwr.report.progress import LineProgress, LiveProgress, progress_listener
from dqnfed_flwr.report.table import human_bytes, summary_table
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import DroppedClient, Listener, RoundEvent
from tests.helpers.comparisons import make_comparison
from tests.helpers.runs import make_event, make_result


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None), stream


def follow(listener: Listener, rounds: int, events: list[RoundEvent], done: list[RoundEvent] | None = None) -> None:
    listener.on_start(rounds, done or [])
    for event in events:
        listener.on_round(event)
    listener.on_end()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"), (999_600, "1 MB")),
        *((12_345_678, "12.3 MB"), (5e9, "5 GB"), (7.5e12, "7.5 TB")),
    ],
)
def test_human_bytes(count: float, text: str) -> None:
    assert human_bytes(count) == text


def table_rows(results: dict[str, RunResult]) -> dict[str, list[str]]:
    out, stream = console()
    out.print(summary_table(results))
    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in stream.getvalue().splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) == len(results) + 1}


def test_table_sets_runs_side_by_side() -> None:
    ours = make_result([make_event(1, None), make_event(2, None)])
    theirs = make_result([make_event(1, None), make_event(2, None, rho=0.5)], (0.2, 0.4, 0.4, 0.4))
    rows = table_rows({"DQN-Fed": ours, "FedAvg": theirs})
    assert rows["mean"] == ["65.00 %", "35.00 %"]
    assert rows["σ (spread over clients)"] == ["11.18 %", "8.66 %"]
    assert rows["worst 10 % of clients"] == rows["worst client"] == ["50.00 %", "20.00 %"]
    assert rows["best 10 % of clients"] == ["80.00 %", "40.00 %"]
    assert rows["ρ mean (clients whose loss did not rise)"] == ["1.000", "0.750"]
    assert rows["ρ minimum"] == ["1.000", "0.500"]
    assert rows["not harmed, mean (or below the entitlement)"] == ["1.000", "0.750"]
    assert rows["moved the model"] == ["2 of 2 rounds"] * 2
    assert rows["every participant improved, where moved"] == ["2 of 2 rounds", "1 of 2 rounds"]
    assert rows["heard of those asked, mean"] == ["4.0 of 4.0"] * 2
    assert rows["overruled (clients)"] == ["0", "0"]
    assert not any(row.startswith("hold up") for row in rows)
    assert rows["rounds"] == ["2", "2"]
    assert rows["exchanges a round"] == ["1.00", "1.00"]
    assert rows["bytes up, from clients"] == ["2 MB", "2 MB"]
    assert rows["bytes down, to clients"] == ["4 MB", "4 MB"]
    assert rows["seconds"] == ["1.2", "1.2"]


def test_table_says_who_is_missing_and_why() -> None:
    result = make_result([make_event(1, None)], settings=Settings.from_mapping({"clients": 4}))
    assert table_rows({"run": result})["clients"] == ["4 of 4"]
    silent = replace(result, accuracies={0: 0.5, 1: 0.5})
    assert table_rows({"run": silent})["clients"] == ["4 of 4; accuracies of 2"]
    lost = replace(result, settings=Settings.from_mapping({"clients": 9}))
    assert table_rows({"run": lost})["clients"] == ["4 of 9"]
    out = io.StringIO()
    named = replace(lost, left_out={"client 0": "other-form: [5]", **{f"node {n}": "x" * 99 for n in range(1, 5)}})
    Console(file=out, width=300).print(summary_table({"run": named}))
    assert "4 of 9; left out: 0 (other-form: [5]), node 1 (...), node 2 (...) and 2 more" in out.getvalue()


def test_a_round_that_left_the_model_as_it_was_improved_nobody() -> None:
    stayed = [replace(make_event(t, None), factor=0.0, losses_after=[1.0] * 4, refused=[1, 3]) for t in (2, 3)]
    overruled = replace(make_event(4, None), overruled=[1, 2], heard=[0, 3], refused=[1])
    rows = table_rows({"run": make_result([make_event(1, None), *stayed, overruled])})
    assert rows["moved the model"] == ["2 of 4 rounds"]
    assert rows["every participant improved, where moved"] == ["2 of 2 rounds"]
    assert rows["heard of those asked, mean"] == ["3.5 of 4.0"]
    assert rows["overruled (clients)"] == ["2 (1, 2)"]
    assert rows["hold up the others: refused a step"] == ["1 in 3 of 4 rounds"]  # 3 did in 2, which is not most
    assert "contradicted itself, not heard" not in rows


def test_who_contradicted_itself_is_named_with_the_rounds_in_which_it_was_not_heard() -> None:
    words = [DroppedClient(2, "contradiction", "it reported loss 2, and later 0, of the same model")]
    other = [DroppedClient(1, "overruled", "its loss would go from 1 to 2")]
    events = [make_event(1, None), *(replace(make_event(t, None), dropped=words + other) for t in (2, 3))]
    rows = table_rows({"run": make_result(events), "clean": make_result(events[:1])})
    assert rows["contradicted itself, not heard"] == ["2 in 2 of 3 rounds", "nobody"]


def test_table_marks_what_is_unknown() -> None:
    rows = table_rows({"DQN-Fed": make_result([make_event(1, None, rho=math.nan)])})
    assert rows["ρ minimum"] == ["–"]
    assert rows["angle to equal accuracies"] == ["9.76°"]


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
        "DQN-Fed: round 1/3  mean  60.0 %  worst  50.0 %  ρ 1.00  unharmed 1.00  heard 4 of 4  moved 1 of 1",
        "DQN-Fed: round 2/3  mean  60.0 %  worst  50.0 %  ρ 0.75  unharmed 0.75  heard 4 of 4  moved 2 of 2",
        "DQN-Fed: round 3/3  mean  90.0 %  worst  90.0 %  ρ 0.75  unharmed 0.75  heard 4 of 4  moved 3 of 3",
    ]


def test_lines_count_rounds_that_moved_and_votes_that_were_overruled() -> None:
    standing = progress.Standing()
    assert str(standing) == "mean     –   worst     –   ρ –"
    standing.update(replace(make_event(1, None, rho=0.5), entitlement=2.0, heard=[0, 1, 2], overruled=[3]))
    assert str(standing).endswith("ρ 0.50  unharmed 1.00  heard 3 of 4  moved 1 of 1  overruled 1")
    standing.update(replace(make_event(2, None), factor=0.0))
    assert str(standing).endswith("ρ 1.00  unharmed 1.00  heard 4 of 4  moved 1 of 2  overruled 1")


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
    assert "unharmed 0.50  heard 4 of 4  moved 2 of 2" in last


def test_terminal_gets_the_bar_and_a_pipe_gets_lines() -> None:
    assert isinstance(progress_listener(console(terminal=True)[0]), LiveProgress)
    assert isinstance(progress_listener(console()[0]), LineProgress)


@pytest.mark.parametrize("terminal", [True, False])
def test_end_without_a_start_is_quiet(terminal: bool) -> None:
    out, stream = console(terminal=terminal)
    progress_listener(out).on_end()
    assert stream.getvalue().strip() == ""


def shows(image: Path, colour: str) -> bool:
    wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
    pixels = np.asarray(Image.open(image).convert("RGB")).astype(int)
    return bool((np.abs(pixels - wanted).max(axis=2) < 3).any())


def test_plot_shows_every_run(tmp_path: Path) -> None:
    ours = make_result([make_event(t, (0.1 * t, 0.12 * t)) for t in range(1, 6)])
    theirs = make_result([make_event(t, None, rho=0.5) for t in range(1, 6)], (0.2, 0.3, 0.4, 0.5))
    one = plot_runs({"DQN-Fed": ours}, tmp_path / "one.png")
    two = plot_runs({"DQN-Fed": ours, "FedAvg": theirs}, tmp_path / "two.png")
    assert [shows(one, colour) for colour in COLOURS[:3]] == [True, False, False]
    assert [shows(two, colour) for colour in COLOURS[:3]] == [True, True, False]


def test_plot_of_long_unknown_and_even_runs(tmp_path: Path) -> None:
    long = make_result([make_event(t, (0.5,), rho=(t % 5) / 4) for t in range(1, 301)], (0.7, 0.7))
    unknown = make_result([make_event(1, None, rho=math.nan)], (0.7,))
    assert plot_runs({"long": long, "unknown": unknown}, tmp_path / "plot.png").stat().st_size > 10_000


def test_plot_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"DQN-Fed": make_result([make_event(1, (0.5,))])}
    with pytest.raises(RunError, match="cannot be written"):
        plot_runs(result, tmp_path / "none" / "plot.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RunError, match=r"dqnfed-flwr\[plots\]"):
        plot_runs(result, tmp_path / "plot.png")


@pytest.mark.parametrize("output", [".", "..", "/", "here"])
def test_a_page_that_is_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"--output: .* is a folder; name the page, such as .*report\.html"):
        write_report(tmp_path, Path(output))


@pytest.mark.parametrize("name", ["talk.md", "talk.MD"])
def test_a_page_in_the_place_of_its_markdown_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"where the Markdown goes; name the page, such as .*talk\.html"):
        write_report(tmp_path, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def leave_run(folder: Path) -> Path:
    """A finished run of one round."""
    folder.mkdir(exist_ok=True)
    event = make_event(1, (0.5, 0.7))
    make_result([event], (0.5, 0.7)).write(folder)
    log = EventLog(folder)
    log.on_start(1, [event])
    log.on_end()
    return folder


def test_markdown_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# My notes\n\nHow it was run is told elsewhere.\n")
    with pytest.raises(ConfigError, match=r"would replace .*notes\.md, which is no report; name another"):
        write_report(tmp_path, tmp_path / "notes.html")


def test_a_report_of_before_is_replaced(tmp_path: Path) -> None:
    run, page = leave_run(tmp_path / "run"), tmp_path / "talk.html"
    write_report(run, page)
    markdown = page.with_suffix(".md")
    text = markdown.read_text()
    markdown.write_text(text + "more\n")
    write_report(run, page)
    assert markdown.read_text() == text


def test_a_report_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    (leave_run(tmp_path) / "report.md").write_text("# DQN-")
    write_report(tmp_path, None)
    assert "How it was run" in (tmp_path / "report.md").read_text()


def how_it_was_run(commits: Sequence[Sequence[str | None]]) -> dict[str, str]:
    """Of a comparison whose runs noted these commits, and whose tables were written at `c3d4e5`."""
    made = make_comparison({"fedavg": [(0.5, 0.7)] * len(commits)})
    (row,) = made.rows
    records = (replace(x, noted={"commits": list(of)}) for x, of in zip(row.records, commits, strict=True))
    made = replace(made, rows=(replace(row, records=tuple(records)),))
    return dict(about(Section("", "", "", made, [], {}, {"commit": "c3d4e5", "seconds": 0.4})))


def test_commits_are_those_of_the_runs() -> None:
    assert how_it_was_run([["a1b2c3"], ["d4e5f6+"], ["a1b2c3"]])["commit"] == "a1b2c3 (2 runs), d4e5f6+ (1 run)"
    assert how_it_was_run([[], [None]])["commit"] == "c3d4e5"  # runs of an earlier version: all that is known


def test_seconds_of_runs_that_were_there_already_are_in_their_sum() -> None:
    found = how_it_was_run([["a1b2c3"]] * 4)
    assert found["wall clock"] == "0 s for what was still to be done"
    assert found["sum of the runs"] == "6 s"
