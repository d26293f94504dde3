"""Files of a user's own, used from another directory than their own, without PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

CODE = """
from torch import nn

def model(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)
"""
SMALL = {"clients": 2, "rounds": 1, "partition": "iid", "local.threads": 1, "method": "fedavg"}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with a module, data and settings."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "ownmodel.py").write_text(CODE)
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    np.savez(folder / "set.npz", x_train=x, y_train=y)
    (folder / "mine.yaml").write_text(yaml.safe_dump({**SMALL, "model": "ownmodel:model", "data": "set.npz"}))
    return folder


def dqnfed(directory: Path, *words: str, path: str = str(Path(sys.executable).parent)) -> str:
    """What the command prints there; `path` is where it is found."""
    directory.mkdir(exist_ok=True)
    own = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(__file__).parents[3]), "PATH": path}
    done = subprocess.run(
        ["dqnfed", *words],
        cwd=directory,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_a_run_of_own_files_and_its_resumption_from_elsewhere(own: Path, tmp_path: Path, warm: str) -> None:
    pytest.importorskip("safetensors")
    words = ("run", "--quiet", "--output", str(tmp_path / "out"))
    dqnfed(tmp_path / "here", *words, "../own/mine.yaml", path=warm)
    assert record(tmp_path / "out")["modules"] == [str(tmp_path / "own")]
    dqnfed(tmp_path / "there", *words, str(own / "mine.yaml"), "--resume", "--set", "rounds=2", path=warm)
    found = record(tmp_path / "out")
    assert (found["rounds"], found["settings"]["data"]) == (2, str(own / "set.npz"))
    assert "model.safetensors" in dqnfed(tmp_path / "there", "export", str(tmp_path / "out"), path=warm)


def test_paths_of_set_begin_in_the_working_directory(own: Path, tmp_path: Path, warm: str) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (own / "set.npz").rename(here / "other.npz")
    words = ("run", str(own / "mine.yaml"), "--quiet", "--set", "data=other.npz", "--set", "output=out")
    dqnfed(here, *words, path=warm)
    assert record(here / "out")["settings"]["data"] == str(here / "other.npz")


@pytest.mark.slow
def test_workers_of_a_comparison_and_of_a_manifest_see_the_same(own: Path, tmp_path: Path) -> None:
    (own / "mine.yaml").write_text((own / "mine.yaml").read_text() + "dtype: float64\n")
    dqnfed(tmp_path / "here", "compare", str(own / "mine.yaml"), "--methods", "fedavg", "--seeds", "0", "--output", "c")
    assert record(tmp_path / "here/c/runs/fedavg/seed-0")["settings"]["data"] == str(own / "set.npz")
    shared = {key: value for key, value in SMALL.items() if key != "method"}
    part = {
        "title": "Mine",
        "settings": {**shared, "model": "ownmodel:model", "data": "set.npz"},
        "rows": [{"method": "fedavg"}],
        "reduced": {"settings": {"rounds": 1}},
    }
    manifest = {"title": "My table", "source": "mine", "seeds": [0], "parts": {"one": part}}
    (own / "table.yaml").write_text(yaml.safe_dump(manifest))
    dqnfed(tmp_path / "here", "reproduce", str(own / "table.yaml"), "--output", "r")
    assert record(tmp_path / "here/r/one/runs/fedavg/seed-0")["settings"]["data"] == str(own / "set.npz")
