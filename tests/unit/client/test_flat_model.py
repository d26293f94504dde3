"""Forward passes in bfloat16: the same bits each time, float32 in all that leaves them and in losses that judge."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarantee.harm import resolution
from dqnfed_flwr.models import build_model
from tests.helpers.models import half_frozen
from tests.helpers.runs import TINY

CPU = torch.device("cpu")


def test_a_placed_vector_is_the_model_and_is_not_copied() -> None:
    last = nn.Linear(3, 1)
    module = nn.Sequential(nn.Linear(2, 3), last)
    model = FlatModel(module, CPU)
    theta = torch.arange(13.0)
    model.place(theta)
    assert torch.equal(model.spec.flatten(module), theta)
    theta.mul_(2)
    assert torch.equal(last.weight.detach(), torch.tensor([[18.0, 20.0, 22.0]]))
    assert torch.equal(model.flat(model.views(theta)), theta)


def test_shared_and_frozen_parameters_are_counted_once_and_not_at_all() -> None:
    first, second, frozen = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    second.weight = first.weight
    frozen.requires_grad_(False)
    model = FlatModel(nn.Sequential(first, second, frozen), CPU)
    model.place(torch.eye(2).reshape(-1) * 3)
    assert model.spec.dim == 4
    x = torch.ones(1, 2)
    assert torch.equal(model.module(x), frozen(9 * x))


def test_a_recurrent_model_is_deterministic_unless_it_trains() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(2, 3, num_layers=2, dropout=0.5)
    model = FlatModel(lstm, CPU)
    x = torch.randn(4, 1, 2)
    with torch.no_grad():
        assert torch.equal(lstm(x)[0], lstm(x)[0])
        with model.training():
            assert not torch.equal(lstm(x)[0], lstm(x)[0])
        assert torch.equal(lstm(x)[0], lstm(x)[0])


def test_training_mode_ends_with_the_block() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model = FlatModel(module, CPU)
    assert not module[1].training
    with model.training():
        assert module[1].training
    assert not module[1].training


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(2, 2), False),
        (nn.Dropout(0.1), True),
        (nn.LSTM(2, 2), False),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), True),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (Own(), True),  # what it does is not known
    ],
)
def test_layers_that_may_draw_random_numbers_are_known(layer: nn.Module, expected: bool) -> None:
    assert FlatModel(nn.Sequential(nn.Linear(2, 2), layer), CPU).draws == expected


IMAGE, SMALL = (3, 32, 32), (3, 8, 8)  # a processor is slow at convolutions in bfloat16


class Attending(nn.Module):
    """Attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.out(self.inner(images.flatten(1, 2)).mean(1))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: build_model("logistic", IMAGE, 4, seed=3),
    "cnn": lambda: build_model("cnn", IMAGE, 4, seed=3),
    "resnet18-gn": lambda: build_model("resnet18-gn", SMALL, 4, seed=3),
    "attention": Attending,
    "half-frozen": lambda: half_frozen(IMAGE, 4),
}


def local_loss(module: nn.Module, *, bf16: bool = True, chunk: int = 4, shape: tuple[int, ...] = IMAGE) -> LocalLoss:
    draw = torch.Generator().manual_seed(1)
    samples = torch.randn(6, *shape, generator=draw), torch.randint(0, 4, (6,), generator=draw)
    return LocalLoss(FlatModel(module, CPU, bf16=bf16), samples, chunk=chunk, outputs=4)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bf16", [False, True])
def test_losses_that_judge_are_those_of_full_precision_to_the_bit(name: str, *, bf16: bool) -> None:
    torch.manual_seed(0)
    loss = local_loss(MODELS[name](), bf16=bf16, shape=SMALL if name == "resnet18-gn" else IMAGE)
    theta = loss.model.theta.clone()
    value, gradient = loss.loss_and_gradient(theta)
    assert value == loss.loss_and_gradient(theta)[0]
    assert loss.evaluate(theta, loss.samples).loss == pytest.approx(value, rel=1e-12)
    assert gradient.dtype == theta.dtype == torch.float32
    moved = theta - 1e-3 * gradient
    for at in (theta, moved):
        with loss.model.full_precision():
            exact = loss.loss_and_gradient(at)[0]
        assert loss.loss(at) == exact
        assert loss.sample_losses(at, loss.samples).mean() == pytest.approx(exact, rel=1e-12)
        assert bf16 or loss.loss_and_gradient(at)[0] == exact
    assert (loss.loss_and_gradient(moved)[0] != exact) == bf16


def test_only_the_forward_pass_is_in_bfloat16() -> None:
    seen: list[torch.dtype] = []
    module = nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 4))
    module[1].register_forward_hook(lambda layer, inputs, output: seen.append(output.dtype))
    half = local_loss(module)
    theta = half.model.theta.clone()
    value, gradient = half.loss_and_gradient(theta)
    assert set(seen) == {torch.bfloat16}
    assert half.model.module(torch.zeros(1, *IMAGE)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    with half.model.full_precision():
        exact, true = half.loss_and_gradient(theta)
    assert value != exact
    assert value == pytest.approx(exact, rel=1e-2)
    assert float((gradient - true).norm() / true.norm()) < 0.05


def test_a_pass_that_raises_leaves_no_autocast_behind() -> None:
    model = FlatModel(nn.Linear(3, 2), CPU, bf16=True)
    with pytest.raises(RuntimeError, match="shape"):
        model.module(torch.zeros(1, 7))
    assert not torch.is_autocast_enabled("cpu")
    assert model.module(torch.zeros(1, 3)).dtype == torch.float32


@pytest.mark.parametrize("more", [{}, {"method": "fedavg", "local.batch-size": 10}])
def test_a_run_has_the_same_bits_twice_and_other_ones_than_in_full_precision(more: dict[str, str | int]) -> None:
    settings = {**TINY, **more, "local.threads": 1}
    one, again = (run({**settings, "local.autocast": "bf16"}) for _ in range(2))
    assert np.array_equal(one.theta, again.theta)
    assert one.theta.dtype == np.float32
    assert not np.array_equal(one.theta, run(settings).theta)


ROUNDED = {"data": "digits", "clients": 4, "rounds": 12, "local.autocast": "bf16", "local.threads": 1}


@pytest.mark.parametrize("more", [{}, {"method": "fedavg"}, {"local.gradient-batch": 50, "method": "fedsgd"}])
def test_losses_that_clients_name_are_those_of_float64(more: dict[str, str | int]) -> None:
    result = run({**ROUNDED, **more, "rounds": 2})
    double = Settings.from_mapping({**ROUNDED, "local.autocast": "none", "dtype": "float64"})
    for client, loss in zip(result.events[-1].participants, result.events[-1].losses_after, strict=True):
        exact = DQNFedClient(double, client, open_client(double, client))
        losses = exact.sample_losses(10, result.theta.astype(np.float64), {}, "train")
        assert loss == pytest.approx(losses.mean(), rel=1e-6)


@given(seed=st.integers(0, 5), halvings=st.integers(0, 10))
@settings(max_examples=20, deadline=None)
def test_the_change_along_a_step_is_that_of_float64_up_to_the_tolerance(seed: int, halvings: int) -> None:
    """The error of both losses together, paired: under autocast it is larger than what short steps change."""
    module = build_model("mlp", (1, 8, 8), 4, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randn(40, 1, 8, 8, generator=draw), torch.randint(0, 4, (40,), generator=draw)
    half = LocalLoss(FlatModel(module, CPU, bf16=True), samples, outputs=4)
    exact = LocalLoss(FlatModel(deepcopy(module).double(), CPU), (samples[0].double(), samples[1]), outputs=4)
    theta = half.model.theta.clone()
    before, gradient = half.loss(theta), half.loss_and_gradient(theta)[1]
    ahead = theta - 0.5**halvings * gradient
    true = exact.loss(ahead.double()) - exact.loss(theta.double())
    assert abs(half.loss(ahead) - before - true) <= resolution(before)


def test_nobody_is_caught_for_what_rounding_does() -> None:
    """Here honest clients lost their votes, and steps shrank to a millionth, when losses were rounded."""
    events = run({**ROUNDED, "clients": 10, "rounds": 24, "seed": 1}).events
    assert not any(event.votes.caught for event in events)
    assert min(event.factor for event in events) > 1e-3


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dtype": "float64"}, "dtype 'float64', which it would throw away; use none, or dtype float32"),
        ({"local.together": 2}, "use local.together 0"),
        ({"method": "local-newton"}, "products with Hessians need full precision"),
    ],
)
def test_what_it_does_not_go_with_is_refused(other: dict[str, str | int], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"local\.autocast: found 'bf16'.*{words}"):
        Settings.from_mapping({"local.autocast": "bf16", **other})
