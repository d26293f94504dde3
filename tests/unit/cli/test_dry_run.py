from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.cli import FakeRun, call

SMALL = [f"--set={pair}" for pair in ("clients=2", "rounds=3", "model=logistic", "local.threads=1", "partition=iid")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_is_shown_and_not_run(fake: FakeRun, folder: Path) -> None:
    result = call("run", "digits", *SMALL, "--set=method=fedavg", "--output", "out", "--dry-run")
    assert (result.exit_code, fake.settings) == (0, [])
    for words in ("2, 2 asked in a round", "D = 650 parameters", "2.69 kB up, 2.71 kB down", "an estimate"):
        assert words in result.stdout
    assert "out" in result.stdout.split("folder")[1]
    assert list(folder.iterdir()) == []


def test_a_comparison_is_shown_and_not_run(folder: Path) -> None:
    words = ("compare", "digits", *SMALL, "--methods", "dqn-fed,fedavg", "--seeds", "0,1", "--grid", "local.lr=0.1,0.2")
    result = call(*words, "--dry-run", "--output", "out", "--json", "out.json")
    assert result.exit_code == 0
    for text in ("DQN-Fed; FedAvg", "4 final and 4 of the search", "D = 650", "5.42 kB", "processes"):
        assert text in result.stdout
    assert list(folder.iterdir()) == []


def test_a_submission_is_shown_as_far_as_it_is_known_here(folder: Path) -> None:
    shown = call("submit", "digits", "hospital", *SMALL, "--dry-run")
    assert shown.exit_code == 0
    assert "D = 650" in shown.stdout
    elsewhere = call("submit", "digits", "hospital", *SMALL, "--set", "data=/data/mine.npz", "--dry-run")
    assert elsewhere.exit_code == 0
    assert elsewhere.stdout.startswith("The settings are sound. Sizes are not known here")
    assert "/data/mine.npz" in elsewhere.stdout
    assert list(folder.iterdir()) == []


def test_a_line_is_reckoned_with(folder: Path) -> None:
    words = [*SMALL, "--set=method=fedavg", "--dry-run", "--line", "20kbit/10kbit"]
    for command in (("run", "digits"), ("submit", "digits", "hospital")):
        shown = " ".join(re.sub("[│\\s]+", " ", call(*command, *words).stdout).split())
        assert "on a line 20 kbit/s down, 10 kbit/s up: 3.2 seconds a round (1.1 down, 2.2 up) in one" in shown
    table = call("compare", "digits", *SMALL, "--methods=fedavg", "--seeds=0", "--dry-run", "--line=10kbit").stdout
    assert "on 10 kbit/s" in table
    assert "4.3 seconds" in table
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("command", [("run",), ("compare",), ("submit",)], ids=" ".join)
def test_a_line_without_a_dry_run_is_refused(command: tuple[str, ...]) -> None:
    where = ["hospital"] if command == ("submit",) else []
    result = call(*command, "digits", *where, "--line", "10Mbit")
    assert result.exit_code == 2
    assert "--line: found '10Mbit' without --dry-run; " in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "digits", "--set", "rounds=0"), "rounds: "),
        (("run", "digits", "--set", "data=no.npz"), "no.npz"),
        (("run", "digits", "--set", "model=nothing:model"), "module 'nothing' cannot be imported"),
        (("run", "digits", "--line", "10Mbps"), "--line: found '10Mbps'; allowed is a number above 0 with bit, kbit"),
        (("compare", "digits", "--set", "data=no.npz"), "no.npz"),
        (("submit", "digits", "hospital", "--set", "data=mine.npz"), "give an absolute path on the devices"),
        (("submit", "digits", "./hospital"), "no federation.toml there"),
    ],
)
def test_faults_end_with_2(words: tuple[str, ...], message: str) -> None:
    result = call(*words, "--dry-run")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.usefixtures("fake")
def test_a_folder_that_holds_a_run_is_refused_as_the_run_would(folder: Path) -> None:
    (folder / "checkpoint.npz").write_text("damaged")
    result = call("run", "digits", *SMALL, "--output", str(folder), "--dry-run")
    assert result.exit_code == 2
    assert "holds a run that cannot be read" in result.stderr
    assert call("run", "digits", *SMALL, "--output", str(folder), "--dry-run", "--overwrite").exit_code == 0
