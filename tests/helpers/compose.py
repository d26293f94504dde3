"""The federation of docker/compose.yaml under test, and an image that stands in for the real one."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent
UID = 1000
STAND_IN = "localhost/dqnfed-stand-in:latest"
ROLES = ("superlink", "superexec", *(f"{role}-{k}" for k in range(3) for role in ("supernode", "clientexec")))
LIBRARIES = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64")
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def call(*command: str, environment: dict[str, str], seconds: float = 120, check: bool = True, **more: Any) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT, **more
    )
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return str(done.stdout if check else done.stdout + done.stderr)


def wait_for(what: Callable[[], Any], seconds: float, why: Callable[[], str]) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"not within {seconds:.0f} s\n{why()}"
        time.sleep(1)
    return found


def make_stand_in(place: Path, environment: dict[str, str]) -> None:
    """An image of links and empty folders, and the two scripts that the real one has."""
    with tarfile.open(place / "image.tar", "w") as archive:

        def add(name: str, kind: bytes, mode: int = 0o755, link: str = "", owner: int = 0) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname, info.uid, info.gid = kind, mode, link, owner, owner
            archive.addfile(info)

        for name in ("etc", "proc", "sys", "dev", "run", *(path[1:] for path in ("/usr", *LIBRARIES)), "usr/local"):
            add(name, tarfile.DIRTYPE)
        for name in ("bin", "sbin", "lib", "lib64"):
            add(name, tarfile.SYMTYPE, link=f"usr/{name}")
        for name in ("var", "var/lib", "usr/local/lib", "usr/local/lib/dqnfed"):
            add(name, tarfile.DIRTYPE)
        for name in ("var/lib/dqnfed", "runs", "metrics", "data"):
            add(name, tarfile.DIRTYPE, 0o700, owner=UID)
        add("tmp", tarfile.DIRTYPE, 0o1777)
        for name in ("entrypoint.sh", "healthcheck.py"):
            archive.add(DOCKER / name, f"usr/local/lib/dqnfed/{name}")
    variables = {
        **QUIET,
        "PATH": f"{BIN}:/usr/bin",
        "HOME": "/var/lib/dqnfed",
        "FLWR_HOME": "/var/lib/dqnfed/flwr",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    changes = [f"--change=ENV {name}={value}" for name, value in variables.items()]
    changes += ['--change=ENTRYPOINT ["/usr/local/lib/dqnfed/entrypoint.sh"]', "--change=WORKDIR /var/lib/dqnfed"]
    call("docker", "import", *changes, str(place / "image.tar"), STAND_IN, environment=environment)


def mounts() -> list[str]:
    """What Python needs of this machine: system libraries, its own prefix, every folder that it imports from."""
    places = [Path(name) for name in (*LIBRARIES, sys.base_prefix, sys.prefix, str(ROOT)) if Path(name).is_dir()]
    for entry in sys.path:
        if Path(entry).is_dir() and not any(Path(entry).is_relative_to(place) for place in places):
            places.append(Path(entry))
    return [f"{place}:{place}:ro" for place in dict.fromkeys(places)]


@dataclass
class Stack:
    """The federation of compose.yaml."""

    directory: Path
    environment: dict[str, str]
    command: Sequence[str]
    services: list[str] = field(default_factory=lambda: list(ROLES))

    def compose(self, *arguments: str, seconds: float = 180, check: bool = True) -> str:
        return call(*self.command, *arguments, environment=self.environment, seconds=seconds, check=check)

    def dqnfed(self, *arguments: str, seconds: float = 400, check: bool = True) -> str:
        environment = {**self.environment, **QUIET, "OMP_NUM_THREADS": "1"}
        return call(str(BIN / "dqnfed"), *arguments, environment=environment, seconds=seconds, check=check)

    def inspect(self, service: str) -> dict[str, Any]:
        number = self.compose("ps", "-q", service).split()[0]
        found: dict[str, Any] = json.loads(call("docker", "inspect", number, environment=self.environment))[0]
        return found

    def inside(self, service: str, script: str) -> bool:
        """Whether a Python script ends well in the service's container."""
        number = self.compose("ps", "-q", service).split()[0]
        done = subprocess.run(
            ["docker", "exec", number, "python3", "-I", "-S", "-c", script],
            env=self.environment,
            capture_output=True,
            timeout=60,
        )
        return done.returncode == 0

    def online(self) -> int:
        text = call(
            *(str(BIN / "dqnfed"), "deploy", "flwr", str(self.directory)),
            *("supernode", "list", "dqnfed", "--format", "json"),
            environment={**self.environment, **QUIET},
            check=False,
        )
        return text.count('"online"')

    def registered(self) -> bool:
        return "node-2: " in self.dqnfed("deploy", "register", str(self.directory), check=False)

    def over(self) -> bool:
        return "finished" in self.dqnfed("runs", str(self.directory))

    def texts(self) -> str:
        return self.compose("logs", "--no-color", "--tail=15", check=False)
