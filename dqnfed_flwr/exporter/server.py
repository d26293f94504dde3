"""The HTTP server of the exporter: few paths, only reading, bounded in time, threads and bytes.

Nothing but `/health` is answered under a foreign name: a page of somebody else could otherwise let its own name point
here, and read the answers in its visitor's browser (DNS rebinding).
"""

from __future__ import annotations

import io
import json
import logging
import socket
import ssl
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import unquote, urlsplit

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.connections import Connection, Connections
from dqnfed_flwr.exporter.exporter import Exporter
from dqnfed_flwr.exporter.hosts import Hosts
from dqnfed_flwr.exporter.passwords import Admission, BasicAuth
from dqnfed_flwr.exporter.webconfig import Tls, WebConfig

CONNECTIONS = 32
"""Connections served at the same time; a new one takes the place of the slowest."""
SECONDS = 15.0
"""What a request may take, from the wait for its first byte to the last byte of its answer."""
HEAD_BYTES = 32_768
"""Of a request line with its headers."""
JSON, HTML, PLAIN = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""

logger = logging.getLogger("dqnfed")


class Server(HTTPServer):
    """Serves an exporter on an address and port, 0 for any free one; ConfigError if they cannot be had.

    `names` are those under which it may be asked, besides its own.
    """

    request_queue_size = 128

    def __init__(self, exporter: Exporter, address: str, port: int, web: WebConfig, names: Sequence[str] = ()) -> None:
        self.exporter = exporter
        self.basic_auth = BasicAuth(web.users)
        self.hosts = Hosts((address, *names))
        self.page = files("dqnfed_flwr.exporter").joinpath("dashboard.html").read_bytes()
        self._secure = Secure(web.tls) if web.tls else None
        self._connections = Connections(CONNECTIONS, SECONDS)
        self.scheme = "https" if web.tls else "http"
        try:
            self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((address, port), BaseHTTPRequestHandler)  # `_serve` makes the handlers
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

    def service_actions(self) -> None:
        """Twice a second: cut the connections that take too long."""
        self._connections.cut_late()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or close it where there is no place."""
        connection = self._connections.take(request)
        if connection is None:
            self.shutdown_request(request)
            return
        try:
            threading.Thread(target=self._serve, args=(request, client_address, connection), daemon=True).start()
        except RuntimeError:  # the system gives no thread
            self._connections.leave(connection)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no error of the server; anything else is logged."""
        logger.info("connection from %s ended early", client_address[0], exc_info=True)

    def _serve(self, request: Any, client_address: Any, connection: Connection) -> None:
        try:
            if self._secure is not None:
                request = self._secure.context().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                request.do_handshake()
            Handler(request, client_address, self, connection)
        except Exception:
            self.handle_error(request, client_address)
        finally:
            self.shutdown_request(request)
            self._connections.leave(connection)


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
        files = (self._tls.certificate, self._tls.key, self._tls.authority)
        return tuple(path.stat().st_mtime_ns for path in files if path is not None)


class Head(io.BufferedReader):
    """What a client sends, line by line; LineTooLong once a request's head has no bytes left."""

    left = HEAD_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        """The next line, or as much of it as the head may still have."""
        if self.left <= 0:
            raise LineTooLong("head")
        line = super().readline(self.left if size is None or size < 0 else min(size, self.left))
        self.left -= len(line)
        return line


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "dqnfed-exporter"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def __init__(self, request: Any, client_address: Any, server: Server, connection: Connection) -> None:
        self._served = connection
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        """Read through a `Head`."""
        super().setup()
        self.rfile.close()
        self.rfile = self._head = Head(self.connection.makefile("rb", buffering=0))

    def handle_one_request(self) -> None:
        """Read and answer a request, within its deadline and its bytes."""
        self._served.begin()
        self._head.left = HEAD_BYTES
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer with a body."""
        path = unquote(urlsplit(self.path).path)
        if path == "/health":
            self._make(path)
        elif not self.server.hosts.know(self.headers.get_all("Host", [])):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"not known by this name; --host NAME of the exporter adds it\n")
        elif (found := self.server.basic_auth.admits(self.headers.get("Authorization"))) is Admission.LATER:
            self._send(HTTPStatus.TOO_MANY_REQUESTS, b"too many passwords are being checked; try again\n")
        elif found is Admission.NO:
            self._send(HTTPStatus.UNAUTHORIZED, b"a name and a password are needed\n")
        else:
            self._make(path)

    do_HEAD = do_GET

    def _make(self, path: str) -> None:
        try:
            with self._served.at_work():
                answer = self._answer(path)
        except OSError as error:
            logger.warning("%s: %s", path, error)
            answer = HTTPStatus.SERVICE_UNAVAILABLE, f"cannot read the metrics: {error.strerror}\n".encode(), PLAIN
        except Exception as error:
            logger.warning("%s: %r", path, error, exc_info=True)
            answer = HTTPStatus.INTERNAL_SERVER_ERROR, b"the exporter failed; its log says why\n", PLAIN
        self._send(*answer)

    def _answer(self, path: str) -> Answer:
        exporter = self.server.exporter
        if path == "/health":
            exporter.files.current()
            return HTTPStatus.OK, b"ok\n", PLAIN
        if path == "/metrics":
            return HTTPStatus.OK, exporter.exposition(), CONTENT_TYPE_PLAIN_0_0_4
        if path in ("/", "/dashboard"):
            return HTTPStatus.OK, self.server.page, HTML
        if path == "/api/state.json":
            return HTTPStatus.OK, _json(exporter.state()), JSON
        if path.startswith("/api/rounds/"):
            rounds = exporter.rounds(path.removeprefix("/api/rounds/"))
            if rounds is not None:
                return HTTPStatus.OK, _json(rounds), JSON
        return HTTPStatus.NOT_FOUND, b"try /, /metrics or /health\n", PLAIN

    def _send(self, status: HTTPStatus, body: bytes, kind: str = PLAIN) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", POLICY)
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", 'Basic realm="dqnfed", charset="UTF-8"')
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests only in detail; one comes every few seconds."""
        logger.debug("%s %s", self.address_string(), format % args)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
