"""The benchmark of the metrics runs and reports its figures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import metrics


def test_metrics(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    metrics.main(["--repeats", "2", "--json", str(target)])
    record = json.loads(target.read_text())
    assert record["series_1000_over_10"] == 1
    assert min(record[key] for key in ("write_seconds", "scrape_seconds", "scrape_seconds_50_runs")) > 0
    assert {bar["figure"] for bar in record["bars"]} == {bar.figure for bar in metrics.BARS}
