"""What the exporter knows: runs, nodes, disks, certificates; and its server, few paths of plain HTTP that only read."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography import x509
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.poll import NODE_STATES, RUN_STATES, Poll, SuperlinkState
from dqnfed_flwr.exporter.runs import RunFile, RunFiles, join
from dqnfed_flwr.telemetry.events import finite
from dqnfed_flwr.telemetry.metric_files import KEPT, ROUNDS_SUFFIX, read_rounds
from dqnfed_flwr.telemetry.metrics import EXPORTER_METRICS, SeriesValues
from dqnfed_flwr.version import package_version

SUMMARY = (
    "round",
    "rounds",
    "asked_clients",
    "participants",
    "heard_clients",
    "improved_clients_ratio",
    "unharmed_clients_ratio",
    "moved_rounds",
    "moved_improved_clients_ratio",
    "moved_unharmed_clients_ratio",
    "unmoved_streak_rounds",
    "clients_overruled_total",
    "clients_harmed_total",
)
"""Metrics of a run, without their prefix, that the page shows of every run."""
WORDINGS = 100
"""Descriptions of one fault that are remembered; beyond that they are logged anew."""

logger = logging.getLogger("dqnfed")
JSON, HTML, PLAIN = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9.]+|[\w-]+)(:\d*)?", re.ASCII)
"""An address, or a name without a dot, which nobody can register: `localhost`, or that of a container."""
Answer = tuple[HTTPStatus, bytes, str]
"""Status, body and content type."""


@dataclass(frozen=True, slots=True)
class ExporterOptions:
    """What an exporter is asked to do.

    Attributes
    ----------
    directory : Path
        Of the metrics files.
    keep_days : float
        Files that have not changed for longer are removed; infinite for none.
    max_runs, node_series : int
        Runs that are served, and nodes that have a series of their own, at most.
    interval : float
        Seconds between polls, and between looks at disks and certificates.
    certificates, disks : tuple[Path, ...]
        Files whose end is reported; paths whose free space is, besides that of `directory`.
    """

    directory: Path
    keep_days: float = math.inf
    max_runs: int = 50
    node_series: int = 0
    interval: float = 30.0
    certificates: tuple[Path, ...] = ()
    disks: tuple[Path, ...] = ()


class Exporter:
    """Joins the runs' files when asked; everything that may take long is done by a thread of its own."""

    def __init__(self, options: ExporterOptions, poll: Poll | None = None) -> None:
        self.options = options
        self.files = RunFiles(options.directory, options.max_runs)
        self._poll = poll
        self._samples = SeriesValues(EXPORTER_METRICS)
        self._samples.set("dqnfed_exporter_info", 1, package_version())
        self._samples.add("dqnfed_exporter_pruned_files_total", 0)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dqnfed-exporter", daemon=True)
        self._damaged, self._unreachable = FaultLog(), FaultLog()

    def start(self) -> None:
        """Begin to watch in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a poll under way is left behind."""
        self._ended.set()

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format; OSError if the directory cannot be read."""
        since = time.perf_counter()
        runs = self.files.current()
        text = join(runs)
        damaged = [run for run in runs if run.fault]
        self._damaged.log_on_change({run.name: run.fault for run in damaged})
        with self._lock:
            samples = self._samples
            samples.set("dqnfed_exporter_runs", len(runs) - len(damaged))
            samples.set("dqnfed_exporter_damaged_files", len(damaged))
            samples.set("dqnfed_exporter_withheld_runs", self.files.withheld)
            samples.set("dqnfed_exporter_collect_seconds", time.perf_counter() - since)
            return text.encode() + samples.exposition()

    def state(self) -> dict[str, Any]:
        """What the page shows besides the rounds; OSError if the directory cannot be read."""
        runs = self.files.current()
        superlink = self._poll.state if self._poll else None
        found = {
            "now": time.time(),
            "version": package_version(),
            "runs": [_summary(run) for run in runs if not run.fault],
            "damaged": [{"name": run.name, "fault": run.fault} for run in runs if run.fault],
            "superlink": superlink and {**asdict(superlink), "node_counts": dict(superlink.node_counts())},
        }
        return {key: finite(value) for key, value in found.items()}

    def rounds(self, name: str) -> list[dict[str, Any]] | None:
        """The last rounds of a run that is served; None for another name, or where there are none."""
        if name not in {run.name for run in self.files.current()}:
            return None
        try:
            return read_rounds(self.options.directory / f"{name}{ROUNDS_SUFFIX}", KEPT)
        except OSError:
            return None

    def look(self) -> None:
        """Prune, look at disks and certificates, poll: what the thread does again and again."""
        options, samples = self.options, self._samples
        pruned = self.files.prune(options.keep_days)
        with self._lock:
            samples.add("dqnfed_exporter_pruned_files_total", pruned)
            _measure_disks(samples, (options.directory, *options.disks))
            for file in options.certificates:
                samples.set("dqnfed_certificate_expiry_timestamp_seconds", _expiry(file), str(file))
        if self._poll is None:
            return
        state = self._poll.poll()  # not under the lock: it takes seconds
        with self._lock:
            self._take(state, self._poll)

    def _take(self, superlink: SuperlinkState, poll: Poll) -> None:
        samples = self._samples
        samples.set("dqnfed_superlink_up", superlink.up)
        samples.set("dqnfed_superlink_last_poll_timestamp_seconds", superlink.at)
        samples.set("dqnfed_superlink_poll_seconds", superlink.seconds)
        samples.set("dqnfed_superlink_polls_total", poll.ok, "ok")
        samples.set("dqnfed_superlink_polls_total", poll.failed, "failed")
        for name in ("dqnfed_nodes", "dqnfed_node_online", "dqnfed_flower_runs"):
            samples.forget(name)
        self._unreachable.log_on_change({} if superlink.up else {"superlink": superlink.error})
        if not superlink.up:
            return
        nodes, runs = superlink.node_counts(), superlink.run_counts()
        for state in NODE_STATES:
            samples.set("dqnfed_nodes", nodes[state], state)
        for state in RUN_STATES:
            samples.set("dqnfed_flower_runs", runs[state], state)
        for node in superlink.nodes[: self.options.node_series]:
            samples.set("dqnfed_node_online", node.state == "online", node.id, node.name)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except Exception:
                logger.exception("the look around failed; it is tried again in %g s", self.options.interval)
            self._ended.wait(self.options.interval)


class FaultLog:
    """Logs faults that last: when they begin or change, and again when they come back."""

    def __init__(self) -> None:
        self._logged: dict[str, frozenset[str]] = {}

    def log_on_change(self, faults: Mapping[str, str]) -> None:
        """Log what is new among everything that is at fault now, and why; what is no longer at fault is forgotten."""
        before = self._logged
        known = {what: before.get(what, frozenset()) | {why} for what, why in faults.items()}
        self._logged = {what: whys if len(whys) <= WORDINGS else frozenset() for what, whys in known.items()}
        for what, why in faults.items():
            if why not in before.get(what, ()):
                logger.warning("%s: %s", what, why)


def _measure_disks(samples: SeriesValues, paths: Sequence[Path]) -> None:
    """Free space and size of the file systems of `paths`; one that is gone has no series."""
    samples.forget("dqnfed_disk_free_bytes")
    samples.forget("dqnfed_disk_size_bytes")
    for path in paths:
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            continue
        samples.set("dqnfed_disk_free_bytes", usage.free, str(path))
        samples.set("dqnfed_disk_size_bytes", usage.total, str(path))


def _expiry(file: Path) -> float:
    """When a certificate ends, seconds since 1970: of a chain the one that ends first."""
    try:
        chain = x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return math.nan
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)


def _summary(run: RunFile) -> dict[str, Any]:
    figures = {name.removeprefix("dqnfed_"): value for name, value in run.figures.items()}
    return {
        "name": run.name,
        "state": run.state,
        **run.info,
        **{key: figures.get(key) for key in SUMMARY},
        "last_round": figures.get("last_round_timestamp_seconds"),
    }


class Server(ThreadingHTTPServer):
    """Serves an exporter on an address and port, 0 for any free one; ConfigError if they cannot be had."""

    request_queue_size = 128

    def __init__(self, exporter: Exporter, address: str, port: int) -> None:
        self.exporter = exporter
        self.page = files("dqnfed_flwr.exporter").joinpath("dashboard.html").read_bytes()
        try:
            self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((address, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--bind {address} --port {port}: cannot listen there ({error}); choose another, or end who listens"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{shown}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no error of the server."""
        logger.info("connection from %s ended early", client_address[0], exc_info=True)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    server: Server
    server_version = "dqnfed-exporter"
    sys_version = ""
    timeout = 15.0  # seconds for the next bytes of a request, and for the whole of its answer

    def do_GET(self) -> None:
        """Answer with a body."""
        path = unquote(urlsplit(self.path).path)
        hosts = self.headers.get_all("Host", [])
        if path != "/health" and not (len(hosts) == 1 and HOST.fullmatch(hosts[0])):
            said = b"not known by this name; ask by address, or through the gate\n"
            self._send(HTTPStatus.MISDIRECTED_REQUEST, said, PLAIN)
            return
        try:
            answer = self._answer(path)
        except OSError as error:
            logger.warning("%s: %s", path, error)
            answer = HTTPStatus.SERVICE_UNAVAILABLE, f"cannot read the metrics: {error.strerror}\n".encode(), PLAIN
        except Exception as error:
            logger.warning("%s: %r", path, error, exc_info=True)
            answer = HTTPStatus.INTERNAL_SERVER_ERROR, b"the exporter failed; its log says why\n", PLAIN
        self._send(*answer)

    do_HEAD = do_GET

    def _answer(self, path: str) -> Answer:
        exporter = self.server.exporter
        if path == "/health":
            exporter.files.current()
            return HTTPStatus.OK, b"ok\n", PLAIN
        if path == "/metrics":
            return HTTPStatus.OK, exporter.exposition(), CONTENT_TYPE_PLAIN_0_0_4
        if path in ("/", "/dashboard"):
            return HTTPStatus.OK, self.server.page, HTML
        if path == "/api/state.json":
            return HTTPStatus.OK, _json(exporter.state()), JSON
        if path.startswith("/api/rounds/"):
            rounds = exporter.rounds(path.removeprefix("/api/rounds/"))
            if rounds is not None:
                return HTTPStatus.OK, _json(rounds), JSON
        return HTTPStatus.NOT_FOUND, b"try /, /metrics or /health\n", PLAIN

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests only in detail; one comes every few seconds."""
        logger.debug("%s %s", self.address_string(), format % args)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
