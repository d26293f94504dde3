"""Forward passes in bfloat16: the same bits in probe and pass, float32 in all that leaves them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.errors import ConfigError
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
def test_probe_pass_and_evaluation_agree_to_the_bit(name: str) -> None:
    torch.manual_seed(0)
    loss = local_loss(MODELS[name](), shape=SMALL if name == "resnet18-gn" else IMAGE)
    theta = loss.model.theta.clone()
    value, gradient = loss.loss_and_gradient(theta)
    assert loss.loss(theta) == value == loss.loss_and_gradient(theta)[0]
    assert loss.evaluate(theta, loss.samples).loss == pytest.approx(value, rel=1e-12)
    assert gradient.dtype == theta.dtype == torch.float32
    moved = theta - 1e-3 * gradient
    assert loss.loss(moved) == loss.loss_and_gradient(moved)[0] != value


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
