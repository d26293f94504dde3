from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.cli import FakeRun, call

SHORT = ("--set", "rounds=4", "--set", "split.samples=200")


def test_a_configuration_is_trained_and_measured(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = call("diagnose", "digits", *SHORT, "--every", "2", "--output", str(folder))
    assert result.exit_code == 0, result.output
    assert "Lengths of the step, as factors" in result.stdout
    assert "- In the mean over 2 measured rounds" in " ".join(result.stdout.split())
    figures = json.loads((folder / "diagnosis.json").read_text())
    assert [found["round"] for found in figures["rounds"]] == [2, 4]
    assert (folder / "diagnosis.png").stat().st_size > 10_000
    again = call("diagnose", str(folder))
    assert again.exit_code == 0
    assert again.stdout.splitlines() == result.stdout.splitlines()[-len(again.stdout.splitlines()) :]


def test_ten_rounds_are_measured_unless_told_otherwise(fake: FakeRun) -> None:
    call("diagnose", "digits", "--set", "rounds=55")
    call("diagnose", "digits", "--set", "rounds=4")
    call("diagnose", "digits", "--set", "step.diagnose-every=7")
    call("diagnose", "digits", "--every", "3")
    assert [settings.step.diagnose_every for settings in fake.settings] == [5, 1, 7, 3]


def test_a_run_that_was_not_measured_shows_how_losses_rose(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert call("run", "digits", *SHORT, "--quiet", "--output", str(folder)).exit_code == 0
    result = call("diagnose", str(folder))
    assert result.exit_code == 0
    assert "rose in" in result.stdout
    assert "No round of this run was measured" in " ".join(result.stdout.split())
    assert not (folder / "diagnosis.png").exists()
    given = call("diagnose", str(folder), "--every", "2")
    assert given.exit_code == 2
    assert "is a run that was trained; --set and --every go with a configuration" in given.stderr


def test_a_folder_of_no_finished_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("")
    result = call("diagnose", str(tmp_path))
    assert result.exit_code == 1
    assert "no result of a finished run, run.json is missing" in " ".join(result.stderr.split())
