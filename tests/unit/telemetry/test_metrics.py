"""docs/metrics.md and the code say the same; names follow Prometheus' conventions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dqnfed_flwr.telemetry.metrics import CLIENT_METRICS, EXPORTER_METRICS, REASONS, RUN_METRICS, STATES, Metric
from tests.helpers.markdown import names, section
from tests.helpers.monitoring import series

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
EVENTS = DOCUMENT.with_name("events.md")
ALL = (*RUN_METRICS, *CLIENT_METRICS, *EXPORTER_METRICS)


def test_every_reason_and_state_is_named() -> None:
    assert set(REASONS) == set(names(section(EVENTS, "Reasons")))
    text = DOCUMENT.read_text("utf-8")
    assert [name for name in STATES if f"`{name}`" not in text] == []


def test_no_name_stands_twice() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL)


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric) -> None:
    assert re.fullmatch(r"dqnfed_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.name.endswith("_info") == (metric.kind == "info")
    stem = metric.name.removesuffix("_total")
    for unit in ("seconds", "bytes", "ratio", "radians", "nats"):
        assert stem.endswith(f"_{unit}") == (metric.unit == unit)
    assert metric.help
    assert "round" not in metric.labels
    assert "run" not in metric.labels
    assert ("client" in metric.labels) == (metric in CLIENT_METRICS)


def test_histogram_series_have_their_suffixes() -> None:
    assert series(Metric("dqnfed_x", "histogram", "", "")) == ("dqnfed_x_bucket", "dqnfed_x_sum", "dqnfed_x_count")
