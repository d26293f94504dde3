"""The dashboards in `deploy/grafana`: they ask for what is exported, and keep the rules of Grafana's linter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.monitoring import DASHBOARDS, ROOT, exported, names, panel_queries, recorded

QUERIES = list(panel_queries())
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))}
SOURCE = {"type": "prometheus", "uid": "$datasource"}
UNITS = {"Bps", "dateTimeFromNow", "percentunit", "radian", "s", "short"}
"""Of Grafana's units, those that the dashboards use; it shows any other word as a suffix, without a warning."""
EXPORTER = 'job=~"$job", instance=~"$instance"'
CHOICES = {
    "job": "label_values(dqnfed_exporter_info, job)",
    "instance": 'label_values(dqnfed_exporter_info{job=~"$job"}, instance)',
    "run": f"label_values(dqnfed_run_info{{{EXPORTER}}}, run)",
}
"""Variables that a reader chooses from, and the query for their values."""
each_board = pytest.mark.parametrize("name", BOARDS)


def test_there_is_a_board_for_each_question() -> None:
    assert list(BOARDS) == ["fairness", "federation", "nodes", "performance"]
    assert len(QUERIES) > 50


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_asks_for_what_is_exported(place: str, query: str) -> None:
    asked = names(query)
    assert asked
    assert asked <= exported() | recorded()
    assert query.count(EXPORTER) >= len(asked)
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


@each_board
def test_a_board_is_fixed_and_leads_to_the_others(name: str) -> None:
    board = BOARDS[name]
    assert (board["uid"], board["title"]) == (f"dqnfed-{name}", f"DQN-Fed: {name}")
    assert board["editable"] is False
    assert board["schemaVersion"] == 39
    assert board["refresh"] == "30s"
    assert board["tags"] == ["dqnfed"]
    assert [link["tags"] for link in board["links"]] == [["dqnfed"]]
    assert "id" not in board  # Grafana numbers the boards that it reads from files


@each_board
def test_a_reader_chooses_source_exporter_and_runs(name: str) -> None:
    source, *chosen = BOARDS[name]["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    expected = {key: values for key, values in CHOICES.items() if key != "run" or name != "nodes"}
    assert {variable["name"]: variable["definition"] for variable in chosen} == expected
    for variable in chosen:
        assert variable["query"] == {"query": variable["definition"], "refId": variable["name"]}
        assert names(variable["definition"]) <= exported()
        assert (variable["type"], variable["datasource"]) == ("query", SOURCE)
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
        assert variable["current"] == {"text": "All", "value": "$__all"}


@each_board
def test_panels_keep_the_rules_of_the_linter(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    assert len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["type"] in ("timeseries", "stat", "heatmap")
        assert panel["datasource"] == SOURCE
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
        for target in panel["targets"]:
            assert target["datasource"] == SOURCE
            assert target["legendFormat"]
            assert (target["format"] == "heatmap") == (panel["type"] == "heatmap")


@each_board
def test_a_series_drawn_as_it_is_has_its_own_unit(name: str) -> None:
    units = {"ratio": "percentunit", "radians": "radian", "seconds": "s", "rate5m": "Bps"}
    for panel in BOARDS[name]["panels"]:
        for target in panel["targets"]:
            if plain := re.fullmatch(r"([a-z0-9_:]+)\{[^}]*\}", target["expr"]):
                last = re.split("[_:]", plain[1])[-1]
                assert panel["fieldConfig"]["defaults"]["unit"] == units.get(last, "short"), panel["title"]


@each_board
def test_a_state_is_shown_by_its_name(name: str) -> None:
    for panel in BOARDS[name]["panels"]:
        if panel["type"] == "stat":
            of_states = "{{state}}" in panel["targets"][0]["legendFormat"]
            assert panel["options"]["textMode"] == ("name" if of_states else "auto")
            assert panel["options"]["reduceOptions"] == {"calcs": ["lastNotNull"]}


@each_board
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_provisioning_points_to_the_boards_and_their_source() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    assert provisioned(provisioning / "datasources" / "prometheus.yml", "datasources")["type"] == "prometheus"
    assert provisioned(provisioning / "datasources" / "prometheus.yml", "datasources")["isDefault"] is True
    provider = provisioned(provisioning / "dashboards" / "dqnfed.yml", "providers")
    assert provider["options"]["path"].startswith("/")


def provisioned(path: Path, key: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))[key][0]
    return found
