"""The runs of a comparison on a Ray cluster that is there already: one task a run.

Ray chooses a node, waits until it has room, and begins a task anew elsewhere when its worker or its node is lost. The
run then goes on from the checkpoint in its folder. So all nodes see the folder of the results at the same place, which
is tried before the first run. The cluster stays as it is: nothing is started or installed on it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from dqnfed_flwr.compare.plan import Job
from dqnfed_flwr.compare.workers import Watcher, brief, failure_of
from dqnfed_flwr.config import Scalar
from dqnfed_flwr.data.own_folder import module_folders
from dqnfed_flwr.engine.run import Engine
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.version import package_version

RETRIES = 3
"""How often a run is begun anew after its worker or node was lost."""
POLL_SECONDS, REACH_SECONDS, LOOK_SECONDS = 0.3, 5.0, 60.0
PASSED_ON = ("DQNFED_DATA",)
"""Environment variables that tasks get from the process that hands them out."""

logger = logging.getLogger("flwr")


@dataclass(frozen=True, slots=True)
class RayCluster:
    """An existing cluster, and what of it a run takes.

    Attributes
    ----------
    address : str
        As Ray takes it: `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    cpus, gpus : float
        Of one run. A whole number of GPUs above 1 is for models that use several.
    """

    address: str
    cpus: float = 1.0
    gpus: float = 0.0

    @property
    def wanted(self) -> dict[str, float]:
        """What one run takes, by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus}


def carry_out_on_ray(
    jobs: Sequence[Job], workers: int, engine: Engine, watcher: Watcher, *, cluster: RayCluster
) -> dict[Path, str]:
    """As `workers.carry_out`, by tasks of a cluster, at most `workers` of them at a time.

    Raises
    ------
    RunError
        If Ray is missing, the cluster does not answer, no node fits, or a node lacks this package, has another version
        of it, or does not see the folder of the results.
    """
    with _connected(cluster) as ray:
        _check_nodes(ray, cluster, jobs[0].folder)
        return _Tasks(ray, cluster, engine, watcher).carry_out(jobs, workers)


class _Tasks:
    """The runs of a comparison on a cluster, seen from the process that hands them out."""

    def __init__(self, ray: Any, cluster: RayCluster, engine: Engine, watcher: Watcher) -> None:
        self._ray, self._engine, self._watcher = ray, engine, watcher
        here = _on(ray.get_runtime_context().get_node_id())
        self._mail = ray.remote(num_cpus=0)(_Mail).options(scheduling_strategy=here).remote()
        self._jobs = max(1, int(cluster.cpus))
        options = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus, "max_retries": RETRIES}
        self._task = ray.remote(**options)(_carry_out)
        self._running: dict[Any, Job] = {}
        self._began: dict[Path, int] = {}
        self._failures: dict[Path, str] = {}

    def carry_out(self, jobs: Sequence[Job], workers: int) -> dict[Path, str]:
        """Hand out all, and take in what they send, until the last is over."""
        waiting, known = iter(jobs), {str(job.folder): job for job in jobs}
        try:
            while True:
                for job in islice(waiting, workers - len(self._running)):
                    self._hand_out(job)
                if not self._running:
                    return self._failures
                over, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
                self._take_in(known)
                for reference in over:
                    self._end(reference)
        finally:
            for reference in self._running:
                self._ray.cancel(reference, force=True)

    def _hand_out(self, job: Job) -> None:
        folders = [*module_folders(job.settings), *(place for place in sys.path if Path(place).is_absolute())]
        words = (str(job.folder), job.settings.flat(), self._engine, self._jobs, folders)
        self._running[self._task.remote(*words, self._mail)] = job

    def _take_in(self, known: Mapping[str, Job]) -> None:
        """What tasks sent meanwhile: the host where one began, and events."""
        for folder, message in self._ray.get(self._mail.take.remote()):
            job = known[folder]
            if isinstance(message, RoundEvent):
                self._watcher.on_round(job, message)
                continue
            self._began[job.folder] = self._began.get(job.folder, 0) + 1
            if self._began[job.folder] == 1:
                self._watcher.on_begin(job)
            else:
                logger.warning("%s: its worker or node was lost; begun anew on %s", job.name, message)

    def _end(self, reference: Any) -> None:
        job = self._running.pop(reference)
        try:
            failure = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # lost more often than is tried, or out of memory
            failure = brief(str(error))
        if job.folder not in self._began:
            self._watcher.on_begin(job)
        if failure:
            self._failures[job.folder] = failure
        self._watcher.on_end(job, failure)


class _Mail:
    """What tasks send, kept until it is asked for; on the node of the process that hands out."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any]] = []

    def put(self, folder: str, message: Any) -> None:
        """Keep a message of a run."""
        self._kept.append((folder, message))

    def take(self) -> list[tuple[str, Any]]:
        """All that came since."""
        kept, self._kept = self._kept, []
        return kept


class _Post:
    """Sends what a run tells, and waits until it is there: nothing is under way when the task is over."""

    def __init__(self, folder: str, mail: Any) -> None:
        self._folder, self._mail = folder, mail

    def send(self, message: Any, /) -> None:
        """Send one message."""
        import_module("ray").get(self._mail.put.remote(self._folder, message))


def _carry_out(
    folder: str, flat: Mapping[str, Scalar], engine: Engine, jobs: int, folders: Sequence[str], mail: Any
) -> str:
    """What a task does: one run; the reason if it fails."""
    sys.path += [place for place in folders if place not in sys.path and Path(place).is_dir()]
    post = _Post(folder, mail)
    post.send(socket.gethostname())
    return failure_of(Path(folder), flat, engine, post, jobs)


def _look(token: str) -> tuple[str, str, bool]:
    """What a node has: its host, the version of this package there, and whether the file is seen."""
    return socket.gethostname(), package_version(), Path(token).exists()


@contextmanager
def _connected(cluster: RayCluster) -> Iterator[Any]:
    """Ray, connected to the cluster for as long as the block lasts."""
    if find_spec("ray") is None:
        raise RunError("--ray needs Ray; install dqnfed-flwr[simulation]")
    _reach(cluster.address)
    ray = import_module("ray")
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": variables} if variables else None,
        )
    except Exception as error:  # of many kinds: no cluster, another version of Ray or Python, no answer
        raise RunError(
            f"--ray: no cluster at {cluster.address} ({brief(str(error))}); start one with: ray start --head"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for two minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RunError(
            f"--ray: nobody answers at {address} ({error}); start a cluster with: ray start --head"
        ) from None


def _check_nodes(ray: Any, cluster: RayCluster, folder: Path) -> None:
    """Refuse a cluster on which a run could not be carried out, before the first."""
    fit = [node for node in ray.nodes() if node["Alive"] and _has(node["Resources"], cluster.wanted)]
    if not fit:
        there = "; ".join(_described(node["Resources"]) for node in ray.nodes() if node["Alive"])
        raise RunError(f"--ray: a run asks for {_described(cluster.wanted)}, which no node has; there are: {there}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    token = folder.parent / f".{uuid4().hex}"
    token.touch()
    try:
        look = ray.remote(num_cpus=0, max_retries=0)(_look)
        asked = {look.options(scheduling_strategy=_on(node["NodeID"])).remote(str(token)): node for node in fit}
        faults = [fault for task, node in asked.items() if (fault := _fault(ray, task, node, folder.parent))]
    finally:
        token.unlink()
    if faults:
        raise RunError(f"--ray: {'; '.join(faults)}")


def _fault(ray: Any, task: Any, node: Mapping[str, Any], folder: Path) -> str:
    """What a node lacks; empty if nothing."""
    name = node["NodeManagerAddress"]
    since = time.monotonic()
    try:
        host, version, seen = ray.get(task, timeout=LOOK_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return f"node {name} did not answer within {time.monotonic() - since:.0f} s"
    except Exception as error:  # the package is not there, or cannot be imported
        return f"node {name} cannot import dqnfed_flwr ({brief(str(error))}); install the same version there"
    if version != package_version():
        return f"node {name} ({host}) has dqnfed-flwr {version}, here is {package_version()}"
    if not seen:
        return f"node {name} ({host}) does not see {folder}; give --output a folder that all nodes share"
    return ""


def _has(found: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(found.get(name, 0.0) >= amount for name, amount in wanted.items())


def _described(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))


def _on(node: str) -> Any:
    """The strategy of Ray for one node and no other."""
    strategies = import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def check_shares(cpus: float, gpus: float) -> None:
    """`ConfigError` for what no run can ask of a cluster."""
    if cpus <= 0:
        raise ConfigError(f"--cpus-per-run {cpus:g}; give more than 0")
    if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
        raise ConfigError(f"--gpus-per-run {gpus:g}; give a share of one GPU, such as 0.25, or a whole number")
