"""The tables of docs/metrics.md, made from the metrics themselves."""

from __future__ import annotations

from pathlib import Path

from dqnfed_flwr.telemetry.metrics import CLIENT_METRICS, EXPORTER_METRICS, RUN_METRICS, Metric
from tests.helpers.monitoring import rules

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
TABLES = {"run": RUN_METRICS, "client": CLIENT_METRICS, "exporter": EXPORTER_METRICS}


def metrics_table(metrics: tuple[Metric, ...]) -> str:
    """One row a metric: name, type, unit, labels, meaning."""
    lines = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        meaning = metric.help.replace("|", "\\|")
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {meaning} |")
    return "\n".join(lines) + "\n"


def recorded_table() -> str:
    """One row a recorded series."""
    lines = ["| name | expression |", "|---|---|"]
    for rule in rules("recording.yml"):
        expression = " ".join(rule["expr"].split()).replace("|", "\\|")
        lines.append(f"| `{rule['record']}` | `{expression}` |")
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    """Replace what stands between the marks in `text` by the tables of today."""
    tables = {name: metrics_table(metrics) for name, metrics in TABLES.items()} | {"recorded": recorded_table()}
    for name, table in tables.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        head, _, rest = text.partition(begin)
        _, mark, tail = rest.partition(end)
        if not mark:
            raise ValueError(f"the marks of the table {name} are missing")
        text = head + begin + table + mark + tail
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8")), "utf-8")
