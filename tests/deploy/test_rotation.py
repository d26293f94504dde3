"""A new authority while a run goes on, in the order of docs/deploy.md, over HTTP in that of docs/transport.md."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks._federation import Gate, Loopback, loopback, node
from benchmarks._gate import gate
from dqnfed_flwr.deploy import build, check
from dqnfed_flwr.deploy.findings import failed
from tests.deploy.test_doors import OVER_HTTP
from tests.helpers.nginx import NGINX, nginx

pytestmark = pytest.mark.deploy
NODES = ["node-0", "node-1"]
SETTINGS: dict[str, Any] = {
    **{"model": "logistic", "split.samples": 150, "clients": len(NODES), "evaluate-every": 0, "deadline": 60},
    **{"local.threads": 1, "rounds": 100_000, "min-clients": 1, "step.on-stationary": "stay", "step.patience": 0},
}


class RestartedGate:
    """A gate that can be started anew: nginx reads its authorities at its start alone."""

    def __init__(self) -> None:
        self._kind: Gate = gate if NGINX is None else nginx
        self._given: tuple[int, int, Path] | None = None
        self._running = ExitStack()

    @contextmanager
    def __call__(self, port: int, target: int, server: Path) -> Iterator[None]:
        """As any `Gate`."""
        self._given = (port, target, server)
        with self._running:
            self.restart()
            yield

    def restart(self) -> None:
        """End it, if it runs, and start it."""
        assert self._given is not None
        self._running.close()
        self._running.enter_context(self._kind(*self._given))


@pytest.fixture
def entrance() -> RestartedGate:
    return RestartedGate()


@pytest.fixture
def federation(entrance: RestartedGate, tmp_path: Path) -> Iterator[Loopback]:
    with loopback(tmp_path, [node(k) for k in range(len(NODES))], entrance) as federation:
        federation.start()
        yield federation


def restart(federation: Loopback, *names: str) -> None:
    """Start programs anew, as a service manager does."""
    for name in names:
        federation.programs[name].signal(signal.SIGTERM)
        federation.programs[name].start()


def restart_devices(federation: Loopback) -> None:
    """Start the SuperNodes anew, one after the other, while the run goes on."""
    for name in NODES:
        restart(federation, name)
        federation.await_together()


def test_a_new_authority_during_a_run(federation: Loopback, entrance: RestartedGate, tmp_path: Path) -> None:
    certificates = {name: federation.directory / "nodes" / name / "node.crt" for name in NODES}
    before = {name: path.read_bytes() for name, path in certificates.items()}
    with federation.submitted(SETTINGS, tmp_path / "run"):
        federation.await_together()
        build.rotate(federation.directory, authority=True)
        renewed = {name: path.read_bytes() for name, path in certificates.items()}
        assert all(renewed[name] != before[name] for name in NODES)
        if OVER_HTTP:  # devices get their `ca.crt` alone
            for name, path in certificates.items():
                path.write_bytes(before[name])
        restart_devices(federation)
        restart(federation, "superlink", "superexec")
        if OVER_HTTP:
            entrance.restart()
        federation.await_together()
        if OVER_HTTP:
            for name, path in certificates.items():
                path.write_bytes(renewed[name])
            restart_devices(federation)
        for place in (federation.directory, *(path.parent for path in certificates.values())):
            found = check.check(place)
            assert not failed(found), found
