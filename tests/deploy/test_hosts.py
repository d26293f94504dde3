"""Several hosts on one network: packets are lost, a link is slow, the network falls apart and is mended."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks._federation import Loopback, loopback, node
from benchmarks._hosts import SERVER, Host, Missing, hosts
from benchmarks._programs import wait_for
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import read_result
from dqnfed_flwr.run_files import EVENTS, MODEL
from dqnfed_flwr.telemetry.event_log import read_events
from dqnfed_flwr.telemetry.events import RoundEvent
from tests.helpers import devices
from tests.helpers.replay import replayed
from tests.helpers.trials import NODES, SETTINGS, usual_seconds

pytestmark = pytest.mark.deploy

LATE = 1.0
ROUNDS = 14
LOSS, RATE = 0.2, "512kbit"
POOR, CUT = range(NODES)
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


@pytest.fixture(scope="module")
def network() -> Iterator[list[Host]]:
    try:
        with hosts(NODES) as found:
            found[POOR].lose(LOSS)
            found[POOR].mend()
            found[POOR].limit(RATE)
            yield found
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def federation(network: list[Host], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    place = tmp_path_factory.mktemp("hosts")
    nodes = [node(k, path) for k, path in enumerate(devices.write(place, NODES))]
    with loopback(place, nodes, host=SERVER) as federation:
        for k, host in enumerate(network):
            for name in (f"node-{k}", f"node-{k}-superexec"):
                host.move(federation.programs[name])
        federation.start()
        yield federation


def reaches(host: Host, port: int) -> bool:
    command = ["ip", "netns", "exec", host.name, sys.executable, "-c", CONNECT, SERVER, str(port)]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def test_a_host_reaches_the_fleet_port_and_not_the_control_port(federation: Loopback, network: list[Host]) -> None:
    plan = federation.federation
    assert reaches(network[POOR], plan.fleet_port)
    assert not reaches(network[POOR], plan.control_port)
    with socket.create_connection(("127.0.0.1", plan.control_port), 5):
        pass


def test_a_run_over_a_poor_network(federation: Loopback, network: list[Host], tmp_path: Path) -> None:
    deadline = 5.0 + 2.0 * usual_seconds(federation, tmp_path / "usual")
    settings = {**SETTINGS, "rounds": ROUNDS, "deadline": deadline}
    output = tmp_path / "deployed"

    def events() -> list[RoundEvent]:
        return read_events(output / EVENTS) if (output / EVENTS).exists() else []

    with federation.submitted(settings, output) as submit:
        federation.await_round(1)
        network[POOR].lose(LOSS)
        federation.await_round(2)
        network[CUT].cut()
        wait_for(lambda: events() and CUT not in events()[-1].participants, 200, federation.texts)
        gone = len(events())
        federation.await_round(gone + 1)
        network[CUT].mend()
        wait_for(lambda: submit.status is not None or CUT in events()[-1].participants, 300, federation.texts)
        federation.await_exit(submit, 600)
        assert submit.status == 0, submit.text()[-3000:] + federation.texts()
    network[POOR].mend()
    done = read_result(output).events
    late = [event.cost.seconds["exchange"] - event.cost.exchanges * deadline for event in done]
    print("participants", [event.participants for event in done], "late by", [round(one, 2) for one in late])
    assert [event.round for event in done] == list(range(1, ROUNDS + 1))
    assert max(late) <= LATE
    assert any(CUT in event.participants for event in done[gone:])
    assert any(POOR in event.participants for event in done[2:])
    replayed(Settings.from_mapping({**settings, "output": str(tmp_path / "here")}), done)
    assert (output / MODEL).read_bytes() == (tmp_path / "here" / MODEL).read_bytes()
