"""A Docker API of podman's for one test, with storage of its own that is gone afterwards, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PODMAN = {
    "containers.conf": """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
""",
    "storage.conf": """
[storage]
driver = "overlay"
graphroot = "{place}/g"
runroot = "{place}/r"
""",
}


@contextmanager
def podman_service() -> Iterator[dict[str, str]]:
    """Environment in which `docker` finds podman.

    The storage lies outside pytest's folders: those are removed by whichever run comes next, and a mount that a killed
    run has left would stop it.
    """
    place = Path(tempfile.mkdtemp(prefix="dqnfed-podman-"))
    for name, text in PODMAN.items():
        (place / name).write_text(text.format(place=place))
    address = f"unix://{place / 'p.sock'}"
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(place / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
        "DOCKER_HOST": address,
    }
    with (place / "podman.log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", address],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_for(place / "p.sock", place / "podman.log")
        yield environment
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(20)
        subprocess.run(["podman", "system", "reset", "--force"], env=environment, capture_output=True, timeout=120)
        _unmount(place)
        shutil.rmtree(place, ignore_errors=True)


def _wait_for(address: Path, log: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not address.exists():
        assert time.monotonic() < end, f"podman did not start within {seconds:.0f} s\n{log.read_text()}"
        time.sleep(0.2)


def _unmount(place: Path) -> None:
    """Whatever podman has left mounted below `place`, the deepest first."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in sorted((one for one in targets if Path(one).is_relative_to(place)), reverse=True):
        subprocess.run(["umount", "--lazy", target], capture_output=True)
