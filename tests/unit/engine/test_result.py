"""Results on disk and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult, read_result, start_loss
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.run_files import EVENTS, MODEL, RUN
from tests.helpers.runs import make_event, make_result


def written(directory: Path) -> RunResult:
    events = [make_event(1, None), make_event(2, [0.5, 0.6, 0.7, 0.8], rho=0.75)]
    result = replace(
        make_result(events, settings=Settings.from_mapping({"rounds": 2, "dqn-fed.scale": 0.5})),
        buffers={"norm.mean": np.ones(2, np.float32), "norm.count": np.array(4)},
    )
    result.write(directory)
    (directory / EVENTS).write_text("".join(event.to_json() + "\n" for event in events))
    return result


def test_a_result_read_back_is_the_one_written(tmp_path: Path) -> None:
    result, read = written(tmp_path), read_result(tmp_path)
    assert (read.settings, read.status, read.accuracies, read.seconds) == (
        result.settings,
        result.status,
        result.accuracies,
        result.seconds,
    )
    assert np.array_equal(read.theta, result.theta)
    assert read.theta.dtype == result.theta.dtype
    assert {name: value.tolist() for name, value in read.buffers.items()} == {"norm.mean": [1, 1], "norm.count": 4}
    assert read.events == result.events
    assert read.final == result.final


def test_the_figures_are_sums_over_rounds(tmp_path: Path) -> None:
    result = written(tmp_path)
    assert result.improved_ratio == [1.0, 0.75]
    assert (result.exchanges, result.bytes_up, result.bytes_down) == (2, 2_000_000, 4_000_000)


def test_the_json_holds_settings_and_figures(tmp_path: Path) -> None:
    written(tmp_path)
    record = json.loads((tmp_path / RUN).read_text())
    assert record["settings"]["dqn-fed.scale"] == 0.5
    assert set(record["final"]) >= {"mean", "std", "worst10", "best10", "angle_deg", "kl_uniform", "jain"}
    assert record["improved_ratio"] == record["unharmed_ratio"] == [1.0, 0.75]
    assert (record["rounds_moved"], record["moved"]) == (2, [True, True])
    assert (record["asked"], record["heard"], record["overruled"]) == ([4, 4], [4, 4], [0, 0])
    assert record["rounds"] == 2


def test_a_ratio_that_nobody_reported_is_null() -> None:
    result = make_result([make_event(1, None, rho=math.nan)])
    assert result.to_json()["improved_ratio"] == [None]
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (MODEL, lambda content: b""),
        (MODEL, lambda content: content[: len(content) // 2]),
        (MODEL, lambda content: b"\x93NUMPY" + content),
        (RUN, lambda content: b"{}"),
        (RUN, lambda content: b"[]"),
        (RUN, lambda content: content.replace(b'"accuracies": {', b'"accuracies": {"one": 1, ')),
    ],
)
def test_any_damage_is_told(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    written(tmp_path)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(RunError, match="no result of a finished run, or a damaged one"):
        read_result(tmp_path)


@pytest.mark.parametrize("name", [RUN, MODEL, EVENTS])
def test_a_missing_or_broken_file_is_told(tmp_path: Path, name: str) -> None:
    written(tmp_path)
    if name != EVENTS:  # a log that is cut short ends there
        (tmp_path / name).write_text("{")
        with pytest.raises(RunError, match="no result of a finished run"):
            read_result(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(RunError, match="no result of a finished run"):
        read_result(tmp_path)


@pytest.mark.parametrize("below", ["mine", "runs/fedavg/seed-0"])
def test_a_folder_of_runs_in_place_of_a_run_is_told(tmp_path: Path, below: str) -> None:
    (tmp_path / below).mkdir(parents=True)
    written(tmp_path / below)
    with pytest.raises(
        RunError, match=rf"run.json is missing; it holds runs, such as {re.escape(str(tmp_path / below))}$"
    ):
        read_result(tmp_path)


def test_the_loss_at_the_start_is_that_of_round_1_or_not_known() -> None:
    first = replace(make_event(1, None), losses_before=[1.0, 2.0, 3.0, 6.0])
    assert start_loss([first, make_event(2, None)]) == 3.0
    for events in ([], [make_event(2, None)], [replace(first, losses_before=[math.nan] * 4)]):
        assert start_loss(events) is None
