"""The setting `rows.memory`: runs with rows in a file have the same bits, and wait for room."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from dqnfed_flwr import run
from dqnfed_flwr.linalg import row_store
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers.runs import TINY


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders in which files of rows were made."""
    folders: list[Path] = []
    create = row_store.SpilledRows.__init__

    def noted(self: row_store.SpilledRows, *given: Any) -> None:
        create(self, *given)
        folders.append(given[-1])

    monkeypatch.setattr(row_store.SpilledRows, "__init__", noted)
    return folders


@pytest.mark.parametrize(
    "settings",
    [{"method": "dqn-fed"}, {"method": "dqn-fed", "local.batch-size": 16}, {"method": "fedavg"}, {"method": "median"}],
)
def test_a_run_has_the_same_bits_and_leaves_no_file(settings: dict[str, Any], made: list[Path], tmp_path: Path) -> None:
    plain = run({**TINY, **settings, "output": str(tmp_path / "plain")})
    assert not made
    output = tmp_path / "filed"
    filed = run({**TINY, **settings, "rows.memory": 0, "output": str(output)})
    assert made
    assert set(made) == {output}
    assert filed.theta.tobytes() == plain.theta.tobytes()
    assert {path.name for path in output.iterdir()} == {path.name for path in (tmp_path / "plain").iterdir()}


def test_without_an_output_folder_the_file_is_a_temporary_one(
    made: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run({**TINY, "rows.memory": 0})
    assert made == [tmp_path]


class Heard:
    """A listener that counts pauses."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        self.said.append("start")

    def on_round(self, event: RoundEvent) -> None:
        self.said.append("round")

    def on_end(self) -> None:
        self.said.append("end")

    def on_pause(self) -> None:
        self.said.append("pause")

    def on_resume(self) -> None:
        self.said.append("resume")


def test_a_full_disk_pauses_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, full = os.posix_fallocate, [True, True]

    def sometimes(*given: int) -> None:
        if full and full.pop():
            raise OSError(errno.ENOSPC, "No space left on device")
        take(*given)

    monkeypatch.setattr(os, "posix_fallocate", sometimes)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    heard = Heard()
    waited = run({**TINY, "rows.memory": 0, "output": str(tmp_path)}, listeners=[heard])
    assert waited.theta.tobytes() == run(TINY).theta.tobytes()
    assert heard.said == ["start", "pause", "resume", *["round"] * int(TINY["rounds"]), "end"]
