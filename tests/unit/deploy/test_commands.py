"""The systemd units, by systemd's own tools and against the commands that `deploy init` writes."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dqnfed_flwr.deploy.commands import (
    node_files,
    node_superexec_arguments,
    server_environment,
    superexec_arguments,
    superlink_arguments,
    supernode_arguments,
)
from dqnfed_flwr.deploy.plan import Federation, Node
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
NODE = Node("node-0", 0, 9094)
PLAN = Federation("fl.example.org", nodes=(NODE,), flwr="1.39.0")  # which the units are for
EXPOSURE = 2.0
"""systemd's own figure, from 0 (closed) to 10."""
ROLES = {
    "dqnfed-superlink.service": (superlink_arguments(PLAN), server_environment(PLAN)),
    "dqnfed-superexec.service": (superexec_arguments(PLAN), server_environment(PLAN)),
    "dqnfed-supernode@.service": (supernode_arguments(PLAN, NODE), node_files(PLAN, NODE)["environment"]),
    "dqnfed-clientexec@.service": (node_superexec_arguments(NODE), node_files(PLAN, NODE)["environment"]),
}
ALL = sorted([*ROLES, "dqnfed-exporter.service"])
analyze = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(analyze is None, reason="systemd-analyze is not installed")


def section(name: str, title: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(re.sub(r"\\\n\s*", " ", (UNITS / name).read_text()))
    return dict(parser[title])


def every(name: str, key: str) -> list[str]:
    """Words of a setting that may be given several times."""
    found = re.findall(rf"^{key}=(.*)$", (UNITS / name).read_text(), re.MULTILINE)
    return [word for line in found for word in line.split()]


def test_these_are_all() -> None:
    assert sorted(path.name for path in UNITS.glob("*.service")) == ALL


@pytest.mark.parametrize("name", ALL)
def test_restarted_for_ever_and_closed(name: str) -> None:
    assert section(name, "Unit")["StartLimitIntervalSec"] == "0"
    service = section(name, "Service")
    wanted = {
        "Restart": "always",
        "RestartSec": "5",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "StandardOutput": "journal",
        "StandardError": "journal",
        "User": "dqnfed-client" if name == "dqnfed-clientexec@.service" else "dqnfed",
        "CapabilityBoundingSet": "",
    }
    assert {key: service.get(key) for key in wanted} == wanted
    assert service["MemoryMax"]


@pytest.mark.parametrize("name", sorted(ROLES))
def test_units_start_what_the_commands_start(name: str) -> None:
    arguments, environment = ROLES[name]
    found = re.findall(r'^(\w+)="(.*)"$', environment, re.MULTILINE)
    variables = {key: value.replace('\\"', '"') for key, value in found}
    variables["CREDENTIALS_DIRECTORY"] = "CREDENTIALS"
    given = [
        re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word)
        for word in section(name, "Service")["ExecStart"].split()
    ]
    assert given[0] == f"/opt/dqnfed/bin/{arguments[0]}"
    elsewhere = {"state/superlink.db": "/var/lib/dqnfed/superlink/superlink.db", "state": "/var/lib/dqnfed/superlink"}
    elsewhere |= PLACES.get(name, {})
    assert sorted(given[1:]) == sorted(elsewhere.get(word, word) for word in arguments[1:])


PLACES = {
    "dqnfed-clientexec@.service": {
        "superexec.secret": "CREDENTIALS/superexec.secret",
        "apps": "/etc/dqnfed/nodes/%i/apps",
    }
}
"""Where the commands of a unit find what lies in the role's folder: as another user, in a place of its own."""


def test_the_client_is_another_user_than_the_node_and_gets_its_secret_from_systemd() -> None:
    client, node = (section(f"dqnfed-{role}@.service", "Service") for role in ("clientexec", "supernode"))
    assert client["User"] != node["User"]
    assert every("dqnfed-clientexec@.service", "LoadCredential") == [
        f"{name}:/etc/dqnfed/nodes/%i/{name}" for name in ("superexec.secret", IDENTITY, PEERS_LIST)
    ]


SEEN = {
    "dqnfed-clientexec@.service": (
        {"/etc/dqnfed/nodes/%i/apps"},
        {"/var/lib/dqnfed/%i/client"},
        "/etc/dqnfed/nodes/%i/node.key",
    ),
    "dqnfed-superexec.service": (
        {"/etc/dqnfed/server"},
        {"/var/lib/dqnfed/server", "/var/lib/dqnfed/metrics"},
        "/etc/dqnfed/server/server.key",
    ),
}
"""What app code sees below /etc/dqnfed and below /var/lib/dqnfed, and a private key in the former that it does not."""


@pytest.mark.parametrize("name", SEEN)
def test_app_code_sees_the_folders_of_its_role_alone(name: str) -> None:
    service = section(name, "Service")
    readable, writable, key = SEEN[name]
    assert service["TemporaryFileSystem"].split() == ["/etc/dqnfed:ro", "/var/lib/dqnfed:ro"]
    assert set(service["BindReadOnlyPaths"].split()) == readable
    assert set(service["BindPaths"].split()) == writable
    assert {f"/var/lib/{place}" for place in service["StateDirectory"].split()} == writable
    assert f"-{key}" in every(name, "InaccessiblePaths")
    assert (
        service["PrivateUsers"] == "yes"
    )  # or /proc/PID/root of another service of the same user leads round all this


@pytest.mark.parametrize("name", SEEN)
def test_app_code_writes_and_keeps_data_where_it_may(name: str) -> None:
    variables = dict(value.split("=", 1) for value in every(name, "Environment"))
    places = [value for key, value in variables.items() if key != "PATH"]
    assert "DQNFED_DATA" in variables
    for place in places:
        assert any(place == root or place.startswith(f"{root}/") for root in SEEN[name][1]), place


@needs_systemd
@pytest.mark.parametrize("name", ALL)
def test_systemd_finds_no_fault(name: str, tmp_path: Path) -> None:
    assert analyze is not None
    for unit in UNITS.glob("*.service"):
        text = re.sub(r"/opt/dqnfed/bin/[\w-]+", sys.executable, unit.read_text())
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run([analyze, "verify", str(tmp_path / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@needs_systemd
@pytest.mark.parametrize("name", ALL)
def test_systemd_finds_it_closed(name: str) -> None:
    assert analyze is not None
    command = [analyze, "security", "--offline=true", "--no-pager", str(UNITS / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd has no offline analysis")
    figure = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert figure is not None, done.stdout + done.stderr
    assert float(figure[1]) <= EXPOSURE


@pytest.mark.parametrize(("flwr", "over_http"), [("1.39.0", False), ("1.40.0", True), ("1.42.0", True), ("2.0", True)])
def test_a_superlink_has_a_fleet_port_as_long_as_flower_speaks_grpc(flwr: str, over_http: bool) -> None:
    federation = Federation("fl.example.org", flwr=flwr)
    assert ("--fleet-api-address" in superlink_arguments(federation)) is not over_http
    assert ("gate" in federation.transport.endpoints) is over_http
    assert "127.0.0.1" in superlink_arguments(federation)
