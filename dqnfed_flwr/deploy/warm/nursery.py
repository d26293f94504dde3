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
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

LIBRARIES = ("numpy", "torch", "flwr.clientapp", "yaml")
REQUEST_SECONDS = 5.0
LARGEST_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1


class Request(NamedTuple):
    """A client to be started: arguments, folder, environment, and its standard streams."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    streams: list[int]


class Nursery:
    """Clients that run, and the connections of those who wait for them."""

    def __init__(self, listener: socket.socket, alive: int, keep_seconds: float) -> None:
        self.listener, self.alive, self.keep_seconds = listener, alive, keep_seconds
        self.loaded = False
        self.idle_since = time.monotonic()
        self.clients: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.wake, self.wake_end = os.pipe()
        for end in (self.wake, self.wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self.wake_end)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it is the wake-up that counts
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C goes to the executor, and that is enough
        for source in (self.listener, self.alive, self.wake):
            self.selector.register(source, selectors.EVENT_READ)

    def next_client(self) -> Request:
        """Serve until there is a client to be, and return in its process alone."""
        while True:
            ready = {key.fileobj for key, _ in self.selector.select(self._patience())}
            if self.alive in ready:
                self._end()
            if self.wake in ready:
                os.read(self.wake, 4096)
            self._reap()
            for connection in [one for one in self.clients.values() if one in ready]:
                self._abandoned(connection)
            if self.listener in ready and (born := self._take()) is not None:
                return born
            self._rest()

    def _patience(self) -> float | None:
        """Seconds until the libraries are given up; None where nothing is loaded or needed."""
        if not self.loaded or self.clients:
            return None
        return max(0.0, self.idle_since + self.keep_seconds - time.monotonic())

    def _rest(self) -> None:
        """Start anew, and small, when nobody has asked for long."""
        if self._patience() == 0.0:
            for descriptor in (self.listener.fileno(), self.alive):
                os.set_inheritable(descriptor, True)
            os.execv(sys.executable, [sys.executable, "-P", __file__, *sys.argv[1:]])

    def _take(self) -> Request | None:
        """Fork for one request; the request in the child, None in the parent."""
        connection, _ = self.listener.accept()
        try:
            request = read_request(connection)
        except EOFError:  # somebody only looked whether anyone is here
            connection.close()
            return None
        except (OSError, ValueError) as error:
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
            client = None
        if client == 0:
            self._become(request, connection)
            return request
        for stream in request.streams:
            os.close(stream)
        if client is None:
            connection.close()
            return None
        self.clients[client] = connection
        self.selector.register(connection, selectors.EVENT_READ)
        _tell(connection, client)
        return None

    def _become(self, request: Request, connection: socket.socket) -> None:
        """Make this fork the process that the request asks for."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.selector.close()
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
        """Tell those who wait which clients have ended, and how."""
        while self.clients:
            client, status = os.waitpid(-1, os.WNOHANG)
            if not client:
                return
            connection = self.clients.pop(client)
            _tell(connection, os.waitstatus_to_exitcode(status))
            self.selector.unregister(connection)
            connection.close()
            self.idle_since = time.monotonic()

    def _abandoned(self, connection: socket.socket) -> None:
        """Kill the client of whoever was killed while waiting for it."""
        for client, waiting in self.clients.items():
            if waiting is connection:
                os.kill(client, signal.SIGKILL)

    def _end(self) -> NoReturn:
        for client in self.clients:
            os.kill(client, signal.SIGKILL)
        shutil.rmtree(Path(self.listener.getsockname()).parent, ignore_errors=True)
        os._exit(0)


def read_request(connection: socket.socket) -> Request:
    """What `attach` sends: a length with the three streams, then the rest as JSON.

    Raises
    ------
    EOFError
        If nothing comes.
    OSError, ValueError
        If it is something else, or comes in part; its streams are closed.
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
        return Request(given["argv"], given["cwd"], given["environment"], list(streams))
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


def _tell(connection: socket.socket, number: int) -> None:
    with suppress(OSError):  # whoever asked is gone
        connection.sendall(f"{number}\n".encode())


def main() -> None:
    """Serve; in a fork, be the client."""
    listener, alive, keep_seconds = sys.argv[1:]
    Nursery(socket.socket(fileno=int(listener)), int(alive), float(keep_seconds)).next_client()
    sys.exit(entry_point(sys.argv[0])())


if __name__ == "__main__":
    main()
