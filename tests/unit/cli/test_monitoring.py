from __future__ import annotations

import math
from pathlib import Path

import pytest

from dqnfed_flwr.cli import monitoring
from tests.helpers.cli import call


def test_dashboard_refuses_and_exporter_makes_a_missing_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dqnfed_flwr.exporter.exporter.Server", lambda *_: pytest.fail("served"))
    result = call("dashboard", str(tmp_path / "typo"))
    assert (result.exit_code, (tmp_path / "typo").exists()) == (2, False)
    assert "typo: no such directory; name the one" in result.stderr
    for _ in range(2):
        monitoring.prepare(tmp_path / "new")
    assert capsys.readouterr().err.count(f"made {tmp_path / 'new'}, which was not there") == 1


def test_only_the_exporter_removes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[float] = []
    monkeypatch.setattr(monitoring, "serve_metrics", lambda given, *_, **__: kept.append(given.keep_days))
    for command in (["exporter"], ["exporter", "--keep-days", "365"], ["dashboard"]):
        assert call(*command, str(tmp_path)).exit_code == 0
    assert kept == [14, 365, math.inf]


@pytest.mark.parametrize("option", ["--interval", "--keep-days"])
def test_nan_is_no_time(tmp_path: Path, option: str) -> None:
    result = call("exporter", str(tmp_path), option, "nan")
    assert (result.exit_code, f"{option}: found nan" in result.stderr) == (2, True)
