"""Targets that do not fit a task, and what cannot be asked for where samples have no class."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.clients import load_client
from dqnfed_flwr.data.dataset import TargetForm, as_data_set, used_targets
from dqnfed_flwr.data.user import holding
from dqnfed_flwr.errors import DataError

X = np.linspace(0, 1, 48, dtype=np.float32).reshape(24, 2)
FITTING: dict[TargetForm, Any] = {
    "values": np.linspace(-1, 1, 24),
    "flags": np.eye(3, dtype=np.int64)[np.arange(24) % 3],
    "places": np.arange(96).reshape(24, 4) % 5 - 1,
}


@pytest.mark.parametrize(
    ("form", "dtype", "shape", "outputs"),
    [("values", "float32", (24, 1), 1), ("flags", "uint8", (24, 3), 3), ("places", "int64", (24, 4), 4)],
)
def test_targets_that_fit(form: TargetForm, dtype: str, shape: tuple[int, ...], outputs: int) -> None:
    data = as_data_set({"x_train": X, "y_train": FITTING[form]}, "mine", 0, form)
    used = used_targets(data.y_train, form)
    assert (used.dtype, used.shape, data.num_classes) == (np.dtype(dtype), shape, outputs)
    np.testing.assert_allclose(used.reshape(FITTING[form].shape), FITTING[form], rtol=1e-6)


@pytest.mark.parametrize(
    ("form", "y", "message"),
    [
        ("values", np.full(24, np.nan), r"y_train has dtype float64 and shape \(24,\), from nan; .* finite numbers"),
        ("values", np.full(24, "2"), r"dtype <U1 and shape \(24,\); .* finite numbers, one or a row"),
        ("values", np.zeros((24, 2, 2)), r"shape \(24, 2, 2\).* \[N\] or \[N, T\]"),
        ("flags", np.zeros(24, dtype=int), r"shape \(24,\), from 0; this task needs 0 or 1 for each flag, \[N, C\]"),
        ("flags", np.full((24, 2), 2), "from 2; this task needs 0 or 1"),
        ("flags", np.full((24, 2), 0.5), "dtype float64 .* this task needs 0 or 1"),
        ("places", np.full((24, 4), -2), "from -2; this task needs integers, .* or -1 where nothing is asked"),
        ("places", np.zeros(24, dtype=int), r"shape \(24,\), from 0; this task needs integers, \[N, ...\]"),
        ("places", np.zeros((24, 4)), "dtype float64 .* this task needs integers"),
        ("values", np.zeros(23), "x_train has 24 samples and y_train 23"),
    ],
)
def test_targets_that_do_not_fit_are_named(form: TargetForm, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"data: mine: .*{message}"):
        as_data_set({"x_train": X, "y_train": y}, "mine", 0, form)


def client(form: TargetForm, **settings: Any) -> None:
    arrays = {"x_train": X, "y_train": FITTING[form]}
    with holding({"data": ("arrays", arrays)}) as names:
        load_client(Settings.from_mapping({"clients": 2, "partition": "iid", **names, **settings}), 0, None, form)


@pytest.mark.parametrize("form", FITTING)
def test_random_parts_need_no_classes(form: TargetForm) -> None:
    client(form)


@pytest.mark.parametrize("form", FITTING)
@pytest.mark.parametrize("partition", ["dirichlet", "shards", "pathological", "one-class"])
def test_partitions_by_class_are_refused_where_samples_have_none(form: TargetForm, partition: str) -> None:
    with pytest.raises(
        DataError, match=rf"partition: found '{partition}', which deals samples out by their class.*; use"
    ):
        client(form, partition=partition, **{"split.min-samples": 2})


@pytest.mark.parametrize("form", FITTING)
def test_wrong_labels_and_chosen_classes_are_refused_where_samples_have_none(form: TargetForm) -> None:
    with pytest.raises(DataError, match=r"noise.kind: found 'pair', but this task has no classes to mix up; use none"):
        client(form, **{"noise.kind": "pair", "noise.clients": 1.0})
    with pytest.raises(DataError, match=r"split.only-classes: found '0,1', but the targets of this task are no"):
        client(form, **{"split.only-classes": "0,1"})
    with pytest.raises(DataError, match=r"the targets ask for \d outputs, num-classes is 1; leave it at 0"):
        client("flags", **{"num-classes": 1})
