"""Samples and losses written in two ways that mean the same train to the same bits, or are refused before round 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import Dataset

from dqnfed_flwr import Datasets
from tests.helpers.twins import METHODS, OwnTask, arrays, outcome

REGRESSION = {"task": "regression", "model": "logistic"}
CLASSES = {"model": "logistic"}
NAMES = [f"f{place}" for place in range(6)]


class Pairs(Dataset[Any]):
    """A data set of the user's own, in place of torch's."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


class Named(Pairs):
    def __getitem__(self, row: int) -> Any:
        return {"x": self.x[row], "y": self.y[row]}


class Noisy(Pairs):
    """Augmentation from a generator of its own."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, row: int) -> Any:
        return self.x[row] + float(self.rng.normal()), self.y[row]


class OwnPairs(OwnTask):
    kind: Callable[[Tensor, Tensor], Any] = Pairs

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        x, y = self.samples(partition)
        return Datasets(type(self).kind(x[:30], y[:30]), type(self).kind(x[30:], y[30:]))


class OwnNames(OwnPairs):
    kind = Named

    def losses(self, model: nn.Module, batch: Any) -> Any:
        return super().losses(model, (batch["x"], batch["y"]))


class OwnNoise(OwnPairs):
    kind = Noisy


class Collated(OwnTask):
    @staticmethod
    def collate(samples: list[Any]) -> Any:
        return tuple(torch.stack(part) for part in zip(*samples, strict=True))


class Weighted(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        found = super().losses(model, batch)
        return found, torch.ones_like(found)


class OfParts(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        return super().losses(model, batch)[:, None]


class InPlaceTargets(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        y -= 0.5
        return (model(x) - (y + 0.5)).square()[:, 0]


class Drawing(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        return super().losses(model, batch) * (1 + 0.1 * torch.rand(len(batch[0])))


class DrawingByNumPy(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        return super().losses(model, batch) * (1 + 0.1 * np.random.default_rng().random())


class Scaled(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        found = super().losses(model, batch)
        return found * found.mean()


class Levelled(OwnTask):
    """Together the losses are a constant, and so is each by itself."""

    def losses(self, model: nn.Module, batch: Any) -> Any:
        found = super().losses(model, batch)
        return found - found.mean() + 1.0


class Constant(OwnTask):
    def losses(self, model: nn.Module, batch: Any) -> Any:
        return super().losses(model, batch).detach()


OWN: dict[str, tuple[type[OwnTask], str]] = {
    "a data set of one's own": (OwnPairs, ""),
    "samples by name": (OwnNames, ""),
    "a collate of one's own": (Collated, ""),
    "weights of 1": (Weighted, ""),
    "one part a sample": (OfParts, ""),
    "targets changed in place": (InPlaceTargets, r"losses\(\) changes its batch in place"),
    "noise in the loss": (Drawing, "another loss each time"),
    "noise of NumPy in the loss": (DrawingByNumPy, "another loss each time"),
    "noise in the samples": (OwnNoise, "draws random numbers, or is another one each time"),
    "losses in units of their mean": (Scaled, "in one batch and of .* one by one"),
    "losses that add up to a constant": (Levelled, "does not depend on any parameter"),
    "a loss without a gradient": (Constant, "does not depend on any parameter"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("task", "refused"), OWN.values(), ids=OWN.keys())
def test_tasks_of_ones_own(task: type[OwnTask], refused: str, method: str) -> None:
    plain = outcome({"task": OwnTask()}, method=method)
    _compare(plain, outcome({"task": task()}, method=method), refused)


@pytest.mark.parametrize("method", METHODS)
def test_samples_that_are_read_in_every_pass(method: str) -> None:
    plain = outcome({"task": OwnPairs()}, method=method)
    _compare(plain, outcome({"task": OwnPairs()}, method=method, **{"local.held-bytes": 1}), "")


def _doubles(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "x_train": data["x_train"].astype(np.float64)}


def _compressed(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "x_train": sparse.csr_matrix(data["x_train"])}


def _tensors(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "x_train": torch.tensor(data["x_train"]), "y_train": torch.tensor(data["y_train"])}


def _columns_last(data: Mapping[str, Any]) -> dict[str, Any]:
    return {**data, "x_train": np.asfortranarray(data["x_train"])}


@pytest.mark.parametrize("kind", ["classes", "values"])
@pytest.mark.parametrize("other", [_doubles, _compressed, _tensors, _columns_last])
def test_arrays_of_other_kinds(other: Callable[[Mapping[str, Any]], dict[str, Any]], kind: str) -> None:
    data, settings = arrays(kind=kind), CLASSES if kind == "classes" else REGRESSION
    _compare(outcome({"data": data}, **settings), outcome({"data": other(data)}, **settings), "")


def test_truth_values_are_0_and_1() -> None:
    data = arrays()
    flags = data["x_train"] > 0
    plain = outcome({"data": {**data, "x_train": flags.astype(np.float32)}}, **CLASSES)
    _compare(plain, outcome({"data": {**data, "x_train": flags}}, **CLASSES), "")


def rows(target: str) -> tuple[list[str], list[list[float]]]:
    """A table of whole numbers, so that all ways of writing them have the same values."""
    rng = np.random.default_rng(2)
    x = rng.integers(-60, 60, (90, 6))
    y = x[:, 0] + 2 * x[:, 1] + 40 if target == "days" else (x[:, 0] > 0).astype(int)
    return [*NAMES, target], np.column_stack([x, y]).tolist()


def csv(path: Path, names: list[str], table: list[list[Any]]) -> str:
    path.write_text("\n".join(",".join(map(str, row)) for row in [names, *table]) + "\n")
    return str(path)


TABLE = {"model": "logistic", "partition": "iid"}


def test_a_whole_number_is_learnt_as_it_is_by_any_name(tmp_path: Path) -> None:
    file = csv(tmp_path / "stay.csv", *rows("days"))
    plain = outcome({}, data=f"csv:{file},target=days", task="regression", **TABLE)
    _compare(plain, outcome({}, data=f"csv:{file},label=days", task="regression", **TABLE), "")


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_file_of_parquet_and_of_csv(tmp_path: Path, task: str) -> None:
    names, table = rows("days" if task == "regression" else "ill")
    file, other = csv(tmp_path / "ward.csv", names, table), tmp_path / "ward.parquet"
    pq.write_table(pa.table(dict(zip(names, zip(*table, strict=True), strict=True))), other)
    column = f"{'target' if task == 'regression' else 'label'}={names[-1]}"
    plain = outcome({}, data=f"csv:{file},{column}", task=task, **TABLE)
    _compare(plain, outcome({}, data=f"parquet:{other},{column}", task=task, **TABLE), "")


def test_targets_of_libsvm(tmp_path: Path) -> None:
    names, table = rows("days")
    file, other = csv(tmp_path / "house.csv", names, table), tmp_path / "house.txt"
    lines = [" ".join([str(y), *(f"{i + 1}:{v}" for i, v in enumerate(x) if v)]) for *x, y in table]
    other.write_text("\n".join(lines) + "\n")
    plain = outcome({}, data=f"csv:{file},target=days", task="regression", **TABLE)
    _compare(plain, outcome({}, data=f"libsvm:{other}", task="regression", **TABLE), "")


WRITTEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "per cent": (lambda value: f"{value}%", ""),
    "dollars": (lambda value: f"-${-value}" if value < 0 else f"${value}", ""),
    "with a point": (lambda value: f"{value}.0", ""),
    "with a sign": (lambda value: f"{value:+d}", ""),
    "a unit of length": (lambda value: f"{value} km", "km"),
    "decimal commas": (lambda value: f'"{value},0"', "comma"),
}


@pytest.mark.parametrize(("write", "refused"), WRITTEN.values(), ids=WRITTEN.keys())
def test_numbers_as_people_write_them(tmp_path: Path, write: Callable[[Any], Any], refused: str) -> None:
    names, table = rows("ill")
    file = csv(tmp_path / "plain.csv", names, table)
    other = csv(tmp_path / "written.csv", names, [[write(row[0]), *row[1:]] for row in table])
    plain = outcome({}, data=f"csv:{file},label=ill", **TABLE)
    _compare(plain, outcome({}, data=f"csv:{other},label=ill", **TABLE), refused)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "row"])
def test_an_index_column_is_no_feature(tmp_path: Path, name: str) -> None:
    names, table = rows("ill")
    file = csv(tmp_path / "plain.csv", names, table)
    other = csv(tmp_path / "index.csv", [name, *names], [[place, *row] for place, row in enumerate(table)])
    plain = outcome({}, data=f"csv:{file},label=ill", **TABLE)
    _compare(plain, outcome({}, data=f"csv:{other},label=ill", **TABLE), "")


def test_truth_values_of_a_table(tmp_path: Path) -> None:
    names, table = rows("ill")
    file = csv(tmp_path / "plain.csv", names, [[int(row[0] > 0), *row[1:]] for row in table])
    other = csv(tmp_path / "flags.csv", names, [[str(row[0] > 0).lower(), *row[1:]] for row in table])
    plain = outcome({}, data=f"csv:{file},label=ill", **TABLE)
    _compare(plain, outcome({}, data=f"csv:{other},label=ill", **TABLE), "")


def _compare(plain: Any, other: Any, refused: str) -> None:
    assert not isinstance(plain, str), plain
    if refused:
        assert isinstance(other, str)
        assert re.search(refused, other), other
        assert len(other.splitlines()) == 1
    else:
        assert not isinstance(other, str), other
        assert np.array_equal(plain, other)
