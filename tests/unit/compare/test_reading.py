from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dqnfed_flwr.compare.files import as_json
from dqnfed_flwr.compare.reading import read_comparison, read_runs
from dqnfed_flwr.config import Settings
from dqnfed_flwr.run_files import EVENTS, RUN
from tests.helpers.comparisons import make_comparison
from tests.helpers.runs import make_event, make_result


def write_run(folder: Path, *, without: tuple[str, ...] = (), old: Mapping[str, Any]) -> Path:
    """A finished run whose record has other keys in place of those of this version."""
    made = make_result([make_event(1, [0.5, 0.75])])
    folder.mkdir()
    made.write(folder)
    record = json.loads((folder / RUN).read_text())
    kept = {key: value for key, value in record["settings"].items() if key not in without}
    record["settings"] = {**kept, **old}
    (folder / RUN).write_text(json.dumps(record))
    (folder / EVENTS).write_text("".join(f"{event.to_json()}\n" for event in made.events))
    return folder


def settings_read(folder: Path) -> Settings:
    (record,) = read_runs(folder, [folder]).comparison.records
    return record.job.settings


def test_settings_of_an_earlier_version_are_read_under_their_new_names(tmp_path: Path) -> None:
    renamed = write_run(
        tmp_path / "renamed",
        without=("dqn-fed.anchor", "server-lbfgs.memory"),
        old={"dqn-fed.reference": "lbfgs", "dqn-fed.memory": 3},
    )
    found = settings_read(renamed)
    assert found.flat()["dqn-fed.anchor"] == "server-lbfgs"
    assert found.flat()["server-lbfgs.memory"] == 3


def test_a_run_from_before_the_entitlement_is_read_with_none(tmp_path: Path) -> None:
    found = settings_read(write_run(tmp_path / "strict", without=("guarantee.entitlement",), old={"admission": 3.0}))
    assert found.guarantee.entitlement == "0"


def test_keys_that_are_not_known_here_are_left_out(tmp_path: Path) -> None:
    found = settings_read(write_run(tmp_path / "later", old={"of-a-later-version": 1}))
    assert found == Settings()


def test_a_comparison_that_says_no_number_of_evaluations_counts_one(tmp_path: Path) -> None:
    record = as_json(make_comparison({"fedavg": [(0.5, 0.7)]}), "none", 1.0)
    del record["last"]
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert read_comparison(tmp_path).comparison.last == 1
