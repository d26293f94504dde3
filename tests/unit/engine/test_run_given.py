"""Tasks, data and models that are given as objects."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dqnfed_flwr
from dqnfed_flwr.client.app import forget_clients
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.user import _HELD, held, holding
from dqnfed_flwr.engine.run import objects_of, run
from dqnfed_flwr.engine.start import model_for
from dqnfed_flwr.errors import ConfigError, DataError, DQNFedError, ModelError
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks.arrays import Regression
from tests.helpers.own_task import Line
from tests.helpers.runs import Stop, StopAfter

SETTINGS: dict[str, str | int | float] = {"clients": 3, "rounds": 3, "local.threads": 1, "partition": "iid"}
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(90, 4)).astype(np.float32), np.arange(90) % 3


class Table:
    """What this package asks of a pandas table."""

    def __init__(self, values: Any, columns: tuple[str, ...]) -> None:
        self._values, self.columns = values, columns

    def to_numpy(self) -> Any:
        return np.asarray(self._values)


class Column:
    """And of one of its columns."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def to_numpy(self) -> Any:
        return np.asarray(self._values)


@pytest.mark.parametrize("given", [Line(), Line, "tests.helpers.own_task:Line"])
def test_a_task_by_name_as_a_class_and_as_an_object_is_the_same(given: Any) -> None:
    named = run({**SETTINGS, "task": "tests.helpers.own_task:Line"})
    result = dqnfed_flwr.run(SETTINGS, task=given)
    assert np.array_equal(result.theta, named.theta)
    assert result.settings.task == (given if isinstance(given, str) else "object:Line")


def of_file(folder: Path) -> Any:
    path = folder / "mine.npz"
    np.savez(path, x_train=X, y_train=Y)
    return run({**SETTINGS, "data": str(path)})


@pytest.mark.parametrize(
    "given",
    [
        {"x_train": X, "y_train": Y},
        {"x_train": torch.tensor(X), "y_train": torch.tensor(Y)},
        (X, Y),
        (Table(X, ("a", "b", "c", "d")), Column(Y)),
    ],
    ids=["arrays", "tensors", "pair", "tables"],
)
def test_data_are_dealt_out_as_those_of_a_file(given: Any, tmp_path: Path) -> None:
    result = run(SETTINGS, data=given)
    assert np.array_equal(result.theta, of_file(tmp_path).theta)
    assert result.settings.data == "object:arrays"
    assert result.provenance.fingerprint


def test_data_of_a_function_are_those_of_each_client() -> None:
    asked = []

    def mine(partition: int, clients: int, seed: int) -> Mapping[str, Any]:
        asked.append((partition, clients, seed))
        return {"x_train": X[partition::clients], "y_train": Y[partition::clients], "num_classes": 3}

    result = run({**SETTINGS, "seed": 5}, data=mine)
    assert sorted({*asked}) == [(0, 3, 5), (1, 3, 5), (2, 3, 5)]
    assert result.settings.data == "object:mine"
    assert result.provenance.fingerprint is None


def test_whole_numbers_in_a_table_are_features_and_not_tokens() -> None:
    _, objects = objects_of(data=(Table(np.arange(12).reshape(4, 3), ("a", "b", "c")), [0, 1, 0, 1]))
    arrays = objects["data"][1]
    assert arrays["x_train"].dtype == np.float32
    assert arrays["y_train"].dtype.kind == "i"


def test_a_model_starts_at_its_weights_and_stays_as_it_is() -> None:
    torch.manual_seed(1)
    mine = nn.Linear(4, 3)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    result = run(SETTINGS, data=(X, Y), model=mine)
    assert all(torch.equal(before[name], value) for name, value in mine.state_dict().items())
    start = run({**SETTINGS, "rounds": 1, "step-rule": "fixed", "step.lr": 1e-12}, data=(X, Y), model=mine).theta
    np.testing.assert_allclose(start, torch.cat([value.flatten() for value in before.values()]), atol=1e-6)
    assert not np.array_equal(result.theta, start)
    assert result.settings.model == "object:Linear"


@pytest.mark.parametrize(
    "maker",
    [lambda: nn.Linear(4, 3), lambda shape, classes: nn.Linear(shape[0], classes)],
    ids=["without arguments", "by shape and classes"],
)
def test_a_model_may_be_made_by_a_function(maker: Any) -> None:
    assert run(SETTINGS, data=(X, Y), model=maker).theta.shape == (15,)


def test_a_shipped_task_that_is_derived_from_knows_the_settings() -> None:
    class Absolute(Regression):
        def __init__(self) -> None:
            pass

        def losses_of(self, outputs: Any, targets: Any) -> Any:
            return (outputs - targets).abs().mean(1)

    result = run({**SETTINGS, "model": "logistic"}, task=Absolute(), data=(X, X[:, :1] / 20))
    assert result.theta.shape == (5,)
    assert set(result.accuracies) == {0, 1, 2}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"task": 3}, ConfigError, "task: found int; give a name, a dqnfed_flwr.tasks.Task, or a class"),
        ({"task": nn.Linear}, ConfigError, "task: found type; give a name"),
        ({"model": 3}, ConfigError, r"model: found int; give a name, a torch.nn.Module, or a function \(input_shape"),
        ({"data": 3}, ConfigError, "data: found int; give a name, a mapping of arrays"),
        ({"data": (X, Y, X)}, ConfigError, "data: found tuple"),
        ({"data": (X,)}, ConfigError, "data: found tuple"),
        ({"task": Line(), "data": (X, Y)}, ConfigError, "data: given next to the task Line, which says its data"),
        ({"task": Line, "model": nn.Linear(1, 1)}, ConfigError, "model: given next to the task Line"),
        (
            {"data": (Table(np.array([["a"]]), ("town",)), [0])},
            DataError,
            "x_train, column 'town': found the dtype <U1; give num",
        ),
        ({"data": {"x_train": X}}, DataError, r"data: object:arrays lacks \['y_train'\]"),
        ({"data": lambda partition: {}}, DataError, r"object:function raised TypeError.*test_run_given.py, line \d+"),
        ({"data": lambda *arguments: [X, Y]}, DataError, "object:function returned list; it must return a mapping"),
        ({"data": (X, Y), "model": lambda: 3}, ModelError, "model: object:function returned int; it must return"),
    ],
)
def test_what_cannot_be_used_is_named(given: dict[str, Any], error: type[DQNFedError], message: str) -> None:
    with pytest.raises(error, match=message):
        run(SETTINGS, **given)


def test_a_run_is_resumed_with_the_object_given_again(tmp_path: Path) -> None:
    class Mine(Line):
        pass

    settings = {**SETTINGS, "output": str(tmp_path / "run")}
    straight = run(SETTINGS, task=Mine())
    with pytest.raises(Stop):
        run(settings, task=Mine(), listeners=[StopAfter(2)])
    _HELD.clear()  # another process
    forget_clients()
    with pytest.raises(ConfigError, match=r"task: 'object:Mine' is an object .* give it again, run\(..., task=...\)"):
        run({**settings, "task": "object:Mine"}, resume=True)
    resumed = run(settings, task=Mine(), resume=True)
    assert np.array_equal(resumed.theta, straight.theta)


def test_resuming_on_other_arrays_is_refused(tmp_path: Path) -> None:
    settings = {**SETTINGS, "output": str(tmp_path / "run")}
    with pytest.raises(Stop):
        run(settings, data=(X, Y), listeners=[StopAfter(2)])
    with pytest.raises(DQNFedError, match="data"):
        run(settings, data=(X + 1, Y), resume=True)
    assert run(settings, data=(X, Y), resume=True).status == "finished"


def test_a_later_object_of_the_same_name_takes_its_place() -> None:
    first, second = (run({**SETTINGS, "rounds": 1}, data=(X * scale, Y)).theta for scale in (1, 2))
    assert not np.array_equal(first, second)

    class Wide(Line):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))

    Wide.__name__ = "Line"
    assert run(SETTINGS, task=Wide()).theta.shape == (11,)
    assert run(SETTINGS, task=Line()).theta.shape == (4,)


def test_the_model_of_a_run_can_be_built_afterwards() -> None:
    result = run(SETTINGS, task=Line())
    assert isinstance(model_for(result.settings, result.form), nn.Linear)


def test_two_runs_at_a_time_have_names_of_their_own() -> None:
    with holding({"data": ("arrays", {"x": 1})}) as one, holding({"data": ("arrays", {"x": 2})}) as other:
        assert one != other
        assert [held("data", names["data"]) for names in (one, other)] == [{"x": 1}, {"x": 2}]
    with holding({"data": ("arrays", {"x": 3})}) as later:
        assert later == one
    results = {}

    def go(scale: int) -> None:
        results[scale] = run({**SETTINGS, "rounds": 1}, data=(X * scale, Y)).theta

    threads = [threading.Thread(target=go, args=(scale,)) for scale in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(results[1], run({**SETTINGS, "rounds": 1}, data=(X, Y)).theta)


@pytest.mark.parametrize("given", [{"task": Line()}, {"data": (X, Y)}, {"model": nn.Linear(4, 3)}])
def test_other_processes_need_names(given: dict[str, Any]) -> None:
    (key,) = given
    with pytest.raises(ConfigError, match=f"^{key}: given as an object, which other processes do not know; put it"):
        run(SETTINGS, engine="flower", **given)


def test_a_node_without_the_module_says_so() -> None:
    with pytest.raises(ConfigError, match=r"task: 'absent_module:Mine' .*cannot be imported.*nodes need it installed"):
        task_of(Settings.from_mapping({"task": "absent_module:Mine"}))
    with pytest.raises(ConfigError, match=r"task: found 'regresion'; allowed: classification, .*, or module:Class"):
        task_of(Settings.from_mapping({"task": "regresion"}))
