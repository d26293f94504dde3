"""Reports about single runs and folders of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.report.page import write_report
from tests.helpers import runs
from tests.helpers.runs import make_event


def leave_run(folder: Path, method: str, **changes: object) -> None:
    settings = Settings.from_mapping({"method": method, "rounds": 2, "output": str(folder), **changes})
    events = [make_event(1, (0.4, 0.5)), make_event(2, (0.5, 0.6))]
    runs.leave_run(folder, events, (0.5, 0.6, 0.7, 0.8), settings)


def test_a_single_run_has_versions_one_title_and_what_is_not_default(tmp_path: Path) -> None:
    leave_run(tmp_path, "fedavg", **{"local.lr": 0.3})
    page, text = (path.read_text() for path in write_report(tmp_path, None))
    assert text.count(f"# {tmp_path.name}: test accuracy of the clients") == 1
    assert "- settings: rounds 2, local.lr 0.3\n" in text
    assert "versions: python 3." in text
    for found in (page, text):
        assert "recorded" not in found
        assert "accelerator" not in found


def test_a_folder_of_runs_is_a_comparison(tmp_path: Path) -> None:
    leave_run(tmp_path / "digits-fedavg", "fedavg", **{"local.epochs": 2})
    leave_run(tmp_path / "digits", "dqn-fed")
    leave_run(tmp_path / "again", "fedavg", **{"local.epochs": 3})
    text = write_report(tmp_path, None)[1].read_text()
    for row in ("DQN-Fed", "FedAvg [digits-fedavg]", "FedAvg [again]"):
        assert f"| {row} | 1 of 1 |" in text
    assert "- FedAvg [again]: local.epochs 3; FedAvg [digits-fedavg]: local.epochs 2\n" in text
    assert "DQN-Fed against each rival" in text
    assert "- settings: rounds 2\n" in text


@pytest.mark.parametrize(("count", "said"), [(6, False), (7, True)])
def test_grey_is_explained_where_there_are_more_methods_than_colours(tmp_path: Path, count: int, said: bool) -> None:
    methods = ("dqn-fed", "fedavg", "mgda", "fedsgd", "term", "afl", "fedlf")
    for method in methods[:count]:
        leave_run(tmp_path / method, method)
    page = write_report(tmp_path, None)[0].read_text()
    assert ("Grey: the other methods." in page) is said
    assert ('class="s mute' in page) is said


@pytest.mark.parametrize(("key", "old", "new"), [("method", "fedavg", "fedold"), ("partition", "dirichlet", "newkind")])
def test_a_run_whose_settings_this_version_does_not_know_is_refused(
    tmp_path: Path, key: str, old: str, new: str
) -> None:
    leave_run(tmp_path, "fedavg", partition="dirichlet")
    record = tmp_path / "run.json"
    record.write_text(record.read_text().replace(f'"{key}": "{old}"', f'"{key}": "{new}"'))
    with pytest.raises(ConfigError, match=rf"run\.json: cannot be read as a run .*{new}"):
        write_report(tmp_path, None)


@pytest.mark.parametrize("key", ["seed", "clients"])
def test_runs_of_other_clients_are_not_compared(tmp_path: Path, key: str) -> None:
    leave_run(tmp_path / "a", "fedavg")
    leave_run(tmp_path / "b", "dqn-fed", **{key: 7})
    with pytest.raises(ConfigError, match=f"its runs differ in {key}; give the folder of one run"):
        write_report(tmp_path, None)
