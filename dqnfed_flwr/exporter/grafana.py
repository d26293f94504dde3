"""Grafana's dashboards as JSON, made from `panels`.

After a change: `python -m dqnfed_flwr.exporter.grafana deploy/grafana/dashboards`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dqnfed_flwr.exporter.panels import DASHBOARDS, Panel

SOURCE = {"type": "prometheus", "uid": "$datasource"}
EXPORTER = 'job=~"$job", instance=~"$instance"'
RUN = f'{EXPORTER}, run=~"$run"'
COLUMNS, HEIGHT, STAT_HEIGHT = 24, 8, 4


def dashboard(name: str) -> dict[str, Any]:
    """One dashboard as Grafana reads it from a file."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"dqnfed-{name}",
        "title": title,
        "tags": ["dqnfed"],
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(of_runs=name != "nodes")},
        "links": [{"type": "dashboards", "tags": ["dqnfed"], "title": "DQN-Fed", "asDropdown": True}],
        "panels": _placed(panels),
    }


def query(expression: str) -> str:
    """An expression with its selectors written out; the first bracket after a name holds the selector."""
    for word, selector in (("run", RUN), ("exporter", EXPORTER)):
        expression = expression.replace(f"[{word}]", f"{{{selector}}}")
        head, *rest = expression.split(f"[{word}, ")
        expression = head + "".join(f"{{{selector}, {part.replace(']', '}', 1)}" for part in rest)
    return expression


def files() -> dict[str, str]:
    """Text of every dashboard's file, by file name."""
    return {f"{name}.json": json.dumps(dashboard(name), indent=2, ensure_ascii=False) + "\n" for name in DASHBOARDS}


def _variables(*, of_runs: bool) -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    ]
    chosen = {
        "job": "label_values(dqnfed_exporter_info, job)",
        "instance": 'label_values(dqnfed_exporter_info{job=~"$job"}, instance)',
    }
    if of_runs:
        chosen["run"] = f"label_values(dqnfed_run_info{{{EXPORTER}}}, run)"
    for name, values in chosen.items():
        variables.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": SOURCE,
                "query": {"query": values, "refId": name},
                "definition": values,
                "refresh": 2,
                "sort": 2,
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return variables


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    placed, x, y, tallest = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        height = STAT_HEIGHT if panel.kind == "stat" else HEIGHT
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append(_panel(panel, number) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": height}})
        x, tallest = x + panel.width, max(tallest, height)
    return placed


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.limits:
        defaults |= {"min": panel.limits[0], "max": panel.limits[1]}
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 8, "lineWidth": 2, "showPoints": "never", "spanNulls": True}
    options: dict[str, Any] = {}
    if panel.kind == "stat":
        by_name = "name" if any("{{state}}" in legend for _, legend in panel.queries) else "auto"
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "textMode": by_name}
    elif panel.kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": panel.unit}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query(expression),
                "legendFormat": legend,
                "format": "heatmap" if panel.kind == "heatmap" else "time_series",
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }


def main(directory: str) -> None:
    """Write the dashboards into a directory."""
    for name, text in files().items():
        (Path(directory) / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
