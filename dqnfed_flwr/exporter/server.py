"""The HTTP server of the exporter: few paths, only reading, bounded in time and threads."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.exporter import Exporter
from dqnfed_flwr.exporter.webconfig import BasicAuth, Tls, WebConfig

CONNECTIONS = 32
"""Connections served at the same time; more are closed at once."""
SILENCE = 10.0
"""Seconds that a client may be silent."""
JSON, HTML, PLAIN = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

logger = logging.getLogger("dqnfed")


class Server(ThreadingHTTPServer):
    """Serves an exporter on an address and port, 0 for any free one; ConfigError if they cannot be had."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, exporter: Exporter, address: str, port: int, web: WebConfig) -> None:
        self.exporter = exporter
        self.basic_auth = BasicAuth(web.users)
        self.page = files("dqnfed_flwr.exporter").joinpath("dashboard.html").read_bytes()
        self._secure = Secure(web.tls) if web.tls else None
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self.scheme = "https" if web.tls else "http"
        try:
            self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((address, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--bind {address} --port {port}: cannot listen there ({error}); choose another, or end who listens"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"{self.scheme}://{shown}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection on, or close it where there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, in its own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands where TLS is asked for, then answer."""
        request.settimeout(SILENCE)
        if self._secure is None:
            super().finish_request(request, client_address)
            return
        with self._secure.context().wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no error of the server; anything else is logged."""
        logger.info("connection from %s ended early", client_address[0], exc_info=True)


class Secure:
    """The TLS context, made anew when the certificate's file changes, so that a rotation needs no restart."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._context, self._stamp = tls.context(), self._stamps()

    def context(self) -> ssl.SSLContext:
        """The context of the files as they are; the one before, while they do not fit each other."""
        with self._lock:
            try:
                stamp = self._stamps()
                if stamp != self._stamp:
                    self._context, self._stamp = self._tls.context(), stamp
            except (OSError, ssl.SSLError) as error:
                logger.warning("%s: cannot be used (%s); the one before still serves", self._tls.certificate, error)
            return self._context

    def _stamps(self) -> tuple[int, ...]:
        return tuple(path.stat().st_mtime_ns for path in (self._tls.certificate, self._tls.key))


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "dqnfed-exporter"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = SILENCE

    def do_GET(self) -> None:
        """Answer with a body."""
        path = unquote(urlsplit(self.path).path)
        if path == "/health":
            self._health()
        elif not self.server.basic_auth.admits(self.headers.get("Authorization")):
            self._send(HTTPStatus.UNAUTHORIZED, b"a name and a password are needed\n")
        else:
            try:
                self._answer(path)
            except OSError as error:
                logger.warning("%s: %s", path, error)
                self._unreadable(error)
            except Exception as error:
                logger.warning("%s: %r", path, error, exc_info=True)
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"the exporter failed; its log says why\n")

    do_HEAD = do_GET

    def _answer(self, path: str) -> None:
        exporter = self.server.exporter
        if path == "/metrics":
            self._send(HTTPStatus.OK, exporter.exposition(), CONTENT_TYPE_PLAIN_0_0_4)
        elif path in ("/", "/dashboard"):
            self._send(HTTPStatus.OK, self.server.page, HTML)
        elif path == "/api/state.json":
            self._send(HTTPStatus.OK, _json(exporter.state()), JSON)
        elif (
            path.startswith("/api/rounds/")
            and (rounds := exporter.rounds(path.removeprefix("/api/rounds/"))) is not None
        ):
            self._send(HTTPStatus.OK, _json(rounds), JSON)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"try /, /metrics or /health\n")

    def _health(self) -> None:
        try:
            self.server.exporter.files.current()
        except OSError as error:
            self._unreadable(error)
        else:
            self._send(HTTPStatus.OK, b"ok\n")

    def _unreadable(self, error: OSError) -> None:
        self._send(HTTPStatus.SERVICE_UNAVAILABLE, f"cannot read the metrics: {error.strerror}\n".encode())

    def _send(self, status: HTTPStatus, body: bytes, kind: str = PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", POLICY)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="dqnfed", charset="UTF-8"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests only in detail; one comes every few seconds."""
        logger.debug("%s %s", self.address_string(), format % args)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
