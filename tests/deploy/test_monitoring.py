"""A real Prometheus over a real exporter, run, SuperLink and SuperNode: no panel is empty, and alerts fire."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from dqnfed_flwr.deploy.plan import transport_of
from tests.helpers.monitoring import PROMETHEUS, filled, panel_queries, recorded
from tests.helpers.served import certificate

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
BIN = Path(sys.executable).parent
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}/*.yml"]
scrape_configs:
  - job_name: dqnfed
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Monitored:
    """The processes of a small monitored federation, by name, and what Prometheus says of them."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self.place, self._stack = place, stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.control, self.fleet, self.client, self.exporter, self.prometheus = free_ports(5)

    def start(self, name: str, *command: str | Path) -> None:
        """Start a process in a group of its own, its output in a file, and see to its end."""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, also by children
        environment = {
            **os.environ,
            "FLWR_HOME": str(self.place / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        log = self._stack.enter_context((self.place / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.place,
            env=environment,
            start_new_session=True,
        )
        self.processes[name] = process
        self._stack.callback(self.kill, name)

    def kill(self, name: str) -> None:
        """kill -9, with all that it started."""
        process = self.processes[name]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def ask(self, path: str, **query: str) -> Any:
        """An answer of Prometheus' API."""
        address = f"http://127.0.0.1:{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[Any]:
        """What a query finds now."""
        found: list[Any] = self.ask("query", query=query)["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def wait(self, what: Callable[[], bool], seconds: float) -> bool:
        """Whether `what` comes true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if what():
                    return True
            except OSError:  # not up yet
                pass
            time.sleep(1)
        return False


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    place = tmp_path_factory.mktemp("monitored")
    with ExitStack() as stack:
        found = Monitored(place, stack)
        (place / "flower").mkdir()
        (place / "flower" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{found.control}"\ninsecure = true\n'
        )
        rules = place / "rules"
        rules.mkdir()
        for path in (PROMETHEUS / "rules").glob("*.yml"):
            (rules / path.name).write_text(re.sub(r"for: \d+m", "for: 1s", path.read_text()))
        (place / "prometheus.yml").write_text(CONFIG.format(rules=rules, port=found.exporter))
        server = ("--insecure", "--isolation", "process", "--host", "127.0.0.1", "--port")
        found.start(
            "superlink",
            *(BIN / "flower-superlink", *server, str(found.control)),
            *("--fleet-api-address", f"127.0.0.1:{found.fleet}"),
        )
        ends_soon, _ = certificate(place / "tls", "soon", days=10)
        found.start(
            "exporter",
            *(BIN / "dqnfed", "exporter", place / "metrics", "here", "--port", str(found.exporter), "--interval", "2"),
            *("--node-series", "5", "--certificate", ends_soon),
        )
        found.start(
            "prometheus",
            *("prometheus", f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{found.prometheus}",
        )
        assert found.wait(lambda: bool(found.series("dqnfed_superlink_up == 1")), 90), logs(place)
        fleet = found.control if transport_of(version("flwr")).listener == "gate" else found.fleet
        supernode = ("--superlink", f"127.0.0.1:{fleet}", *server, str(found.client))
        found.start("supernode", BIN / "flower-supernode", *supernode)
        run = (
            "run",
            "digits",
            "--set",
            "rounds=100000",
            "--set",
            "step.on-stationary=stay",
            "--set",
            "step.patience=0",
        )
        found.start("run", BIN / "dqnfed", *run, "--set", f"metrics={place / 'metrics'}", "--set", "local.threads=1")
        x, y = load_diabetes(return_X_y=True)  # a task that is not measured by accuracy
        np.savez(place / "diabetes.npz", x_train=x.astype(np.float32), y_train=y.astype(np.float32) / 100)
        task = ("--set", "task=regression", "--set", f"data={place / 'diabetes.npz'}", "--set", "partition=iid")
        short = ("--set", "clients=3", "--set", "rounds=3", "--set", "local.threads=1", "--set", "model=logistic")
        found.start("errors", BIN / "dqnfed", "run", "digits", *task, *short, "--set", f"metrics={place / 'metrics'}")
        yield found


def logs(place: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text('utf-8', 'replace')[-1500:]}" for path in place.glob("*.log"))


def test_no_panel_and_no_recorded_series_is_empty(monitored: Monitored) -> None:
    wanted = {place: filled(query) for place, query in panel_queries()} | {name: name for name in recorded()}

    def empty() -> list[str]:
        return [place for place, query in wanted.items() if not monitored.series(query)]

    monitored.wait(lambda: not empty(), 120)
    assert empty() == [], logs(monitored.place)


def test_prometheus_finds_no_fault_with_the_exposition(monitored: Monitored) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{monitored.exporter}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_rules_are_evaluated_without_an_error(monitored: Monitored) -> None:
    found = [rule for group in monitored.ask("rules")["groups"] for rule in group["rules"]]
    assert len(found) > 15
    assert [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] == "err"] == []


def test_alerts_fire_for_what_happens(monitored: Monitored) -> None:
    assert monitored.wait(lambda: "DqnfedCertificateEnds" in monitored.firing(), 30)
    assert monitored.firing() <= {"DqnfedCertificateEnds", "DqnfedDiskSpaceLow", "DqnfedDiskFull"}  # of this machine

    running, stopped = (f'dqnfed_run_state{{state="{state}"}} == 1' for state in ("running", "stopped"))
    assert monitored.wait(lambda: bool(monitored.series(running)), 60), logs(monitored.place)
    os.killpg(monitored.processes["run"].pid, signal.SIGINT)
    assert monitored.wait(lambda: bool(monitored.series(stopped)), 60), logs(monitored.place)
    time.sleep(3)
    assert "DqnfedRunFailed" not in monitored.firing()
    settings = ("--set", f"metrics={monitored.place / 'metrics'}", "--output", monitored.place / "nothing", "--resume")
    monitored.start("fails", BIN / "dqnfed", "run", "digits", *settings)
    assert monitored.wait(lambda: "DqnfedRunFailed" in monitored.firing(), 60), logs(monitored.place)
    early = ("--set", f"metrics={monitored.place / 'metrics'}", "--set", "dqn-fed.form=one-sided")
    small = ("--set", "clients=3", "--set", "split.samples=150", "--set", "model=logistic", "--set", "step.min-move=1")
    monitored.start("early", BIN / "dqnfed", "run", "digits", *early, *small)
    assert monitored.wait(lambda: "DqnfedRunEndedEarly" in monitored.firing(), 60), logs(monitored.place)
    (monitored.place / "metrics" / "half.prom").write_text("half")
    assert monitored.wait(lambda: "DqnfedMetricsDamaged" in monitored.firing(), 60)
    monitored.kill("supernode")
    assert monitored.wait(lambda: "DqnfedNodeLost" in monitored.firing(), 150), logs(monitored.place)
    monitored.kill("superlink")
    assert monitored.wait(lambda: "DqnfedSuperlinkDown" in monitored.firing(), 60), logs(monitored.place)
    monitored.kill("exporter")
    assert monitored.wait(lambda: "DqnfedExporterDown" in monitored.firing(), 60)
