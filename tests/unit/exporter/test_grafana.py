"""The dashboards: made from the code, asking for what is exported, by the rules of Grafana's linter."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from dqnfed_flwr.exporter import grafana
from dqnfed_flwr.telemetry.metrics import Metric
from tests.helpers.monitoring import DASHBOARDS, ROOT, exported, names, panel_queries, recorded

QUERIES = list(panel_queries())
BOARDS = sorted(DASHBOARDS.glob("*.json"))


def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DASHBOARDS / f"{name}.json").read_text("utf-8"))
    return found


def test_the_files_are_those_of_the_code() -> None:
    checked_in = {path.name: path.read_text("utf-8") for path in BOARDS}
    assert checked_in == grafana.files()  # else: python -m dqnfed_flwr.exporter.grafana deploy/grafana/dashboards


def test_there_is_a_board_for_each_question() -> None:
    assert [path.stem for path in BOARDS] == ["fairness", "federation", "nodes", "performance"]
    assert len(QUERIES) > 50


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_asks_for_what_is_exported(place: str, query: str) -> None:
    asked = names(query)
    assert asked
    assert asked <= exported() | recorded()
    assert "[run" not in query
    assert "[exporter" not in query
    assert query.count('job=~"$job", instance=~"$instance"') >= len(asked)
    if not place.startswith("nodes"):
        assert query.count('run=~"$run"') >= len(asked)
    for name in asked:
        if name.endswith(("_total", "_bucket", "_sum", "_count")):  # a counter as such says nothing
            assert re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", query)


def test_names_in_a_query_are_found() -> None:
    assert names('a:dqnfed_b:c{x="dqnfed_no"} + rate(dqnfed_d_total[5m]) * on (run) dqnfed_e') == {
        "a:dqnfed_b:c",
        "dqnfed_d_total",
        "dqnfed_e",
    }


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_keeps_the_rules_of_the_linter(path: Any) -> None:
    found = board(path.stem)
    assert found["editable"] is False
    variables = {variable["name"]: variable for variable in found["templating"]["list"]}
    assert list(variables)[:3] == ["datasource", "job", "instance"]
    for panel in found["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"]["uid"] == "$datasource"
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
    titles = [panel["title"] for panel in found["panels"]]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board(path.stem)["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_provisioning_points_to_the_boards_and_their_source() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"][0]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    provider = yaml.safe_load((provisioning / "dashboards" / "dqnfed.yml").read_text())["providers"][0]
    assert provider["options"]["path"].startswith("/")


def test_selectors_are_written_out() -> None:
    assert grafana.query('a[run] + b[exporter, x="1"][5m]') == (
        'a{job=~"$job", instance=~"$instance", run=~"$run"} + b{job=~"$job", instance=~"$instance", x="1"}[5m]'
    )


def test_histogram_series_have_their_suffixes() -> None:
    assert Metric("dqnfed_x", "histogram", "", "").series == ("dqnfed_x_bucket", "dqnfed_x_sum", "dqnfed_x_count")
