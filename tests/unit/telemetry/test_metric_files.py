"""A run's metrics file: read back by prometheus-client, bounded, whole at any time."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers
from prometheus_client.parser import text_string_to_metric_families

from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import metrics_of, serve
from dqnfed_flwr.errors import CheckpointError, ConfigError, QuorumError
from dqnfed_flwr.guarantee.overrule import CONTRADICTION, OVERRULED, SET_ASIDE
from dqnfed_flwr.methods._base import BAD_RATE, ZERO_GRADIENT
from dqnfed_flwr.run_files import replacing
from dqnfed_flwr.strategy import compatibility
from dqnfed_flwr.strategy.exchange import LATE, OWING
from dqnfed_flwr.strategy.state import ENDED_EARLY, STALLED
from dqnfed_flwr.telemetry import metric_files
from dqnfed_flwr.telemetry.events import DroppedClient, Listener, RoundEvent
from dqnfed_flwr.telemetry.metric_files import RoundFile, RunMetrics, put_state, read_rounds, round_summary, run_name
from dqnfed_flwr.telemetry.metrics import CLIENT_METRICS, REASONS, RUN_METRICS, STATES
from dqnfed_flwr.telemetry.run_samples import RunCard
from dqnfed_flwr.types import Figure
from dqnfed_flwr.wire import BELOW_FLOOR
from dqnfed_flwr.wire.codecs import LOST_MODEL
from tests.helpers.runs import TINY, changed, make_event

CARD = RunCard("r1", "dqn-fed", "probed", "0.1.0", "15301656437637344697")
MAE = Figure("mae", higher=False)
PACKAGE = Path(__file__).parents[3] / "dqnfed_flwr"


def metrics_after(directory: Path, events: Sequence[RoundEvent], **options: Any) -> dict[tuple[str, ...], float]:
    """Write a file of these rounds and read it back: value by name and label values, in the order of their names."""
    listener = RunMetrics(directory, options.pop("card", CARD), clock=lambda: 1_000.0, pause=0, **options)
    listener.on_start(9, [])
    for event in events:
        listener.on_round(event)
    return read(directory / "r1.prom")


def read(path: Path) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def written(tmp_path: Path) -> dict[str, Any]:
    """Settings of a small run with metrics and results."""
    return {**TINY, "metrics": str(tmp_path / "m"), "output": str(tmp_path / "o")}


def begun(directory: Path, done: list[RoundEvent] | None = None) -> RunMetrics:
    """A listener of a run that has done these rounds."""
    listener = RunMetrics(directory, CARD, pause=0)
    listener.on_start(9, done or [])
    return listener


def federation(clients: int, rho: float = 1.0) -> RoundEvent:
    rng = np.random.default_rng(clients)
    return changed(
        make_event(1, rng.random(clients).tolist(), rho=rho),
        participants=list(range(clients)),
        losses_before=rng.random(clients).tolist(),
        losses_after=rng.random(clients).tolist(),
        dropped=[DroppedClient(client, "absent", "") for client in range(0, clients, 3)],
        seconds={"exchange": 0.02, "solve": 0.004, "step": 0.0002, "total": 0.03},
    )


def test_a_file_says_what_the_round_said(tmp_path: Path) -> None:
    event = changed(
        make_event(1, [0.0, 1.0, 0.5, 0.5], rho=0.75),
        losses_before=[4.0, 1.0, 3.0, 2.0],
        losses_after=[math.nan, 0.5, 2.5, 3.0],
        step_norm_squared=9.0,
        factor=0.25,
        rank=3,
        condition=17.0,
        misses=2,
        exchanges=3,
        pairs_rejected=5,
        dropped=[DroppedClient(7, "absent", ""), DroppedClient(8, "absent", ""), DroppedClient(9, "bad-shape", "")],
        seconds={"exchange": 0.02, "solve": 0.5, "total": 20.0},
        validation={0: 0.25, 1: 0.75},
        test_loss=0.125,
        asked=5,
        heard=[0, 1, 3],
        overruled=[0, 2],
        refused=[2],
        refused_held_out=[2],
        unable=[0, 3],
        entitlement=2.5,
    )
    found = metrics_after(tmp_path, [event, replace(event, round=2)])
    expected: dict[tuple[str, ...], float] = {
        ("dqnfed_run_info", "dqn-fed", "15301656437637344697", "probed", "0.1.0"): 1,
        ("dqnfed_run_state", "running"): 1,
        ("dqnfed_run_state", "failed"): 0,
        ("dqnfed_round",): 2,
        ("dqnfed_rounds",): 9,
        ("dqnfed_last_round_timestamp_seconds",): 1000,
        ("dqnfed_participants",): 4,
        ("dqnfed_asked_clients",): 5,
        ("dqnfed_heard_clients",): 3,
        ("dqnfed_model_moved",): 1,
        ("dqnfed_moved_rounds",): 2,
        ("dqnfed_improved_clients_ratio",): 2 / 5,  # of the five asked, two said that their loss did not rise
        ("dqnfed_unharmed_clients_ratio",): 2 / 3,  # of the three that answered again, one loss rose above 2.5
        ("dqnfed_entitlement",): 2.5,
        ("dqnfed_clients_harmed_total",): 2,
        ("dqnfed_clients_overruled_total",): 4,
        ("dqnfed_clients_refused_total",): 2,
        ("dqnfed_clients_refused_by_test_total", "training"): 0,
        ("dqnfed_clients_refused_by_test_total", "held-out"): 2,
        ("dqnfed_unable_clients",): 2,
        ("dqnfed_unmoved_rounds_total",): 0,
        ("dqnfed_clients_dropped_total", "absent"): 4,
        ("dqnfed_clients_dropped_total", "bad-shape"): 2,
        ("dqnfed_clients_dropped_total", "unreadable"): 0,
        ("dqnfed_train_loss_mean", "before"): 2.5,
        ("dqnfed_train_loss_mean", "after"): 2.0,
        ("dqnfed_train_loss_min", "before"): 1,
        ("dqnfed_train_loss_max", "after"): 3,
        ("dqnfed_train_loss_percentile", "50", "before"): 2,  # the least loss with half of four clients at or below it
        ("dqnfed_train_loss_percentile", "90", "before"): 4,
        ("dqnfed_nonfinite_losses_total",): 0,  # a client that was silent is no broken one
        ("dqnfed_test_accuracy_mean_ratio",): 0.5,
        ("dqnfed_test_accuracy_stddev_ratio",): math.sqrt(0.125),
        ("dqnfed_test_accuracy_min_ratio",): 0,
        ("dqnfed_test_accuracy_worst10_ratio",): 0,
        ("dqnfed_test_accuracy_best10_ratio",): 1,
        ("dqnfed_test_accuracy_jain_ratio",): 4 / (4 * 1.5),  # (sum a)^2 / (K sum a^2)
        ("dqnfed_test_accuracy_angle_radians",): math.acos(2 / math.sqrt(4 * 1.5)),
        # shares 1/2, 1/4, 1/4 of three clients against 1/4 each: log(2) / 2
        ("dqnfed_test_accuracy_kl_uniform_nats",): math.log(2) / 2,
        ("dqnfed_validation_accuracy_mean_ratio",): 0.5,
        ("dqnfed_test_loss_mean",): 0.125,
        ("dqnfed_step_norm",): 3,
        ("dqnfed_step_factor",): 0.25,
        ("dqnfed_gramian_rank",): 3,
        ("dqnfed_gramian_condition",): 17,
        ("dqnfed_step_misses_total",): 4,
        ("dqnfed_exchanges_total",): 6,
        ("dqnfed_curvature_pairs_rejected_total",): 10,
        ("dqnfed_received_bytes_total",): 2_000_000,
        ("dqnfed_sent_bytes_total",): 4_000_000,
        ("dqnfed_solves_total", "converged"): 2,
        ("dqnfed_phase_seconds_bucket", "0.01", "exchange"): 0,
        ("dqnfed_phase_seconds_bucket", "0.03", "exchange"): 2,
        ("dqnfed_phase_seconds_count", "solve"): 2,
        ("dqnfed_round_seconds_sum",): 40,
        ("dqnfed_round_seconds_bucket", "+Inf"): 2,
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"clients": 5}])
def test_as_many_series_with_1000_clients_as_with_10(tmp_path: Path, options: dict[str, int]) -> None:
    few = metrics_after(tmp_path, [federation(10)], **options)
    many = metrics_after(tmp_path, [federation(1000, rho=0.5)], **options)
    assert few.keys() == many.keys()
    assert len(few) > 100


def test_every_series_is_there_before_the_first_round(tmp_path: Path) -> None:
    assert metrics_after(tmp_path, []).keys() == metrics_after(tmp_path, [federation(10)]).keys()


def test_every_declared_metric_is_written_and_no_other(tmp_path: Path) -> None:
    declared = {metric.name if metric.kind == "info" else metric.family for metric in RUN_METRICS + CLIENT_METRICS}
    metrics_after(tmp_path, [federation(10)], clients=3)
    found = {family.name for family in text_string_to_metric_families((tmp_path / "r1.prom").read_text())}
    of_others = {name for name in declared if "_figure" in name}
    assert found == declared - of_others
    event = changed(federation(10), figure=MAE, without_figure={"test": [3]})
    metrics_after(tmp_path, [event], card=replace(CARD, figure=MAE), clients=3)
    found = {family.name for family in text_string_to_metric_families((tmp_path / "r1.prom").read_text())}
    assert found == declared - {name for name in declared if "accuracy" in name}


def test_clients_without_a_figure_are_shown_as_long_as_there_are_any(tmp_path: Path) -> None:
    first = changed(make_event(1, [3.0, 1.0]), figure=MAE, without_figure={"test": [3]})
    second = changed(make_event(2, [3.0, 1.0, 2.0]), figure=MAE)
    card, name = replace(CARD, figure=MAE), "dqnfed_clients_without_figure"
    assert metrics_after(tmp_path, [first], card=card)[name, "test"] == 1
    assert name not in {key[0] for key in metrics_after(tmp_path, [first, second], card=card)}


def test_the_worst_clients_of_an_error_are_those_with_the_most(tmp_path: Path) -> None:
    event = changed(make_event(1, [3.0, 1.0, 2.0, 8.0]), figure=MAE, validation={0: 2.0, 1: 4.0})
    found = metrics_after(tmp_path, [event], card=replace(CARD, figure=MAE), clients=1)
    figures = {name: value for (name, *labels), value in found.items() if "_figure" in name and "mae" in labels}
    assert figures == {
        "dqnfed_test_figure_mean": 3.5,
        "dqnfed_test_figure_stddev": pytest.approx(np.std([3, 1, 2, 8])),
        "dqnfed_test_figure_worst": 8,
        "dqnfed_test_figure_worst10": 8,
        "dqnfed_test_figure_best10": 1,
        "dqnfed_test_figure_higher_is_better": 0,
        "dqnfed_validation_figure_mean": 3,
        "dqnfed_client_test_figure": 3,
    }
    record = round_summary(changed(event, without_figure={"test": [4, 5]}), 1.0)
    assert record["worst"] == [[3, 8.0], [0, 3.0], [2, 2.0], [1, 1.0]]
    assert (record["figure"]["worst"], record["figure"]["best"]) == (8, 1)
    assert record["figure"]["name"] == "mae"
    assert record["without_figure"] == {"test": 2}
    assert "accuracy" not in json.dumps(record)


def test_clients_have_series_of_their_own_only_when_asked_for(tmp_path: Path) -> None:
    named = {key for key in metrics_after(tmp_path, [federation(10)]) if key[0].startswith("dqnfed_client_")}
    assert named == set()
    found = metrics_after(tmp_path, [federation(10)], clients=4)
    assert {key[1] for key in found if key[0] == "dqnfed_client_test_accuracy_ratio"} == {"0", "1", "2", "3"}
    assert found["dqnfed_client_dropped_total", "3"] == 1
    twice = replace(federation(10), dropped=[DroppedClient(3, "late", ""), DroppedClient(3, "absent", "")])
    assert metrics_after(tmp_path, [twice], clients=4)["dqnfed_client_dropped_total", "3"] == 1  # rounds


def test_losses_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    event = replace(
        make_event(1, None), losses_before=[math.inf, 1.0, 1.0, 1.0], losses_after=[math.inf, math.nan, 1, 1]
    )
    found = metrics_after(tmp_path, [event])
    assert found[("dqnfed_nonfinite_losses_total",)] == 2
    assert found["dqnfed_train_loss_mean", "before"] == math.inf


def test_rounds_of_a_low_ratio_are_counted_in_a_row(tmp_path: Path) -> None:
    def low(*ratios: float) -> float:
        events = [make_event(number + 1, None, rho=ratio) for number, ratio in enumerate(ratios)]
        return metrics_after(tmp_path, events)[("dqnfed_low_ratio_rounds",)]

    assert [low(), low(0.5, 0.75), low(0.5, 1.0), low(0.5, math.nan, 0.5), low(1.0, 0.5)] == [0, 2, 0, 2, 1]


def test_rounds_that_move_nothing_and_harm_nobody_are_not_low(tmp_path: Path) -> None:
    harmed = make_event(1, None, rho=0.5)
    served = replace(make_event(2, None, rho=0.5), entitlement=2.0)
    stayed = replace(make_event(2, None), factor=0.0, losses_after=[1.0] * 4)
    found = metrics_after(tmp_path, [harmed, stayed])
    assert found[("dqnfed_low_ratio_rounds",)] == 1
    assert found[("dqnfed_model_moved",)] == 0
    assert (found[("dqnfed_moved_rounds",)], found[("dqnfed_unmoved_rounds_total",)]) == (1, 1)
    assert metrics_after(tmp_path, [harmed, served])[("dqnfed_low_ratio_rounds",)] == 0


def test_a_resumed_run_knows_in_how_many_rounds_it_moved(tmp_path: Path) -> None:
    listener = begun(tmp_path, [make_event(1, None)])
    listener.on_round(make_event(2, None))
    listener = begun(tmp_path, [make_event(1, None)])  # goes back to the checkpoint of round 1
    listener.on_round(replace(make_event(2, None), factor=0.0))
    assert read(tmp_path / "r1.prom")[("dqnfed_moved_rounds",)] == 1


def test_ratios_over_the_rounds_that_moved_stand_beside_those_of_the_last(tmp_path: Path) -> None:
    stays = [replace(make_event(t, None), factor=0.0, losses_after=[1.0] * 4) for t in (3, 4)]
    events = [make_event(1, None, rho=0.5), make_event(2, None, rho=1.0), *stays]
    found = {name: value for (name, *labels), value in metrics_after(tmp_path, events).items() if not labels}
    assert found["dqnfed_improved_clients_ratio"] == 1
    assert found["dqnfed_moved_improved_clients_ratio"] == 0.75
    assert found["dqnfed_moved_unharmed_clients_ratio"] == 0.75
    assert (found["dqnfed_moved_rounds"], found["dqnfed_unmoved_streak_rounds"]) == (2, 2)


@pytest.mark.parametrize("status", [*ENDED_EARLY, STALLED])
def test_an_early_end_is_a_state_of_its_own(tmp_path: Path, status: str) -> None:
    listener = begun(tmp_path)
    listener.on_round(replace(make_event(1, None), factor=0.0, status="line-search-failed"))
    listener.conclude(status)
    found = read(tmp_path / "r1.prom")
    assert [state for state in STATES if found["dqnfed_run_state", state]] == [status]
    assert found["dqnfed_solves_total", "line-search-failed"] == 1


def test_a_state_is_changed_in_place(tmp_path: Path) -> None:
    found = metrics_after(tmp_path, [make_event(1, None)])
    file = tmp_path / "r1.prom"
    size, inode = file.stat().st_size, file.stat().st_ino
    put_state(file, "paused")
    assert (file.stat().st_size, file.stat().st_ino) == (size, inode)
    changed: dict[tuple[str, ...], float] = {("dqnfed_run_state", "running"): 0, ("dqnfed_run_state", "paused"): 1}
    np.testing.assert_equal(read(file), {**found, **changed})
    put_state(file, "running")
    np.testing.assert_equal(read(file), found)


def test_a_round_in_short_says_what_it_did_to_the_clients() -> None:
    event = changed(
        make_event(1, None, rho=0.5), entitlement=1.2, heard=[0, 1], overruled=[3], refused=list(range(20)), asked=20
    )
    record = round_summary(event, 1.0)
    figures = ("ratio", "unharmed", "asked", "participants", "heard", "overruled", "harmed", "moved")
    assert [record[key] for key in figures] == [2 / 20, 0.5, 20, 4, 2, 1, 2, True]
    assert record["refused"] == list(range(10))  # bounded, whatever the number of clients


def test_figures_of_an_evaluation_stand_until_the_next(tmp_path: Path) -> None:
    found = metrics_after(tmp_path, [make_event(1, [0.5] * 4), make_event(2, None)])
    assert found[("dqnfed_test_accuracy_mean_ratio",)] == 0.5
    assert found[("dqnfed_evaluated_round",)] == 1


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    listener = begun(tmp_path, [federation(10), replace(federation(10), round=2)])
    listener.on_round(replace(federation(10), round=3))
    found = read(tmp_path / "r1.prom")
    assert found["dqnfed_clients_dropped_total", "absent"] == 12
    assert found[("dqnfed_round_seconds_count",)] == 3
    assert [record["round"] for record in read_rounds(tmp_path / "r1.rounds.jsonl")] == [1, 2, 3]


def test_no_counter_falls_when_a_run_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    rounds = [replace(federation(10), round=number) for number in range(1, 6)]
    before = metrics_after(tmp_path, rounds)
    listener = begun(tmp_path, rounds[:2])  # the checkpoint is of round 2
    resumed = read(tmp_path / "r1.prom")
    counters = [key for key in before if key[0].endswith(("_total", "_bucket", "_sum", "_count"))]
    assert {key: resumed[key] for key in counters} == {key: before[key] for key in counters}
    assert resumed[("dqnfed_round",)] == 2
    listener.on_round(rounds[2])
    assert read(tmp_path / "r1.prom")["dqnfed_clients_dropped_total", "absent"] == 6 * 4
    listener.on_start(9, [])  # another run in this folder, which begins with nothing
    assert read(tmp_path / "r1.prom")["dqnfed_clients_dropped_total", "absent"] == 0


SHORT = """# TYPE dqnfed_round_seconds histogram
dqnfed_round_seconds_sum 1
dqnfed_round_seconds_bucket{le="1"} 1
"""


@pytest.mark.parametrize("text", ["nonsense {", 'dqnfed_solves_total{of="x"} 3\n', SHORT])
def test_counters_begin_anew_where_the_file_before_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    told: list[str] = []
    monkeypatch.setattr(metric_files.logger, "warning", lambda words, *given: told.append(words % given))
    (tmp_path / "r1.prom").write_text(text)
    begun(tmp_path, [federation(10)])
    assert read(tmp_path / "r1.prom")["dqnfed_clients_dropped_total", "absent"] == 4
    assert len(told) == 1
    assert told[0].endswith("its counters begin anew")


def test_the_file_tells_how_the_run_ended(tmp_path: Path) -> None:
    run(written(tmp_path))
    (file,) = (tmp_path / "m").glob("*.prom")
    assert file.stem == run_name(tmp_path / "o", "")
    found = read(file)
    assert (found["dqnfed_run_state", "finished"], found["dqnfed_run_state", "running"]) == (1, 0)
    assert found[("dqnfed_round",)] == found[("dqnfed_rounds",)] == 2
    assert not list((tmp_path / "m").glob(".*"))


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """States of the run in every file that is written, in order."""
    seen: list[str] = []

    @contextmanager
    def watched(path: Path) -> Iterator[BinaryIO]:
        with replacing(path) as file:
            yield file
        seen.extend(key[1] for key, value in read(path).items() if key[0] == "dqnfed_run_state" and value)

    monkeypatch.setattr(metric_files, "replacing", watched)
    return seen


def test_a_run_that_ends_well_is_never_published_as_failed(tmp_path: Path, states: list[str]) -> None:
    run(written(tmp_path))
    assert (states[0], states[-1], set(states)) == ("running", "finished", {"running", "finished"})


def test_a_run_whose_results_cannot_be_written_has_failed(
    tmp_path: Path, states: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: RunResult, directory: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RunResult, "write", gone)
    with pytest.raises(PermissionError):
        run(written(tmp_path))
    assert states[-1] == "failed"


def test_a_run_that_never_began_leaves_the_file_of_the_one_before(tmp_path: Path) -> None:
    settings = written(tmp_path)
    run(settings)
    (file,) = (tmp_path / "m").glob("*.prom")
    before = file.read_bytes()
    with pytest.raises(CheckpointError):
        run({**settings, "seed": 99}, resume=True)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("end", "state"),
    [
        *((end, "stopped") for end in (KeyboardInterrupt(), SystemExit(0))),
        *((end, "failed") for end in (SystemExit(1), OSError(), QuorumError("nobody is there"))),
    ],
)
def test_a_run_that_is_told_to_end_has_not_failed(
    tmp_path: Path, states: list[str], end: BaseException, state: str
) -> None:
    class Ends(Listener):
        def on_round(self, event: RoundEvent) -> None:
            raise end

    with pytest.raises(type(end)):
        run(written(tmp_path), listeners=[Ends()])
    assert (states[-1], set(states)) == (state, {"running", state})


def test_a_run_that_flower_ends_without_an_exception_is_written_down_as_stopped(tmp_path: Path) -> None:
    # Stopped, a ServerApp calls its exit handlers; where these take more than 5 s, the process is gone without more.
    found: list[str] = []

    class Ends(Listener):
        def on_round(self, event: RoundEvent) -> None:
            trigger_exit_handlers(run_before_force_exit=False)
            found.append(next((tmp_path / "m").glob("*.prom")).read_text())

    settings = Settings.from_mapping({**TINY, "metrics": str(tmp_path / "m")})
    serve(InProcessGrid(app, settings.clients, settings.flat()), settings, listeners=[Ends()], run_id="17")
    assert all('state="stopped"} 1' in text for text in found)
    assert found


def test_a_run_that_fails_before_its_first_round_leaves_a_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint there"):
        run(written(tmp_path), resume=True)
    (file,) = (tmp_path / "m").glob("*.prom")
    found = read(file)
    assert (found["dqnfed_run_state", "failed"], found["dqnfed_run_state", "running"]) == (1, 0)
    assert found[("dqnfed_round",)] == 0


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics_after(tmp_path, [federation(10)])
    whole = (tmp_path / "r1.prom").read_bytes()
    seen = []
    rename = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append((self.name, (tmp_path / "r1.prom").read_bytes() == whole))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    metrics_after(tmp_path, [])
    assert (".r1.prom.tmp", True) in seen


def test_a_full_disk_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = begun(tmp_path)
    before = read(tmp_path / "r1.prom")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    warnings: list[str] = []
    monkeypatch.setattr(logging.getLogger("flwr"), "warning", lambda text, *values: warnings.append(text % values))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        listener.on_round(federation(10))
        listener.on_round(replace(federation(10), round=2))
    assert [word for word in ("No space left", "the run goes on") if word not in warnings[0]] == []
    assert len(warnings) == 1
    assert read(tmp_path / "r1.prom") == pytest.approx(before, nan_ok=True)
    listener.on_round(replace(federation(10), round=3))
    assert read(tmp_path / "r1.prom")[("dqnfed_round",)] == 3


def test_fast_rounds_share_a_file_and_the_last_is_never_left_out(tmp_path: Path) -> None:
    listener = RunMetrics(tmp_path, CARD, pause=0.2)
    listener.on_start(9, [])
    for number in range(1, 6):
        listener.on_round(replace(federation(10), round=number))
    assert read(tmp_path / "r1.prom")[("dqnfed_round",)] == 0
    end = time.monotonic() + 10
    while read(tmp_path / "r1.prom")[("dqnfed_round",)] != 5 and time.monotonic() < end:
        time.sleep(0.02)
    found = read(tmp_path / "r1.prom")
    assert (found[("dqnfed_round",)], found["dqnfed_clients_dropped_total", "absent"]) == (5, 20)
    listener.on_round(replace(federation(10), round=6))
    listener.conclude("finished")
    assert read(tmp_path / "r1.prom")[("dqnfed_round",)] == 6
    assert [record["round"] for record in read_rounds(tmp_path / "r1.rounds.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_a_directory_that_cannot_be_written_is_told_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"metrics: cannot write to .*; name another directory"):
        metrics_of(Settings.from_mapping({"metrics": str(tmp_path / "file")}))
    assert metrics_of(Settings()) is None


def test_run_names_are_good_for_files_and_differ() -> None:
    assert run_name(Path("/a/run"), "") != run_name(Path("/b/run"), "")
    assert run_name(Path("/a/../b/run"), "") == run_name(Path("/b/run"), "")
    assert run_name(None, 'é "x"/..\n') == "x"
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,67}", run_name(Path("/a/" + "ü b" * 80), ""))


def test_rounds_are_bounded_in_number_and_size(tmp_path: Path) -> None:
    file = RoundFile(tmp_path / "r.jsonl", kept=5)
    file.begin()
    for number in range(1, 40):
        file.append(round_summary(replace(federation(1000), round=number), 1.0))
        file.flush()
        assert len((tmp_path / "r.jsonl").read_text().splitlines()) <= 10
    assert [record["round"] for record in read_rounds(tmp_path / "r.jsonl", 5)] == [35, 36, 37, 38, 39]
    assert max(map(len, (tmp_path / "r.jsonl").read_text().splitlines())) < 1500
    (tmp_path / "r.jsonl").unlink()  # pruned
    file.append(round_summary(replace(federation(3), round=40), math.nan))
    file.flush()
    assert [record["round"] for record in read_rounds(tmp_path / "r.jsonl")] == [36, 37, 38, 39, 40]


def test_damaged_lines_of_rounds_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_bytes(b'{"round": 1}\n\xff\x00\n[]\n{"round": "x"}\n{"round": 2}\n{"rou')
    assert [record["round"] for record in read_rounds(tmp_path / "r.jsonl")] == [1, 2]


def test_reasons_are_those_of_the_code() -> None:
    sources = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    raised = set(re.findall(r'WireError\(\s*"([a-z-]+)"', sources)) - {"bad-properties"}  # of a node, not of a client
    raised |= {BELOW_FLOOR, LOST_MODEL}
    unheard = {CONTRADICTION, OVERRULED, SET_ASIDE, OWING, LATE, *compatibility.REASONS}
    assert set(REASONS) == raised | {ZERO_GRADIENT, BAD_RATE} | unheard


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_blame(tmp_path: Path) -> None:
    metrics_after(tmp_path, [federation(10)], clients=2)
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=(tmp_path / "r1.prom").read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_strict_form_is_written_as_the_format_has_it(tmp_path: Path) -> None:
    event = replace(make_event(1, None, rho=1.0), entitlement=-math.inf)
    assert metrics_after(tmp_path, [event])["dqnfed_entitlement",] == -math.inf
