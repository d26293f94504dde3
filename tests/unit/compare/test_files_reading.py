from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr.compare.files import as_json, read_comparison, read_runs
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import read_final
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.run_files import EVENTS, RUN
from tests.helpers.comparisons import make_comparison
from tests.helpers.runs import make_event, make_result


def write_run(folder: Path, *, lost: str = "", more: Mapping[str, Any] | None = None) -> Path:
    """A finished run whose record lacks a setting, or has more of them."""
    made = make_result([make_event(1, [0.5, 0.75])])
    folder.mkdir()
    made.write(folder)
    record = json.loads((folder / RUN).read_text())
    kept = {key: value for key, value in record["settings"].items() if key != lost}
    record["settings"] = {**kept, **(more or {})}
    (folder / RUN).write_text(json.dumps(record))
    (folder / EVENTS).write_text("".join(f"{event.to_json()}\n" for event in made.events))
    return folder


def test_a_run_is_read_with_its_settings(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", more={"rounds": 7})
    (record,) = read_runs(folder, [folder]).comparison.records
    assert record.job.settings == Settings(rounds=7)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"lost": "guarantee.entitlement"}, r"guarantee\.entitlement: not among the settings"),
        ({"more": {"roundz": 1}}, r"roundz: unknown key; did you mean"),
    ],
)
def test_a_run_of_other_settings_keys_is_refused(tmp_path: Path, made: dict[str, Any], said: str) -> None:
    folder = write_run(tmp_path / "run", **made)
    with pytest.raises(ConfigError, match=rf"run\.json: cannot be read as a run \({said}"):
        read_runs(folder, [folder])
    with pytest.raises(RunError, match=rf"or a damaged one \(ConfigError: {said}"):
        read_final(folder)


@pytest.mark.parametrize("lost", ["last", "grid_seed", "skipped", "note", "reference_place"])
def test_a_comparison_that_lacks_something_is_refused(tmp_path: Path, lost: str) -> None:
    record = as_json(make_comparison({"fedavg": [(0.5, 0.7)]}), "none", 1.0)
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert read_comparison(tmp_path).comparison.last == 1
    del record[lost]
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=rf"comparison\.json: cannot be read as a comparison \('{lost}'\)"):
        read_comparison(tmp_path)
