"""The compose files, read as data: hardening, networks, ports and secrets, for the base and under every overlay."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from dqnfed_flwr.deploy.grpc_transport import CALLS, LARGEST_MESSAGE
from dqnfed_flwr.deploy.http_transport import HEADER, REFUSED
from dqnfed_flwr.masked import IDENTITY, PEERS_LIST

DOCKER = Path(__file__).parents[3] / "docker"
GATE = (DOCKER / "gate" / "nginx.conf").read_text("utf-8")
COMMON, FLEET, EXPORTER = GATE.split("\n  server {\n")
"""What both servers of the gate have, and each of them."""
BASE = "compose.yaml"
OVERLAYS = sorted(path.name for path in DOCKER.glob("compose.*.yaml"))
STACKS = [BASE, *OVERLAYS]
ADDED = {"compose.http.yaml": {"gate"}, "compose.monitoring.yaml": {"exporter", "prometheus", "grafana"}}
NODES = ("0", "1", "2")
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*)|:\?[^}]*)?\}")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text("utf-8"))
    return found


def merge(base: Any, over: Any, key: str = "") -> Any:
    """As compose merges files: mappings by key, lists joined, commands and health checks replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {
            **base,
            **{name: merge(base[name], value, name) if name in base else value for name, value in over.items()},
        }
    if isinstance(base, list) and isinstance(over, list) and key not in ("command", "entrypoint", "test"):
        return base + over
    return over


def filled(text: str) -> str:
    """A text with the defaults of its variables."""
    return VARIABLE.sub(lambda match: match["default"] or "", text)


def stack(name: str) -> dict[str, Any]:
    merged: dict[str, Any] = read(BASE) if name == BASE else merge(read(BASE), read(name))
    return merged


def services(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = stack(name)["services"]
    return found


def networks(service: dict[str, Any]) -> set[str]:
    return set(service.get("networks", ()))


def secrets_of(service: dict[str, Any]) -> set[str]:
    return {each if isinstance(each, str) else each["source"] for each in service.get("secrets", ())}


def listed(service: dict[str, Any], key: str) -> list[str]:
    return [filled(str(item)) for item in service.get(key, ())]


def test_all_overlays_are_looked_at() -> None:
    wanted = {f"compose.{name}.yaml" for name in ("gpu", "monitoring", "http", "insecure", "device")}
    assert set(OVERLAYS) == wanted


@pytest.mark.parametrize("name", STACKS)
def test_every_service_is_hardened_and_bounded(name: str) -> None:
    for service, found in services(name).items():
        assert found["read_only"] is True, service
        assert found["cap_drop"] == ["ALL"], service
        assert found["security_opt"] == ["no-new-privileges:true"], service
        assert found["init"] is True, service
        assert filled(str(found["mem_limit"])), service
        assert found["pids_limit"] > 0, service
        assert any(place.startswith("/tmp:") for place in found["tmpfs"]), service
        assert not set(found) & {"privileged", "cap_add", "pid", "ipc", "devices", "userns_mode"}, service
        assert filled(found["user"]).split(":")[0] not in ("", "0", "root"), service
        assert found["restart"] == ("no" if service == "operator" else "unless-stopped"), service
        assert "test" in found.get("healthcheck", {}) or service == "operator", service


@pytest.mark.parametrize("name", STACKS)
def test_flower_can_write_in_its_home(name: str) -> None:
    for service, found in services(name).items():
        if service in {"gate", "prometheus", "grafana"}:
            continue
        home = found.get("environment", {}).get("FLWR_HOME", "/var/lib/dqnfed/flwr")
        folders = [place.split(":")[0] for place in listed(found, "tmpfs")]
        folders += [place.split(":")[1] for place in listed(found, "volumes") if not place.endswith(":ro")]
        assert any(PurePosixPath(home).is_relative_to(folder) for folder in folders), service


@pytest.mark.parametrize("name", STACKS)
def test_what_a_client_gave_once_outlives_its_container(name: str) -> None:
    """It stands in FLWR_HOME, in a volume of the client's own: the image's folder there says who may write."""
    everything = stack(name)
    for k in NODES:
        found = everything["services"][f"clientexec-{k}"]
        home = PurePosixPath(found["environment"]["FLWR_HOME"])
        places = [place.split(":")[:2] for place in listed(found, "volumes")]
        around = [[source, at] for source, at in places if home.is_relative_to(at)]
        assert around == [[f"node-{k}-state", "/var/lib/dqnfed"]]
        assert not any(home.is_relative_to(place.split(":")[0]) for place in listed(found, "tmpfs"))
        assert everything["volumes"][f"node-{k}-state"] == {}
        mounted = {service: " ".join(listed(one, "volumes")) for service, one in everything["services"].items()}
        assert [each for each, places in mounted.items() if f"node-{k}-state:" in places] == [f"clientexec-{k}"]
    assert re.search(r'chown "\$\{UID\}:\$\{GID\}" /var/lib/dqnfed ', (DOCKER / "Dockerfile").read_text("utf-8"))


@pytest.mark.parametrize("name", STACKS)
def test_only_the_fleet_port_and_the_gate_can_be_published_beyond_loopback(name: str) -> None:
    for service, found in services(name).items():
        for port in found.get("ports", ()):
            assert filled(port).startswith("127.0.0.1:"), port  # by default nothing is
            if not port.startswith("127.0.0.1:"):
                inside = port.rpartition(":")[2]
                assert (service, inside) in {("superlink", "9092"), ("gate", "8443"), ("gate", "9465")}
                whose = "EXPORTER" if inside == "9465" else "FLEET"
                assert port.startswith(f"${{DQNFED_{whose}_ADDRESS:-127.0.0.1}}:"), port


def test_control_is_on_loopback_and_bound_to_its_own_network() -> None:
    superlink = services(BASE)["superlink"]
    assert "127.0.0.1:8000:8000" in listed(superlink, "ports")
    assert "--host=control" in superlink["command"]
    assert superlink["networks"] == {"fleet": {}, "control": {"aliases": ["control"]}}


@pytest.mark.parametrize("name", STACKS)
def test_networks_are_split(name: str) -> None:
    found = services(name)
    for k in NODES:
        assert networks(found[f"supernode-{k}"]) == {"fleet", f"node-{k}"}
        assert networks(found[f"clientexec-{k}"]) == {f"node-{k}"}
        assert "--host=runtime" in found[f"supernode-{k}"]["command"]
        assert found[f"supernode-{k}"]["networks"][f"node-{k}"] == {"aliases": ["runtime"]}
        assert stack(name)["networks"][f"node-{k}"] == {"internal": True}
    on_control = {service for service, one in found.items() if "control" in networks(one)}
    assert on_control <= {"superlink", "superexec", "gate", "exporter"}
    assert stack(name)["networks"]["fleet"] == {"internal": name != "compose.device.yaml"}
    assert {service for service, one in found.items() if "network_mode" in one} == {"operator"}
    assert found["operator"]["profiles"] == ["operator"]


@pytest.mark.parametrize("name", STACKS)
def test_each_service_sees_its_own_secrets_and_names_no_others(name: str) -> None:
    everything = stack(name)
    for service, found in everything["services"].items():
        given = secrets_of(found)
        assert given <= set(everything["secrets"]), service
        used = set(re.findall(r"/run/secrets/([\w-]+)", " ".join(map(str, found.get("command", ())))))
        assert used <= given, service
        if "server-key" in given:
            assert service in {"superlink", "gate"}
        for k in NODES:
            if f"node-{k}-key" in given:
                assert service == f"supernode-{k}"
            if f"node-{k}-identity" in given:
                assert service == f"clientexec-{k}"


@pytest.mark.parametrize("name", STACKS)
def test_clients_find_their_identity_and_their_peers_where_they_look_for_them(name: str) -> None:
    everything = stack(name)
    for k in NODES:
        found = everything["services"][f"clientexec-{k}"]
        place = found["environment"]["CREDENTIALS_DIRECTORY"]
        seen = {each["target"]: each["source"] for each in found["secrets"] if isinstance(each, dict)}
        assert place == "/run/secrets"  # where a target without a folder lies, for reading
        assert seen == {IDENTITY: f"node-{k}-identity", PEERS_LIST: f"node-{k}-peers"}
        for file, secret in seen.items():
            source = filled(everything["secrets"][secret]["file"])
            assert source == (
                "./insecure.txt" if name == "compose.insecure.yaml" else f"./federation/nodes/node-{k}/{file}"
            )


@pytest.mark.parametrize("name", STACKS)
def test_our_image_is_named_by_one_variable(name: str) -> None:
    suffix = {"compose.gpu.yaml": "-cuda", "compose.http.yaml": "-http"}.get(name, "")
    for service, found in services(name).items():
        if service in {"gate", "prometheus", "grafana"}:
            assert re.fullmatch(r"\$\{DQNFED_\w+_IMAGE:-[\w./-]+:v?\d[\w.-]+\}", found["image"]), found["image"]
        else:
            own = "${DQNFED_EXPORTER_SUFFIX:-}" if service == "exporter" else suffix
            assert found["image"] == "${DQNFED_IMAGE:-dqnfed-flwr:0.1.0}" + own, service
    assert [service for service, found in services(name).items() if "build" in found] == ["superlink"]


@pytest.mark.parametrize(
    ("name", "suffix"), [(BASE, ""), ("compose.gpu.yaml", "-cuda"), ("compose.http.yaml", "-http")]
)
def test_the_exporter_can_have_the_image_of_the_others(name: str, suffix: str) -> None:
    found = merge(stack(name), read("compose.monitoring.yaml"))["services"]
    exporter = found["exporter"]["image"].replace("${DQNFED_EXPORTER_SUFFIX:-}", suffix)
    assert filled(exporter) == filled(found["superlink"]["image"]) == "dqnfed-flwr:0.1.0" + suffix
    if suffix:
        for text in (
            (DOCKER / "env.example").read_text("utf-8"),
            (DOCKER.parent / "docs/containers.md").read_text("utf-8"),
        ):
            assert "DQNFED_EXPORTER_SUFFIX=" in text
            assert suffix in text


def test_image_carries_the_version_of_the_package() -> None:
    text = (DOCKER.parent / "pyproject.toml").read_text("utf-8")
    version = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert version
    assert f"dqnfed-flwr:{version[1]}}}" in read(BASE)["services"]["superlink"]["image"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_changes_what_is_there_or_adds_what_it_is_for(name: str) -> None:
    base, over = read(BASE), read(name)
    assert set(over.get("services", {})) - set(base["services"]) == ADDED.get(name, set())
    assert set(over) - {key for key in over if key.startswith("x-")} <= {"services", "networks", "volumes", "secrets"}


@pytest.mark.parametrize("name", STACKS)
def test_volumes_networks_and_mounted_files_exist(name: str) -> None:
    everything = stack(name)
    for service, found in everything["services"].items():
        assert networks(found) <= set(everything["networks"]), service
        for volume in listed(found, "volumes"):
            source = volume.split(":")[0]
            if source.startswith("./federation/"):  # what `deploy init` makes
                assert volume.endswith(":ro"), volume
            elif source.startswith("./"):
                assert (DOCKER / source).exists(), volume
            elif not source.startswith(("../deploy/", ".")):
                assert source in everything["volumes"], volume
    for volume in ("superlink-state", "superexec-state", "runs", "metrics"):
        assert volume in everything["volumes"]


@pytest.mark.parametrize("name", STACKS)
def test_only_data_and_configuration_are_mounted_from_the_host(name: str) -> None:
    for service, found in services(name).items():
        for volume in listed(found, "volumes"):
            if volume.startswith((".", "/")) and service != "operator":
                assert volume.endswith(":ro"), volume
            assert "docker.sock" not in volume
    for k in NODES:
        assert f"node-{k}-data:/data:ro" in listed(services(name)[f"clientexec-{k}"], "volumes")


def test_without_the_overlay_insecure_only_a_nodes_own_link_is_plain() -> None:
    for name in STACKS:
        plain = {service for service, one in services(name).items() if "--insecure" in one.get("command", ())}
        executors = {f"clientexec-{k}" for k in NODES}
        if name == "compose.insecure.yaml":
            assert plain == executors | {"superlink", "superexec"} | {f"supernode-{k}" for k in NODES}
            assert {one["file"] for one in stack(name)["secrets"].values()} == {"./insecure.txt"}
        else:
            assert plain == executors
            assert "--enable-supernode-auth" in services(name)["superlink"]["command"]


def test_variables_are_those_of_the_example() -> None:
    told = set(re.findall(r"^#?(\w+)=", (DOCKER / "env.example").read_text("utf-8"), re.MULTILINE))
    used = {match["name"] for name in STACKS for match in VARIABLE.finditer((DOCKER / name).read_text("utf-8"))}
    optional = {name for name in used if name.endswith(("_CONFIG", "_DATA"))}
    assert used - optional - {"PWD"} <= told
    assert told - {"COMPOSE_PROJECT_NAME"} <= used


def locations(server: str) -> dict[str, str]:
    """What a server of the gate does with which paths."""
    return dict(re.findall(r"^    location (.+?) \{\n((?:      .*\n|\n)*)    \}$", server, re.MULTILINE))


def test_gate_lets_fleet_and_health_through_and_nothing_else() -> None:
    places = locations(FLEET)
    assert set(places) == {"= /health", "^~ /v1/fleet/", "/"}
    assert places["/"].strip() == "return 404;"
    allowed = re.search(r'\$request_uri !~ "(.+)"\)', places["^~ /v1/fleet/"])
    assert allowed
    assert re.search(allowed[1], "/v1/fleet/pull-messages")
    for path in (
        "/v1/fleet/../control/run",
        "/v1/fleet/%2e%2e/control",
        "/v1/control/run",
        "//v1/fleet/x",
        "/v1/fleet/x?y",
    ):
        assert not re.search(allowed[1], path), path
    assert "proxy_ssl_verify on;" in FLEET


def test_gate_reads_nothing_from_who_shows_no_certificate() -> None:
    before = FLEET[: FLEET.index("    location")]
    assert "ssl_verify_client optional;" in before
    refused = re.search(r"    if \(\$ssl_client_verify != SUCCESS\) \{\n      return (\d+) '(.+)';\n    \}", before)
    assert refused
    assert refused[1] == str(json.loads(refused[2])["code"]) == str(REFUSED)
    assert f"proxy_set_header {HEADER.decode()} $ssl_client_escaped_cert;" in FLEET.replace(
        "X-Dqnfed-Certificate", "x-dqnfed-certificate"
    )
    assert f"limit_conn nodes {CALLS};" in FLEET
    assert f"client_max_body_size {LARGEST_MESSAGE // 2**20}m;" in FLEET
    given = {f"/run/secrets/{name}" for name in services("compose.http.yaml")["gate"]["secrets"]}
    assert set(re.findall(r"/run/secrets/[\w-]+", GATE)) == given


def test_gate_hands_the_exporter_only_what_has_a_password_and_is_small() -> None:
    service = services("compose.http.yaml")["gate"]
    users = re.search(r"auth_basic_user_file /etc/dqnfed/(.+?);", EXPORTER)
    assert users
    assert f"gate/{users[1]}" in (DOCKER / ".gitignore").read_text("utf-8").splitlines()
    assert "./gate:/etc/dqnfed:ro" in service["volumes"]
    assert "listen 9465 ssl;" in EXPORTER
    assert [port.rpartition(":")[2] for port in service["ports"]] == ["8443", "9465"]
    places = locations(EXPORTER)
    assert set(places) == {"= /health", "/"}
    assert "auth_basic off;" in places["= /health"]
    assert "proxy_pass http://$exporter:9464/health;" in places["= /health"]  # not the path as sent
    assert "auth_basic off" not in places["/"]
    assert re.search(r"limit_except GET \{\s+deny all;\s+\}", places["/"])
    before = EXPORTER[: EXPORTER.index("    location")]
    assert "auth_basic dqnfed;" in before
    assert 'proxy_set_header Authorization "";' in before
    assert "client_max_body_size 1k;" in before


def test_gate_bounds_slow_clients_and_floods_of_the_exporter() -> None:
    assert "client_header_timeout 20s;" in COMMON
    for limit, given in (("limit_conn", "addresses 16"), ("limit_req", "zone=asked burst=40 nodelay")):
        name = given.split()[0].removeprefix("zone=")
        assert f"{limit}_zone $binary_remote_addr zone={name}:1m" in COMMON
        assert f"{limit} {given};" in EXPORTER
    assert "zone=asked:1m rate=20r/s;" in COMMON
    assert re.search(r"client_body_timeout 20s;\s+send_timeout 20s;\s+proxy_max_temp_file_size 0;", EXPORTER)


def test_gate_without_containers_is_made_as_the_page_says() -> None:
    page = (DOCKER.parent / "docs" / "metrics.md").read_text("utf-8")
    script = re.search(r"sed '([^']+)' docker/gate/nginx.conf", page)
    assert script
    made = subprocess.run(["sed", script[1]], input=GATE, capture_output=True, text=True, check=True).stdout
    assert not re.search("/run/|/dev/stderr", made)
    assert "set $exporter 127.0.0.1;" in made
    assert set(re.findall(r"/etc/dqnfed/\S+\b", made)) == {
        *(f"/etc/dqnfed/server/{name}" for name in ("server.crt", "server.key", "ca.crt")),
        "/etc/dqnfed/exporter.htpasswd",
    }
    assert "/etc/dqnfed/exporter.htpasswd" in page


def test_gate_logs_calls_that_end_with_an_error_and_no_others() -> None:
    mapping = re.search(r'map \$status \$turned_away \{.*\n    default 0;\n    "~(.+)" 1;\n  \}', COMMON)
    assert mapping
    assert [status for status in ("200", "302", "412", "413", "503") if re.search(mapping[1], status)] == [
        "412",
        "413",
        "503",
    ]
    assert re.findall("access_log .*", GATE) == ["access_log /dev/stderr turned_away if=$turned_away;"]


def test_gate_asks_the_name_server_of_its_engine() -> None:
    script = services("compose.http.yaml")["gate"]["command"][-1].replace("$$", "$")
    assert GATE.count("127.0.0.11") == 1  # Docker's, which `sed` replaces
    for servers, found in {
        "search x\nnameserver 10.89.0.1\nnameserver 10.89.1.1\n": "10.89.0.1",
        "nameserver fd00::1\n": "[fd00::1]",
    }.items():
        line = next(line for line in script.splitlines() if line.startswith("server="))
        awk = line.removeprefix("server=$(").removesuffix(" /etc/resolv.conf)")
        said = subprocess.run(["sh", "-euc", awk], input=servers, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == found


def test_exporter_finds_superlink_and_prometheus_finds_exporter() -> None:
    scrape = yaml.safe_load((DOCKER / "monitoring" / "prometheus.yml").read_text("utf-8"))
    assert scrape["scrape_configs"][0]["static_configs"][0]["targets"] == ["exporter:9464"]
    found = services("compose.monitoring.yaml")
    assert "--port=9464" in found["exporter"]["command"]
    assert 'address = "superlink:8000"' in (DOCKER / "monitoring" / "flwr.toml").read_text("utf-8")
    assert networks(found["exporter"]) & networks(found["prometheus"]) == {"monitoring"}
    assert networks(found["prometheus"]) & networks(found["grafana"]) == {"monitoring"}
    assert networks(found["exporter"]) & networks(services("compose.http.yaml")["gate"]) == {"control"}
    assert "set $exporter exporter;" in EXPORTER


def composed(*files: str, **variables: str) -> str:
    """What compose itself makes of these files."""
    found = shutil.which("docker-compose")
    command = [found] if found else ["docker", "compose"]
    if subprocess.run([*command, "version"], capture_output=True, check=False).returncode:
        pytest.skip("no compose here")
    basic = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PWD": str(DOCKER), "DQNFED_GRAFANA_PASSWORD": "x"}
    done = subprocess.run(
        [*command, *(word for file in files for word in ("-f", str(DOCKER / file))), "config"],
        env=basic | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deploy
@pytest.mark.parametrize("name", STACKS)
def test_compose_itself_reads_them(name: str) -> None:
    assert composed(*([BASE] if name == BASE else [BASE, name]))


@pytest.mark.deploy
@pytest.mark.parametrize(("name", "suffix"), [("compose.gpu.yaml", "-cuda"), ("compose.http.yaml", "-http")])
def test_compose_gives_the_exporter_the_image_of_the_others(name: str, suffix: str) -> None:
    text = composed(BASE, name, "compose.monitoring.yaml", DQNFED_EXPORTER_SUFFIX=suffix)
    found = yaml.safe_load(text)["services"]
    assert found["exporter"]["image"] == found["superlink"]["image"] == "dqnfed-flwr:0.1.0" + suffix
