"""A TCP proxy on loopback, where a test needs one port to lead to another."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 16


@contextmanager
def proxy(port: int, target: int) -> Iterator[None]:
    """Pass connections to `port` of loopback on to `target`, as long as the block lasts."""
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=_serve, args=(listener, target))
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept
        listener.close()
        thread.join(10)


def _serve(listener: socket.socket, target: int) -> None:
    with suppress(OSError):
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", target), 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Hand bytes on until one side has had enough; both ways end together."""
    with suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    source.close()
