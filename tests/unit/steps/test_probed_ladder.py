"""The step sent once a candidate was turned down: the same promise for less traffic."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dqnfed_flwr.config import Settings, StepSettings, resolve
from dqnfed_flwr.engine.adversary import Hostile
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.steps import StepScale, make_rule
from dqnfed_flwr.steps.probed import LARGE, Probed
from dqnfed_flwr.types import Probe
from tests.helpers.attacks import sign_flip
from tests.helpers.quadratics import Federation, spread_out, start_at, strategy
from tests.helpers.runs import WHOLE

CLIENTS, BAD = 6, 3


def test_the_rungs_come_with_the_second_candidate() -> None:
    rule = Probed(StepSettings(ladder="after-miss", halvings=6, grow_every=3))
    scale = StepScale(norm=1.0, length=1.0, theta_norm=1.0, round=1)
    first = rule.propose(scale)
    assert (first.factor, first.grow, first.halvings) == (1.0, False, 0)
    verdict = rule.judge(first, {0: Probe(2.0, False), 1: Probe(0.5, True)}, scale)
    assert (verdict.accepted, verdict.factor) == (False, 0.5)
    assert rule.retry(verdict.factor).halvings == 6


@pytest.mark.parametrize(
    ("ladder", "number", "dim", "halvings"),
    [
        ("auto", 2, 0, 6),
        ("auto", 2, LARGE - 1, 6),
        ("auto", 2, LARGE, 0),
        ("auto", 1, LARGE, 6),
        ("always", 2, LARGE, 6),
        ("after-miss", 1, 10, 0),
    ],
)
def test_large_models_are_spared_the_rungs(ladder: Literal["auto"], number: int, dim: int, halvings: int) -> None:
    rule = Probed(StepSettings(ladder=ladder, halvings=6))
    scale = StepScale(norm=1.0, length=1.0, theta_norm=1.0, round=number, dim=dim)
    assert rule.propose(scale).halvings == halvings


def test_a_step_that_is_sent_anyway_is_asked_for_its_rungs_however_large_the_model() -> None:
    given = {"step.ladder": "auto", "step.halvings": 5}
    scale = StepScale(norm=1.0, length=1.0, theta_norm=1.0, round=2, dim=LARGE)
    short, whole = (make_rule(resolve(Settings.from_mapping({**given, "messages.step": bits}))) for bits in (8, 32))
    assert (short.propose(scale).halvings, whole.propose(scale).halvings) == (5, 0)


def test_every_loss_falls_for_less_traffic() -> None:
    """Whole messages: a short step is sent with each candidate anyway."""
    digits = {
        **WHOLE,
        "data": "digits",
        "model": "logistic",
        "clients": 5,
        "rounds": 20,
        "evaluate-every": 0,
        "local.threads": 1,
        "guarantee.entitlement": 0,
    }
    always, later = (run({**digits, "step.ladder": ladder}) for ladder in ("always", "after-miss"))
    assert min(later.improved_ratio) == 1.0
    assert np.mean(later.events[-1].losses_after) == pytest.approx(np.mean(always.events[-1].losses_after), rel=0.2)
    assert later.bytes_down < 0.85 * always.bytes_down


def test_one_that_contradicts_itself_is_found_out_all_the_same() -> None:
    server = strategy(CLIENTS, {"step.ladder": "after-miss"})
    app = Hostile(Federation(spread_out(CLIENTS)).app(), (BAD,), sign_flip)
    server.start(InProcessGrid(app, CLIENTS, {}), start_at(np.zeros(6)))
    outcome = server.outcome
    assert outcome is not None
    assert [[(drop.client, drop.reason) for drop in event.dropped] for event in outcome.events] == [
        [(BAD, "contradiction")]
    ] * 3
