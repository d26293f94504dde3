"""The guarded app of docs/guarded.md over a real SuperLink and two real SuperNodes on loopback."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import tomli_w

from benchmarks._programs import Program, free_ports, listening, wait_for
from dqnfed_flwr.deploy.plan import transport_of
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, flwr_environment, run_status
from dqnfed_flwr.run_files import EVENTS
from dqnfed_flwr.telemetry.event_log import read_events
from tests.helpers.documented_app import PACKAGE, ROUNDS, write_documented_app

pytestmark = pytest.mark.deploy

NODES = 2
SECONDS = 300.0
OVER_HTTP = transport_of(version("flwr")).listener == "gate"


@contextmanager
def federation(place: Path) -> Iterator[FlwrCommand]:
    """A SuperLink and its nodes, all as Flower starts them, without TLS; the `flwr` command for it."""
    control, fleet, *ports = free_ports(2 + NODES)
    fleet = control if OVER_HTTP else fleet
    environment = {**flwr_environment(place), "OMP_NUM_THREADS": "1"}
    address = {"address": f"127.0.0.1:{control}", "insecure": True}
    (place / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: address}}))
    server = ["flower-superlink", "--insecure", "--isolation", "subprocess", "--host", "127.0.0.1"]
    server += ["--port", str(control)]
    server += [] if OVER_HTTP else ["--fleet-api-address", f"127.0.0.1:{fleet}"]
    programs = [Program(server, place, place / "superlink.log", environment)]
    for node, port in enumerate(ports):
        words = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{fleet}", "--isolation", "subprocess"]
        words += ["--host", "127.0.0.1", "--port", str(port)]
        words += ["--node-config", f"partition-id={node} num-partitions={NODES}"]
        programs.append(Program(words, place, place / f"node-{node}.log", environment))
    with ExitStack() as stack:
        for program in programs:
            stack.callback(program.end)
        programs[0].start()
        wait_for(lambda: listening(control) and listening(fleet), SECONDS, programs[0].text)
        for program in programs[1:]:
            program.start()
        flwr = FlwrCommand(environment)
        yield flwr


def test_real_nodes_run_the_guarded_app_and_go_on_with_it_when_its_server_was_stopped(tmp_path: Path) -> None:
    app = write_documented_app(tmp_path / "app")
    server = app / PACKAGE / "server_app.py"
    call = "Guaranteed(FedAvg(fraction_evaluate=0.0), output=output)"
    resuming = 'Guaranteed(FedAvg(fraction_evaluate=0.0), output=output, resume=context.run_config["resume"])'
    assert call in server.read_text()
    server.write_text(server.read_text().replace(call, resuming))
    project = tomllib.loads((app / "pyproject.toml").read_text())
    project["tool"]["flwr"]["app"]["config"]["resume"] = False
    (app / "pyproject.toml").write_text(tomli_w.dumps(project))
    (tmp_path / "flower").mkdir()
    log = app.parent / "results" / EVENTS
    with federation(tmp_path / "flower") as flwr:

        def start(config: str) -> str:
            answer = flwr.json("run", str(app), CONNECTION, "--run-config", config)
            assert "run-id" in answer, answer
            return str(answer["run-id"])

        def ended(number: str) -> str:
            def story() -> str:
                logs = "\n".join(file.read_text()[-1500:] for file in sorted((tmp_path / "flower").glob("*.log")))
                return flwr("log", number, CONNECTION, "--show")[-4000:] + logs

            def over() -> str:
                status = run_status(flwr, number)
                return status if status.startswith("finished") else ""

            return str(wait_for(over, SECONDS, story, 3))

        first = start("rounds=500 resume=false")
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= ROUNDS, SECONDS, lambda: "no rounds", 1)
        flwr("stop", first, CONNECTION)
        assert ended(first) == "finished:stopped"
        done = len(log.read_text().splitlines())
        second = start(f"rounds={done + ROUNDS} resume=true")
        assert ended(second) == "finished:completed", flwr("log", second, CONNECTION, "--show")[-4000:]
    events = read_events(log)
    assert [event.round for event in events] == list(range(1, done + ROUNDS + 1))
    assert all(event.unharmed_ratio == 1 and len(event.participants) == NODES for event in events)
    assert sum(event.cost.exchanges for event in events) == len(events) + 2 + sum(event.cost.misses for event in events)
