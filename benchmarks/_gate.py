"""The gate of HTTP federations for tests: what `docker/gate/nginx.conf` does, in this process.

It ends TLS with the server's certificate, answers 412 to who shows none of the federation's authority, hands the Fleet
API and `/health` on, and answers 502 while the SuperLink is away. Who shows another authority's certificate is cut in
the handshake, where nginx answers 400. Flower repeats a call that met a 502; a connection cut in its TLS handshake, as
a plain TCP proxy cuts it, it does not try again.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

OPEN = re.compile(r"/health|/v1/fleet/[A-Za-z0-9/_-]+")
LARGEST = 16 * 2**20
SECONDS = 300.0
SHOWN = "x-dqnfed-certificate"
REFUSAL = b'{"code": 412, "detail": "the gate takes calls from nodes with a certificate alone"}'
NOT_HANDED_ON = {SHOWN, "x-forwarded-for", "host", "connection", "transfer-encoding", "content-length"}
NOT_HANDED_BACK = {"connection", "transfer-encoding", "content-length", "date", "server"}


class _Gate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, target: int, server: Path) -> None:
        self.target, self.place = target, server
        self.upstream = ssl.create_default_context(cafile=str(server / "ca.crt"))
        super().__init__(("0.0.0.0", port), _Handler)  # where the Fleet port of gRPC is as well

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of callers that leave, or do not speak TLS: tests knock here on purpose."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = SECONDS
    server: _Gate

    def setup(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # of the certificate as it is now: nginx would be reloaded
        context.load_cert_chain(self.server.place / "server.crt", self.server.place / "server.key")
        context.load_verify_locations(self.server.place / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        self.request = context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        with self.request, suppress(OSError):
            super().finish()
            self.request.unwrap()  # a caller takes an end without it for an attack

    def _hand_on(self) -> None:
        certificate = self.request.getpeercert(binary_form=True)
        if certificate is None:
            self.close_connection = True
            self._answer(412, {}, REFUSAL)
            return
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            self._answer(411, {}, b"")
            return
        length = int(self.headers.get("Content-Length", 0))
        if length > LARGEST:
            self.close_connection = True
            self._answer(413, {}, b"")
            return
        body = self.rfile.read(length)
        if not OPEN.fullmatch(self.path):
            self._answer(404, {}, b"")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in NOT_HANDED_ON}
        headers[SHOWN] = quote(ssl.DER_cert_to_PEM_cert(certificate))
        far = http.client.HTTPSConnection(
            "127.0.0.1", self.server.target, timeout=SECONDS, context=self.server.upstream
        )
        try:
            far.request(self.command, self.path, body, headers)
            answer = far.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._answer(502, {}, b"")
            return
        finally:
            far.close()
        self._answer(answer.status, dict(answer.getheaders()), content)

    do_GET = do_POST = _hand_on

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in NOT_HANDED_BACK:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Say nothing."""


@contextmanager
def gate(port: int, target: int, server: Path) -> Iterator[None]:
    """Stand on `port` before the SuperLink on port `target` of loopback, as long as the block lasts.

    Parameters
    ----------
    port, target : int
        Of the Fleet, and of the SuperLink.
    server : Path
        The folder `server/` of the federation, with its certificate.
    """
    found = _Gate(port, target, server)
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    try:
        yield
    finally:
        found.shutdown()
        found.server_close()
        thread.join()
