from __future__ import annotations

import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.common.logger import console_handler
from rich.console import Console

from dqnfed_flwr.cli.command import Engine
from dqnfed_flwr.cli.run import train, verdict
from dqnfed_flwr.errors import DataError, ModelError, QuorumError
from dqnfed_flwr.guarantee.overrule import Certificate
from dqnfed_flwr.telemetry.events import DroppedClient
from tests.helpers.cli import FakeRun, call, ended
from tests.helpers.runs import make_event, make_result


def test_settings_without_effect_are_named(fake: FakeRun, tmp_path: Path) -> None:
    result = call("run", "digits", "--set", "q-ffl.q=5", "--set", "rounds=3", "--set", "step.radius=0.1")
    assert result.stderr == "dqnfed: no effect with dqn-fed: q-ffl.q, step.radius\n"
    assert call("run", "digits", "--set", "rounds=3").stderr == ""  # its batch-size is not the user's
    file = tmp_path / "mine.yaml"
    file.write_text("local: {momentum: 0.5}\n")
    assert call("run", str(file), "--quiet").stderr == "dqnfed: no effect with dqn-fed: local.momentum\n"
    assert call("run", str(file), "--set", "method=fedavg").stderr == ""
    assert len(fake.settings) == 4


def test_run_shows_progress_and_table(fake: FakeRun) -> None:
    result = call("run", "digits")
    assert result.exit_code == 0
    assert "DQN-Fed: round 1/2  mean  55.0 %  worst  40.0 %  ρ 1.00" in result.stdout
    assert "DQN-Fed: round 2/2  mean  65.0 %  worst  50.0 %  ρ 0.75" in result.stdout
    assert "worst 10 % of clients" in result.stdout
    assert (fake.settings[0].data, fake.settings[0].output, fake.engines) == ("digits", "", ["in-process"])


def test_overrides_are_laid_over_the_file(fake: FakeRun, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("rounds: 3\nlocal: {epochs: 2}\n")
    options = ["--set", "local.lr=1e-2", "--set", "method=fedavg", "--set", "rounds=7", "--engine", "flower"]
    assert call("run", str(file), *options).exit_code == 0
    settings = fake.settings[0]
    assert (settings.rounds, settings.local.epochs, settings.local.lr) == (7, 2, 0.01)
    assert (settings.method, fake.engines) == ("fedavg", ["flower"])


def test_results_are_written_and_named(fake: FakeRun, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    result = call("run", "digits", "--output", str(folder))
    assert result.exit_code == 0
    assert fake.settings[0].output == str(folder)
    for name in ("run.json", "model.npz", "events.jsonl", "plot.png"):
        assert (folder / name).stat().st_size > 0
        assert str(folder / name) in result.stdout


def test_output_becomes_absolute(fake: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("run", "digits", "--output", "here").exit_code == 0
    assert call("run", "digits", "--set", "output=here").exit_code == 0
    assert [settings.output for settings in fake.settings] == [str(tmp_path / "here")] * 2


@pytest.mark.usefixtures("fake")
def test_json_to_stdout_is_alone_there() -> None:
    result = call("run", "digits", "--json", "-")
    assert result.exit_code == 0
    figures: dict[str, Any] = json.loads(result.stdout)
    assert {"settings", "final", "improved_ratio", "exchanges", "bytes_up", "bytes_down", "seconds"} <= figures.keys()
    assert figures["improved_ratio"] == [1.0, 0.75]
    assert {"mean", "std", "worst10", "best10", "angle_deg", "kl_uniform", "jain"} <= figures["final"].keys()
    assert "round 2/2" in result.stderr
    assert "worst client" in result.stderr


@pytest.mark.usefixtures("fake")
def test_json_to_a_file_and_quiet(tmp_path: Path) -> None:
    result = call("run", "digits", "--quiet", "--json", str(tmp_path / "out.json"))
    assert (result.exit_code, result.output) == (0, "")
    assert json.loads((tmp_path / "out.json").read_text())["rounds"] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["digit"], "'digit' is no shipped experiment (cifar10-setup1, digits"),
        (["none.yaml"], "No such file"),
        (["digits", "--set", "round=3"], "round: unknown key"),
        (["digits", "--set", "rounds"], "--set: found 'rounds'; give KEY=VALUE"),
        (["digits", "--set", "=3"], "give KEY=VALUE"),
        (["digits", "--set", "rounds=[1, 2]"], "--set rounds: found '[1, 2]'"),
        (["digits", "--set", "rounds=many"], "'many'"),
        (["digits", "--engine", "docker"], "'docker'"),
        (["digits", "--resume"], "resume: needs output"),
        (["digits", "--resume", "--overwrite", "--output", "x"], "give one of the two"),
        (["digits", "--output", "/dev/null/here"], "output: cannot write to /dev/null/here"),
        (["digits", "--json", "/dev/null/here"], "--json: cannot write to /dev/null/here"),
        ([], "Missing argument 'CONFIG'"),
    ],
)
def test_faulty_call_ends_before_training_with_status_2(fake: FakeRun, arguments: list[str], reason: str) -> None:
    result = call("run", *arguments)
    assert (result.exit_code, fake.settings) == (2, [])
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_failed_run_ends_with_status_1_and_the_reason(fake: FakeRun) -> None:
    fake.error = QuorumError("1 of 10 clients answered")
    result = call("run", "digits")
    assert result.exit_code == 1
    assert result.stderr == "dqnfed: 1 of 10 clients answered\n"


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_an_early_end_has_a_status_of_its_own_and_leaves_its_results(
    fake: FakeRun, tmp_path: Path, quiet: list[str]
) -> None:
    fake.status = "pareto-stationary"
    fake.events = ended("stationary", certificate=Certificate({0: 0.25, 3: 0.75}, 1e-5))
    json_path = tmp_path / "figures.json"
    result = call("run", "digits", "--output", str(tmp_path), "--json", str(json_path), *quiet)
    assert result.exit_code == 4
    (said,) = result.stderr.splitlines()
    assert said.startswith("dqnfed: The run ended early, as pareto-stationary, after round 2 of ")
    assert "clients 3 (0.75), 0 (0.25), weighted so, sum to a vector of length 1e-05" in said
    for key in ("guarantee.tolerate", "step.on-stationary", "guarantee.entitlement"):
        assert key in said
    assert json.loads(json_path.read_text())["status"] == "pareto-stationary"
    assert (tmp_path / "run.json").exists()
    assert quiet or ("moved the model" in result.stdout and "1 of 2 rounds" in result.stdout)


def test_a_run_that_stalled_has_a_status_of_its_own_and_leaves_its_results(fake: FakeRun, tmp_path: Path) -> None:
    fake.status = "stalled"
    fake.events = ended("unjudged", dropped=[DroppedClient(2, "client-error", "code 2: ValueError: no")])
    result = call("run", "digits", "--output", str(tmp_path))
    assert result.exit_code == 5
    head, first, second = result.stderr.splitlines()
    assert head.startswith("dqnfed: The run stalled after round 2 of ")
    assert "unjudged" in first
    assert (
        "client-error: client 2 (1) without a part, in 1 round of 1; client 2 first: code 2: ValueError: no" in second
    )
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "stalled"
    assert "stalled" in result.stdout
    assert "5 it stalled" in " ".join(call("run", "--help").stdout.split())


def test_a_line_search_that_failed_names_who_refused(fake: FakeRun) -> None:
    fake.status = "line-search-failed"
    fake.events = ended("line-search-failed", refused=[1, 2], certificate=Certificate({1: 1.0}, 0.5))
    result = call("run", "digits", "--json", "-")
    assert result.exit_code == 4
    assert "clients 1, 2 refused its step, until no length was left to try; a common direction exists" in result.stderr
    assert json.loads(result.stdout)["rounds_moved"] == 1


def test_a_run_that_cannot_go_on_ends_with_status_2(tmp_path: Path) -> None:
    result = call("run", "digits", "--output", str(tmp_path), "--resume", "--quiet")
    assert result.exit_code == 2
    assert "no checkpoint there; start the run without resume" in result.stderr
    given = ["run", "digits", "--output", str(tmp_path), "--set", "rounds=1", "--quiet"]
    assert call(*given).exit_code == 0
    other = call(*given, "--set", "split.alpha=0.1", "--resume")
    assert (other.exit_code, "split.alpha: 0.5 then, 0.1 now" in other.stderr) == (2, True)


def test_a_bug_is_not_hidden(fake: FakeRun) -> None:
    fake.error = ZeroDivisionError()
    result = call("run", "digits")
    assert (result.exit_code, type(result.exception)) == (1, ZeroDivisionError)


def test_interrupt_says_how_to_go_on(fake: FakeRun, tmp_path: Path) -> None:
    fake.error = KeyboardInterrupt()
    folder = tmp_path / "a run"
    result = call("run", "digits", "--set", "rounds=9", "--engine", "flower", "--output", str(folder))
    assert result.exit_code == 130
    command = f"dqnfed run digits --set rounds=9 --engine flower --output '{folder}' --resume"
    assert f"go on with: {command}\n" in result.stderr
    fake.error = None
    assert call("run", "digits", "--set", "rounds=9", "--output", str(folder), "--resume").exit_code == 0
    assert fake.settings[1].resume


def test_interrupt_carries_every_option_on(fake: FakeRun, tmp_path: Path) -> None:
    fake.error = KeyboardInterrupt()
    result = call("run", "digits", "-q", "--json", "-", "--overwrite", "--output", str(tmp_path))
    assert result.stderr.endswith(f"go on with: dqnfed run digits -q --json - --output {tmp_path} --resume\n")
    assert fake.overwrites == [True]


@pytest.mark.parametrize("options", [[], ["--overwrite"]])
def test_interrupt_before_the_first_checkpoint_does_not_advise_to_resume(
    fake: FakeRun, tmp_path: Path, options: list[str]
) -> None:
    fake.error, fake.saves = KeyboardInterrupt(), False
    if options:
        (tmp_path / "checkpoint.npz").touch()  # of the run that is to be replaced
    json_path = tmp_path / "figures.json"
    result = call("run", "digits", "--output", str(tmp_path), "--json", str(json_path), *options)
    assert result.exit_code == 130
    assert "no checkpoint was written yet; the same command begins anew" in result.stderr
    assert not json_path.exists()


def test_what_a_json_file_held_stays_where_a_run_fails(fake: FakeRun, tmp_path: Path) -> None:
    fake.error = QuorumError("too few")
    for text in ("{}", ""):
        (tmp_path / "old.json").write_text(text)
        assert call("run", "digits", "--json", str(tmp_path / "old.json")).exit_code == 1
        assert (tmp_path / "old.json").read_text() == text


@pytest.mark.parametrize("error", [DataError("data: no file"), ModelError("model: unknown name")])
def test_data_and_model_at_fault_end_with_status_2(fake: FakeRun, error: Exception) -> None:
    fake.error = error
    result = call("run", "digits")
    assert (result.exit_code, result.stderr) == (2, f"dqnfed: {error}\n")


def test_interrupt_without_output_says_that_nothing_is_kept(fake: FakeRun) -> None:
    fake.error = KeyboardInterrupt()
    result = call("run", "digits")
    assert result.exit_code == 130
    assert "nothing was kept; with --output DIR" in result.stderr


def test_a_plot_that_cannot_be_written_costs_the_plot_only(fake: FakeRun, tmp_path: Path) -> None:
    (tmp_path / "plot.png").mkdir()
    result = call("run", "digits", "--output", str(tmp_path))
    assert (result.exit_code, len(fake.settings)) == (0, 1)
    assert re.search(r"no plot: .*plot\.png: the plot cannot be written", result.stdout)


def test_what_flower_logs_has_colours_on_a_terminal_alone(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_handler, "colored", True)
    assert call("run", "digits").exit_code == 0
    record = logging.LogRecord("flwr", logging.WARNING, "", 0, "left out", None, None)
    assert "\x1b" not in console_handler.format(record)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train(fake.settings[0], Console(quiet=True), "", Engine.IN_PROCESS)
    assert "\x1b" in console_handler.format(record)


def test_clients_left_out_of_most_rounds_end_a_strict_run_with_3(fake: FakeRun) -> None:
    fake.events = [
        replace(event, participants=[0, 1, 2], losses_before=[1.0] * 3, losses_after=[0.5] * 3, no_part=[3])
        for event in fake.events
    ]
    assert call("run", "digits").exit_code == 0
    result = call("run", "digits", "--strict")
    assert result.exit_code == 3
    assert "dqnfed: Asked, and without a part in most of the rounds: client 3 in 2 of 2" in result.stderr
    assert "no part in most rounds, though asked" in result.stdout
    fake.events = [replace(event, no_part=[]) for event in fake.events]
    assert call("run", "digits", "--strict").exit_code == 0


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
