"""Run under Flower's simulation engine: a SuperLink of our own on loopback, `flwr run`, the results read back.

`flwr run` itself reports success when a run failed, shares one SuperLink with whatever else runs on the machine, and
installs the app's dependencies anew. Here every run has a SuperLink and a home of its own, which end with it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import tomli_w

from dqnfed_flwr.config import Settings, check_for_nodes
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, flwr_environment, program, run_status
from dqnfed_flwr.engine.result import RunResult, read_final, read_result
from dqnfed_flwr.engine.run_folder import TAKEOVER_SECONDS, directory_lock, guard_output
from dqnfed_flwr.errors import RunError
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, RUN
from dqnfed_flwr.strategy.checkpoint import CheckpointStore
from dqnfed_flwr.strategy.state import STALLED
from dqnfed_flwr.telemetry.event_log import EventReader
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.version import package_version

GPU_SHARE = 0.25
"""Of a card, for each client that Flower's engine has at work on it."""
PR_SET_PDEATHSIG = 1
PACKAGES = ("dqnfed_flwr", "server_app", "client_app")
BEFORE = ".before"
"""Ends the name of the record of a run that is being resumed."""
START_SECONDS, END_SECONDS = 60.0, 10.0
POLL_SECONDS, STATUS_SECONDS = 0.3, 10.0
"""A look at the log costs nothing; asking `flwr` costs two seconds of a core that the run could use."""
DEAD_WORKER = ("ray.exceptions.ActorDiedError", "ray.exceptions.RayActorError")
"""What Ray says of a message for a worker process that is gone."""
ROUNDS_WITH_LOSSES = 2
"""An engine that replaces a worker loses messages in one round; one that does not, in each."""


def run_flower(settings: Settings, *, overwrite: bool = False, listeners: Sequence[Listener] = ()) -> RunResult:
    """Run `settings` under Flower's simulation engine and wait for the end.

    Results go to `settings.output`, or to a temporary directory and into memory only. `overwrite` removes the run that
    `output` holds, if any. Listeners are called for every round, read from the event log as it grows.

    Raises
    ------
    RunError
        If the extra `simulation` is missing, Flower could not be started, the run failed, or a worker of it died.
    ConfigError
        If the settings ask for what only the in-process engine does, or `output` holds a run or another works there.
    """
    check_for_nodes(settings)
    if find_spec("ray") is None:
        raise RunError("Flower's simulation engine needs Ray; install dqnfed-flwr[simulation]")
    with tempfile.TemporaryDirectory(prefix="dqnfed-") as place:
        home = Path(place)
        output = Path(settings.output or home / "output").expanduser().absolute()
        model = str(Path(settings.start.model).expanduser().absolute()) if settings.start.model else ""
        start = settings.start.model_copy(update={"model": model})
        given, settings = settings, settings.model_copy(update={"output": str(output), "start": start})
        with directory_lock(output, TAKEOVER_SECONDS if settings.resume else 0.0):
            _clear(output, settings, overwrite=overwrite)
        write_app(home / "app", settings)
        with record_set_aside(output), superlink(home) as flwr:
            run_id = _submit(flwr, home / "app", settings)
            try:
                _follow(flwr, run_id, FlowerRounds(output, given, listeners), output)
            finally:
                for listener in listeners:
                    listener.on_end()
        return read_result(output)


def _clear(output: Path, settings: Settings, *, overwrite: bool) -> None:
    """Take away what the run before left, as far as this one does not go on with it."""
    if not settings.resume:
        if not overwrite:
            guard_output(output)
        CheckpointStore(output / CHECKPOINT).discard()
        for name in (EVENTS, RUN):
            (output / name).unlink(missing_ok=True)


@contextmanager
def record_set_aside(output: Path) -> Iterator[None]:
    """Keep the record of a run that is resumed out of the way: the coming of one shows that the run is over.

    It comes back where resuming failed before anything was changed.
    """
    record, aside, checkpoint = output / RUN, output / f"{RUN}{BEFORE}", output / CHECKPOINT
    aside.unlink(missing_ok=True)
    if record.exists():
        record.replace(aside)
    written = _written(checkpoint)
    try:
        yield
    finally:
        if aside.exists() and not record.exists() and _written(checkpoint) == written:
            aside.replace(record)
        aside.unlink(missing_ok=True)


def _written(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def write_app(directory: Path, settings: Settings) -> None:
    """Lay out a Flower app with `settings` as its run config: the installed packages and a pyproject.toml."""
    for name in PACKAGES:
        source = Path(str(importlib.import_module(name).__file__)).parent
        shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    project = {
        "project": {
            "name": "dqnfed-flwr",
            "version": package_version(),
            "description": "A run of dqnfed-flwr",
            "license": "Apache-2.0",
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "dqnfed",
                    "fab-include": [f"{name}/**/*" for name in PACKAGES],
                    "components": {"serverapp": "server_app.app:app", "clientapp": "client_app.app:app"},
                    "config": settings.flat(),
                }
            }
        },
    }
    (directory / "pyproject.toml").write_text(tomli_w.dumps(project))


@contextmanager
def superlink(home: Path) -> Iterator[FlwrCommand]:
    """A SuperLink for simulations on a free loopback port, with `home` as Flower's own directory.

    Yields the `flwr` command for it, as its default connection. It ends, with all that it started, on leaving.
    `RunError` if it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    modules = os.pathsep.join(place or os.getcwd() for place in sys.path)  # the user's own
    environment = {**flwr_environment(home), "PYTHONPATH": modules}
    address = {"address": f"127.0.0.1:{port}", "insecure": True}
    connection = {"superlink": {"default": CONNECTION, CONNECTION: address}}
    (home / "config.toml").write_text(tomli_w.dumps(connection))
    command = [program("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("w") as log:
        try:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_parent()
            )
        except OSError as error:
            raise RunError(f"{command[0]} cannot be started ({error.strerror}); install flwr[simulation]") from None
    try:
        _await_health(process, port, home / "superlink.log")
        yield FlwrCommand(environment)
    finally:
        _end(process)


def _end_with_parent() -> Callable[[], None] | None:
    """What a child calls so that it is sent SIGTERM when this process dies, in whatever way; None outside of Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork: little is safe after it
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _await_health(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)
    raise RunError(f"flower-superlink did not start:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the SuperLink and the processes it started, which share its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)


def uses_cuda(settings: Settings) -> bool:
    """Whether clients on this machine compute on a CUDA device; Ray hides it from those that do not ask for a share."""
    import torch

    return settings.device.startswith("cuda") or (settings.device == "auto" and torch.cuda.is_available())


def _submit(flwr: FlwrCommand, app: Path, settings: Settings) -> str:
    federation = f"num-supernodes={settings.clients} client-resources-num-cpus=1"
    if uses_cuda(settings):
        federation += f" client-resources-num-gpus={GPU_SHARE}"
    answer = flwr.json("run", str(app), CONNECTION, "--federation-config", federation)
    if "run-id" not in answer:
        raise RunError(f"flwr run did not start a run: {answer}")
    return str(answer["run-id"])


def _stalled(output: Path) -> bool:
    """Whether the run wrote its results and then said, by an error, that its model stands still."""
    try:
        return read_final(output).status == STALLED
    except RunError:
        return False


def _follow(flwr: FlwrCommand, run_id: str, rounds: FlowerRounds, output: Path) -> None:
    """Have rounds reported as they come, until Flower says that the run is over."""
    checked = time.monotonic()
    while True:
        over = (output / RUN).exists() or time.monotonic() - checked > STATUS_SECONDS
        status = run_status(flwr, run_id) if over else "running"
        if over:
            checked = time.monotonic()
        rounds.report()
        if status == "finished:completed":
            return
        if status.startswith("finished") and _stalled(output):
            return
        if status.startswith("finished"):
            raise RunError(f"the run ended as {status}:\n{flwr('log', run_id, CONNECTION, '--show')[-4000:]}")
        time.sleep(POLL_SECONDS)


class FlowerRounds:
    """Calls listeners for each round as the event log in `output` grows, and watches for workers that died.

    Flower's engine hands its messages on to a worker process that was killed as well: they fail at once, so that it is
    free for the next one, and draws most of them.
    """

    def __init__(self, output: Path, settings: Settings, listeners: Sequence[Listener]) -> None:
        self._output, self._settings, self._listeners = output, settings, listeners
        self._reader = EventReader(output / EVENTS)
        self._reported = -1
        self._failed: dict[int, int] = {}  # messages for dead workers, by round

    def report(self) -> None:
        """Report the beginning, once there is a log, and the rounds that were not reported yet.

        Raises
        ------
        RunError
            If messages for a dead worker failed in several rounds.
        """
        found = self._reader.read()
        if found is None:
            return
        first, events = found
        if self._reported < 0:
            done = events if self._settings.resume else []
            self._reported = len(done)
            for listener in self._listeners:
                listener.on_start(self._settings.rounds, done)
        for event in events[max(0, self._reported - first) :]:
            self._reported += 1
            for listener in self._listeners:
                listener.on_round(event)
            self._watch(event)

    def _watch(self, event: RoundEvent) -> None:
        if lost := [drop for drop in event.dropped if any(sign in drop.detail for sign in DEAD_WORKER)]:
            self._failed[event.round] = len(lost)
        if len(self._failed) >= ROUNDS_WITH_LOSSES:
            raise RunError(self._words())

    def _words(self) -> str:
        last = max(self._failed)
        kept = f"What was reached is in {self._output}" if self._settings.output else "Nothing was kept without output"
        return (
            f"a worker process of Flower's engine died in round {min(self._failed)}, and the engine replaces none: up "
            f"to round {last}, {sum(self._failed.values())} messages failed with {DEAD_WORKER[0]}, and their clients "
            "were left out. The system often kills one for want of memory: take a smaller model, fewer cores (taskset) "
            f"or engine in-process. {kept}"
        )
