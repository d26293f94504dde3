"""A server of files on loopback that can misbehave: cut transfers short, ignore ranges, refuse."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What is served, and what was asked.

    Attributes
    ----------
    files : dict[str, bytes]
        Contents by path, such as /a.bin.
    cuts : list[int]
        Of each of the next answers, how many bytes are sent before the connection is closed.
    ranges : bool
        Whether `Range` is heeded.
    asked : list[tuple[str, str]]
        Path and `Range` of every request.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def file_server() -> Iterator[FileServer]:
    """Serve from a free port until the block ends."""
    served = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            served.asked.append((self.path, wanted))
            content = served.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            match = re.fullmatch(r"bytes=(\d+)-", wanted) if served.ranges else None
            start = int(match[1]) if match else 0
            if match and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if match else 200)
            if match:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            self.wfile.write(body[: served.cuts.pop(0)] if served.cuts else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
