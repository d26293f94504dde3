"""One call, whatever form the configuration comes in."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import cast, get_args

import numpy as np
import pytest

import dqnfed_flwr
from benchmarks._clock import Clock
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import run_folder
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import Engine, as_settings, choose_jobs, run, run_in_process
from dqnfed_flwr.errors import ConfigError, DataError, ModelError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from tests.helpers.runs import TINY


def test_every_form_of_a_configuration_means_the_same(tmp_path: Path) -> None:
    expected = Settings.from_mapping(TINY)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(TINY))  # JSON is YAML
    for form in (expected, TINY, path, str(path)):
        assert as_settings(form) == expected
    assert as_settings("digits").data == "digits"


def test_the_packages_own_run_is_this_one(tmp_path: Path) -> None:
    result = dqnfed_flwr.run({**TINY, "output": str(tmp_path)})
    again = dqnfed_flwr.run({**TINY, "output": str(tmp_path)}, resume=True)
    assert np.array_equal(again.theta, result.theta)
    assert result.settings.resume is False
    assert again.settings.resume is True


def test_a_faulty_configuration_is_told_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"rounds: .*found 0"):
        run({"rounds": 0})
    with pytest.raises(ConfigError, match="no-such-experiment"):
        run("no-such-experiment")


@pytest.mark.parametrize("method", ["dqn-fed", "fedavg"])
def test_clients_at_a_time_make_no_difference(method: str) -> None:
    settings = {**TINY, "method": method, "local.threads": 1}
    one, three = (run(settings, jobs=jobs) for jobs in (1, 3))
    assert np.array_equal(one.theta, three.theta)
    assert one.accuracies == three.accuracies


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4),
        ({"local.threads": 2}, 2),
        ({"local.threads": 8}, 1),
        ({"clients": 3}, 3),
        ({"local.threads": 0}, 1),  # a client takes all cores
        ({"quorum": 0.5}, 1),
        ({"device": "cuda"}, 1),
    ],
)
def test_cores_are_shared_out(changes: dict[str, int | float | str], expected: int) -> None:
    settings = Settings.from_mapping({"clients": 10, "local.threads": 1, "device": "cpu", **changes})
    assert choose_jobs(settings, cores=4) == expected


@pytest.mark.parametrize("engine", ["Flower", "in_process", ""])
def test_an_unknown_engine_is_refused(engine: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine: found '{engine}'; allowed: in-process, flower"):
        run(TINY, engine=cast(Engine, engine))


def test_a_folder_that_holds_a_run_is_refused_and_kept(tmp_path: Path) -> None:
    settings = {**TINY, "output": str(tmp_path)}
    run(settings)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for engine in get_args(Engine) if find_spec("ray") else ("in-process",):
        with pytest.raises(ConfigError, match=r"holds a run of 2 rounds \(finished\); --resume .*--overwrite"):
            run(settings, engine=engine)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept
    assert run({**settings, "seed": 1}, overwrite=True).settings.seed == 1
    (tmp_path / RUN).unlink()
    with pytest.raises(ConfigError, match=r"holds a run of 2 rounds \(finished\); --resume"):  # says the checkpoint
        run(settings)
    (tmp_path / CHECKPOINT).unlink()
    assert run(settings).status == "finished"


def test_fewer_rounds_than_are_done_are_refused_and_leave_the_run_as_it_is(tmp_path: Path) -> None:
    run({**TINY, "rounds": 2, "output": str(tmp_path)})
    before = (tmp_path / RUN).read_bytes()
    with pytest.raises(ConfigError, match=r"rounds: found 1, and .* has 2 rounds already"):
        run({**TINY, "rounds": 1, "output": str(tmp_path)}, resume=True)
    assert (tmp_path / RUN).read_bytes() == before


def test_a_folder_at_work_is_waited_for_only_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(run_folder, "time", clock)
    settings = {**TINY, "output": str(tmp_path)}
    with run_folder.directory_lock(tmp_path):
        for overwrite in (False, True):
            with pytest.raises(ConfigError, match="is at work there; let it end"):
                run(settings, overwrite=overwrite)
        assert clock.slept <= 2 * (run_folder.LINGER_SECONDS + run_folder.POLL_SECONDS)
        with pytest.raises(ConfigError, match="has not ended within 60 s"):
            run(settings, resume=True)


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_first_refusal_is_the_error_of_the_run(jobs: int, said: list[str]) -> None:
    with pytest.raises(DataError, match="unknown set 'nosuch'"):
        run({**TINY, "data": "nosuch"}, jobs=jobs)
    with pytest.raises(ModelError, match="unknown name 'mlpp'"):
        run({**TINY, "model": "mlpp"}, jobs=jobs)
    with pytest.raises(ConfigError, match="device: found 'tpu'"):
        run({**TINY, "device": "tpu"}, jobs=jobs)
    assert said == []


def test_a_run_that_ends_between_evaluations_tells_how_its_final_model_does(tmp_path: Path) -> None:
    settings = {"rounds": 60, "evaluate-every": 0, "split.validation-fraction": 0.2}
    short = {"dqn-fed.form": "one-sided", "step.min-move": 1.0}
    result = run_in_process(Settings.from_mapping({**TINY, **settings, **short, "output": str(tmp_path / "run")}))
    assert (result.status, result.events[-1].evaluated.validation) == ("line-search-failed", None)
    assert sorted(result.validation) == sorted(result.accuracies) == [0, 1, 2]
    assert read_result(tmp_path / "run").validation == result.validation


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    path, random = tmp_path / "own.npz", np.random.default_rng(0)
    np.savez(path, x_train=random.random((40, 4)), y_train=np.arange(40) % 2)
    return str(path)


def test_copies_of_one_client_are_named(said: list[str], own_file: str) -> None:
    run({**TINY, "split.samples": 0, "rounds": 1, "data": own_file, "partition": "file"})
    (words,) = said
    assert f"partition: file gives each of the 3 clients the whole of {own_file}" in words


@pytest.mark.parametrize("keys", [{"partition": "file", "clients": 1}, {"partition": "iid"}])
def test_one_client_or_a_set_dealt_out_is_nothing_to_warn_of(
    said: list[str], own_file: str, keys: dict[str, str | int]
) -> None:
    run({**TINY, "split.samples": 0, "rounds": 1, "data": own_file, **keys})
    assert said == []
