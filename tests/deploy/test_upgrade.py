"""A federation goes over to the next patch release without a stop, in the order of docs/deploy.md: devices one by one
while a run goes on, then the server, then whoever submits. Both releases are at work side by side on the way."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from benchmarks._federation import RUN_SECONDS, Loopback, loopback, node
from benchmarks._programs import Program
from dqnfed_flwr.deploy import apps
from dqnfed_flwr.engine.flwr_command import program
from tests.helpers.releases import next_patch, release

pytestmark = pytest.mark.deploy
OLD, NEW = version("dqnfed-flwr"), next_patch()
NODES = 2
SETTINGS: dict[str, Any] = {
    **{"data": "digits", "model": "logistic", "split.samples": 150, "clients": NODES, "evaluate-every": 0},
    **{
        "local.threads": 1,
        "rounds": 100_000,
        "deadline": 60,
        "min-clients": 1,
        "step.on-stationary": "stay",
        "step.patience": 0,
    },
}


class Upgraded:
    """A federation of which some programs are of the new release."""

    def __init__(self, federation: Loopback, new: Path) -> None:
        self.federation, self.new = federation, new
        self.place = federation.directory / "nodes"

    def install(self, *names: str) -> None:
        """Start programs anew, as a service manager does, with the new release in the place of the old."""
        for name in names:
            self.federation.programs[name].signal(signal.SIGTERM)
        for name in names:
            self._takes_new(self.federation.programs[name]).start()

    def allow(self, name: str) -> None:
        """`dqnfed deploy allow` with the new release."""
        said = self.dqnfed("deploy", "allow", str(self.place / name))
        assert f"{name}: app" in said

    def dqnfed(self, *words: str) -> str:
        """A command of the new release."""
        one = self._takes_new(self.federation.define("typed", ["dqnfed", *words], self.place, {}))
        command = [program("dqnfed"), *words]
        done = subprocess.run(
            command, env=one.environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, output: Path, *, new: bool) -> Program:
        """`dqnfed submit` of the old or the new release, under way."""
        self.federation.output = output
        given = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        words = ["dqnfed", "submit", "digits", str(self.federation.directory), *given, "--output", str(output)]
        submit = self.federation.define("submit", words, self.place, {})
        (self._takes_new(submit) if new else submit).start()
        return submit

    def stop(self, output: Path) -> None:
        """End the run, and wait for those who follow it."""
        self.dqnfed("stop", (output / "run-id").read_text().strip(), str(self.federation.directory))
        self.federation.await_exit(self.federation.programs["submit"], RUN_SECONDS)

    def installed(self, name: str) -> set[str]:
        """Versions of the apps that a node has run."""
        return {path.name.rsplit(".", 1)[0].split("-flwr.")[1] for path in (self.place / name / "flwr/apps").iterdir()}

    def _takes_new(self, one: Program) -> Program:
        one.environment["PYTHONPATH"] = str(self.new)
        return one


@pytest.fixture
def upgraded(tmp_path: Path) -> Iterator[Upgraded]:
    new = release(tmp_path / "new", NEW)
    with loopback(tmp_path, [node(k) for k in range(NODES)]) as federation:
        federation.start()
        yield Upgraded(federation, new)


def test_one_device_after_the_other_then_the_server_then_the_operator(upgraded: Upgraded, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    upgraded.run(first, new=False)
    upgraded.federation.await_together()
    upgraded.allow("node-1")
    upgraded.install("node-1", "node-1-superexec")
    upgraded.federation.await_together()  # an old run, on an old and on a new node
    assert upgraded.dqnfed("--version").startswith(f"dqnfed {NEW},")
    drops = [drop for event in upgraded.federation.events() for drop in event.dropped]
    assert "other-version" not in {drop.reason for drop in drops}
    upgraded.stop(first)

    upgraded.install("superlink")
    upgraded.federation.await_server()
    upgraded.install("superexec")
    upgraded.allow("node-0")
    upgraded.run(second, new=True)
    upgraded.federation.await_together()  # a new run, on an old and on a new node
    upgraded.install("node-0", "node-0-superexec")
    upgraded.federation.await_together()
    upgraded.stop(second)

    for k in range(NODES):
        assert len(apps.allowed(upgraded.place / f"node-{k}")) == 2
        assert upgraded.installed(f"node-{k}") == {OLD, NEW}
