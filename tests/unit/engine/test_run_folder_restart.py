"""Whether a ServerApp goes on or begins is decided by what its own run left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from client_app.app import app as client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run_folder import METRICS, OUTPUT, RUN_ID, settings_of_run, with_folders
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from server_app.app import main
from tests.helpers.runs import TINY


def settings(output: Path, **others: bool) -> Settings:
    return Settings.from_mapping({"output": str(output), **others})


def test_a_run_begins_and_goes_on(tmp_path: Path) -> None:
    assert not settings_of_run(settings(tmp_path), 7).resume
    assert (tmp_path / RUN_ID).read_text() == "7\n"
    assert not settings_of_run(settings(tmp_path), 7).resume  # started again before its first checkpoint
    (tmp_path / CHECKPOINT).touch()
    assert settings_of_run(settings(tmp_path), 7).resume


@pytest.mark.parametrize("left", [CHECKPOINT, RUN])
def test_another_run_is_neither_taken_up_nor_lost(tmp_path: Path, left: str) -> None:
    (tmp_path / RUN_ID).write_text("6\n")
    (tmp_path / left).touch()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"holds a run that cannot be read; .* name another folder, or move"):
            settings_of_run(settings(tmp_path), 7)
    assert (tmp_path / left).exists()
    assert (tmp_path / RUN_ID).read_text() == "6\n"


def test_a_folder_of_a_run_that_got_nowhere_is_free(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).write_text("6\n")
    assert not settings_of_run(settings(tmp_path), 7).resume
    assert (tmp_path / RUN_ID).read_text() == "7\n"


def test_a_run_that_resumes_another_keeps_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).touch()
    assert settings_of_run(settings(tmp_path, resume=True), 7).resume
    assert (tmp_path / CHECKPOINT).exists()
    assert (tmp_path / RUN_ID).read_text() == "7\n"


def test_the_server_says_where_runs_go_that_name_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OUTPUT, raising=False)
    assert with_folders(Settings(), 7).output == ""
    monkeypatch.setenv(OUTPUT, str(tmp_path))
    assert with_folders(Settings(), 7).output == str(tmp_path / "7")
    assert with_folders(settings(tmp_path / "mine"), 7).output == str(tmp_path / "mine")


def test_the_server_says_where_metrics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS, str(tmp_path / "metrics"))
    assert with_folders(settings(tmp_path), 7).metrics == str(tmp_path / "metrics")


def test_a_place_that_cannot_be_written() -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        settings_of_run(settings(Path("/dev/null/here")), 7)


def test_the_metrics_have_the_number_of_the_run_that_writes_them(tmp_path: Path) -> None:
    for run_id, resume in ((6, False), (7, True)):
        mine = {**TINY, "output": str(tmp_path / "o"), "metrics": str(tmp_path / "m"), "resume": resume}
        flat = Settings.from_mapping(mine).flat()
        context = Context(run_id=run_id, node_id=1, node_config={}, state=RecordDict(), run_config=flat)
        main(InProcessGrid(client, Settings.from_mapping(mine).clients, flat), context)
        (file,) = (tmp_path / "m").glob("*.prom")
        assert f'run_id="{run_id}"' in file.read_text()
