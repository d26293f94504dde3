"""Every method trains a regression, or refuses it by name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from dqnfed_flwr import run
from dqnfed_flwr.config import Settings
from dqnfed_flwr.config.methods import METHODS
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import Figure

CLASSES_ONLY = {
    "fedcorr": "fedcorr corrects class labels",
    "fednl": "fednl makes Hessians of cross-entropies",
    "fednew": "use fednew.matrix hessian",
    "local-newton": "use local-newton.matrix hessian",
}
"""Methods that need class labels or logits as they are by default, and what they say."""
OTHERWISE = ("fednew", {"fednew.matrix": "hessian"}), ("local-newton", {"local-newton.matrix": "hessian"})


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | int | float]:
    x, y = load_diabetes(return_X_y=True)
    path = tmp_path_factory.mktemp("data") / "diabetes.npz"
    np.savez(path, x_train=scale(x).astype(np.float32), y_train=scale(y).astype(np.float32))
    shared: dict[str, str | int | float] = {"task": "regression", "data": str(path), "partition": "iid"}
    return {**shared, "clients": 3, "rounds": 2, "model": "logistic", "local.threads": 1}


@pytest.mark.parametrize(
    "own", [*({"method": name} for name in METHODS), *({"method": name, **own} for name, own in OTHERWISE)], ids=str
)
def test_a_regression_works_or_is_refused_by_name(
    regression: dict[str, str | int | float], own: dict[str, str | int | float]
) -> None:
    if reason := CLASSES_ONLY.get(str(own["method"]), "") if len(own) == 1 else "":
        with pytest.raises(ConfigError, match=f"task: found 'regression', but .*{reason}"):
            Settings.from_mapping({**regression, **own})
        return
    result = run({**regression, **own})
    assert result.figure == Figure("mae", higher=False)
    assert result.accuracies.keys() == {0, 1, 2}
    assert all(math.isfinite(value) and value > 0 for value in result.accuracies.values())
    assert result.final["worst"] == max(result.accuracies.values())


@pytest.mark.parametrize(
    "own",
    [{"noise.kind": "pair"}, {"local.together": 2}, {"method": "fednew", "fednew.form": "exact"}],
    ids=str,
)
def test_settings_about_classes_are_refused_by_name(
    regression: dict[str, str | int | float], own: dict[str, str | int]
) -> None:
    Settings.from_mapping({**regression, **own, "task": "classification"})
    with pytest.raises(ConfigError, match=r"found (task )?'regression'"):
        Settings.from_mapping({**regression, **own})


def test_clients_may_judge_a_regression_by_held_out_samples(regression: dict[str, str | int | float]) -> None:
    held_out = {"step.judge": "both", "split.validation-fraction": 0.3, "rounds": 3}
    result = run({**regression, **held_out})
    assert [event.improved_ratio for event in result.events] == [1.0] * len(result.events)
    assert not any(event.votes.unable for event in result.events)
