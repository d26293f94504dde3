"""A process that loads torch and Flower once and then forks a client for every message.

Run as a script: were it a module of the package, the package would be loaded before the app that a run brings its own
copy in. It takes one request after the other in a single thread, because a process with threads cannot be forked
safely. The libraries are loaded for the first client and given up, by starting this script anew, some time after the
last: a device that waits for work needs the memory for others.

Arguments: descriptors of a listening socket and of a pipe whose end means that the executor is gone, and the seconds
for which the libraries are kept.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

LIBRARIES = ("numpy", "torch", "flwr.clientapp", "yaml")
REQUEST_SECONDS = 5.0
LARGEST_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1


class StartRequest(NamedTuple):
    """A client to be started: arguments, folder, environment, and its standard streams."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    streams: list[int]


class ForkServer:
    """Clients that run, and the connections of the processes that wait for them."""

    def __init__(self, listener: socket.socket, alive: int, keep_seconds: float) -> None:
        self.listener, self.alive, self.keep_seconds = listener, alive, keep_seconds
        self.loaded = False
        self.idle_since = time.monotonic()
        self.clients: dict[int, socket.socket] = {}
        self.wake, self.wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it is the wake-up that counts
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the executor, and that is enough

    def next_client(self) -> StartRequest:
        """Serve until there is a client to be, and return in its process alone."""
        while True:
            sources: list[socket.socket | int] = [self.listener, self.alive, self.wake, *self.clients.values()]
            ready, _, _ = select.select(sources, [], [], self._seconds_left())
            if self.alive in ready:
                self._end()
            if self.wake in ready:
                os.read(self.wake, 4096)
            self._reap()
            for client, connection in self.clients.items():
                if connection in ready:  # the process that waited for it was killed
                    os.kill(client, signal.SIGKILL)
            if self.listener in ready and (request := self._take()) is not None:
                return request
            if self._seconds_left() == 0.0:
                self._restart()

    def _seconds_left(self) -> float | None:
        """Seconds until the libraries are given up; None where nothing is loaded, or clients run."""
        if not self.loaded or self.clients:
            return None
        return max(0.0, self.idle_since + self.keep_seconds - time.monotonic())

    def _restart(self) -> NoReturn:
        """Start anew, and small."""
        for descriptor in (self.listener.fileno(), self.alive):
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-P", __file__, *sys.argv[1:]])

    def _take(self) -> StartRequest | None:
        """Fork for one request; the request in the child, None in the parent."""
        connection, _ = self.listener.accept()
        try:
            request = read_request(connection)
        except (EOFError, OSError, ValueError) as error:
            if not isinstance(error, EOFError):  # else a process only looked whether there is a server
                print(f"dqnfed: a request for a warm client was refused: {error}", file=sys.stderr, flush=True)
            connection.close()
            return None
        if not self.loaded:
            load()
            self.loaded = True
        try:
            client = os.fork()
        except OSError as error:
            print(f"dqnfed: no client can be started: {error}", file=sys.stderr, flush=True)
            connection.close()
        else:
            if client == 0:
                self._become(request, connection)
                return request
            self.clients[client] = connection
            _send(connection, client)
        for stream in request.streams:
            os.close(stream)
        return None

    def _become(self, request: StartRequest, connection: socket.socket) -> None:
        """Make this fork the process that the request asks for."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for one in (connection, self.listener, *self.clients.values()):
            one.close()
        for descriptor in (self.alive, self.wake, self.wake_end):
            os.close(descriptor)
        for target, stream in enumerate(request.streams):
            os.dup2(stream, target)
            os.close(stream)
        os.chdir(request.cwd)
        os.environ.clear()
        os.environ.update(request.environment)
        sys.argv = request.argv

    def _reap(self) -> None:
        """Send the processes that wait the exit codes of clients that have ended."""
        while self.clients:
            client, status = os.waitpid(-1, os.WNOHANG)
            if not client:
                return
            with self.clients.pop(client) as connection:
                _send(connection, os.waitstatus_to_exitcode(status))
            self.idle_since = time.monotonic()

    def _end(self) -> NoReturn:
        for client in self.clients:
            os.kill(client, signal.SIGKILL)
        shutil.rmtree(Path(self.listener.getsockname()).parent, ignore_errors=True)
        os._exit(0)


def read_request(connection: socket.socket) -> StartRequest:
    """What `attach` sends: a length with the three streams, then the rest as JSON.

    `EOFError` if nothing comes; `OSError` or `ValueError`, with the streams closed, if it is something else or a part.
    """
    connection.settimeout(REQUEST_SECONDS)
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    if not head:
        raise EOFError
    length = int.from_bytes(head, "big")
    try:
        if len(head) != 8 or len(streams) != 3 or length > LARGEST_REQUEST:
            raise ValueError(f"{len(head)} bytes and {len(streams)} streams of 3, for {length} bytes")
        text = bytearray()
        while len(text) < length and (part := connection.recv(length - len(text))):
            text += part
        given = json.loads(text)
        return StartRequest(given["argv"], given["cwd"], given["environment"], list(streams))
    except (OSError, ValueError, LookupError, TypeError) as error:
        for stream in streams:
            os.close(stream)
        raise ValueError(f"{type(error).__name__}: {error}") from error


def load() -> None:
    """Load the libraries that clients share."""
    for name in LIBRARIES:
        with suppress(ImportError):  # the app will say so, if it needs it
            importlib.import_module(name)
    with suppress(LookupError, ImportError):
        entry_point("flwr-clientapp")
    gc.collect()
    gc.freeze()  # what is loaded is shared with the clients: no collection shall write into it


def entry_point(name: str) -> Callable[[], Any]:
    """The function behind one of Flower's commands, loaded."""
    found = importlib.metadata.distribution("flwr").entry_points.select(group="console_scripts", name=name)
    loaded: Callable[[], Any] = next(iter(found)).load()
    return loaded


def load_allowed() -> ModuleType:
    """`allowed.py` of this folder, loaded by its path."""
    spec = importlib.util.spec_from_file_location("_dqnfed_allowed", Path(__file__).with_name("allowed.py"))
    if spec is None or spec.loader is None:
        raise ImportError("dqnfed: allowed.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _send(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # the process that waited has ended
        connection.sendall(f"{number}\n".encode())


def main() -> None:
    """Serve; in a fork, be the client."""
    listener, alive, keep_seconds = sys.argv[1:]
    ForkServer(socket.socket(fileno=int(listener)), int(alive), float(keep_seconds)).next_client()
    load_allowed().guard_this_process()
    sys.exit(entry_point(sys.argv[0])())


if __name__ == "__main__":
    main()
