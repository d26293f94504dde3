"""What surrounds Flower's simulation engine, without starting it: the app, commands that fail, the log followed."""

from __future__ import annotations

import os
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.cli.config_utils import load_and_validate

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine import flower, flwr_command
from dqnfed_flwr.engine.flower import FlowerRounds, record_set_aside, run_flower, superlink, write_app
from dqnfed_flwr.engine.flwr_command import FlwrCommand, program, run_status
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.run_files import CHECKPOINT, RUN
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import DroppedClient, RoundEvent
from tests.helpers.runs import make_event


def test_the_app_that_is_laid_out_is_one_of_flowers(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"rounds": 7, "dqn-fed.scale": 0.5})
    write_app(tmp_path / "app", settings)
    config, warnings = load_and_validate(tmp_path / "app" / "pyproject.toml")
    assert not warnings
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert Settings.from_mapping(app["config"]) == settings
    assert config["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "server_app.app:app",
        "clientapp": "client_app.app:app",
    }
    laid_out = {path.relative_to(tmp_path / "app").as_posix() for path in (tmp_path / "app").rglob("*")}
    assert {"server_app/app.py", "client_app/app.py", "dqnfed_flwr/strategy/strategy.py"} <= laid_out
    assert not any("__pycache__" in path for path in laid_out)


def test_without_ray_the_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"needs Ray; install dqnfed-flwr\[simulation\]"):
        run_flower(Settings())


def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> FlwrCommand:
    """A `flwr` command that is a shell script."""
    command = tmp_path / "flwr"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    for module in (flower, flwr_command):
        monkeypatch.setattr(module, "program", lambda name: str(command))
    return FlwrCommand({"PATH": "/usr/bin:/bin"})


def test_a_command_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = scripted(tmp_path, monkeypatch, "echo 'no such app' >&2; exit 3")
    with pytest.raises(RunError, match="flwr run failed: no such app"):
        flwr("run", ".")


def test_what_stands_in_a_box_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Printing logstream", "╭─ Error ───╮", "│ Connection is    │", "│ unavailable.  │", "╰───────╯"]
    flwr = scripted(tmp_path, monkeypatch, "".join(f"echo '{line}' >&2;" for line in lines) + "exit 1")
    with pytest.raises(RunError) as caught:
        flwr("log", "1")
    assert str(caught.value) == "flwr log failed: Connection is unavailable."


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlwrCommand, "seconds", 0.2)
    with pytest.raises(RunError, match=r"flwr list failed: .*timed out"):
        scripted(tmp_path, monkeypatch, "exec sleep 30")("list")


def test_json_is_found_after_what_else_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = scripted(tmp_path, monkeypatch, """echo 'Loading...'; echo '{"runs": [{"status": "finished:failed"}]}'""")
    assert run_status(flwr, "1") == "finished:failed"
    with pytest.raises(RunError, match="flwr list gave no JSON: all is well"):
        scripted(tmp_path, monkeypatch, "echo all is well").json("list")
    assert run_status(scripted(tmp_path, monkeypatch, "echo '{}'"), "1") == "unknown"


def test_a_superlink_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(tmp_path, monkeypatch, "echo 'port in use'; exit 1")
    with pytest.raises(RunError, match=r"(?s)did not start.*port in use"), superlink(tmp_path):
        pytest.fail("it did")


def test_programs_of_this_environment_come_first() -> None:
    assert Path(program("flwr")).is_absolute()
    assert program("no-such-program") == "no-such-program"


@pytest.mark.parametrize(
    ("does", "left"),
    [
        ("is refused", "of the run before"),
        ("goes on and fails", None),
        ("comes to its end", "of this run"),
    ],
)
def test_the_record_of_a_run_that_is_resumed_is_not_lost(does: str, left: str | None, tmp_path: Path) -> None:
    record, checkpoint = tmp_path / RUN, tmp_path / CHECKPOINT
    record.write_text("of the run before")
    checkpoint.touch()
    os.utime(checkpoint, (1, 1))

    def resume() -> None:
        with record_set_aside(tmp_path):
            assert not record.exists()
            if does != "is refused":
                checkpoint.touch()
            if does == "comes to its end":
                record.write_text("of this run")
            else:
                raise RunError(does)

    with nullcontext() if does == "comes to its end" else pytest.raises(RunError):
        resume()
    assert (record.read_text() if record.exists() else None) == left
    assert {path.name for path in tmp_path.iterdir()} <= {RUN, CHECKPOINT}


DEAD = "code 0: <class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this task. ..."


class Listener:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        self.heard.append(f"start {rounds} after {len(done)}")

    def on_round(self, event: RoundEvent) -> None:
        self.heard.append(f"round {event.round}")

    def on_end(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("resume", [False, True])
def test_listeners_hear_of_each_round_once(tmp_path: Path, resume: bool) -> None:
    settings = Settings.from_mapping({"rounds": 3, "resume": resume, "output": str(tmp_path)})
    listener, log = Listener(), EventLog(tmp_path)
    rounds = FlowerRounds(tmp_path, settings, [listener])
    rounds.report()
    assert listener.heard == []  # nothing is logged yet
    log.on_start(3, [make_event(1, None)] if resume else [])
    if not resume:
        log.on_round(make_event(1, None))
    rounds.report()
    rounds.report()
    log.on_round(make_event(2, None))
    log.on_round(make_event(3, None))
    rounds.report()
    log.on_end()
    before = ["start 3 after 1"] if resume else ["start 3 after 0", "round 1"]
    assert listener.heard == [*before, "round 2", "round 3"]


def test_rounds_of_a_log_that_a_resumed_run_begins_anew_are_not_told_twice(tmp_path: Path) -> None:
    settings = Settings.from_mapping({"rounds": 4, "resume": True, "output": str(tmp_path)})
    earlier, log, listener = EventLog(tmp_path), EventLog(tmp_path), Listener()
    earlier.on_start(4, [make_event(1, None), make_event(2, None)])
    earlier.on_end()
    rounds = FlowerRounds(tmp_path, settings, [listener])
    rounds.report()
    log.on_start(4, [make_event(1, None)])
    rounds.report()
    for number in (2, 3):
        log.on_round(make_event(number, None))
    log.on_end()
    rounds.report()
    assert listener.heard == ["start 4 after 2", "round 3"]


def with_losses(number: int, *details: str) -> RoundEvent:
    drops = [DroppedClient(client, "client-error", detail) for client, detail in enumerate(details)]
    return replace(make_event(number, None), dropped=drops)


def logged(directory: Path, *events: RoundEvent, output: bool = True) -> FlowerRounds:
    log = EventLog(directory)
    log.on_start(9, [])
    for event in events:
        log.on_round(event)
    log.on_end()
    settings = Settings.from_mapping({"rounds": 9, "output": str(directory) if output else ""})
    return FlowerRounds(directory, settings, [])


@pytest.mark.parametrize("output", [True, False])
def test_a_worker_that_died_ends_the_run_with_words(tmp_path: Path, output: bool) -> None:
    rounds = logged(tmp_path, with_losses(4, DEAD, DEAD), with_losses(5), with_losses(6, DEAD), output=output)
    with pytest.raises(RunError, match=r"died in round 4.* up to round 6, 3 messages failed") as caught:
        rounds.report()
    assert (str(tmp_path) in str(caught.value)) is output


def test_a_worker_that_is_replaced_ends_nothing(tmp_path: Path) -> None:
    logged(tmp_path, with_losses(4, DEAD, DEAD), with_losses(5), with_losses(6)).report()


def test_errors_of_clients_themselves_end_nothing(tmp_path: Path) -> None:
    own = "code 2: DataError: the data set changed"
    logged(tmp_path, *(with_losses(number, own) for number in range(1, 6))).report()
