"""The compose file itself, brought up by the container engine of this machine: TLS, keys, a run, a node that dies.

An image need not be there: unless DQNFED_TEST_IMAGE names one, an empty one is made, and this machine's libraries,
Python and environment are mounted into it. Without Docker, root with podman, runc, netavark, aardvark-dns, iptables and
catatonit does.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.helpers.compose import BIN, DOCKER, QUIET, ROLES, STAND_IN, UID, Stack, call, make_stand_in, mounts, wait_for
from tests.helpers.markdown import blocks
from tests.helpers.podman import podman_service

pytestmark = pytest.mark.deploy

PAGE = Path(__file__).parents[2] / "docs" / "containers.md"
UP_SECONDS, RETURN_SECONDS, RUN_SECONDS = 400.0, 240.0, 600.0


def line_of_the_page(word: str) -> str:
    """The command that has a word, among those of docs/containers.md for one host."""
    block = next(block for block in blocks(PAGE) if " init " in block.text)
    return next(line for line in block.text.splitlines() if word in line)


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


@pytest.fixture(scope="module")
def engine() -> Iterator[dict[str, str]]:
    """Environment in which `docker` and compose find an engine."""
    if shutil.which("docker") is None:
        pytest.skip("the client `docker` is not installed")
    environment = dict(os.environ)
    if subprocess.run(["docker", "info"], capture_output=True, env=environment, timeout=30).returncode == 0:
        yield environment
        return
    if os.geteuid() or not (shutil.which("podman") and shutil.which("runc")):
        pytest.skip("no Docker engine answers, and podman with runc needs root")
    with podman_service() as environment:
        yield environment


def compose_variables(directory: Path, image: str, control: int) -> dict[str, str]:
    """What compose.yaml asks of its environment."""
    uid, gid = (os.geteuid() or UID), (os.getegid() or UID)
    return {
        "COMPOSE_PROJECT_NAME": f"dqnfedtest{os.getpid()}",
        "COMPOSE_HTTP_TIMEOUT": "180",
        "DQNFED_IMAGE": image,
        "DQNFED_UID": str(uid),
        "DQNFED_GID": str(gid),
        "DQNFED_SERVER_DIR": str(directory / "server"),
        **{f"DQNFED_NODE_{k}_DIR": str(directory / "nodes" / f"node-{k}") for k in range(3)},
        "DQNFED_FLEET_PORT": str(free_port()),
        "DQNFED_CONTROL_PORT": str(control),
    }


@pytest.fixture(scope="module")
def stack(engine: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    place = tmp_path_factory.mktemp("stack")
    image = os.environ.get("DQNFED_TEST_IMAGE", "")
    if not image:
        make_stand_in(place, engine)
    control = free_port()
    directory = place / "federation"
    words = line_of_the_page(" init ").replace(" federation ", f" {directory} --control-port {control} ").split()
    call(str(BIN / words[0]), *words[1:], environment={**engine, **QUIET})
    for path in (directory, *directory.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, UID, UID)
    files = [DOCKER / "compose.yaml"]
    if not image:
        overlay = place / "mounts.yaml"
        overlay.write_text(yaml.safe_dump({"services": {role: {"volumes": mounts()} for role in ROLES}}))
        files.append(overlay)
    command = [*compose_program(), *(word for file in files for word in ("-f", str(file)))]
    stack = Stack(directory, {**engine, **compose_variables(directory, image or STAND_IN, control)}, command)
    try:
        assert line_of_the_page(" up ") == "docker compose up -d --build"
        stack.compose("up", "-d", "--no-build", seconds=300)
        wait_for(stack.registered, UP_SECONDS, stack.texts)
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
    settings = {"rounds": 12, "min-clients": 2, "quorum": 0.6, "deadline": 120, "local.threads": 1}
    given = [f"--set={key}={value}" for key, value in settings.items()]
    submit = line_of_the_page(" submit ").replace(" federation ", f" {stack.directory} ").split()
    number = stack.dqnfed(*submit[1:], "--detach", *given).split()[-1]

    def log() -> str:
        return stack.dqnfed("logs", number, str(stack.directory), check=False)

    def under_way() -> re.Match[str] | None:
        assert not stack.over(), log()
        return re.search(r"round +2/", log())

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
    wait_for(stack.over, RUN_SECONDS, lambda: log() + stack.texts())
    assert f"{number}  finished:completed" in stack.dqnfed("runs", str(stack.directory)), log()
    assert stack.inside("superexec", f"open('/runs/{number}/model.npz').close()")
