"""Names in queries, and the files under `deploy/` that hold queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dqnfed_flwr.telemetry.metrics import CLIENT_METRICS, EXPORTER_METRICS, RUN_METRICS, Metric

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
_NAME = re.compile(r"(?<![\w:])(?:[a-z_]+:[a-z0-9_:]+|dqnfed_[a-z0-9_]+)")
_STRING = re.compile(r'"[^"]*"')


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file."""
    groups = yaml.safe_load((PROMETHEUS / "rules" / name).read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def exported() -> set[str]:
    """Names of all series that an exporter can serve."""
    return {name for metric in (*RUN_METRICS, *CLIENT_METRICS, *EXPORTER_METRICS) for name in series(metric)}


def series(metric: Metric) -> tuple[str, ...]:
    """Names under which queries find a metric."""
    suffixes = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
    return tuple(f"{metric.name}{suffix}" for suffix in suffixes)


def recorded() -> set[str]:
    """Names of all recorded series."""
    return {rule["record"] for rule in rules("recording.yml")}


def names(query: str) -> set[str]:
    """Names of the series that a query asks for."""
    return set(_NAME.findall(_STRING.sub('""', query)))


def panel_queries() -> Iterator[tuple[str, str]]:
    """Dashboard and panel, and query, of every panel checked in."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(file.read_text("utf-8"))["panels"]:
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']} {target['refId']}", target["expr"]


def filled(query: str, window: str = "1m") -> str:
    """A query as Grafana sends it with all runs chosen."""
    for variable in ("job", "instance", "run"):
        query = query.replace(f"${variable}", ".*")
    return query.replace("$__rate_interval", window)
