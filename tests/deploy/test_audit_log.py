"""The audit log of a real SuperLink: a day with a submission, a stranger, a refused app and an operator who goes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks._federation import Loopback, loopback, node
from benchmarks._programs import wait_for
from dqnfed_flwr.config import Settings
from dqnfed_flwr.deploy import apps, operators, pki
from dqnfed_flwr.deploy.audit_log import lines_in, verify
from dqnfed_flwr.deploy.superlink import as_operator
from dqnfed_flwr.engine.flower import write_app
from dqnfed_flwr.engine.flwr_command import CONNECTION
from dqnfed_flwr.errors import RunError

pytestmark = pytest.mark.deploy

SETTINGS = {
    **{"data": "digits", "model": "logistic", "split.samples": 150, "clients": 2, "rounds": 4, "deadline": 20},
    **{"local.threads": 1, "min-clients": 1},
}
SECONDS = 30.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("audit"), [node(0), node(1)]) as federation:
        assert verify(federation.directory / "server" / "state").faults == []
        federation.start()
        yield federation


def told(server: Loopback, what: str, **about: object) -> list[dict[str, Any]]:
    found = [line for line in lines_in(server.directory / "server" / "state") if line is not None]
    return [line for line in found if line["what"] == what and all(line.get(key) == about[key] for key in about)]


def await_line(server: Loopback, what: str, **about: object) -> dict[str, Any]:
    wait_for(lambda: told(server, what, **about), SECONDS, lambda: f"{what} {about}")
    return told(server, what, **about)[-1]


def test_keys_nodes_and_the_first_operator_are_told(server: Loopback) -> None:
    (made,) = told(server, "federation made")
    for name in ("node-0", "node-1"):
        key = pki.fingerprint((server.directory / "nodes" / name / "node.pub").read_bytes())
        assert made["nodes"][name] == key
        (order,) = told(server, "order", call="register-node", name=name)
        assert (order["operator"], order["key"]) == ("operator", key)
        assert await_line(server, "node", name=name, state="online")["key"] == key
    await_line(server, "operator added", operator="operator")


def test_a_run_is_told_from_its_submission_to_its_end(server: Loopback, tmp_path: Path) -> None:
    run_id = server.submit({**SETTINGS, "output": str(tmp_path / "output")}, tmp_path / "app")
    server.await_round(1)
    server.programs["node-1-superexec"].end()  # the client of node-1 answers no more
    assert server.await_end(run_id) == "finished:completed", server.story(run_id)
    order = told(server, "order", call="start-run")[-1]
    assert (order["operator"], order["app"]) == ("operator", apps.own_hash())
    assert order["settings"]["rounds"] == 4
    assert order["settings"]["data"] == "digits"
    assert told(server, "order done", call="start-run", status=200)[-1]["run"] == run_id
    assert await_line(server, "run ended", run=run_id)["how"] == "finished:completed"
    refused = [line["words"]["refused"] for line in told(server, "said by run", run=run_id)]
    assert any("1" in clients for clients in refused), refused
    server.output = None


def test_a_client_that_runs_another_app_is_told_with_the_reason(server: Loopback, tmp_path: Path) -> None:
    write_app(tmp_path / "app", Settings.from_mapping(SETTINGS))
    (tmp_path / "app" / "client_app" / "more.py").write_text("")
    found = apps.hash_of_folder(tmp_path / "app")
    run_id = str(server.flwr.json("run", str(tmp_path / "app"), CONNECTION)["run-id"])
    assert server.await_end(run_id) == "finished:failed"
    assert told(server, "order", call="start-run")[-1]["app"] == found
    ended = await_line(server, "run ended", run=run_id)
    assert ended["how"] == "finished:failed"
    assert f"does not run app {found}" in ended["why"]


def test_operators_and_strangers_are_told(server: Loopback, tmp_path: Path) -> None:
    operators.add(server.directory, "alice")
    await_line(server, "operator added", operator="alice")
    place, source = tmp_path / "home", operators.home(server.directory, "alice")
    place.mkdir()
    for file in source.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    (place / "config.toml").write_text((source / "config.toml").read_text().replace(str(source), str(place)))
    with pytest.raises(RunError):
        as_operator(place)("stop", "17", CONNECTION)
    assert told(server, "order", call="stop-run", run="17")[-1]["operator"] == "alice"
    operators.remove(server.directory, "alice")
    await_line(server, "operator removed", operator="alice")
    with pytest.raises(RunError):
        as_operator(place)("stop", "18", CONNECTION)
    assert told(server, "order", run="18") == []
    refused = await_line(server, "caller refused", call="/v1/control/stop-run")
    assert "not on the list" in refused["shown"]


def test_it_goes_on_after_a_restart_and_any_changed_line_is_found(server: Loopback, tmp_path: Path) -> None:
    superlink, state = server.programs["superlink"], server.directory / "server" / "state"
    for number in (signal.SIGTERM, signal.SIGKILL):
        superlink.signal(number)
        superlink.start()
        server.await_server()
    assert len(told(server, "SuperLink started")) == 3
    assert len(told(server, "SuperLink ended")) == 1
    assert len(told(server, "operator added", operator="operator")) == 1
    superlink.signal(signal.SIGKILL)
    assert verify(state).faults == []
    lines = (state / "audit.log").read_text().splitlines()
    for place, line in enumerate(lines):
        other = json.dumps(json.loads(line) | {"at": "2020-01-01T00:00:00+00:00"})
        (tmp_path / "audit.log").write_text("\n".join([*lines[:place], other, *lines[place + 1 :]]) + "\n")
        (tmp_path / "audit.head").write_bytes((state / "audit.head").read_bytes())
        assert f"line {place + 1} was changed" in verify(tmp_path).faults
