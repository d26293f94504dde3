from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from tests.helpers.comparisons import plan_in
from tests.helpers.runs import TINY, make_event, make_result


def finish(folder: Path, settings: Settings) -> None:
    folder.mkdir(parents=True)
    make_result([make_event(1, (0.5, 0.5, 0.5, 0.5))], settings=settings).write(folder)


def test_finished_runs_of_other_settings_are_refused_by_naming_the_keys(tmp_path: Path) -> None:
    first = plan_in(tmp_path, rounds=3).possible()[1]
    finish(first.folder, first.settings)
    assert first.finished
    plan_in(tmp_path, rounds=3)
    plan_in(tmp_path, rounds=3, deadline=5.0)
    with pytest.raises(ConfigError) as caught:
        plan_in(tmp_path, rounds=4, local__lr=0.3)
    assert str(caught.value).splitlines() == [
        f"{first.folder} holds a run of other settings; local.lr: 0.1 there, 0.3 now; rounds: 3 there, 4 now",
        f"{tmp_path} holds another comparison; name another folder by --output",
    ]
    plan_in(tmp_path, "mgda", rounds=4)  # nothing of it is there


def test_a_folder_that_was_moved_is_taken_up(tmp_path: Path) -> None:
    first = plan_in(tmp_path / "old").possible()[0]
    finish(first.folder, first.settings)
    (tmp_path / "old").rename(tmp_path / "new")
    assert plan_in(tmp_path / "new").possible()[0].finished


def test_unfinished_runs_of_other_settings_are_refused_too(tmp_path: Path) -> None:
    job = plan_in(tmp_path, "fedavg", "0", **TINY_KEYS).possible()[0]
    run(job.settings)
    (job.folder / "run.json").unlink()
    plan_in(tmp_path, "fedavg", "0", **TINY_KEYS)
    with pytest.raises(ConfigError, match="model: 'logistic' there, 'mlp' now"):
        plan_in(tmp_path, "fedavg", "0", **{**TINY_KEYS, "model": "mlp"})


def own_data(path: Path, shift: int = 0) -> dict[str, Any]:
    """Keys of a tiny run on a file of our own, its labels rotated by `shift`."""
    x = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    np.savez(path, x_train=x, y_train=((x[:, 0] > 0) + shift) % 2)
    return {**TINY_KEYS, "split__samples": 0, "data": str(path)}


@pytest.mark.parametrize("finished", [True, False])
def test_runs_on_other_data_are_refused(tmp_path: Path, finished: bool) -> None:
    keys = own_data(tmp_path / "d.npz")
    job = plan_in(tmp_path, "fedavg", "0", **keys).possible()[0]
    run(job.settings)
    if not finished:
        (job.folder / "run.json").unlink()
    own_data(tmp_path / "d.npz")
    plan_in(tmp_path, "fedavg", "0,1", **keys)  # written anew, with the same contents
    own_data(tmp_path / "d.npz", 1)
    for seeds in ("0", "0,1"):
        with pytest.raises(ConfigError) as caught:
            plan_in(tmp_path, "fedavg", seeds, **keys)
        first, last = str(caught.value).splitlines()
        assert re.fullmatch(
            f"{re.escape(str(job.folder))} holds a run on other data; "
            rf"fingerprint of {re.escape(keys['data'])}: \w{{16}} there, \w{{16}} now",
            first,
        )
        assert last.endswith("holds another comparison; name another folder by --output")


def test_runs_that_noted_no_fingerprint_and_data_that_are_gone_are_accepted(tmp_path: Path) -> None:
    keys = own_data(tmp_path / "d.npz")
    job = plan_in(tmp_path, "fedavg", "0", **keys).possible()[0]
    run(job.settings)
    (tmp_path / "d.npz").unlink()
    assert plan_in(tmp_path, "fedavg", "0", **keys).possible()[0].finished
    own_data(tmp_path / "d.npz", 1)
    for change in ({"fingerprint": None}, {}):  # data of a function, an earlier version
        found = json.loads((job.folder / "run.json").read_text())
        del found["fingerprint"]
        (job.folder / "run.json").write_text(json.dumps({**found, **change}))
        assert plan_in(tmp_path, "fedavg", "0", **keys).possible()[0].finished
        (job.folder / "run.json").write_text(json.dumps({**found, "fingerprint": "0" * 16}))


def test_data_are_looked_at_once_and_only_for_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("dqnfed_flwr.data.sets.fingerprint", asked.append)
    jobs = plan_in(tmp_path).possible()
    assert asked == []
    for job in jobs:
        finish(job.folder, job.settings)
        found = json.loads((job.folder / "run.json").read_text())
        (job.folder / "run.json").write_text(json.dumps({**found, "fingerprint": "0" * 16}))
    plan_in(tmp_path)
    assert asked == ["digits"]


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    job = plan_in(tmp_path).possible()[0]
    finish(job.folder, job.settings)
    (job.folder / "run.json").write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match=r"run.json: cannot be read .* remove it"):
        plan_in(tmp_path)


def figures(folder: Path, status: str, settings: dict[str, Any]) -> None:
    rows = [{"runs": [{"seed": 0, "status": status}]}]
    (folder / "comparison.json").write_text(json.dumps({"settings": settings, "methods": rows}))


def test_figures_of_runs_of_other_settings_are_not_overwritten(tmp_path: Path) -> None:
    figures(tmp_path, "finished", dict(plan_in(tmp_path, rounds=3).config))
    with pytest.raises(ConfigError, match=r"comparison.json has figures .* rounds: 3 there, 5 now\n.*--output"):
        plan_in(tmp_path, rounds=5)
    assert plan_in(tmp_path, "mgda", rounds=3, deadline=9.0).specs


def test_figures_of_runs_that_all_failed_may_be_overwritten(tmp_path: Path) -> None:
    figures(tmp_path, "failed", {"rounds": 3})
    assert plan_in(tmp_path, rounds=5).specs
    (tmp_path / "comparison.json").write_text("[]")
    assert plan_in(tmp_path, rounds=5).specs


TINY_KEYS: dict[str, Any] = {key.replace(".", "__"): value for key, value in TINY.items()}
