from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from dqnfed_flwr.cli.demo import verdict
from tests.helpers.cli import FakeRun, call, ended
from tests.helpers.runs import make_event, make_result


def test_demo_runs_both_and_draws_them(fake: FakeRun, tmp_path: Path) -> None:
    result = call("demo", "--output", str(tmp_path))
    assert result.exit_code == 0
    assert [settings.method for settings in fake.settings] == ["dqn-fed", "fedavg"]
    assert (tmp_path / "digits" / "run.json").exists()
    assert (tmp_path / "digits-fedavg" / "run.json").exists()
    assert (tmp_path / "plot.png").stat().st_size > 0
    assert re.search(r"DQN-Fed\s*┃\s*FedAvg", result.stdout)


def test_verdict_follows_from_the_figures() -> None:
    better = make_result([make_event(t, None) for t in (1, 2, 3)], (0.8, 0.9))
    worse = make_result([make_event(1, None), make_event(2, None, rho=0.5)], (0.5, 0.9))
    first, second = verdict(better, worse)
    assert "DQN-Fed: the training loss of every client fell in each of 3 rounds" in first
    assert "FedAvg: the training loss of some client rose in 1 of 2 rounds" in first
    assert "80.0% of its test digits with DQN-Fed and on 50.0% with FedAvg" in second
    swapped, _ = verdict(worse, better)
    assert "DQN-Fed: the training loss of some client rose in 1 of 2 rounds" in swapped


def test_verdict_counts_rounds_that_moved_the_model() -> None:
    stayed = [replace(make_event(t, None), factor=0.0, losses_after=[1.0] * 4) for t in (2, 3)]
    result = make_result([make_event(1, None), *stayed])
    first, _ = verdict(result, result)
    assert "every client fell in each of 1 rounds that moved the model, of 3" in first


def test_demo_says_that_a_run_ended_early(fake: FakeRun, tmp_path: Path) -> None:
    fake.status, fake.events = "line-search-failed", ended("line-search-failed", refused=[2])
    result = call("demo", "--output", str(tmp_path))
    assert result.exit_code == 0
    assert "DQN-Fed: The run ended early, as line-search-failed" in " ".join(result.stdout.split())


def test_verdict_tells_a_fall_from_a_standstill() -> None:
    event = make_event(1, None)
    event.losses_after[0] = event.losses_before[0]
    first, _ = verdict(make_result([event]), make_result([event]))
    assert "fell or stayed in each of 1 rounds" in first
