"""Runs elsewhere, with a shell script for Flower's command."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from benchmarks._programs import wait_for
from dqnfed_flwr.cli.app import app
from dqnfed_flwr.cli.command import ended_whole
from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy import build, runs, superlink
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.deploy.runs import Failure
from dqnfed_flwr.deploy.superlink import connect
from dqnfed_flwr.engine.flwr_command import FlwrCommand
from dqnfed_flwr.errors import ConfigError, RunError
from tests.helpers.checks import remember

RUN = "17820031"
LOG = """INFO :      2 of 3 clients are there
\033[93mWARNING \033[0m:   Client 1 is left out: client-error: code 2: DataError: labels from 0 to 12
round 1/2  mean  10.0 %
WARNING :   Client 1 is left out: client-error: code 2: DataError: labels from 0 to 12
round 2/2  mean  20.0 %"""


class Flower:
    """A `flwr` command that is a script; `calls` is what it was asked."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.answers = {"run": '{"success": true, "run-id": "17820031"}', "stop": '{"success": true}', "log": LOG}
        self.nodes(online=10)
        self.status("finished:completed")

    def nodes(self, online: int, offline: int = 0) -> None:
        """What `flwr supernode list` says."""
        states = ["online"] * online + ["offline"] * offline
        nodes = [{"node-id": str(11 + number), "status": state} for number, state in enumerate(states)]
        self.says(supernode=json.dumps({"success": True, "nodes": nodes}))

    def status(self, *states: str, details: str = "") -> None:
        """What `flwr list` says, call by call; the last for ever."""
        for number, state in enumerate(states):
            run = {"run-id": RUN, "status": state, "status-details": details, "pending-at": "2026-01-01"}
            (self.place / f"list.{number}").write_text(json.dumps({"success": True, "runs": [run]}))
        (self.place / "count").write_text("0")
        last = len(states) - 1
        self.says(list=f"@n=$(cat count); cat list.$n; [ $n -lt {last} ] && echo $((n + 1)) > count; true")

    def says(self, **answers: str) -> None:
        """Answer a word of `flwr` by a text, or after an @ by a line of shell."""
        self.answers |= answers
        cases = []
        for word, text in self.answers.items():
            (self.place / f"say.{word}").write_text(f"{text}\n")
            cases.append(f"{word}) {text[1:] if text.startswith('@') else f'cat say.{word}'} ;;")
        script = ["#!/bin/sh", f"cd {self.place}", 'echo "$FLWR_HOME: $@" >> calls', 'case "$1" in', *cases, "esac"]
        (self.place / "flwr").write_text("\n".join(script) + "\n")
        (self.place / "flwr").chmod(0o755)

    @property
    def calls(self) -> list[str]:
        return (self.place / "calls").read_text().splitlines()


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flower:
    flower = Flower(tmp_path)
    monkeypatch.setattr(superlink, "OPERATOR_FLWR", [str(tmp_path / "flwr")])
    for pause in ("FIRST_PAUSE", "NEWS_PAUSE", "QUIET_PAUSE"):
        monkeypatch.setattr(runs, pause, 0.01)
    monkeypatch.setattr(superlink, "FIRST_PAUSE", 0.01)
    return flower


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="dqnfed")


def test_a_run_that_completes(flower: Flower) -> None:
    result = call("submit", "digits", "hospital", "--set", "rounds=2", "--output", "/srv/runs/a")
    assert result.exit_code == 0, result.output
    assert f"run {RUN} is on its way" in result.stdout
    assert "round 2/2" in result.stdout
    assert result.stdout.endswith(f"run {RUN} is completed\n")
    assert any(" run " in line and line.endswith("hospital --format json") for line in flower.calls)


@pytest.mark.parametrize("arguments", [["submit", "digits", "hospital"], ["logs", RUN, "hospital", "--follow"]])
def test_a_run_that_completes_before_its_rounds_are_done(flower: Flower, arguments: list[str]) -> None:
    words = "The run ended early, as pareto-stationary, after round 2 of 9: no step lowers every loss. What can be done"
    flower.says(log=f"{LOG}\n\033[93mWARNING \033[0m:   {words}")
    result = call(*arguments)
    assert (result.exit_code, result.stderr) == (4, f"dqnfed: {words}\n")
    assert result.stdout.endswith(f"run {RUN} is completed\n")


@pytest.mark.parametrize("arguments", [["submit", "digits", "hospital"], ["logs", RUN, "hospital", "--follow"]])
def test_a_run_that_stalled(flower: Flower, arguments: list[str]) -> None:
    words = "The run stalled after round 12 of 60: its model has not moved since round 2, for 10 rounds"
    log = f"{LOG}\n\033[93mWARNING \033[0m:   {words}\n  1. absent: client 3\ndqnfed_flwr.errors.StalledError: {words}"
    flower.says(log=log)
    flower.status("finished:failed", details="The ServerApp raised an error")
    result = call(*arguments)
    said = f"dqnfed: run {RUN}: {words}; its log has the likeliest causes\n"
    assert (result.exit_code, result.stderr) == (5, said)
    assert "1. absent: client 3" in result.stdout
    assert sum(" run " in call for call in flower.calls) == (arguments[0] == "submit")  # it is not begun again


def test_clients_left_out_of_most_rounds_end_a_strict_submit_with_3(flower: Flower) -> None:
    words = "Asked, and without a part in most of the rounds: client 3 in 2 of 2"
    flower.says(log=f"{LOG}\n\033[93mWARNING \033[0m:   {words}")
    assert call("submit", "digits", "hospital").exit_code == 0
    result = call("submit", "digits", "hospital", "--strict")
    assert (result.exit_code, result.stderr) == (3, f"dqnfed: {words}\n")
    assert result.stdout.endswith(f"run {RUN} is completed\n")
    flower.says(log=LOG)
    assert call("submit", "digits", "hospital", "--strict").exit_code == 0


def test_a_strict_submit_has_to_see_the_end(flower: Flower) -> None:
    result = call("submit", "digits", "hospital", "--strict", "--detach")
    assert (result.exit_code, (flower.place / "calls").exists()) == (2, False)
    assert "--strict judges a run by its end, which --detach does not wait for" in result.stderr


@pytest.mark.parametrize(
    ("online", "given", "words"),
    [
        (3, (), ""),
        (
            2,
            (),
            "2 of 3 nodes are online; missing: 13. The run waits for them until 2026-03-01 12:10:00, then it begins",
        ),
        (
            0,
            (),
            "missing: 11, 12, 13. The run waits for them until 2026-03-01 12:40:00, then it fails with fewer than 1",
        ),
        (
            1,
            ("--set", "min-clients=2", "--set", "deadline=60", "--set", "retries=0"),
            "until 2026-03-01 12:01:00, then",
        ),
    ],
)
@pytest.mark.parametrize("detach", [True, False])
def test_who_is_missing_is_said_at_once(
    flower: Flower, monkeypatch: pytest.MonkeyPatch, online: int, given: tuple[str, ...], words: str, detach: bool
) -> None:
    monkeypatch.setattr("dqnfed_flwr.cli.remote.now", lambda: dt.datetime(2026, 3, 1, 12))
    flower.nodes(online, 3 - online)
    result = call("submit", "digits", "hospital", "--set", "clients=3", *given, *(["--detach"] if detach else []))
    assert result.exit_code == 0, result.output
    assert words in result.stderr
    assert ("missing" in result.stderr) is bool(words)


def test_a_superlink_that_does_not_list_its_nodes_stops_no_run(flower: Flower) -> None:
    flower.says(supernode='{"success": false, "error-message": "no"}')
    result = call("submit", "digits", "hospital", "--detach")
    assert (result.exit_code, result.stdout) == (0, f"{RUN}\n")
    assert "does not say which nodes are online: flwr supernode list hospital: no" in result.stderr


def test_nodes_have_their_names_where_the_folder_knows_them(flower: Flower, tmp_path: Path) -> None:
    build.create(
        tmp_path / "fl", Federation("localhost", nodes=tuple(Node(f"ward-{k}", k, 9000 + k) for k in range(3)))
    )
    remember(tmp_path / "fl", {"ward-0": "11", "ward-1": "12", "ward-2": "99"})
    flower.nodes(1, 1)
    result = call("submit", "digits", str(tmp_path / "fl"), "--set", "clients=3", "--detach")
    assert "1 of 3 nodes are online; missing: ward-1, ward-2." in result.stderr


@pytest.mark.parametrize("state", ["finished:failed", "finished:stopped"])
def test_a_run_that_does_not(flower: Flower, state: str) -> None:
    flower.status("running", state, details="ServerApp failed with exception: 1 usable replies")
    result = call("submit", "digits", "hospital")
    assert result.exit_code == 1
    assert f"run {RUN} ended as {state}: ServerApp failed with exception: 1 usable replies" in result.stderr
    assert result.stderr.count("labels from 0 to 12") == 1


def test_a_run_whose_server_process_was_lost_goes_on(flower: Flower) -> None:
    flower.status("finished:failed", "finished:completed", details="No heartbeat received from the task")
    flower.says(run='@grep "^resume" "$2/pyproject.toml" >> apps; cat answer')
    (flower.place / "answer").write_text('{"success": true, "run-id": "17820031"}')
    result = call("submit", "digits", "hospital", "--output", "/srv/a")
    assert result.exit_code == 0, result.stderr
    assert "No heartbeat received" in result.stdout
    assert f"goes on as run {RUN}" in result.stdout
    assert (flower.place / "apps").read_text().split() == ["resume", "=", "false", "resume", "=", "true"]


def test_a_run_goes_on_although_the_superlink_is_away_for_a_while(flower: Flower) -> None:
    flower.status("finished:failed", "finished:completed", details="No heartbeat received from the task")
    away = '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}'
    (flower.place / "away").write_text(away)
    (flower.place / "there").write_text('{"success": true, "run-id": "17820031"}')
    flower.says(run="@echo >> runs; [ $(wc -l < runs) = 2 ] && cat away || cat there")
    flower.says(log="@echo >> logs; [ $(wc -l < logs) = 2 ] && { cat away >&2; exit 1; } || cat say.text")
    (flower.place / "say.text").write_text(LOG)
    result = call("submit", "digits", "hospital", "--output", "/srv/a")
    assert result.exit_code == 0, result.stderr
    assert f"goes on as run {RUN}" in result.stdout
    assert [len((flower.place / name).read_text()) for name in ("runs", "logs")] == [3, 4]


def test_restarts_are_bounded_and_need_a_place(flower: Flower) -> None:
    flower.status("finished:failed", details="No heartbeat received from the task")
    assert call("submit", "digits", "hospital", "--output", "/srv/a", "--restarts", "2").exit_code == 1
    assert sum(" run " in line for line in flower.calls) == 3
    (flower.place / "calls").unlink()
    assert call("submit", "digits", "hospital").exit_code == 1
    assert sum(" run " in line for line in flower.calls) == 1


@pytest.mark.parametrize(
    ("details", "resumed", "again"),
    [
        ("No heartbeat received from the task", False, True),
        ("No heartbeat received from the task", True, True),
        ("Task failed with unknown error.", False, True),
        ("ServerApp failed with exception: /srv/a/checkpoint.npz: no checkpoint there", True, None),
        ("ServerApp failed with exception: /srv/a/checkpoint.npz: no checkpoint there", False, False),
        ("ServerApp failed with exception: 0 usable replies", False, None),
        ("Task stopped by user.", False, None),
    ],
)
def test_what_goes_on_after_a_failure(details: str, resumed: bool, again: bool | None) -> None:
    settings = Settings.from_mapping({"output": "/srv/a", "resume": resumed})
    failure = Failure(RUN, {"status": "finished:failed", "status-details": details}, "")
    following = failure.next_settings(settings)
    assert (None if following is None else following.resume) is again


@pytest.mark.parametrize("details", ["N/A", " N/A\n", "", None])
def test_an_end_of_which_flower_says_nothing_is_told_in_words(details: str | None) -> None:
    failure = Failure(RUN, {"status": "finished:stopped", "status-details": details}, "")
    assert failure.words == f"run {RUN} ended as finished:stopped: the SuperLink gives no reason"


def test_a_log_is_shown_as_it_grows_and_no_line_in_two_pieces(flower: Flower) -> None:
    flower.status(*["running"] * 2, "finished:completed")
    for number, text in enumerate(["one\ntw", "one\ntwo\n", "one\ntwo\nthree\nfour"], start=1):
        (flower.place / f"log.{number}").write_text(f"{text}\n")
    flower.says(log="@echo >> logs; n=$(wc -l < logs); [ $n -gt 3 ] && n=3; cat log.$((n))")
    shown: list[str] = []
    seen: list[tuple[str, int]] = []

    def show(line: str) -> None:
        shown.append(line)
        seen.append((line, len((flower.place / "logs").read_text())))

    runs.follow(connect("hospital"), RUN, show)
    assert shown == ["one", "two", "three", "four"]
    assert dict(seen) == {"one": 1, "two": 2, "three": 3, "four": len((flower.place / "logs").read_text())}


def test_a_follower_keeps_no_stream_open(flower: Flower) -> None:
    flower.status("pending", "starting", "running", "finished:completed")
    assert call("logs", RUN, "hospital", "--follow").exit_code == 0
    asked = [line.split(": ")[1].split()[0] for line in flower.calls]
    assert not any("--stream" in line for line in flower.calls)
    assert asked[:3] == ["list"] * 3  # Flower would keep a call for a log that is not there yet


def test_a_run_that_waits_is_told_of(flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    flower.status("pending")
    result = call("logs", RUN, "hospital")
    told = f"run {RUN} is pending; if it stays so, see that the server's SuperExec is running\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", told)
    assert not any(" log " in line for line in flower.calls)  # Flower would wait for the log
    monkeypatch.setattr(runs, "PENDING_SECONDS", 0.0)
    flower.status("pending", "pending", "pending", "finished:completed")
    assert call("logs", RUN, "hospital", "--follow").stdout.count("is pending; if it stays so") == 1


@pytest.mark.parametrize(
    ("arguments", "number"),
    [(["logs", RUN, "hospital", "--follow"], signal.SIGTERM), (["submit", "digits", "hospital"], signal.SIGHUP)],
)
def test_a_signal_ends_flowers_command_too(flower: Flower, arguments: list[str], number: signal.Signals) -> None:
    flower.status("running")
    flower.says(log="@echo $$ > child; exec sleep 60")
    code = (
        f"import signal, sys; signal.signal({int(number)}, signal.SIG_DFL)\n"  # below nohup it would be ignored
        f"sys.argv = ['dqnfed', *{arguments}]\n"
        "from dqnfed_flwr.cli.app import app\nfrom dqnfed_flwr.deploy import superlink\n"
        f"superlink.OPERATOR_FLWR = [{str(flower.place / 'flwr')!r}]\napp()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as follower:
        try:
            child = int(wait_for(lambda: _text(flower.place / "child"), 60))
            follower.send_signal(number)
            assert follower.wait(20) == 128 + number
        finally:
            follower.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        ended_whole(lambda: os.kill(os.getpid(), signal.SIGHUP))()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def test_detached(flower: Flower) -> None:
    result = call("submit", "digits", "hospital", "--detach")
    assert (result.exit_code, result.stdout) == (0, f"{RUN}\n")
    assert not any(" log " in line for line in flower.calls)


def test_interrupt_leaves_the_run_alone(flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "follow", interrupted)
    result = call("submit", "digits", "hospital")
    assert result.exit_code == 130
    assert f"dqnfed logs {RUN} hospital --follow" in result.stderr
    assert not any(" stop " in line for line in flower.calls)


def test_runs_are_listed(flower: Flower) -> None:
    flower.status("finished:failed", details="out of\nmemory")
    result = call("runs", "hospital")
    assert result.exit_code == 0
    assert RUN in result.stdout
    assert "finished:failed" in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_stop(flower: Flower) -> None:
    assert call("stop", RUN, "hospital").exit_code == 0
    assert flower.calls[-1].endswith(f"stop {RUN} hospital --format json")


NO_CONNECTION = "SuperLink connection 'nope' not found in the Flower configuration file (/x/config.toml)."


@pytest.mark.parametrize(
    ("arguments", "word", "words", "status"),
    [
        (("submit", "digits", "hospital"), "run", "no such federation", 1),
        (("stop", RUN, "hospital"), "stop", "Run is finished", 1),
        (("logs", RUN, "hospital", "--follow"), "list", "Run ID 17820031 not found", 1),
        (("runs", "nope"), "list", NO_CONNECTION, 2),
    ],
)
def test_what_the_superlink_refuses(
    flower: Flower, arguments: tuple[str, ...], word: str, words: str, status: int
) -> None:
    flower.says(**{word: json.dumps({"success": False, "error-message": words})})
    result = call(*arguments)
    assert result.exit_code == status
    assert re.search(rf"flwr {word} .*: {re.escape(words)}", result.stderr)


def test_logs(flower: Flower) -> None:
    result = call("logs", RUN, "hospital")
    assert result.exit_code == 0
    assert "2 of 3 clients are there" in result.stdout
    assert flower.calls[-1].endswith(f"log {RUN} hospital --show")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["submit", "digit", "hospital"], "no shipped experiment"),
        (["submit", "digits", "hospital", "--set", "round=1"], "round: unknown key"),
        (["submit", "digits", "hospital", "--output", "runs/a"], "absolute path"),
        (["submit", "digits", "hospital", "--set", "data=mine.npz"], "absolute path on the devices"),
        (["submit", "digits", "hospital", "--set", "data=leaf:mine"], "absolute path on the devices"),
        (["submit", "digits", "hospital", "--resume"], "--resume needs --output"),
        (["submit", "digits", "./nowhere"], "no federation.toml there"),
        (["logs", "latest", "hospital"], "RUN: found 'latest'"),
        (["stop", "--", "-1", "hospital"], "RUN: found '-1'"),
        (["submit", "digits"], "CONNECTION"),
    ],
)
def test_misuse_ends_with_2_before_anything_is_asked(flower: Flower, arguments: list[str], words: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (flower.place / "calls").exists()


def test_a_folder_is_a_connection(flower: Flower, tmp_path: Path) -> None:
    build.create(tmp_path / "fl", Federation("localhost", nodes=(Node("a", 0, 1),)))
    assert call("runs", str(tmp_path / "fl")).exit_code == 0
    assert flower.calls == [f"{tmp_path / 'fl' / 'operator'}: list dqnfed --format json"]


SERVER_ERROR = (
    "Server error '503 Service Unavailable' for url 'http://x/runs'\nFor more information check: https://x/503"
)


AWAY = "Using hospital\n\nConnection to the SuperLink is unavailable."


@pytest.mark.parametrize("words", [AWAY, SERVER_ERROR, "Internal server error."])
def test_a_superlink_that_is_away_or_at_fault_is_asked_again(flower: Flower, words: str) -> None:
    flower.status("running", "running", "finished:completed")
    (flower.place / "list.0").write_text(json.dumps({"success": False, "error-message": words}))
    assert runs.follow(connect("hospital"), RUN, print)["status"] == "finished:completed"
    (flower.place / "words").write_text(f"Error: {words}")
    flower.says(log="@echo >> logs; [ $(wc -l < logs) = 1 ] && { cat words >&2; exit 1; } || echo x")
    link = connect("hospital")
    assert superlink.patiently(lambda: runs.log_of(link, RUN), 60) == "x\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [(AWAY, "Connection to the SuperLink is unavailable"), (SERVER_ERROR, "Server error '503 Service Unavailable'")],
)
def test_a_superlink_that_stays_so_is_given_up(
    flower: Flower, monkeypatch: pytest.MonkeyPatch, words: str, told: str
) -> None:
    flower.says(list=json.dumps({"success": False, "error-message": words}))
    monkeypatch.setattr(runs, "GIVE_UP_SECONDS", 0.1)
    with pytest.raises(RunError, match=rf"is away for 0 s\. flwr list .*: {told}"):
        runs.follow(connect("hospital"), RUN, print)


def test_a_superlink_that_is_slow_is_asked_again(flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlwrCommand, "seconds", 0.5)
    slow = "@echo >> {0}s; [ $(wc -l < {0}s) = 1 ] && exec sleep 20 || cat {1}"
    flower.status("finished:completed")
    flower.says(list=slow.format("list", "list.0"), log=slow.format("log", "text"))
    (flower.place / "text").write_text("x\n")
    link = connect("hospital")
    assert superlink.patiently(lambda: runs.log_of(link, RUN), 60) == "x\n"
    assert runs.follow(link, RUN, print)["status"] == "finished:completed"


@pytest.mark.parametrize("answer", [json.dumps({"success": False, "error-message": SERVER_ERROR}), "@exec sleep 20"])
def test_a_run_that_may_have_been_started_is_not_started_again(
    flower: Flower, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(FlwrCommand, "seconds", 0.5)
    flower.says(run=answer)
    link = connect("hospital")
    with pytest.raises(RunError, match=r"may have been started: look with `dqnfed runs`"):
        superlink.patiently(lambda: runs.submit(link, Settings()), 60)
    assert sum(" run " in line for line in flower.calls) == 1


def test_resume_and_output_reach_the_run() -> None:
    settings = runs.server_settings({"data": "/data/x.npz"}, "/srv/a", resume=True)
    assert (settings.output, settings.resume, settings.data) == ("/srv/a", True, "/data/x.npz")
    with pytest.raises(ConfigError, match="absolute"):
        runs.server_settings({"output": "a"}, "", resume=False)
