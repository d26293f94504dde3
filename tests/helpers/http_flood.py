"""An attack on the gate of an HTTP federation on loopback, bounded in connections and bytes.

Half of the slow connections never finish the TLS handshake; the others finish it, begin a call and send a byte of its
message every few seconds. Who is cut comes back. Beside them, some callers send messages as large as a gate takes.
"""

from __future__ import annotations

import http.client
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks._flood import PAUSE_SECONDS, crowd

CALLERS, BYTES = 8, 16 * 2**20 - 1024
CALL = "/v1/fleet/activate-node"
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


@contextmanager
def attack(port: int, context: ssl.SSLContext) -> Iterator[Counter[int | str]]:
    """Attack as long as the block lasts; what became of the large calls, as it comes."""
    over, said, message = threading.Event(), Counter[int | str](), bytes(BYTES)

    def linger() -> None:
        slow = crowd(port, context, SLOW_CALL)
        while not over.is_set():
            for one in slow:
                one.beat()
            over.wait(PAUSE_SECONDS)
        for one in slow:
            one.close()

    def call() -> None:
        while not over.wait(0.2):
            said[status_of(port, context, message)] += 1

    threads = [threading.Thread(target=what) for what in (linger, *[call] * CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield said
    finally:
        over.set()
        for thread in threads:
            thread.join()
