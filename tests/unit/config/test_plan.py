"""What settings leave open is decided in the plan of a run, and nothing of the settings is changed by it."""

from __future__ import annotations

import pytest

from dqnfed_flwr.config import Scalar, Settings, resolve
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.schema.work import GRADIENT, SGD


def plan_of(**given: Scalar) -> RunPlan:
    return resolve(Settings.from_mapping({key.replace("__", ".").replace("_", "-"): v for key, v in given.items()}))


@pytest.mark.parametrize("method", METHODS)
def test_auto_is_the_methods_own(method: str) -> None:
    plan = plan_of(method=method, rounds=100)
    assert plan.work is METHODS[method].works[0]
    assert plan.rule.name == plan.last.method.rule
    assert plan.settings.local.work == plan.settings.step_rule == "auto"


def test_what_is_given_stays() -> None:
    plan = plan_of(method="fedavgm", local__work="gradient", step_rule="fixed")
    assert (plan.work, plan.rule.name) == (GRADIENT, "fixed")


def test_the_anchor_is_a_part_with_its_own_work_and_rule() -> None:
    plan = plan_of(local__work="gradient", step_rule="probed", local__batch_size=8)
    anchor = plan.anchor
    assert anchor is not None
    assert plan.parts == (plan, anchor)
    assert plan.works == (GRADIENT, SGD)
    assert (anchor.method.name, anchor.rule.name, anchor.anchor) == ("momentum", "newton", None)
    assert anchor.settings is plan.settings
    assert (plan.row_lr, anchor.row_lr) == (plan.settings.local.lr, 1.0)


def test_a_run_with_stages_has_rule_and_anchor_of_the_last() -> None:
    plan = plan_of(method="fedcorr", fedcorr__last="dqn-fed", rounds=100)
    assert plan.stage is not None
    assert (plan.work.name, plan.stage.work) == ("fedcorr", GRADIENT)
    assert plan.rule is plan.stage.rule
    assert plan.anchor is plan.stage.anchor is not None
    assert plan.parts == (plan, plan.stage, plan.anchor)
    assert plan.reads_curvature


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dqn-fed.anchor": "nothing"}, "dqn-fed.anchor: found 'nothing'"),
        ({"dqn-fed.anchor": "dqn-fed"}, "a step of DQN-Fed is changed already"),
        ({"dqn-fed.anchor": "fedcorr"}, "it is made of stages"),
        ({"dqn-fed.anchor": "ditto"}, "its models are the clients' own"),
        ({"fedcorr.last": "nothing"}, "fedcorr.last: found 'nothing'"),
        ({"method": "fedcorr", "fedcorr.last": "fedcorr"}, "the last stage needs a method of another name"),
    ],
)
def test_methods_that_are_named_and_are_none_are_refused_by_their_key(given: dict[str, Scalar], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.from_mapping(given)


def test_settings_that_were_not_checked_are_refused_where_they_are_resolved() -> None:
    with pytest.raises(ConfigError, match="step-rule: found 'none'; allowed: auto, "):
        resolve(Settings.unchecked({"step-rule": "none"}))


@pytest.mark.parametrize(
    ("given", "rows", "steps"),
    [
        ({}, 6, 2),
        ({"participation": 0.3, "dqn-fed.anchor": "fedavg"}, 6, 2),
        ({"messages.row": 16}, 16, 2),
        ({"messages.step": 32}, 6, 32),
        ({"messages.step": "low-rank", "dtype": "float64"}, 32, 0),
        ({"dqn-fed.anchor": "fednew"}, 6, 32),
        ({"attack.kind": "random"}, 6, 32),
        ({"rows.device": "host"}, 6, 2),
        ({"dtype": "float64"}, 32, 32),
        ({"dqn-fed.form": "one-sided"}, 32, 32),
        ({"step-rule": "newton"}, 32, 32),
        ({"privacy.mode": "masked"}, 32, 32),
        ({"method": "fedavg"}, 32, 32),
        ({"method": "fedcorr", "rounds": 100}, 32, 32),
    ],
)
def test_messages_are_short_where_that_was_seen_to_cost_nothing(
    given: dict[str, Scalar], rows: int, steps: int
) -> None:
    run = resolve(Settings.from_mapping(given))
    assert (run.row_bits, run.step_bits, run.sum_bits) == (rows, steps, given.get("messages.row", 32))


@pytest.mark.parametrize(("steps", "drawn"), [(32, False), (2, False), (4, True), (16, True), ("low-rank", True)])
def test_what_is_drawn_anew_each_round_is_known(steps: int | str, drawn: bool) -> None:
    whole_rows = {"messages.row": 32, "messages.step": steps}
    assert resolve(Settings.from_mapping(whole_rows)).draws_anew == drawn
