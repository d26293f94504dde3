"""An attack on the gate of an HTTP federation on loopback, bounded in connections and bytes.

Half of the slow connections never finish the TLS handshake; the others finish it, begin a call and send a byte of its
message every few seconds. Who is cut comes back. Beside them, some callers send messages as large as a gate takes.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONNECTIONS, CALLERS, BYTES, PAUSE_SECONDS = 200, 8, 16 * 2**20 - 1024, 4.0
CALL = "/v1/fleet/activate-node"
HELLO = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03"
"""The beginning of a handshake that announces 16 KB."""
SLOW_CALL = f"POST {CALL} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n".encode()


CUT = {"BrokenPipeError", "ConnectionResetError", "RemoteDisconnected", "SSLEOFError", "SSLError"}
"""Names of errors with which a call ends where nobody wants to read it."""


def client(ca: Path, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    """The TLS of a caller, who shows `pair`."""
    context = ssl.create_default_context(cafile=str(ca))
    if pair:
        context.load_cert_chain(*pair)
    return context


def status_of(port: int, context: ssl.SSLContext, message: bytes = b"", path: str = CALL, **headers: str) -> int | str:
    """The status that a call is answered with, or the name of the error with which it was cut."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # an answer may have come before all was sent
            connection.request("POST", path, message, {"Content-Type": "application/protobuf", **headers})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


class _Slow:
    """One slow connection."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self.port, self.context = port, context
        self.end: socket.socket | None = None

    def beat(self) -> None:
        """Send one byte more; begin anew where the connection was cut."""
        try:
            if self.end is None:
                plain = socket.create_connection(("127.0.0.1", self.port), 5)
                wrap = self.context.wrap_socket if self.context else None
                self.end = wrap(plain, server_hostname="localhost") if wrap else plain
                self.end.sendall(SLOW_CALL if self.context else HELLO)
                self.end.settimeout(0.01)
            self.end.sendall(b"\x00")
            with suppress(TimeoutError, ssl.SSLWantReadError):
                if not self.end.recv(65536):
                    raise OSError
        except OSError:
            self.close()

    def close(self) -> None:
        """Leave."""
        if self.end is not None:
            self.end.close()
        self.end = None


@contextmanager
def attack(port: int, context: ssl.SSLContext) -> Iterator[Counter[int | str]]:
    """Attack as long as the block lasts; what became of the large calls, as it comes."""
    over, said, message = threading.Event(), Counter[int | str](), bytes(BYTES)

    def crowd() -> None:
        slow = [_Slow(port, context if number % 2 else None) for number in range(CONNECTIONS)]
        while not over.is_set():
            for one in slow:
                one.beat()
            over.wait(PAUSE_SECONDS)
        for one in slow:
            one.close()

    def call() -> None:
        while not over.wait(0.2):
            said[status_of(port, context, message)] += 1

    threads = [threading.Thread(target=what) for what in (crowd, *[call] * CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield said
    finally:
        over.set()
        for thread in threads:
            thread.join()
