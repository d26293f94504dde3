"""Runs in which clients compute together: those of each by itself up to rounding, and the same bits every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError, ModelError
from tests.helpers.runs import TINY

RUNS: dict[str, dict[str, Any]] = {
    "probed": {"evaluate-every": 1},
    "held-out": {"step.judge": "both", "split.validation-fraction": 0.4, "guarantee.held-out-level": 0.9},
    "recomputed": {"curvature.kind": "secant", "curvature.previous": "recomputed", "dqn-fed.anchor": "momentum"},
    "cached": {"curvature.kind": "secant", "curvature.memory": 2, "dqn-fed.anchor": "server-lbfgs"},
    "ridge": {"ridge": 0.01, "method": "fedsgd"},
    "lbfgs": {"method": "dqn-fed", "dqn-fed.form": "two-sided", "local.work": "lbfgs", "step-rule": "newton"},
    "samples": {"clients": 6, "participation": 0.5, "dqn-fed.anchor": "momentum"},
    "buffers": {"model": "tests.helpers.models:norm_mlp", "method": "fedsgd"},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_that_of_clients_by_themselves_up_to_rounding(name: str) -> None:
    settings = {**TINY, "rounds": 4, "clients": 5, "dtype": "float64", **RUNS[name]}
    alone, together = run(settings), run({**settings, "local.together": 3})
    np.testing.assert_allclose(together.theta, alone.theta, rtol=1e-9, atol=1e-12)
    assert together.accuracies == alone.accuracies


def test_bits_depend_neither_on_the_run_nor_on_the_threads() -> None:
    settings = {**TINY, "rounds": 4, "clients": 5, "model": "cnn", "local.together": 2}
    first, second, third = (run(settings, jobs=jobs).theta for jobs in (1, 1, 3))
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)


def test_a_model_that_cannot_be_taken_apart_ends_the_run_with_the_reason() -> None:
    settings = {**TINY, "model": "tests.helpers.models:in_place_mlp", "local.together": 2}
    for jobs in (1, 2):
        with pytest.raises(ModelError, match=r"in place.*set local\.together 0"):
            run(settings, jobs=jobs)


@pytest.mark.parametrize("work", [{"method": "fedavg"}, {"method": "fedsgd", "local.gradient-batch": 5}])
def test_only_gradients_of_all_samples_are_computed_together(work: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"local.together: found 4, but only gradients of all samples"):
        run({**TINY, "local.together": 4, "step-rule": "fixed", **work})
