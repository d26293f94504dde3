from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr.client import app
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.shared_models import SharedModels, shared_models
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.engine.run import run_in_process
from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.tasks import arrays
from dqnfed_flwr.types import ClientTask
from tests.helpers.runs import TINY

CPU = torch.device("cpu")
NORM = {"model": "tests.helpers.models:norm_mlp", "method": "fedavg", "local.work": "sgd", "local.threads": 1}


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every model that is built."""
    names: list[str] = []

    def noted(name: str, *args: Any, **more: Any) -> nn.Module:
        names.append(name)
        return build_model(name, *args, **more)

    monkeypatch.setattr(arrays, "build_model", noted)
    return names


def samples(seed: int, *, classes: int = 3, **parts: Any) -> ClientData:
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(12, 4)).astype(np.float32), generator.integers(0, classes, 12)
    whole = {f"{axis}_{part}": a[:6] for part in ("train", "validation", "test") for axis, a in (("x", x), ("y", y))}
    return ClientData(**{**whole, **parts}, num_classes=3)


def client(settings: Mapping[str, Any], seed: int, **more: Any) -> DQNFedClient:
    return DQNFedClient(Settings.from_mapping(settings), seed, samples(seed, **more))


@pytest.mark.parametrize("together", [0, 4])
def test_a_run_builds_as_many_models_for_many_clients_as_for_few(built: list[str], together: int) -> None:
    counts = []
    for clients in (3, 12):
        built.clear()
        shared = {"clients": clients, "partition": "iid", "local.together": together}
        run_in_process(Settings.from_mapping({**TINY, **shared}), jobs=1)
        counts.append(len(built))
    assert counts[0] == counts[1]


def test_clients_compute_with_one_model_in_turn_and_have_the_bits_of_one_alone() -> None:
    task = ClientTask(1, 1, train=True, evaluate=True, num_classes=3)
    theta = np.random.default_rng(0).normal(size=15).astype(np.float32)
    settings = {"model": "logistic", "local.threads": 1}
    alone = [client(settings, seed).work(task, theta).row for seed in (1, 2)]
    pair = [client(settings, seed) for seed in (1, 2)]
    assert pair[0]._models_for(3) is pair[1]._models_for(3)
    for one, expected in zip(pair, alone, strict=True):
        row = one.work(task, theta).row
        assert row is not None
        assert expected is not None
        assert row.tobytes() == expected.tobytes()


def test_each_client_keeps_the_buffers_that_its_own_passes_left() -> None:
    first, second = client(NORM, 1), client(NORM, 2)
    theta = np.random.default_rng(0).normal(size=first._models_for(3).spec.dim).astype(np.float32)
    trains = ClientTask(1, 1, train=True, num_classes=3)
    evaluates = ClientTask(1, 1, train=False, evaluate=True, num_classes=3)
    untouched = second.work(evaluates, theta).test
    left = first.work(trains, theta).buffers
    assert second.work(evaluates, theta).test == untouched
    again = first.work(evaluates, theta).test
    assert again == first.work(evaluates, theta, buffers=left).test
    assert again != client(NORM, 1).work(evaluates, theta).test


def test_two_that_compute_at_the_same_time_have_a_model_each() -> None:
    models = SharedModels(lambda: nn.Linear(2, 2), CPU)
    with models.lend() as one, models.lend() as other:
        assert one.module is not other.module
    with models.lend() as again:
        assert again in (one, other)


def test_a_model_that_was_in_use_when_an_error_was_raised_is_not_lent_again() -> None:
    models = SharedModels(lambda: nn.Linear(2, 2), CPU)
    with pytest.raises(ZeroDivisionError), models.lend() as broken:
        1 / 0  # noqa: B018
    with models.lend() as found:
        assert found is not broken


def test_registration_computes_nothing_for_samples_like_those_of_another_client() -> None:
    settings = {"model": "logistic", "local.threads": 1}
    first, second = client(settings, 1), client(settings, 2)
    assert (first.get_properties({})["dim"], second.get_properties({})["dim"]) == (15, 15)
    assert first._worker is not None
    assert second._worker is None


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_tokens_that_no_client_had_so_far_are_passed_through_the_model(part: str) -> None:
    few, many = np.arange(24).reshape(6, 4) % 5, np.full((6, 4), 9)
    known = {"x_train": few, "x_validation": few, "x_test": few}
    settings = {"model": "tests.unit.client.test_shared_models:bag", "local.threads": 1}
    first, second = client(settings, 1, **known), client(settings, 2, **{**known, f"x_{part}": many})
    first.get_properties({})
    with pytest.raises(ModelError, match="9 to 9"):
        second.get_properties({})


def test_labels_are_checked_at_registration_where_the_model_is_known() -> None:
    settings = {"model": "logistic", "local.threads": 1}
    first, second = client(settings, 1), client(settings, 2, y_train=np.full(6, 3))
    first.get_properties({})
    with pytest.raises(DataError, match="labels from 3 to 3"):
        second.get_properties({})


def test_models_are_built_anew_for_the_next_run() -> None:
    settings, data = Settings.from_mapping({"model": "logistic"}), samples(0)
    held = shared_models(settings, data, 3, CPU)
    assert shared_models(settings, data, 3, CPU) is held
    assert shared_models(settings, data, 4, CPU) is not held
    app.forget_clients()
    assert shared_models(settings, data, 3, CPU) is not held


def bag(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A bag of words of which five are known."""
    return nn.Sequential(nn.EmbeddingBag(5, 3), nn.Linear(3, num_classes))
