"""A new task runs as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers.cli import call
from tests.helpers.markdown import blocks


def in_shell(command: str, directory: Path, path: str) -> str:
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(directory / "mine")}
    done = subprocess.run(
        ["bash", "-ec", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    result = call("new", str(tmp_path / "mine"))
    assert result.exit_code == 0
    names = ["mine.py", "mine.yaml", "test_mine.py", "README.md"]
    assert result.output.split() == [str(tmp_path / "mine" / name) for name in names]
    return tmp_path


def test_a_dry_run_shows_the_data_and_the_model_of_the_task(mine: Path, warm: str) -> None:
    shown = in_shell("dqnfed run mine/mine.yaml --dry-run", mine, warm)
    words = " ".join(shown.replace("│", " ").split())
    assert "of task mine:Mine: 357 samples to train on, 0 for validation, 85 to test on" in words
    assert "71 to 72, median 71" in words
    assert "of task mine:Mine, D = 385 parameters" in words


def test_every_command_of_its_readme_runs(mine: Path, warm: str) -> None:
    (block,) = blocks(mine / "mine" / "README.md")
    printed = in_shell(block.text, mine, warm)
    assert "1 passed" in printed
    assert (mine / "runs" / "mine" / "run.json").exists()
    assert (mine / "runs" / "mine-compared" / "comparison.md").exists()


def test_the_task_is_short_and_named_after_the_folder(mine: Path) -> None:
    text = (mine / "mine" / "mine.py").read_text()
    assert len(text.splitlines()) <= 25
    assert "class Mine(Task):" in text
    assert "$" not in "".join(path.read_text() for path in (mine / "mine").iterdir())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my-task", "'my-task' is no name of a module; give small letters"),
        ("class", "'class' is no name of a module"),
        ("json", "'json' is the name of a module that is installed here"),
        ("mine", "mine: is there already; give another name"),
    ],
)
def test_names_that_cannot_be_are_refused(name: str, message: str, mine: Path) -> None:
    before = sorted(mine.rglob("*"))
    result = call("new", str(mine / name))
    assert result.exit_code == 2
    assert message in result.output
    assert sorted(mine.rglob("*")) == before
