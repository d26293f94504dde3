"""The Dockerfile by simple rules, by hadolint where it is installed, and the image's two scripts by running them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
ENTRYPOINT, HEALTHCHECK = DOCKER / "entrypoint.sh", DOCKER / "healthcheck.py"


def instructions() -> list[tuple[str, str]]:
    """Instruction and its text, continued lines joined, comments left out."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def test_two_stages_from_one_pinned_slim_base() -> None:
    first, last = stages()
    assert (first[0], last[0]) == (("FROM", "${BASE} AS builder"), ("FROM", "${BASE}"))
    assert ("ARG", "BASE=python:3.11-slim-bookworm") in instructions()


def test_last_stage_installs_nothing_and_leaves_root() -> None:
    last = stages()[1]
    users = [rest for word, rest in last if word == "USER"]
    assert users == ["${UID}:${GID}"]
    assert ("ARG", "UID=1000") in last
    after = last[last.index(("USER", users[0])) + 1 :]
    assert {word for word, _ in after} <= {"STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert not [rest for word, rest in last if word == "RUN" and re.search(r"\b(apt|apt-get|pip|gcc|curl)\b", rest)]
    assert not [word for word, _ in instructions() if word == "ADD"]


def test_wheels_alone_are_installed_under_the_constraints() -> None:
    runs = [rest for word, rest in stages()[0] if word == "RUN"]
    installs = [part for rest in runs for part in rest.split("&&") if "pip install" in part]
    assert len(installs) == 3
    for command in installs:
        assert "--only-binary :all:" in command
        assert "-c constraints.txt" in command
    assert [("--index-url" in command, command.endswith("torch ")) for command in installs].count((True, True)) == 1
    assert ("COPY", "${CONSTRAINTS} constraints.txt") in stages()[0]
    assert ("ARG", "CONSTRAINTS=constraints.txt") in stages()[0]
    assert ("ARG", "TORCH_INDEX=https://download.pytorch.org/whl/cpu") in stages()[0]


def test_both_platforms_are_known_and_others_refused() -> None:
    script = next(rest for word, rest in stages()[0] if word == "RUN" and "TARGETPLATFORM" in rest)
    for platform, status in {"linux/amd64": 0, "linux/arm64": 0, "linux/arm/v7": 1, "": 0}.items():
        done = subprocess.run(
            ["sh", "-euc", script], env={"PATH": os.environ["PATH"], "TARGETPLATFORM": platform}, capture_output=True
        )
        assert done.returncode == status, platform


def test_copied_files_exist_and_pass_the_ignore_file() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    copied = [rest.split() for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    sources = {name for words in copied for name in words[:-1] if not name.startswith("--")}
    sources = (sources - {"${CONSTRAINTS}"}) | {"constraints.txt", "constraints-http.txt"}
    assert sources == allowed
    assert [name for name in sources if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(("tool", "file"), [("hadolint", "Dockerfile"), ("shellcheck", "entrypoint.sh")])
def test_linters_where_they_are_installed(tool: str, file: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    done = subprocess.run([tool, str(DOCKER / file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@contextmanager
def entrypoint(*command: str, pause: str = "0") -> Iterator[subprocess.Popen[str]]:
    """The entry point at work; whatever happens, it ends with the block."""
    with subprocess.Popen(
        [str(ENTRYPOINT), *command],
        env={"PATH": os.environ["PATH"], "DQNFED_RESTART_PAUSE": pause},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("pause", ["0", "5"])
def test_entrypoint_hands_a_stop_on_and_does_not_pause(pause: str) -> None:
    with entrypoint("sh", "-c", 'trap "exit 7" TERM; echo up; while :; do sleep 0.05; done', pause=pause) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=4) == 7
        assert time.monotonic() - began < 4


def test_entrypoint_ends_with_the_programs_status() -> None:
    for command, pause, status in (("exit 0", "0", 0), ("exit 0", "5", 0), ("exit 3", "0", 3)):
        with entrypoint("sh", "-c", command, pause=pause) as process:
            assert process.wait(timeout=4) == status


def test_entrypoint_pauses_after_a_failure_until_told_to_stop() -> None:
    with entrypoint("sh", "-c", "exit 3", pause="5") as process:
        assert process.stderr is not None
        told = re.search(r"ended with status 3 after (\d) s; it is started again in (\d+) s", process.stderr.readline())
        assert told is not None
        assert int(told[1]) + int(told[2]) == 10  # whole seconds by the clock, which may have turned meanwhile
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=4) == 3


def healthcheck(*addresses: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", str(HEALTHCHECK), *addresses], capture_output=True, text=True, timeout=10
    )


def test_healthcheck_tells_who_listens() -> None:
    with socket.socket() as open_one, socket.socket() as closed:
        open_one.bind(("127.0.0.1", 0))
        open_one.listen()
        closed.bind(("127.0.0.1", 0))
        here, absent = (f"127.0.0.1:{one.getsockname()[1]}" for one in (open_one, closed))
        assert healthcheck(here).returncode == 0
        done = healthcheck(here, absent)
        assert (done.returncode, done.stderr.startswith(absent)) == (1, True)
    assert healthcheck().returncode == 2
    assert healthcheck("nonsense").returncode == 1
