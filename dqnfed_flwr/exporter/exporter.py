"""What the exporter knows, whatever asks for it: runs' files, nodes, disks, certificates."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from dqnfed_flwr.exporter.poll import NODE_STATES, RUN_STATES, Poll, SuperlinkState
from dqnfed_flwr.exporter.runs import RunFile, RunFiles, join
from dqnfed_flwr.telemetry.events import finite
from dqnfed_flwr.telemetry.metric_files import KEPT, ROUNDS_SUFFIX, read_rounds
from dqnfed_flwr.telemetry.metrics import EXPORTER_METRICS
from dqnfed_flwr.telemetry.samples import SeriesValues
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
    "clients_overruled_total",
    "clients_harmed_total",
)
"""Metrics of a run, without their prefix, that the page shows of every run."""
WORDINGS = 100
"""Descriptions of one fault that are remembered; beyond that they are logged anew."""

logger = logging.getLogger("dqnfed")


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
