from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.config import Scalar, Settings, without_effect
from dqnfed_flwr.config.effects import RULES, WORKS
from dqnfed_flwr.engine.run import run
from tests.helpers.runs import TINY

OTHER: dict[str, Scalar] = {
    "local.epochs": 2,
    "local.batch-size": 7,
    "local.momentum": 0.5,
    "local.decay": 0.5,
    "local.proximal": 1.0,
    "local.gradient": "pseudo",
    "local.gradient-batch": 7,
    "curvature.kind": "secant",
    "curvature.previous": "recomputed",
    "curvature.memory": 3,
    "curvature.filter": 0.5,
    "curvature.damping": True,
    "step.lr": 0.03,
    "step.decay": 0.5,
    "step.radius": 1e-3,
    "step.armijo": 0.5,
    "step.acceptance": 0.5,
    "step.start": 0.125,
    "step.max-factor": 0.25,
    "step.max-fall": 0.01,
    "step.halvings": 1,
    "step.ladder": "after-miss",
    "step.grow-every": 1,
    "fedmdfg.search": 1,
    "fedmdfg.beta": 0.5,
    "q-ffl.q": 5.0,
    "fedmgda.epsilon": 1.0,
    "dqn-fed.lr": 3.0,
}


def test_every_key_of_the_tables_exists() -> None:
    assert (WORKS.keys() | RULES.keys()) - Settings().flat().keys() == set()
    assert (WORKS.keys() | RULES.keys()) - OTHER.keys() == set()


@pytest.mark.parametrize(
    ("mapping", "unused"),
    [
        ({}, ["local.batch-size", "local.epochs", "step.lr", "step.radius", "q-ffl.q"]),
        ({"dqn-fed.reference": "update"}, ["step.lr", "step.radius", "q-ffl.q"]),
        ({"method": "fedavg"}, ["step.lr", "step.radius", "step.armijo", "q-ffl.q"]),
        ({"method": "q-ffl", "step-rule": "fixed"}, ["step.radius", "step.armijo"]),
        (
            {"method": "fedmgda+", "local.work": "gradient"},
            ["local.batch-size", "local.epochs", "step.lr", "step.radius", "step.armijo", "q-ffl.q"],
        ),
        (
            {"method": "fedcorr", "fedcorr.last": "q-ffl", "clients": 2, "rounds": 30},
            ["step.lr", "step.radius", "step.armijo"],
        ),
    ],
)
def test_keys_without_effect_by_method_work_and_rule(mapping: dict[str, Scalar], unused: list[str]) -> None:
    keys = ["rounds", "local.batch-size", "local.epochs", "step.lr", "step.radius", "step.armijo", "q-ffl.q"]
    assert without_effect(Settings.from_mapping(mapping), keys) == unused


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"method": "fedavg"},
        {"method": "fedsgd", "step-rule": "clipped"},
        {"method": "fedmdfg"},
        {"method": "fedmgda+", "local.work": "lbfgs", "step-rule": "fixed"},
        {"method": "local-newton"},
        {"method": "fednew"},
        {"method": "ditto"},
    ],
)
def test_what_is_said_to_have_no_effect_has_none(mapping: dict[str, Scalar]) -> None:
    settings = Settings.from_mapping({**TINY, **mapping})
    unused = without_effect(settings, OTHER)
    changed = Settings.from_mapping({**TINY, **mapping, **{key: OTHER[key] for key in unused}})
    assert unused
    np.testing.assert_array_equal(run(settings).theta, run(changed).theta)
