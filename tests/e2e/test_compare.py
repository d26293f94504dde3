"""A small comparison from the command line: real digits, two methods, two seeds, two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.cli import call

DQNFED = [sys.executable, "-c", "from dqnfed_flwr.cli import main; main()"]
DIGITS = ("compare", "digits", "--seeds", "0,1", "--jobs", "2", "--set", "rounds=3", "--output")


def compare(folder: Path, *options: str) -> str:
    result = call(*DIGITS, str(folder), *options)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare")
    done = subprocess.run([*DQNFED, *DIGITS, str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "[4/4] " in done.stdout
    return path


def test_every_run_has_a_folder_and_a_place_in_the_table(folder: Path) -> None:
    for method in ("dqn-fed", "fedavg"):
        for seed in (0, 1):
            run = folder / "runs" / method / f"seed-{seed}"
            assert len((run / "events.jsonl").read_text().splitlines()) == 3
            assert json.loads((run / "run.json").read_text())["settings"]["seed"] == seed
    figures = json.loads((folder / "comparison.json").read_text())
    ours, theirs = figures["methods"]
    assert (ours["label"], theirs["label"], figures["reference"]) == ("DQN-Fed", "FedAvg", "DQN-Fed")
    assert ours["figures"]["rho_min"]["mean"] == 1.0
    mean = theirs["difference"]["mean"]
    difference = theirs["figures"]["mean"]["mean"] - ours["figures"]["mean"]["mean"]
    assert mean["estimate"] == pytest.approx(difference)
    assert mean["low"] <= mean["estimate"] <= mean["high"]


def test_the_same_command_again_runs_nothing(folder: Path) -> None:
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    shown = compare(folder)
    assert "4 of 4 runs are there already" in shown
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")} == written


@pytest.mark.usefixtures("warm_workers")
def test_a_grid_goes_on_in_a_folder_of_its_own(tmp_path: Path) -> None:
    grid = ["--methods", "fedavg", "--grid", "local.lr=0.001,0.5", "--grid-rounds", "2", "--seeds", "0"]
    assert "chosen" in compare(tmp_path, *grid)
    assert (tmp_path / "grid" / "fedavg,local.lr=0.001" / "seed-0" / "run.json").exists()
    assert not (tmp_path / "runs" / "fedavg,local.lr=0.001").exists()
    assert json.loads((tmp_path / "comparison.json").read_text())["methods"][0]["chosen"] == {"local.lr": 0.5}


@pytest.mark.usefixtures("warm_workers")
def test_runs_on_data_that_were_replaced_are_neither_read_nor_mixed(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    labels, samples = draw.integers(0, 2, 300), draw.standard_normal((300, 3)).astype(np.float32)
    options = ["--methods", "fedavg", "--set", f"data={tmp_path / 'd.npz'}", "--set", "clients=3", "--seeds"]
    np.savez(tmp_path / "d.npz", x_train=samples, y_train=labels)
    compare(tmp_path / "results", *options, "0")
    assert "1 of 1 runs are there already" in compare(tmp_path / "results", *options, "0")
    np.savez(tmp_path / "d.npz", x_train=samples, y_train=draw.permutation(labels))
    for seeds in ("0", "0,1"):
        result = call(*DIGITS, str(tmp_path / "results"), *options, seeds)
        assert result.exit_code == 2
        assert "seed-0 holds a run on other data; fingerprint of" in " ".join(result.stderr.split())
    assert not (tmp_path / "results" / "runs" / "fedavg" / "seed-1").exists()
