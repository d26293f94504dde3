"""nginx with the `nginx.conf` that is shipped, where this machine has nginx."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._federation import ROOT
from benchmarks._programs import free_ports, listening, wait_for

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
SHIPPED = ROOT / "docker" / "gate" / "nginx.conf"


def configured(port: int, target: int, server: Path, place: Path, exporter: tuple[int, int]) -> str:
    """What is shipped, for loopback and with the files of a federation in place of a container's."""
    text = SHIPPED.read_text("utf-8")
    for ours, theirs in {
        "/tmp/": f"{place}/",
        "/etc/dqnfed/": f"{place}/",
        "listen 8443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/run/secrets/server-certificate": str(server / "server.crt"),
        "/run/secrets/server-key": str(server / "server.key"),
        "/run/secrets/ca": str(server / "ca.crt"),
        "set $superlink control;": "set $superlink 127.0.0.1;",
        "$superlink:8000": f"$superlink:{target}",
        "listen 9465 ssl;": f"listen 127.0.0.1:{exporter[0]} ssl;",
        "set $exporter exporter;": "set $exporter 127.0.0.1;",
        "$exporter:9464": f"$exporter:{exporter[1]}",
    }.items():
        assert ours in text, ours
        text = text.replace(ours, theirs)
    return text


@contextmanager
def nginx(
    port: int, target: int, server: Path, exporter: tuple[int, int] | None = None, users: str = ""
) -> Iterator[None]:
    """As `gate` of `benchmarks/_gate.py`, with the program that is shipped for it.

    `exporter` is the port before an exporter, and its own; `users` are the lines of its password file, "" for none.
    """
    assert NGINX is not None
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o711)  # nginx's workers may be of another user
        before, behind = exporter or free_ports(2)
        (place / "nginx.conf").write_text(configured(port, target, server, place, (before, behind)))
        if users:
            (place / "exporter.htpasswd").write_text(users)
        command = [NGINX, "-e", "stderr", "-c", str(place / "nginx.conf"), "-g", "daemon off;"]
        with (place / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                wait_for(lambda: listening(port), 20, (place / "log").read_text)
                yield
            finally:
                process.terminate()
                process.wait(20)
