"""Findings of `dqnfed deploy check`, and somebody who listens where a SuperLink would."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dqnfed_flwr.deploy import pki
from dqnfed_flwr.deploy.findings import Finding, Level
from dqnfed_flwr.deploy.registry import REGISTERED


def remember(place: Path, ids: dict[str, str]) -> None:
    """Let the folder `place` know nodes as registered, with the keys that they have there."""
    keys = {name: pki.fingerprint((place / "nodes" / name / "node.pub").read_bytes()) for name in ids}
    (place / REGISTERED).write_text(json.dumps({name: {"id": ids[name], "key": keys[name]} for name in ids}))


def troubles(findings: list[Finding]) -> dict[str, str]:
    """What is not well, with its remedy."""
    return {finding.what: finding.fix for finding in findings if finding.level is not Level.OK}


def only(findings: list[Finding]) -> tuple[str, str]:
    found = troubles(findings)
    assert len(found) == 1, found
    return next(iter(found.items()))


@contextmanager
def server(identity: pki.Identity | None, tmp_path: Path) -> Iterator[int]:
    """Somebody who listens: with TLS, or with plain text."""
    context = None
    if identity is not None:
        (tmp_path / "pair.pem").write_bytes(identity.certificate + identity.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "pair.pem")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.2)
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(listener, context, over))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join(10)


def _serve(listener: socket.socket, context: ssl.SSLContext | None, over: threading.Event) -> None:
    while not over.is_set():
        try:
            end, _ = listener.accept()
        except TimeoutError:
            continue
        end.settimeout(2)
        with end:
            try:
                if context is None:
                    end.recv(64)
                    end.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    continue
                with context.wrap_socket(end, server_side=True) as secure:
                    secure.recv(1024)
                    date = b"Wed, 01 Jan 2020 00:00:00 GMT"
                    secure.sendall(b"HTTP/1.1 200 OK\r\nDate: " + date + b"\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                continue
