from __future__ import annotations

import numpy as np
import pytest

from dqnfed_flwr.config import KNOWN, Scalar, Settings, without_effect
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.schema.group import always
from tests.helpers.runs import TINY, WHOLE

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
    "curvature.damping": True,
    "step.lr": 0.03,
    "step.decay": 0.5,
    "step.radius": 1e-3,
    "step.judge": "held-out",
    "step.armijo": 0.5,
    "step.start": 0.125,
    "step.max-factor": 0.25,
    "step.max-fall": 0.01,
    "step.min-move": 1.0,
    "step.halvings": 1,
    "step.ladder": "after-miss",
    "step.grow-every": 1,
    "step.probe-first": True,
    "fedmdfg.search": 1,
    "q-ffl.q": 5.0,
    "fedmgda.epsilon": 1.0,
    "dqn-fed.scale": 0.1,
    "dqn-fed.anchor": "fedsgd",
    "dqn-fed.anchor-work": "lbfgs",
    "dqn-fed.anchor-bits": 2,
    "dqn-fed.anchor-share": 0.4,
    "momentum.beta": 0.1,
    "dqn-fed.rate-spread": 50.0,
    "server-lbfgs.memory": 1,
    "dqn-fed.absent-rounds": 9,
    "split.alpha": 0.1,
    "split.min-samples": 2,
    "split.shards": 3,
    "split.classes": 3,
    "split.merge": "5,3,2",
    "split.groups": 3,
    "split.min-group-samples": 5,
    "privacy.min-samples": 5000,
    "noise.clients": 1.0,
    "noise.level": 0.9,
    "attack.share": 0.4,
    "attack.clients": "1",
    "attack.factor": -3.0,
    "start.client": 1,
    "start.lr": 1.0,
    "start.batch-size": 3,
    "fedfv.tau": 3,
    "fednl.size": 4,
    "fednl.compressor": "top",
    "fednl.fresh": True,
    "fednew.refresh": 3,
    "fednew.matrix": "hessian",
    "local-newton.damping": 2.0,
    "local-newton.matrix": "hessian",
    "guarantee.entitlement": "0",
    "guarantee.tolerate": 1,
    "guarantee.window": 2,
    "guarantee.held-out-level": 0.9,
    "privacy.delta": 1e-6,
    "privacy.clip": 0.1,
    "privacy.largest-loss": 2.0,
    "privacy.min-records": 5,
}
GUARANTEE = ("guarantee.entitlement", "guarantee.tolerate", "guarantee.voters")


def test_every_key_that_is_not_always_read_is_tried_here() -> None:
    conditional = {key for key, known in KNOWN.items() if known.read is not always}
    assert conditional - OTHER.keys() == set()
    assert len(conditional) > 50


@pytest.mark.parametrize(
    ("mapping", "unused"),
    [
        ({}, ["step.lr", "step.radius", "q-ffl.q"]),
        (
            {"dqn-fed.anchor-work": "gradient"},
            ["local.batch-size", "local.epochs", "step.lr", "step.radius", "q-ffl.q"],
        ),
        ({"dqn-fed.anchor": "fedavg"}, ["step.lr", "step.radius", "q-ffl.q"]),
        ({"method": "fedavg"}, ["step.lr", "step.radius", "step.armijo", "q-ffl.q"]),
        ({"method": "q-ffl", "step-rule": "fixed"}, ["step.radius", "step.armijo"]),
        (
            {"method": "fedmgda+", "local.work": "gradient"},
            ["local.batch-size", "local.epochs", "step.radius", "step.armijo", "q-ffl.q"],
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


@pytest.mark.parametrize("method", ["fedsgd", "mgda"])
def test_curvature_that_nobody_reads_costs_nothing(method: str) -> None:
    plain = run({**TINY, "method": method, "rounds": 4})
    curved = run(
        {**TINY, "method": method, "rounds": 4, "curvature.kind": "secant", "curvature.previous": "recomputed"}
    )
    assert [event.cost.bytes_down for event in curved.events] == [event.cost.bytes_down for event in plain.events]
    assert [event.pairs_kept for event in curved.events] == [0] * 4


@pytest.mark.parametrize(
    "mapping",
    [
        {},
        {"method": "fedavg"},
        {"method": "fedsgd", "step-rule": "clipped"},
        {"method": "fedmdfg"},
        {"method": "fedmgda+", "local.work": "lbfgs", "step-rule": "fixed"},
        {"method": "fedsgd", "participation": 0.7, "local.gradient-batch": 16},
        {"method": "fedfv"},
        {"method": "local-newton"},
        {"method": "local-newton", "local-newton.solver": "lbfgs", "curvature.kind": "hvp"},
        {"method": "fednew"},
        {"method": "fednew", "fednew.form": "exact"},
        {"method": "fednl"},
        {"method": "fednl", "fednl.form": "diagonal"},
        {"method": "fednl", "participation": 0.7},
        {"method": "ditto"},
        {"method": "local"},
        {"attack.kind": "random", "attack.clients": "0"},
        {"partition": "iid", "dqn-fed.form": "two-sided"},
        {"step-rule": "clipped", "guarantee.tolerate": 1},
        {"partition": "one-class", "split.merge": "4,3,3", "dqn-fed.form": "one-sided"},
        {"partition": "pathological", "dqn-fed.anchor": "momentum", "noise.kind": "pair"},
        {"partition": "shards", "participation": 0.7, "start.epochs": 1},
    ],
)
def test_what_is_said_to_have_no_effect_has_none(mapping: dict[str, Scalar]) -> None:
    settings = Settings.from_mapping({**TINY, **mapping})
    unused = without_effect(settings, OTHER)
    changed = Settings.from_mapping({**TINY, **mapping, **{key: OTHER[key] for key in unused}})
    assert unused
    np.testing.assert_array_equal(run(settings).theta, run(changed).theta)


@pytest.mark.parametrize(
    ("mapping", "used"),
    [
        ({}, ["split.alpha", "dqn-fed.scale", "server-lbfgs.memory", *GUARANTEE]),
        ({"guarantee.tolerate": 1}, ["split.alpha", "dqn-fed.scale", "momentum.beta", *GUARANTEE]),
        (
            {"guarantee.tolerate": 1, "step-rule": "clipped"},
            ["split.alpha", "dqn-fed.scale", "server-lbfgs.memory", "guarantee.voters"],
        ),
        ({"method": "fedavg"}, ["split.alpha", "guarantee.voters"]),
        (
            {"participation": 0.5, "noise.kind": "pair", "dqn-fed.form": "anchored"},
            [
                "split.alpha",
                "noise.level",
                "dqn-fed.scale",
                "momentum.beta",
                "dqn-fed.absent-rounds",
                *GUARANTEE,
            ],
        ),
        (
            {"data": "digits", "partition": "iid", "quorum": 0.5},
            ["dqn-fed.scale", "server-lbfgs.memory", "dqn-fed.absent-rounds", *GUARANTEE],
        ),
        (
            {"data": "my_own:load", "dqn-fed.form": "one-sided"},
            ["split.alpha", "split.shards", *GUARANTEE],
        ),
        ({"data": "libsvm:/data/a9a.txt", "partition": "iid"}, ["dqn-fed.scale", "server-lbfgs.memory", *GUARANTEE]),
        (
            {"partition": "shards", "dqn-fed.form": "two-sided", "start.epochs": 1, "attack.kind": "zero"},
            ["split.shards", "start.lr", "attack.share", *GUARANTEE],
        ),
    ],
)
def test_keys_that_only_count_where_others_ask_for_them(mapping: dict[str, Scalar], used: list[str]) -> None:
    settings = Settings.from_mapping(mapping)
    keys = [
        *("split.alpha", "split.shards", "noise.level", "start.lr", "attack.share", "attack.factor"),
        *("curvature.memory", "dqn-fed.scale", "momentum.beta", "server-lbfgs.memory", "dqn-fed.absent-rounds"),
        *GUARANTEE,
    ]
    unused = without_effect(settings, keys)
    assert [key for key in keys if key not in unused] == used


@pytest.mark.parametrize(
    ("mapping", "key"),
    [
        ({"dqn-fed.anchor": "momentum"}, "momentum.beta"),
        ({"dqn-fed.anchor": "server-lbfgs", "rounds": 5}, "server-lbfgs.memory"),
        ({}, "dqn-fed.scale"),
        ({}, "guarantee.tolerate"),
        ({"rounds": 30}, "guarantee.entitlement"),
        ({"rounds": 20, "split.validation-fraction": 0.4}, "step.judge"),
        (
            {**WHOLE, "rounds": 20, "split.validation-fraction": 0.4, "step.judge": "both", "noise.kind": "pair"},
            "guarantee.held-out-level",
        ),
        ({"participation": 0.34, "rounds": 12}, "dqn-fed.absent-rounds"),
        ({"method": "fedavg"}, "local.decay"),
        ({"method": "fedavg", "local.epochs": 2}, "local.momentum"),
        ({"method": "fedavg", "local.epochs": 2}, "local.proximal"),
        ({"method": "q-ffl"}, "q-ffl.q"),
        ({"method": "fedmgda+"}, "fedmgda.epsilon"),
        ({"method": "fedfv", "participation": 0.34, "rounds": 8}, "fedfv.tau"),
        ({"method": "fednl", "rounds": 4}, "fednl.size"),
        ({"method": "fednl", "rounds": 4}, "fednl.fresh"),
        ({"method": "fednew", "rounds": 4, "fednew.form": "exact"}, "fednew.refresh"),
        ({"method": "local-newton"}, "local-newton.damping"),
    ],
)
def test_what_counts_changes_the_run(mapping: dict[str, Scalar], key: str) -> None:
    settings = Settings.from_mapping({**TINY, **mapping})
    assert without_effect(settings, [key]) == []
    changed = Settings.from_mapping({**TINY, **mapping, key: OTHER[key]})
    assert not np.array_equal(run(settings).theta, run(changed).theta)
