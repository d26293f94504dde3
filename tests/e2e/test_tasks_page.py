"""What docs/tasks.md promises beyond its blocks, which test_docs runs: listeners, the notebook, lengths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from dqnfed_flwr.tasks import TASKS
from tests.helpers.markdown import Block, blocks, names, section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tasks.md"
NOTEBOOK = ROOT / "docs" / "notebooks" / "own_task.ipynb"


def file_of(name: str) -> Block:
    (found,) = (block for block in blocks(PAGE) if block.file_name == name)
    return found


def test_an_own_task_takes_25_lines_and_own_data_three() -> None:
    assert len([line for line in file_of("patients.py").text.splitlines() if line.strip()]) <= 25
    (block,) = (block.text for block in blocks(PAGE) if "csv:patients.csv" in block.text)
    assert len(block.partition("import run\n")[2].partition("print")[0].strip().splitlines()) <= 3


def test_the_page_names_every_shipped_task() -> None:
    assert names(section(PAGE, "Tasks that come along")) == list(TASKS)


TENSORBOARD = """
from listeners import ToTensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from dqnfed_flwr import run

result = run(SETTINGS, listeners=[ToTensorBoard("board")])
board = EventAccumulator("board")
board.Reload()
found = {name: [(each.step, each.value) for each in board.Scalars(name)] for name in board.Tags()["scalars"]}
"""
MLFLOW = """
import mlflow
from listeners import ToMlflow
from dqnfed_flwr import run

result = run(SETTINGS, listeners=[ToMlflow("board")])
client = mlflow.MlflowClient()
(logged,) = client.search_runs(["0"])
assert logged.info.status == "FINISHED"
history = {name: client.get_metric_history(logged.info.run_id, name) for name in logged.data.metrics}
found = {name: [(each.step, each.value) for each in values] for name, values in history.items()}
"""
WANDB = """
from pathlib import Path
from listeners import ToWandb
from dqnfed_flwr import run

run(SETTINGS, listeners=[ToWandb("board")])
assert list(Path("board").rglob("*.wandb"))
"""
CHECK = """
assert set(found) == {"loss", "worst loss", "figure", "lowest figure", "unharmed"}, found
for step, value in found["worst loss"]:
    assert abs(value - max(result.events[step - 1].losses_after)) < 1e-5
assert [step for step, _ in found["lowest figure"]] == [1, 2]
print("seen")
"""


@pytest.mark.parametrize(
    ("package", "script"),
    [("tensorboard", TENSORBOARD + CHECK), ("mlflow", MLFLOW + CHECK), ("wandb", WANDB + "print('seen')")],
)
def test_listeners_write_what_happened(package: str, script: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    (tmp_path / "listeners.py").write_text(file_of("listeners.py").text)
    settings = {"clients": 3, "rounds": 2, "model": "logistic", "split.samples": 150, "local.threads": 1}
    (tmp_path / "script.py").write_text(script.replace("SETTINGS", repr(settings)))
    path = os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["seen"], done.stderr[-3000:]


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    space: dict[str, object] = {"__name__": "notebook"}
    for place, cell in enumerate(cells):
        exec(compile(cell, f"own_task cell {place}", "exec"), space)
    printed = capsys.readouterr().out
    assert "finished [1.0, 1.0" in printed
    assert float(printed.rpartition("mean absolute error: ")[2]) < 0.8
    assert "DQN-Fed" in str(space["compared"])
    assert all(not cell.get("outputs") for cell in notebook["cells"])
