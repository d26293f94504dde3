"""The compose file itself, brought up by the container engine of this machine: TLS, keys, a run, a node that dies.

An image need not be there: unless DQNFED_TEST_IMAGE names one, an empty one is made, and this machine's libraries,
Python and environment are mounted into it. Without Docker, root with podman, runc, netavark, aardvark-dns, iptables and
catatonit does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
BIN = Path(sys.executable).parent
UID = 1000
STAND_IN = "localhost/dqnfed-stand-in:latest"
ROLES = ("superlink", "superexec", *(f"{role}-{k}" for k in range(3) for role in ("supernode", "clientexec")))
LIBRARIES = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64")
UP_SECONDS, RETURN_SECONDS, RUN_SECONDS = 180.0, 180.0, 420.0
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def compose_program() -> list[str]:
    if shutil.which("docker") and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    if found := shutil.which("docker-compose"):
        return [found]
    pytest.skip("neither `docker compose` nor docker-compose is installed")


@contextmanager
def podman_service(place: Path) -> Iterator[dict[str, str]]:
    """A Docker API of podman's, with storage of its own."""
    for name, text in PODMAN.items():
        (place / name).write_text(text.format(place=place))
    address = place / "p.sock"
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(place / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(place / "storage.conf"),
        "DOCKER_HOST": f"unix://{address}",
    }
    log = (place / "podman.log").open("wb")
    service = subprocess.Popen(
        ["podman", "system", "service", "--time=0", f"unix://{address}"],
        env=environment,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        wait_for(address.exists, 30, lambda: (place / "podman.log").read_text())
        yield environment
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(20)
        log.close()
        subprocess.run(["podman", "system", "reset", "--force"], env=environment, capture_output=True, timeout=120)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment in which `docker` and compose find an engine."""
    if shutil.which("docker") is None:
        pytest.skip("the client `docker` is not installed")
    environment = dict(os.environ)
    if subprocess.run(["docker", "info"], capture_output=True, env=environment, timeout=30).returncode == 0:
        yield environment
        return
    if os.geteuid() or not (shutil.which("podman") and shutil.which("runc")):
        pytest.skip("no Docker engine answers, and podman with runc needs root")
    with podman_service(tmp_path_factory.mktemp("podman")) as environment:
        yield environment


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

    def dqnfed(self, *arguments: str, seconds: float = 180, check: bool = True) -> str:
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
            *(str(BIN / "flwr"), "supernode", "list", "dqnfed", "--format", "json"),
            environment={**self.environment, **QUIET, "FLWR_HOME": str(self.directory / "operator")},
            check=False,
        )
        return text.count('"online"')

    def registered(self) -> bool:
        return "node-2: " in self.dqnfed("deploy", "register", str(self.directory), check=False)

    def over(self) -> bool:
        return "finished" in self.dqnfed("runs", str(self.directory))

    def texts(self) -> str:
        return self.compose("logs", "--no-color", "--tail=15", check=False)


@pytest.fixture(scope="module")
def stack(engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    place = tmp_path_factory.mktemp("stack")
    image = os.environ.get("DQNFED_TEST_IMAGE", "")
    if not image:
        make_stand_in(place, engine)
    control = free_port()
    directory = place / "federation"
    call(
        *(str(BIN / "dqnfed"), "deploy", "init", str(directory), "--nodes", "3", "--host", "superlink"),
        *("--control-port", str(control)),
        environment={**engine, **QUIET},
    )
    for path in (directory, *directory.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, UID, UID)
    variables = {
        "COMPOSE_PROJECT_NAME": f"dqnfedtest{os.getpid()}",
        "DQNFED_IMAGE": image or STAND_IN,
        "DQNFED_UID": str(UID if os.geteuid() == 0 else os.geteuid()),
        "DQNFED_GID": str(UID if os.geteuid() == 0 else os.getegid()),
        "DQNFED_SERVER_DIR": str(directory / "server"),
        **{f"DQNFED_NODE_{k}_DIR": str(directory / "nodes" / f"node-{k}") for k in range(3)},
        "DQNFED_FLEET_PORT": str(free_port()),
        "DQNFED_CONTROL_PORT": str(control),
        "COMPOSE_HTTP_TIMEOUT": "180",
    }
    files = [DOCKER / "compose.yaml"]
    if not image:
        overlay = place / "mounts.yaml"
        overlay.write_text(yaml.safe_dump({"services": {role: {"volumes": mounts()} for role in ROLES}}))
        files.append(overlay)
    command = [*compose_program(), *(word for file in files for word in ("-f", str(file)))]
    stack = Stack(directory, {**engine, **variables}, command)
    try:
        stack.compose("up", "-d", "--no-build", seconds=300)
        wait_for(
            lambda: "node-2: " in stack.dqnfed("deploy", "register", str(directory), check=False), 120, stack.texts
        )
        wait_for(lambda: stack.online() == 3, UP_SECONDS, stack.texts)
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout=5", check=False)


def test_every_role_is_up_and_as_the_file_says(stack: Stack) -> None:
    for role in ROLES:
        found = stack.inspect(role)
        assert found["State"]["Running"], role
        assert found["HostConfig"]["ReadonlyRootfs"], role
        assert found["HostConfig"]["Memory"] > 0, role
        assert found["Config"]["User"] not in ("", "0", "root"), role


def reach(host: str, port: int) -> str:
    return f"import socket; socket.create_connection(({host!r}, {port}), 3)"


def test_nodes_reach_the_fleet_port_and_nothing_else(stack: Stack) -> None:
    assert stack.inside("supernode-0", reach("superlink", 9092))
    assert not stack.inside("supernode-0", reach("superlink", 8000))
    assert not stack.inside("supernode-0", reach("supernode-1", 9094))
    assert stack.inside("superexec", reach("superlink", 8000))
    addresses = stack.inspect("superlink")["NetworkSettings"]["Networks"]
    control = next(one["IPAddress"] for name, one in addresses.items() if name.endswith("control"))
    assert not stack.inside("supernode-0", reach(control, 8000))


def test_executors_of_nodes_reach_their_supernode_alone(stack: Stack) -> None:
    assert stack.inside("clientexec-0", reach("supernode-0", 9094))
    assert not stack.inside("clientexec-0", reach("superlink", 9092))
    assert not stack.inside("clientexec-0", "open('/run/secrets/node-0-key')")


def test_root_is_read_only_and_state_is_not(stack: Stack) -> None:
    assert not stack.inside("clientexec-0", "open('/etc/x', 'w')")
    assert stack.inside("clientexec-0", "open('/var/lib/dqnfed/x', 'w')")
    assert stack.inside("superexec", "open('/runs/x', 'w'), open('/metrics/x', 'w')")


def test_a_run_completes_though_a_node_is_killed_and_comes_back(stack: Stack) -> None:
    settings = {"clients": 3, "rounds": 20, "min-clients": 2, "quorum": 0.6, "deadline": 120, "local.threads": 1}
    given = [f"--set={key}={value}" for key, value in settings.items()]
    number = stack.dqnfed("submit", "digits", str(stack.directory), "--detach", *given).split()[-1]

    def log() -> str:
        return stack.dqnfed("logs", number, str(stack.directory), check=False)

    def under_way() -> bool:
        assert not stack.over(), log()
        return "round 2/" in log()

    wait_for(under_way, RUN_SECONDS, lambda: log() + stack.texts())
    before = stack.inspect("supernode-1")
    os.kill(before["State"]["Pid"], signal.SIGKILL)
    wait_for(
        lambda: (
            (now := stack.inspect("supernode-1"))["State"]["Running"]
            and now["State"]["Pid"] != before["State"]["Pid"]
            and stack.online() == 3
        ),
        RETURN_SECONDS,
        stack.texts,
    )
    wait_for(
        lambda: "finished" in stack.dqnfed("runs", str(stack.directory)), RUN_SECONDS, lambda: log() + stack.texts()
    )
    assert f"{number}  finished:completed" in stack.dqnfed("runs", str(stack.directory)), log()
    assert stack.inside("superexec", f"open('/runs/{number}/model.npz').close()")
