"""Metrics directories and a server over them, for tests."""

from __future__ import annotations

import datetime
import ipaddress
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from prometheus_client.parser import text_string_to_metric_families

from dqnfed_flwr.deploy.superlink import SuperLink
from dqnfed_flwr.engine.flwr_command import FlwrCommand
from dqnfed_flwr.exporter.exporter import Exporter, Server
from dqnfed_flwr.exporter.poll import Poll
from dqnfed_flwr.telemetry.events import DroppedClient
from dqnfed_flwr.telemetry.metric_files import RunMetrics
from dqnfed_flwr.telemetry.run_samples import RunCard
from tests.helpers.runs import changed, make_event

NODES: dict[str, Any] = {
    "success": True,
    "nodes": [
        {"node-id": "11", "owner-name": "me", "status": "online", "online-at": "2026-01-02 03:04:05Z"},
        {"node-id": "12", "owner-name": "me", "status": "offline", "offline-at": "2026-01-02 03:04:06Z"},
        {"node-id": "13", "owner-name": "me", "status": "registered", "created-at": "2026-01-01 00:00:00Z"},
        {"node-id": "14", "owner-name": "me", "status": "unregistered"},
        {"node-id": "15", "owner-name": "me", "status": "asleep"},
    ],
}
"""What `flwr supernode list --format json` prints."""
RUNS: dict[str, Any] = {
    "success": True,
    "runs": [
        {"run-id": "5", "status": "running", "status-details": ""},
        {"run-id": "4", "status": "finished:failed", "status-details": "ServerApp raised"},
        {"run-id": "3", "status": "finished:completed", "status-details": None},
    ],
}
"""What `flwr list --format json` prints."""

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def write_run(directory: Path, name: str, rounds: int = 3, *, status: str = "", rhos: Sequence[float] = ()) -> Path:
    """Files of a run of so many rounds; `status` concludes it."""
    metrics = RunMetrics(directory, RunCard(name, "dqn-fed", "probed", "0.1.0"), pause=0)
    metrics.on_start(max(rounds, 1), [])
    for number in range(1, rounds + 1):
        event = make_event(number, [0.25, 0.5, 0.75, 0.5 + number / 100], rho=rhos[number - 1] if rhos else 1.0)
        seconds = {"exchange": 0.5, "solve": 0.01, "step": 0.001, "total": 0.6}
        metrics.on_round(changed(event, seconds=seconds, dropped=[DroppedClient(number, "absent", "")]))
    if status:
        metrics.conclude(status)
    return directory / f"{name}.prom"


def polling(command: Path, names: Callable[[], Mapping[str, str]] = dict) -> Poll:
    """A poll of a SuperLink by a command that stands for `flwr`."""
    return Poll(SuperLink(FlwrCommand(dict(os.environ), [str(command)]), "there").ask, "there", names)


def series(text: str) -> Series:
    """Values by name and labels; fails where the text is no exposition or a series stands in it twice."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


@contextmanager
def serving(exporter: Exporter) -> Iterator[Server]:
    """A server on a free port of the loopback."""
    with Server(exporter, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)


def certificate(directory: Path, name: str, days: int = 30) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(exist_ok=True)
    (directory / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return directory / "cert.pem", directory / "key.pem"
