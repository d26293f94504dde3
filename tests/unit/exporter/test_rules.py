"""Recording rules and alerts: about what is exported, each with its test and its mend."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dqnfed_flwr.strategy.state import ENDED_EARLY
from tests.helpers.markdown import anchors
from tests.helpers.monitoring import PROMETHEUS, ROOT, exported, names, recorded, rules

ALERTS = rules("alerts.yml")
TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
OPERATIONS = ROOT / "docs" / "operations.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed; Debian's package prometheus has it"
)


def promtool(*arguments: str, directory: Path = PROMETHEUS) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def by_name(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


@pytest.mark.parametrize("rule", [*rules("recording.yml"), *ALERTS], ids=by_name)
def test_a_rule_asks_for_what_is_there(rule: dict[str, Any]) -> None:
    asked = names(rule["expr"])
    assert asked <= exported() | recorded()
    assert asked or "up{" in rule["expr"]


@pytest.mark.parametrize("alert", ALERTS, ids=by_name)
def test_an_alert_has_weight_summary_mend_and_test(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert alert["annotations"]["summary"]
    document, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert (ROOT / document) == OPERATIONS
    assert anchor == alert["alert"].lower()
    assert anchor in anchors(OPERATIONS)
    test = yaml.safe_load((PROMETHEUS / "tests" / f"{alert['alert']}.yml").read_text())
    outcomes = [case for group in test["tests"] for case in group["alert_rule_test"]]
    assert {case["alertname"] for case in outcomes} == {alert["alert"]}
    assert any(case["exp_alerts"] for case in outcomes)


def test_every_early_end_is_told() -> None:
    alert = next(each for each in ALERTS if each["alert"] == "DqnfedRunEndedEarly")
    assert re.findall(r'state=~"(.+?)"', alert["expr"]) == ["|".join(ENDED_EARLY)] * 2
    told = OPERATIONS.read_text("utf-8").partition("### DqnfedRunEndedEarly")[2].partition("###")[0]
    assert [state for state in ENDED_EARLY if f"`{state}`" not in told] == []


def test_every_recorded_series_has_a_test() -> None:
    tested = names((PROMETHEUS / "tests" / "recording.yml").read_text())
    assert recorded() <= tested


def test_no_test_is_left_of_an_alert_that_is_gone() -> None:
    assert {path.stem for path in TESTS} == {alert["alert"] for alert in ALERTS} | {"recording"}


def test_operations_explain_no_alert_that_is_gone() -> None:
    explained = set(re.findall(r"^### (Dqnfed\w+)$", OPERATIONS.read_text("utf-8"), re.MULTILINE))
    assert explained == {alert["alert"] for alert in ALERTS}


@needs_promtool
def test_the_configuration_is_valid() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint-fatal", *(str(path) for path in (PROMETHEUS / "rules").glob("*.yml")))


@needs_promtool
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_rules_behave(path: Path) -> None:
    promtool("test", "rules", path.name, directory=path.parent)
