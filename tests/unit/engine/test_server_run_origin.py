"""What a run notes of its data and its code, and what a resumed one does with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.sources import source_of
from dqnfed_flwr.engine import server_run
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import CheckpointError
from dqnfed_flwr.params import NOTHING_FROZEN
from dqnfed_flwr.strategy.checkpoint import Provenance, read_record
from tests.helpers.runs import TINY, Stop, StopAfter

COMMITS = ("a1b2c3", "d4e5f6+")


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The commit that the package is at; the last one counts."""
    found: list[str | None] = [COMMITS[0]]
    monkeypatch.setattr(server_run, "package_commit", lambda: found[-1])
    return found


def write_data(path: Path, shift: int = 0) -> None:
    """Two classes that a line parts, their labels rotated by `shift`."""
    x = np.random.default_rng(0).standard_normal((90, 3)).astype(np.float32)
    np.savez(path, x_train=x, y_train=((x[:, 0] > 0) + shift) % 2)


def settings(folder: Path, **more: Any) -> Settings:
    mapping = {**TINY, "split.samples": 0, "data": str(folder / "d.npz"), "output": str(folder / "run"), **more}
    return Settings.from_mapping(mapping)


def interrupted(folder: Path) -> None:
    with pytest.raises(Stop):
        run(settings(folder, rounds=3), listeners=[StopAfter(2)])


def noted(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run" / "run.json").read_text()))


def test_a_run_notes_its_data_and_its_commit(tmp_path: Path, commits: list[str | None]) -> None:
    write_data(tmp_path / "d.npz")
    run(settings(tmp_path))
    digest = source_of(str(tmp_path / "d.npz")).fingerprint()
    expected = {"fingerprint": digest, "commits": list(commits)}
    assert {key: noted(tmp_path).get(key) for key in expected} == expected
    assert read_result(tmp_path / "run").provenance == Provenance(digest, (COMMITS[0],), NOTHING_FROZEN)
    record = read_record(tmp_path / "run" / "checkpoint.npz")
    assert {key: record.get(key) for key in expected} == expected


def test_an_installed_package_has_no_commit_and_a_function_no_fingerprint(
    tmp_path: Path, commits: list[str | None]
) -> None:
    commits.append(None)
    run(settings(tmp_path, data="tests.helpers.faulty_data:data"))
    assert (noted(tmp_path)["fingerprint"], noted(tmp_path)["commits"]) == (None, [None])


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    write_data(tmp_path / "d.npz")
    interrupted(tmp_path)
    write_data(tmp_path / "d.npz", 1)
    with pytest.raises(CheckpointError, match=r"a run on other data; fingerprint: \w{16} then, \w{16} now"):
        run(settings(tmp_path, rounds=3), resume=True)
    write_data(tmp_path / "d.npz")
    run(settings(tmp_path, rounds=3), resume=True)
    assert noted(tmp_path)["fingerprint"] == source_of(str(tmp_path / "d.npz")).fingerprint()


def test_a_resumed_run_names_the_commits_that_it_had(tmp_path: Path, commits: list[str | None]) -> None:
    write_data(tmp_path / "d.npz")
    interrupted(tmp_path)
    run(settings(tmp_path, rounds=3), resume=True)
    assert noted(tmp_path)["commits"] == [COMMITS[0]]
    commits.append(COMMITS[1])
    run(settings(tmp_path, rounds=4), resume=True)
    assert noted(tmp_path)["commits"] == list(COMMITS)


def test_what_is_not_known_at_one_time_is_not_known_at_the_other() -> None:
    now, unknown = Provenance("0" * 16, (COMMITS[1],)), Provenance(None, (None,))
    assert now.continuing(unknown.as_record()) == Provenance(None, (None, COMMITS[1]))
    assert unknown.continuing(Provenance("0" * 16, (None,)).as_record()) == unknown


def test_a_run_in_the_same_process_takes_the_data_as_they_are(tmp_path: Path) -> None:
    write_data(tmp_path / "d.npz")
    first = run(settings(tmp_path))
    write_data(tmp_path / "d.npz", 1)
    second = run(settings(tmp_path), overwrite=True)
    assert second.provenance.fingerprint != first.provenance.fingerprint
    assert not np.allclose(second.theta, first.theta)
