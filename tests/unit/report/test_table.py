from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from dqnfed_flwr.compare.tables import tables
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.report.table import human_bytes, print_tables, summary_table
from dqnfed_flwr.strategy.confirmation import Confirmed
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.comparisons import make_comparison
from tests.helpers.runs import changed, make_event, make_result


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
    stream = io.StringIO()
    Console(file=stream, width=100, color_system=None).print(summary_table(results))
    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in stream.getvalue().splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) == len(results) + 1}


def test_table_says_what_the_server_of_a_masked_run_sees() -> None:
    plain = make_result([make_event(1, None)])
    masked = replace(plain, settings=Settings.from_mapping({**plain.settings.flat(), "privacy.mode": "masked"}))
    assert "the server sees" not in table_rows({"open": plain})
    assert table_rows({"masked": masked})["the server sees"] == ["inner products and sums (masked)"]


def test_it_is_said_where_a_run_rested_at_a_newer_model_than_its_result() -> None:
    rested = replace(make_result([make_event(1, None), make_event(2, None)]), status="pareto-stationary")
    earlier, newest = (replace(rested, confirmed=Confirmed(number, [0, 1, 2, 3], [])) for number in (1, 2))
    assert table_rows({"earlier": earlier})["ended"] == ["pareto-stationary, of the newest model"]
    assert table_rows({"newest": newest, "plain": rested})["ended"] == ["pareto-stationary"] * 2
    assert table_rows({"done": replace(earlier, status="finished")})["ended"] == ["finished"]


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
    assert rows["every client asked improved, where moved"] == ["2 of 2 rounds", "1 of 2 rounds"]
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
    stayed = [changed(make_event(t, None), factor=0.0, losses_after=[1.0] * 4, refused=[1, 3]) for t in (2, 3)]
    overruled = changed(make_event(4, None), overruled=[1, 2], heard=[0, 3], refused=[1])
    rows = table_rows({"run": make_result([make_event(1, None), *stayed, overruled])})
    assert rows["moved the model"] == ["2 of 4 rounds"]
    assert rows["every client asked improved, where moved"] == ["2 of 2 rounds"]
    assert rows["heard of those asked, mean"] == ["3.5 of 4.0"]
    assert rows["overruled (clients)"] == ["2 (1, 2)"]
    assert rows["hold up the others: refused a step"] == ["1 in 3 of 4 rounds"]  # 3 did in 2, which is not most
    assert "claims that exclude each other, not heard" not in rows


def test_who_contradicted_itself_is_named_with_the_rounds_in_which_it_was_not_heard() -> None:
    words = [DroppedClient(2, "contradiction", "it reported loss 2, and later 0, of the same model")]
    other = [DroppedClient(1, "overruled", "its loss would go from 1 to 2")]
    events = [make_event(1, None), *(replace(make_event(t, None), dropped=words + other) for t in (2, 3))]
    rows = table_rows({"run": make_result(events), "clean": make_result(events[:1])})
    assert rows["claims that exclude each other, not heard"] == ["2 in 2 of 3 rounds", "nobody"]


def test_table_marks_what_is_unknown() -> None:
    rows = table_rows({"DQN-Fed": make_result([make_event(1, None, rho=math.nan)])})
    assert rows["ρ minimum"] == ["–"]
    assert rows["angle to equal accuracies"] == ["9.76°"]


@pytest.mark.parametrize("width", [70, 250])
def test_a_terminal_gets_tables_that_fit_and_a_pipe_whole_lines(width: int) -> None:
    comparison = make_comparison(
        {"dqn-fed": [(0.8,) * 4, (0.9,) * 4], "fedavg": [(0.5, 0.7, 0.9, 0.9)] * 2, "mgda": [(0.6,) * 4] * 2}
    )
    stream = io.StringIO()
    print_tables(Console(file=stream, force_terminal=True, width=width, color_system=None), tables(comparison))
    assert max(map(len, stream.getvalue().splitlines())) <= width
    piped = io.StringIO()
    print_tables(Console(file=piped, width=width), tables(comparison))
    assert "85.00 ± 7.07" in piped.getvalue()
