"""What stays of a model is held once in a process, and goes when its last user goes."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dqnfed_flwr.client import app
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.client.shared_models import Frozen, SharedModels, copied, shared_models
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.engine.run import run, run_in_process
from dqnfed_flwr.errors import ClientDataError, DataError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import NOTHING_FROZEN, ParamSpec
from dqnfed_flwr.tasks import arrays
from dqnfed_flwr.types import ClientTask, on_host
from tests.helpers.models import half_frozen
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
        assert on_host(row).tobytes() == on_host(expected).tobytes()


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
    models = SharedModels(lambda dtype: nn.Linear(2, 2), torch.float32, CPU)
    with models.lend() as one, models.lend() as other:
        assert one.module is not other.module
    with models.lend() as again:
        assert again in (one, other)


def test_a_model_that_was_in_use_when_an_error_was_raised_is_not_lent_again() -> None:
    models = SharedModels(lambda dtype: nn.Linear(2, 2), torch.float32, CPU)
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
    with pytest.raises(ClientDataError, match="9 to 9"):
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


TUNED = {**TINY, "model": "tests.helpers.models:half_frozen", "local.threads": 1}


def drawn(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return half_frozen((4,), 3)


def place(module: nn.Module) -> int:
    return module.get_parameter("1.weight").data_ptr()


def test_equal_frozen_parts_are_one_and_others_are_not() -> None:
    one, same, other = drawn(1), drawn(1), drawn(2)
    held = [Frozen.of(module, CPU) for module in (one, same, other)]
    assert place(one) == place(same) != place(other)
    assert one.get_parameter("3.weight").data_ptr() != same.get_parameter("3.weight").data_ptr()
    assert held[0] is held[1] is not held[2]
    del held, one, same, other
    gc.collect()
    again = drawn(1)
    assert torch.equal(Frozen.of(again, CPU).tensors["1.weight"], drawn(1).get_parameter("1.weight"))


def test_a_model_that_travels_whole_shares_nothing() -> None:
    held = Frozen.of(nn.Linear(2, 2), CPU)
    assert (held.fingerprint, held.tensors) == (NOTHING_FROZEN, {})


def test_a_copy_shares_what_is_frozen_alone() -> None:
    module = drawn(1)
    other = copied(module)
    assert place(module) == place(other)
    assert module.get_parameter("3.weight").data_ptr() != other.get_parameter("3.weight").data_ptr()
    x = torch.rand(5, 4)
    assert torch.equal(module(x), other(x))


def test_clients_send_and_step_the_trained_part_alone() -> None:
    settings = Settings.from_mapping(TUNED)
    clients = [DQNFedClient(settings, k, open_client(settings, k)) for k in range(2)]
    said = [client.get_properties({}) for client in clients]
    assert said[0]["dim"] == 8 * 10 + 10
    assert said[0]["frozen"] == said[1]["frozen"] != NOTHING_FROZEN
    reply = clients[0].work(ClientTask(1, 1), np.zeros(90, np.float32))
    assert reply.row is not None
    assert reply.row.shape == (90,)


def test_a_run_moves_what_is_trained_and_leaves_the_rest() -> None:
    result = run(TUNED)
    assert result.theta.shape == (result.form.dim,) == (90,)
    assert len(result.form.frozen) == 64
    assert all(event.improved_ratio == 1 for event in result.events)
    together = run({**TUNED, "local.together": 3})
    np.testing.assert_allclose(together.theta, result.theta, rtol=1e-4, atol=1e-5)


def test_local_passes_move_what_is_trained_alone() -> None:
    result = run({**TUNED, "method": "fedavg", "local.epochs": 2, "local.batch-size": 10})
    assert result.events[-1].losses_after < result.events[0].losses_before
    assert ParamSpec.of(half_frozen((1, 8, 8), 10)).dim == result.theta.size


class Borrowing(nn.Module):
    """An adapter that puts the sum in the place of the frozen weight in every pass, and takes it off again."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 10).requires_grad_(requires_grad=False)
        self.change = nn.Parameter(torch.full((10, 4), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.base.weight.data
        del self.base.weight
        self.base.weight = kept + self.change
        answer: torch.Tensor = self.base(x.flatten(1)[:, 20:24])
        back = (self.base.weight - self.change).detach()
        del self.base.weight
        self.base.weight = nn.Parameter(back, requires_grad=False)
        return answer


def borrowing(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For settings."""
    del shape, classes
    return Borrowing()


def test_frozen_weights_that_a_pass_replaces_are_put_back() -> None:
    torch.manual_seed(0)
    module = Borrowing()
    frozen = Frozen.of(module, CPU)
    model, before = FlatModel(module, CPU), frozen.tensors["base.weight"].clone()
    for _ in range(50):
        module(torch.randn(5, 64))
    assert module.base.weight.data_ptr() != frozen.tensors["base.weight"].data_ptr()
    assert not torch.equal(module.base.weight, before)  # rounding of many passes
    model.place(model.theta)
    assert module.base.weight.data_ptr() == frozen.tensors["base.weight"].data_ptr()
    assert torch.equal(module.base.weight, before)


def test_runs_of_such_a_model_repeat_with_any_number_of_jobs() -> None:
    settings = {**TUNED, "model": "tests.unit.client.test_shared_models:borrowing", "clients": 4, "rounds": 4}
    one, two, other = (run(settings, jobs=jobs).theta for jobs in (1, 2, 2))
    assert np.array_equal(one, two)
    assert np.array_equal(two, other)
