"""nginx with the `nginx.conf` that is shipped, where this machine has nginx."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._federation import ROOT
from benchmarks._programs import listening, wait_for

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
SHIPPED = ROOT / "docker" / "gate" / "nginx.conf"


def configured(port: int, target: int, server: Path, place: Path) -> str:
    """What is shipped, for loopback and with the files of a federation in place of a container's."""
    text = SHIPPED.read_text("utf-8")
    for ours, theirs in {
        "/tmp/": f"{place}/",
        "listen 8443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/run/secrets/server-certificate": str(server / "server.crt"),
        "/run/secrets/server-key": str(server / "server.key"),
        "/run/secrets/ca": str(server / "ca.crt"),
        "set $superlink control;": "set $superlink 127.0.0.1;",
        "$superlink:8000": f"$superlink:{target}",
    }.items():
        assert ours in text, ours
        text = text.replace(ours, theirs)
    return text


@contextmanager
def nginx(port: int, target: int, server: Path) -> Iterator[None]:
    """As `gate` of `benchmarks/_gate.py`, with the program that is shipped for it."""
    assert NGINX is not None
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o711)  # nginx's workers may be of another user
        (place / "nginx.conf").write_text(configured(port, target, server, place))
        command = [NGINX, "-e", "stderr", "-c", str(place / "nginx.conf"), "-g", "daemon off;"]
        with (place / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                wait_for(lambda: listening(port), 20, (place / "log").read_text)
                yield
            finally:
                process.terminate()
                process.wait(20)
