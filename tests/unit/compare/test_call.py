"""A comparison from Python, with objects."""

from __future__ import annotations

import json
import logging
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from dqnfed_flwr.compare import compare, workers
from dqnfed_flwr.compare.workers import packed
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, RunError
from tests.helpers.own_task import Line

SETTINGS: dict[str, str | int | float] = {"clients": 2, "rounds": 2, "local.threads": 1}
X, Y = np.random.default_rng(3).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3


def figures(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.glob("runs/*/*/run.json")):
        record = json.loads(path.read_text())
        found[str(path.parent.relative_to(folder))] = record.get("accuracies") or record["test"]
    return found


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(
    "given",
    [{"task": Line()}, {"data": (X, Y)}, {"data": lambda k, n, s: {"x_train": X[k::n], "y_train": Y[k::n]}}],
    ids=["task", "arrays", "function"],
)
def test_runs_here_and_in_other_processes_are_the_same(given: dict[str, Any], tmp_path: Path) -> None:
    settings = {**SETTINGS, "partition": "iid"}
    here = compare(settings, ["dqn-fed", "fedavg"], seeds=[0, 1], output=tmp_path / "here", **given)
    compare(settings, "dqn-fed,fedavg", seeds="0,1", output=tmp_path / "there", jobs=2, **given)
    found = figures(tmp_path / "here")
    assert found == figures(tmp_path / "there")
    assert sorted(found) == [f"runs/{method}/seed-{seed}" for method in ("dqn-fed", "fedavg") for seed in (0, 1)]
    alone = run({**settings, "method": "fedavg", "seed": 1}, **given)
    assert found["runs/fedavg/seed-1"] == {str(client): value for client, value in alone.accuracies.items()}
    assert [row.spec.method for row in here.comparison.rows] == ["dqn-fed", "fedavg"]
    assert str(here) == (tmp_path / "here" / "comparison.md").read_text()
    assert here._repr_markdown_() == str(here)
    assert {path.name for path in here.files} >= {"comparison.json", "comparison.md", "comparison.csv"}
    assert multiprocessing.active_children() == []


def test_a_file_is_read_as_run_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    np.savez(mine / "set.npz", allow_pickle=False, x_train=X, y_train=Y)
    (mine / "beside_it.py").write_text(
        "from torch import nn\n\ndef net(shape, n):\n    return nn.Linear(shape[0], n)\n"
    )
    (mine / "mine.yaml").write_text("data: set.npz\nmodel: beside_it:net\nclients: 2\nrounds: 1\n")
    monkeypatch.chdir(tmp_path)
    found = compare("mine/mine.yaml", "fedavg", seeds=[0], output=tmp_path / "out")
    assert [row.reason for row in found.comparison.rows] == [""]


def test_settings_choose_what_they_change_and_nothing_else(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"clients": 2, "rounds": 1, "partition": "iid"})
    plan = compare(settings, "fedavg", seeds=[0], output=tmp_path, grids=["local.lr=0.1,0.2"]).comparison.plan
    chosen = {"clients": 2, "rounds": 1, "partition": "iid"}
    assert plan.config == {**chosen, "local.threads": 1, "split.validation-fraction": 0.1}


def test_the_same_call_again_runs_nothing_twice(tmp_path: Path) -> None:
    def once() -> dict[str, int]:
        compare(SETTINGS, "fedavg", seeds=[0], output=tmp_path, task=Line())
        return {str(path): path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/run.json")}

    assert once() == once()
    settings, folder = {**SETTINGS, "partition": "iid"}, tmp_path / "data"
    compare(settings, "fedavg", seeds=[0], output=folder, data=(X, Y))
    with pytest.raises(ConfigError, match="holds a run on other data"):
        compare(settings, "fedavg", seeds=[0], output=folder, data=(X + 1, Y))


class Unwritable(Line):
    """A task that no other process can be handed."""

    def __reduce__(self) -> Any:
        raise TypeError("it holds a camera")


def test_what_cannot_be_pickled_runs_here_and_that_is_said(tmp_path: Path, said: list[str]) -> None:
    done = compare(SETTINGS, "fedavg", seeds=[0], output=tmp_path, jobs=2, task=Unwritable())
    assert [row.good[0].status for row in done.comparison.rows] == ["finished"]
    assert said == [
        "task cannot be pickled, so that the runs go on one after the other in this process; put the class or "
        "function into a module for jobs=2"
    ]


def test_without_cloudpickle_what_a_notebook_defines_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WRITER", "no_such_package_here")
    assert packed({"task": Line()}, {"task": "object:Line"}) is not None
    assert packed({"data": lambda k, n, s: {}}, {"data": "object:function"}) is None
    monkeypatch.setattr(Line, "__module__", "__main__")
    assert packed({"task": Line()}, {"task": "object:Line"}) is None


class Raising(Line):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        raise ValueError("no loss today")


def test_a_failed_run_says_why_and_stops_no_other(tmp_path: Path) -> None:
    level = logging.getLogger("flwr").level
    with pytest.raises(RunError, match=r"every run failed; the first: task: client 0: losses\(\) raised ValueError"):
        compare(SETTINGS, "fedavg", seeds=[0, 1], output=tmp_path, task=Raising())
    assert "Traceback" in (tmp_path / "runs" / "fedavg" / "seed-1" / "log.txt").read_text()
    assert logging.getLogger("flwr").level == level
    with pytest.raises(ConfigError, match="fedavgg"):
        compare(SETTINGS, "fedavgg", output=tmp_path / "other")


SCRIPT = """
from torch import nn
from dqnfed_flwr.compare import compare
from tests.helpers.own_task import Line

class Mine(Line):
    def model(self):
        return nn.Linear(3, 1, bias=False)

if __name__ == "__main__":
    settings = {"clients": 2, "rounds": 1, "local.threads": 1}
    print(len(compare(settings, "fedavg", seeds=[0], output=OUTPUT, jobs=2, task=Mine()).comparison.rows[0].good))
"""


def test_a_class_of_the_script_itself_reaches_the_processes(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.replace("OUTPUT", repr(str(tmp_path / "out"))))
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(script)], env={"PYTHONPATH": root}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1", done.stderr[-2000:]
