"""What the exporter knows, whatever asks for it: runs' files, nodes, disks, certificates."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dqnfed_flwr.exporter.exposition import RunFile, join
from dqnfed_flwr.exporter.files import RunFiles
from dqnfed_flwr.exporter.host import measure_certificates, measure_disks
from dqnfed_flwr.exporter.metrics import EXPORTER_METRICS, NODE_STATES, RUN_STATES
from dqnfed_flwr.exporter.poll import Poll, Standing
from dqnfed_flwr.exporter.told import Told
from dqnfed_flwr.telemetry.rounds import KEPT, read_rounds
from dqnfed_flwr.telemetry.samples import Samples
from dqnfed_flwr.telemetry.textfile import ROUNDS_SUFFIX
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
logger = logging.getLogger("dqnfed")


@dataclass(frozen=True, slots=True)
class Options:
    """What an exporter is asked to do.

    Attributes
    ----------
    directory : Path
        Of the metrics files.
    keep_days : float
        Files that have not changed for longer are removed; infinite for none.
    max_runs : int
        Runs served at most.
    node_series : int
        Nodes with a series of their own at most.
    interval : float
        Seconds between polls, and between looks at disks and certificates.
    certificates : tuple[Path, ...]
        Files whose end is reported.
    disks : tuple[Path, ...]
        Paths whose free space is reported, beside that of `directory`.
    """

    directory: Path
    keep_days: float = math.inf
    max_runs: int = 50
    node_series: int = 0
    interval: float = 30.0
    certificates: tuple[Path, ...] = field(default=())
    disks: tuple[Path, ...] = field(default=())


class Exporter:
    """Joins the runs' files when asked; everything that may take long is done by a thread of its own.

    Parameters
    ----------
    options : Options
        What to do.
    poll : Poll | None
        Asks a SuperLink; None for none.
    """

    def __init__(self, options: Options, poll: Poll | None = None) -> None:
        self.options = options
        self.files = RunFiles(options.directory, options.max_runs)
        self._poll = poll
        self._samples = Samples(EXPORTER_METRICS)
        self._samples.set("dqnfed_exporter_info", 1, package_version())
        self._samples.add("dqnfed_exporter_pruned_files_total", 0)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="dqnfed-exporter", daemon=True)
        self._told_files, self._told_polls = Told(), Told()

    def start(self) -> None:
        """Begin to watch in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a poll under way is left behind."""
        self._ended.set()

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format.

        Raises
        ------
        OSError
            If the directory cannot be read.
        """
        since = time.perf_counter()
        runs = self.files.current()
        text = join(runs)
        damaged = [run for run in runs if run.fault]
        self._told_files.now({run.name: run.fault for run in damaged})
        with self._lock:
            samples = self._samples
            samples.set("dqnfed_exporter_runs", len(runs) - len(damaged))
            samples.set("dqnfed_exporter_damaged_files", len(damaged))
            samples.set("dqnfed_exporter_withheld_runs", self.files.withheld)
            samples.set("dqnfed_exporter_collect_seconds", time.perf_counter() - since)
            return text.encode() + samples.exposition()

    def state(self) -> dict[str, Any]:
        """What the page shows beside the rounds.

        Raises
        ------
        OSError
            If the directory cannot be read.
        """
        runs = self.files.current()
        standing = self.standing()
        return {
            "now": time.time(),
            "version": package_version(),
            "runs": [_summary(run) for run in runs if not run.fault],
            "damaged": [{"name": run.name, "fault": run.fault} for run in runs if run.fault],
            "superlink": None if standing is None else _known(standing),
        }

    def rounds(self, name: str) -> list[dict[str, Any]] | None:
        """The last rounds of a run that is served; None for another name, or where there are none."""
        if name not in {run.name for run in self.files.current()}:
            return None
        try:
            return read_rounds(self.options.directory / f"{name}{ROUNDS_SUFFIX}", KEPT)
        except OSError:
            return None

    def standing(self) -> Standing | None:
        """What the last poll found; None where nobody is polled."""
        return self._poll.standing if self._poll else None

    def look(self) -> None:
        """Prune, look at disks and certificates, poll: what the thread does again and again."""
        options, samples = self.options, self._samples
        pruned = self.files.prune(options.keep_days)
        with self._lock:
            samples.add("dqnfed_exporter_pruned_files_total", pruned)
            measure_disks(samples, (options.directory, *options.disks))
            measure_certificates(samples, options.certificates)
        if self._poll is None:
            return
        standing = self._poll.poll()  # not under the lock: it takes seconds
        with self._lock:
            self._take(standing, self._poll)

    def _take(self, standing: Standing, poll: Poll) -> None:
        samples = self._samples
        samples.set("dqnfed_superlink_up", standing.up)
        samples.set("dqnfed_superlink_last_poll_timestamp_seconds", standing.at)
        samples.set("dqnfed_superlink_poll_seconds", standing.seconds)
        samples.forget("dqnfed_superlink_polls_total")
        samples.add("dqnfed_superlink_polls_total", poll.ok, "ok")
        samples.add("dqnfed_superlink_polls_total", poll.failed, "failed")
        for name in ("dqnfed_nodes", "dqnfed_node_online", "dqnfed_flower_runs"):
            samples.forget(name)
        self._told_polls.now({} if standing.up else {"superlink": standing.error})
        if not standing.up:
            return
        nodes, runs = standing.node_counts(), standing.run_counts()
        for state in NODE_STATES:
            samples.set("dqnfed_nodes", nodes[state], state)
        for state in RUN_STATES:
            samples.set("dqnfed_flower_runs", runs[state], state)
        for node in standing.nodes[: self.options.node_series]:
            samples.set("dqnfed_node_online", node.state == "online", node.id)

    def _watch(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except Exception:
                logger.exception("the look around failed; it is tried again in %g s", self.options.interval)
            self._ended.wait(self.options.interval)


def _summary(run: RunFile) -> dict[str, Any]:
    figures = {name.removeprefix("dqnfed_"): value for name, value in run.figures.items()}
    return {
        "name": run.name,
        "state": run.state,
        **run.info,
        **{key: _number(figures.get(key)) for key in SUMMARY},
        "last_round": _number(figures.get("last_round_timestamp_seconds")),
    }


def _known(standing: Standing) -> dict[str, Any]:
    return {key: _number(value) if isinstance(value, float) else value for key, value in asdict(standing).items()} | {
        "node_counts": dict(standing.node_counts())
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
