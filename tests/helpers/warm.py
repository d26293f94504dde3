"""A `dqnfed` and a `python` that begin at once: each call is a fork of one process that has loaded everything.

To load torch, Flower and scikit-learn takes seconds of a processor, and a page of the documents has many commands.
Workers of comparisons are forks too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NoReturn
from unittest import mock

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LOADED = (
    "sklearn.datasets",
    "dqnfed_flwr.audit.carry_out",
    "dqnfed_flwr.client.app",
    "dqnfed_flwr.compare.execute",
    "dqnfed_flwr.deploy.build",
    "dqnfed_flwr.engine.in_process",
    "dqnfed_flwr.engine.server_run",
    "dqnfed_flwr.report.page",
    "dqnfed_flwr.reproduce.manifests",
    "dqnfed_flwr.tasks.classification",
    *(f"dqnfed_flwr.cli.{name}" for name in ("app", "audit", "compare", "data", "deploy", "new", "reproduce", "run")),
)
CALL = f"""#!{sys.executable} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(os.path.dirname(os.path.abspath(__file__)) + "/server")
    socket.send_fds(server, [b"fds"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(9) or 70))
"""


@contextmanager
def warm_commands(folder: Path) -> Iterator[str]:
    """Give a PATH on which `dqnfed` and `python` are forks of a process that runs meanwhile, in `folder`."""
    for name in ("dqnfed", "python"):
        (folder / name).write_text(CALL)
        (folder / name).chmod(0o755)
    command = [sys.executable, str(Path(__file__)), str(folder / "server")]
    pipe = subprocess.PIPE  # else Python, which asks once as it begins, would seek in the streams of its forks
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said == b"ready\n", said + server.stdout.read()
        yield os.pathsep.join([str(folder), str(BIN), os.environ["PATH"]])
        server.terminate()


def serve(place: str) -> None:
    """Answer calls until the end; in a fork, carry one out and return."""
    for name in LOADED:
        import_module(name)
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("ready", flush=True)
        while True:
            call, _ = listener.accept()
            if not os.fork():
                break
            call.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    answer(call)


def answer(call: socket.socket) -> None:
    """Tell the exit status of a fork that carries out what is asked for; in that fork, do it."""
    _, handed, _, _ = socket.recv_fds(call, 3, 3)
    words, place, variables = json.loads(b"".join(iter(lambda: call.recv(1 << 16), b"")))
    if child := os.fork():
        call.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    call.close()
    for number, file in enumerate(handed):
        os.dup2(file, number)
        os.close(file)
    os.chdir(place)
    os.environ.clear()
    os.environ.update(variables)
    forks = multiprocessing.get_context("fork")
    mock.patch("multiprocessing.get_context", return_value=forks).start()
    mock.patch("os.cpu_count", return_value=1).start()  # threads of small models wait for each other
    end_with(status_of([Path(words[0]).name, *words[1:]]))


def status_of(words: list[str]) -> int:
    """Carry a command out; its exit status."""
    try:
        carry_out(words)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def end_with(status: int) -> NoReturn:
    """End this process without taking apart, module by module, what is loaded: half a second."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status)


def carry_out(words: list[str]) -> None:
    """Do what `dqnfed ...`, `python FILE ...` or `python -m MODULE ...` does in a process of its own."""
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.abspath(place) for place in own if place]
    if words[:2] == ["python", "-m"]:
        sys.argv = words[2:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        return
    script = str(BIN / "dqnfed") if words[0] == "dqnfed" else words[1]
    sys.argv = [script, *words[1 if words[0] == "dqnfed" else 2 :]]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # this folder
    serve(sys.argv[1])
