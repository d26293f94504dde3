"""The guarded app of docs/guarded.md over a real SuperLink and two real SuperNodes on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest
import tomli_w

from benchmarks._programs import Program, free_ports, listening, wait_for
from dqnfed_flwr.deploy.plan import HTTP_SINCE, minor
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, flwr_environment, run_status
from tests.helpers.documented_app import ROUNDS, guarded_rounds, write_documented_app

pytestmark = pytest.mark.deploy

NODES = 2
SECONDS = 300.0
OVER_HTTP = minor(version("flwr")) >= HTTP_SINCE


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


def test_real_nodes_run_the_guarded_app(tmp_path: Path) -> None:
    app = write_documented_app(tmp_path / "app")
    (tmp_path / "flower").mkdir()
    with federation(tmp_path / "flower") as flwr:
        answer = flwr.json("run", str(app), CONNECTION)
        assert "run-id" in answer, answer
        number = str(answer["run-id"])

        def story() -> str:
            logs = "\n".join(log.read_text()[-1500:] for log in sorted((tmp_path / "flower").glob("*.log")))
            return flwr("log", number, CONNECTION, "--show")[-4000:] + logs

        def over() -> str:
            status = run_status(flwr, number)
            return status if status.startswith("finished") else ""

        status = wait_for(over, SECONDS, story, 3)
        assert status == "finished:completed", story()
    events = guarded_rounds(app)
    assert [len(event.participants) for event in events] == [NODES] * ROUNDS
    assert sum(event.exchanges for event in events) == ROUNDS + 1 + sum(event.misses for event in events)
