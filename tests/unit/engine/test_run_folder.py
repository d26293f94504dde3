"""One output folder: a second writer waits and touches nothing, and a run goes on with what is its own."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from benchmarks._clock import Clock
from client_app.app import app as client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import run_folder
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.run_folder import (
    LOCK,
    METRICS,
    OUTPUT,
    RUN_ID,
    TAKEOVER_SECONDS,
    directory_lock,
    settings_of_run,
    with_folders,
)
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from server_app.app import main
from tests.helpers.runs import TINY

ROUNDS = int(TINY["rounds"])
HOLD = """
import sys, time
from pathlib import Path
from dqnfed_flwr.engine.run_folder import directory_lock
with directory_lock(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_folder, "time", clock)
    return clock


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process is alone in `directory`."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(directory)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "in\n"
            yield holder
        finally:
            holder.kill()


def given(output: Path, **changes: Any) -> Settings:
    return Settings.from_mapping({**TINY, "output": str(output), **changes})


def serve_run(settings: Settings, run_id: int) -> None:
    """What Flower does with the ServerApp."""
    grid = InProcessGrid(client, settings.clients, settings.flat())
    context = Context(run_id=run_id, node_id=1, node_config={}, state=RecordDict(), run_config=settings.flat())
    main(grid, context)


def test_the_second_is_told_who_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with (
        directory_lock(folder),
        pytest.raises(ConfigError, match=rf"new: process {os.getpid()} on .+, since .+, is at work there; let it end"),
        directory_lock(folder),
    ):
        pass
    with directory_lock(folder):
        pass


def test_it_waits_for_a_while_and_no_longer(tmp_path: Path, clock: Clock) -> None:
    with (
        held(tmp_path) as holder,
        pytest.raises(ConfigError, match=rf"process {holder.pid} .* has not ended within 60 s"),
        directory_lock(tmp_path, TAKEOVER_SECONDS),
    ):
        pass
    assert clock.slept == pytest.approx(TAKEOVER_SECONDS, abs=1)


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with held(tmp_path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        since = time.monotonic()
        with directory_lock(tmp_path, 30):
            assert time.monotonic() - since < 5
            assert str(os.getpid()) in (tmp_path / LOCK).read_text()


def test_nobody_is_named_in_a_folder_that_is_free_again(tmp_path: Path) -> None:
    with suppress(KeyError), directory_lock(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
        raise KeyError
    assert (tmp_path / LOCK).read_bytes() == b""


@pytest.mark.parametrize("patience", [0, 30])  # what a killed process was starting may hold on for a moment
def test_the_second_goes_on_when_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    with held(tmp_path) as holder:

        def sleep(seconds: float) -> None:
            holder.kill()
            holder.wait()

        monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        with directory_lock(tmp_path, patience):
            pass


def test_a_place_that_cannot_be_written() -> None:
    with (
        pytest.raises(ConfigError, match="output: cannot write to /dev/null/here"),
        directory_lock(Path("/dev/null/here")),
    ):
        pass


def test_a_run_without_results_is_in_nobodys_way() -> None:
    with directory_lock(None), directory_lock(None):
        pass


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with directory_lock(tmp_path):
        assert (tmp_path / LOCK).exists()


def test_two_runs_do_not_share_a_folder_and_the_second_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    run(given(tmp_path))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != LOCK}
    for again in (given(tmp_path), given(tmp_path, resume=True, rounds=9)):
        with held(tmp_path), pytest.raises(ConfigError, match="is at work there"):
            run(again)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != LOCK} == before


def test_a_run_is_resumed_when_the_one_before_has_ended(tmp_path: Path) -> None:
    run(given(tmp_path))
    assert len(run(given(tmp_path, resume=True, rounds=ROUNDS + 2)).events) == ROUNDS + 2


@pytest.mark.parametrize("run_id", [6, 7])
def test_a_second_server_app_leaves_the_first_ones_checkpoint_alone(tmp_path: Path, clock: Clock, run_id: int) -> None:
    (tmp_path / RUN_ID).write_text("6\n")
    (tmp_path / CHECKPOINT).touch()
    with held(tmp_path), pytest.raises(ConfigError, match="has not ended within 60 s"):
        serve_run(given(tmp_path), run_id)
    assert (tmp_path / RUN_ID).read_text() == "6\n"
    assert (tmp_path / CHECKPOINT).exists()


def test_a_server_app_says_at_its_end_what_was_reached_and_where_the_results_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_run(given(tmp_path), 6)
    said, result = capsys.readouterr().out, read_result(tmp_path)
    assert "Test accuracy of the clients, and what it took" in said
    assert f"{100 * result.final['mean']:.1f} %" in said
    assert said.endswith(f"Results, on the server: {tmp_path}\n")


def test_a_replacement_goes_on_from_what_the_lost_server_app_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = 0
    with held(tmp_path) as holder:

        def sleep(seconds: float) -> None:
            """The first writes its checkpoint, and ends."""
            nonlocal waits
            waits += 1
            holder.kill()
            holder.wait()
            serve_run(given(tmp_path), 6)

        monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        serve_run(given(tmp_path, rounds=ROUNDS + 2), 6)
    assert waits == 1
    assert [event.round for event in read_result(tmp_path).events] == list(range(1, ROUNDS + 3))


def test_a_run_begins_and_goes_on(tmp_path: Path) -> None:
    assert not settings_of_run(given(tmp_path), 7).resume
    assert (tmp_path / RUN_ID).read_text() == "7\n"
    assert not settings_of_run(given(tmp_path), 7).resume  # started again before its first checkpoint
    (tmp_path / CHECKPOINT).touch()
    assert settings_of_run(given(tmp_path), 7).resume


@pytest.mark.parametrize("left", [CHECKPOINT, RUN])
def test_another_run_is_neither_taken_up_nor_lost(tmp_path: Path, left: str) -> None:
    (tmp_path / RUN_ID).write_text("6\n")
    (tmp_path / left).touch()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"holds a run that cannot be read; .* name another folder, or move"):
            settings_of_run(given(tmp_path), 7)
    assert (tmp_path / left).exists()
    assert (tmp_path / RUN_ID).read_text() == "6\n"


def test_a_folder_of_a_run_that_got_nowhere_is_free(tmp_path: Path) -> None:
    (tmp_path / RUN_ID).write_text("6\n")
    assert not settings_of_run(given(tmp_path), 7).resume
    assert (tmp_path / RUN_ID).read_text() == "7\n"


def test_a_run_that_resumes_another_keeps_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).touch()
    assert settings_of_run(given(tmp_path, resume=True), 7).resume
    assert (tmp_path / CHECKPOINT).exists()
    assert (tmp_path / RUN_ID).read_text() == "7\n"


def test_the_server_says_where_runs_go_that_name_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OUTPUT, raising=False)
    assert with_folders(Settings(), 7).output == ""
    monkeypatch.setenv(OUTPUT, str(tmp_path))
    assert with_folders(Settings(), 7).output == str(tmp_path / "7")
    assert with_folders(given(tmp_path / "mine"), 7).output == str(tmp_path / "mine")


def test_the_server_says_where_metrics_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METRICS, str(tmp_path / "metrics"))
    assert with_folders(given(tmp_path), 7).metrics == str(tmp_path / "metrics")


def test_a_run_whose_place_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        settings_of_run(given(Path("/dev/null/here")), 7)


def test_the_metrics_have_the_number_of_the_run_that_writes_them(tmp_path: Path) -> None:
    for run_id, resume in ((6, False), (7, True)):
        serve_run(given(tmp_path / "o", metrics=str(tmp_path / "m"), resume=resume), run_id)
        (file,) = (tmp_path / "m").glob("*.prom")
        assert f'run_id="{run_id}"' in file.read_text()
