"""What a SuperLink says of its nodes and runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dqnfed_flwr.errors import RunError

NODE_STATES = ("online", "offline", "registered", "other")
"""`registered` nodes have never been online since they were registered; `offline` ones were, and are gone."""
RUN_STATES = ("pending", "starting", "running", "completed", "failed", "stopped", "other")
RUNS = 100
"""Runs that the SuperLink is asked for, the latest."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """A SuperNode: its id, state and when it came or went, as the SuperLink has it; its name where that is known."""

    id: str
    state: str
    since: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class FlowerRun:
    """A run: its id, state and details, as the SuperLink has it."""

    id: str
    state: str
    details: str


@dataclass(frozen=True, slots=True)
class SuperlinkState:
    """What the last poll found; nodes and runs are empty after one that failed, for what they were may be wrong."""

    up: bool = False
    at: float = float("nan")
    seconds: float = float("nan")
    error: str = ""
    nodes: list[NodeState] = field(default_factory=list)
    runs: list[FlowerRun] = field(default_factory=list)

    def node_counts(self) -> Counter[str]:
        """Nodes by state."""
        return Counter(dict.fromkeys(NODE_STATES, 0) | Counter(node.state for node in self.nodes))

    def run_counts(self) -> Counter[str]:
        """Runs by state."""
        return Counter(dict.fromkeys(RUN_STATES, 0) | Counter(run.state for run in self.runs))


class Poll:
    """Asks one SuperLink.

    `ask` takes the words of a command of `flwr`, and gives its answer or raises `RunError`. `names` gives the names of
    nodes by id, as they are at the time.
    """

    def __init__(
        self, ask: Callable[..., Mapping[str, Any]], connection: str, names: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._ask, self._connection, self._names = ask, connection, names
        self.state = SuperlinkState()
        self.ok = self.failed = 0

    def demand_connection(self) -> None:
        """Raise ConfigError for a connection that Flower does not know, not for a SuperLink that is away."""
        with suppress(RunError):
            self._listed("runs", "list", "--limit", "1")

    def poll(self) -> SuperlinkState:
        """Ask for nodes and runs; never raises, a failure is in the state."""
        since, at = time.perf_counter(), self.state.at
        try:
            names = self._names()
            nodes = [_node(item, names) for item in self._listed("nodes", "supernode", "list")]
            runs = [_run(item) for item in self._listed("runs", "list", "--limit", str(RUNS))]
        except (RunError, OSError, LookupError, TypeError) as error:
            self.failed += 1
            self.state = SuperlinkState(False, at, time.perf_counter() - since, str(error))
        else:
            self.ok += 1
            known = [node for node in nodes if node.state not in ("unregistered", "deleted")]
            self.state = SuperlinkState(True, time.time(), time.perf_counter() - since, "", known, runs)
        return self.state

    def _listed(self, key: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask(*words, self._connection)[key]
        return found


def _node(item: dict[str, Any], names: Mapping[str, str]) -> NodeState:
    state = str(item["status"])
    since = {"online": item.get("online-at"), "offline": item.get("offline-at")}.get(state, item.get("created-at"))
    known = (*NODE_STATES, "unregistered", "deleted")
    number = str(item["node-id"])
    return NodeState(number, state if state in known else "other", str(since or ""), names.get(number, ""))


def _run(item: dict[str, Any]) -> FlowerRun:
    state = str(item["status"]).rpartition(":")[2]
    return FlowerRun(
        str(item["run-id"]), state if state in RUN_STATES else "other", str(item.get("status-details") or "")
    )
