"""One of ten clients, then three in collusion, attack a training on digits: the others hardly notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cache
from typing import Any

import numpy as np
import pytest

from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.grid import InProcessGrid
from dqnfed_flwr.engine.hostile import Attack, Hostile
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.serve import serve
from dqnfed_flwr.fairness import improved_ratio
from tests.helpers.attacks import ATTACKS, FURTHER

BASE: dict[str, Any] = {
    "partition": "dirichlet",
    "clients": 10,
    "local.threads": 1,
    "checkpoint-every": 0,
    "evaluate-every": 0,
}
QUICK: dict[str, Any] = {**BASE, "rounds": 12, "model": "logistic"}  # all samples: the margin is some of the tested
WHOLE: dict[str, Any] = {**BASE, "rounds": 40}
ONE, THREE = (3,), (2, 5, 8)
MARGIN = 0.02
LEAST_RATIO = 0.95


@cache
def clean(quick: bool) -> RunResult:
    return attacked(None, (), quick)


def attacked(attack: Attack | None, hostile: Collection[int], quick: bool) -> RunResult:
    settings = Settings.from_mapping(QUICK if quick else WHOLE)
    hostile_app = Hostile(app, hostile, attack) if attack else app
    return serve(InProcessGrid(hostile_app, settings.clients, settings.flat()), settings)


def honest_accuracy(result: RunResult, hostile: Collection[int]) -> float:
    return float(np.mean([value for client, value in result.accuracies.items() if client not in hostile]))


def honest_ratio(result: RunResult, hostile: Collection[int]) -> float:
    ratios = []
    for event in result.events:
        kept = [index for index, client in enumerate(event.participants) if client not in hostile]
        ratios.append(improved_ratio([event.losses_before[k] for k in kept], [event.losses_after[k] for k in kept]))
    return float(np.mean(ratios))


def check(kind: str, hostile: Collection[int], quick: bool) -> None:
    attack, reason = {**ATTACKS, **FURTHER}[kind]
    result = attacked(attack, hostile, quick)
    assert result.status == "finished"
    assert np.isfinite(result.theta).all()
    assert honest_accuracy(result, hostile) >= honest_accuracy(clean(quick), hostile) - MARGIN
    assert honest_ratio(result, hostile) >= LEAST_RATIO
    reasons = Counter((drop.client, drop.reason) for event in result.events for drop in event.dropped)
    assert {client for client, _ in reasons} == set(hostile)
    assert all(reasons[client, reason] > 0 for client in hostile)


def test_nobody_is_turned_away_without_an_attack() -> None:
    assert [drop for event in clean(quick=True).events for drop in event.dropped] == []


@pytest.mark.parametrize(
    "kind", ["NaN", "x 100", "sign flip x 10", "zero", "extra key", "1e6 samples", "veto", "creeping veto"]
)
def test_one_attacker_costs_the_others_little(kind: str) -> None:
    check(kind, ONE, quick=True)


@pytest.mark.parametrize("kind", ["x 1e6", "sign flip x 10"])
def test_three_in_collusion_cost_the_others_little(kind: str) -> None:
    check(kind, THREE, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("hostile", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("kind", [*ATTACKS, *FURTHER])
def test_the_whole_table(kind: str, hostile: tuple[int, ...]) -> None:
    check(kind, hostile, quick=False)
