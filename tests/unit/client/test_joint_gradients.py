"""Gradients of several clients from one pass: those of each by itself, or a reason why not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.joint_gradients import JointPass, precompute
from dqnfed_flwr.errors import ModelError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.models.architectures import ResidualBlock
from tests.helpers.models import norm_mlp

SIZES = (3, 1, 4)
SHAPE = (3, 8, 8)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic": lambda: build_model("logistic", SHAPE, 4, seed=3),
    "mlp": lambda: build_model("mlp", SHAPE, 4, seed=3),
    "cnn": lambda: build_model("cnn", SHAPE, 4, seed=3),
    "buffers": lambda: norm_mlp(SHAPE, 4),
    "residual": lambda: nn.Sequential(
        ResidualBlock(3, 4, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
    ),
}
CPU = torch.device("cpu")


def clients(
    module: nn.Module,
    shape: tuple[int, ...],
    *,
    ridge: float = 0.0,
    chunk: int = 0,
    dtype: torch.dtype = torch.float32,
) -> list[LocalLoss]:
    """Clients with a model each and 3, 1 and 4 samples."""
    draw = torch.Generator().manual_seed(1)

    def samples(size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, *shape, generator=draw, dtype=dtype), torch.randint(0, 4, (size,), generator=draw)

    return [LocalLoss(FlatModel(module, CPU), samples(size), ridge=ridge, chunk=chunk) for size in SIZES]


def relative(found: Tensor, own: Tensor) -> float:
    return float((found - own).norm() / own.norm())


@pytest.mark.parametrize("name", MODELS)
def test_each_client_is_told_its_own_loss_and_gradient(name: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]()
    losses = clients(module, SHAPE, ridge=0.01)
    theta = losses[0].model.theta.clone()
    alone = [loss.loss_and_gradient(theta) for loss in losses]
    precompute(JointPass(FlatModel(module, CPU)), theta, losses)
    for loss, (value, gradient) in zip(losses, alone, strict=True):
        told = loss.loss_and_gradient(theta)
        assert told[0] == pytest.approx(value, rel=1e-6)
        assert relative(told[1], gradient) < 1e-6


def test_float64_agrees_to_the_last_few_bits() -> None:
    module = build_model("cnn", (1, 8, 8), 4, seed=3, dtype=torch.float64)
    losses = clients(module, (1, 8, 8), dtype=torch.float64)
    theta = losses[0].model.theta
    found = JointPass(FlatModel(module, CPU)).run(theta, losses)
    for loss, (_, gradient) in zip(losses, found, strict=True):
        assert relative(gradient(), loss.loss_and_gradient(theta)[1]) < 1e-13


def test_what_is_precomputed_is_told_once_and_at_that_tensor_alone() -> None:
    module = build_model("logistic", (5,), 4, seed=0)
    loss = clients(module, (5,))[0]
    theta = loss.model.theta
    true = loss.loss_and_gradient(theta)[1]
    loss.precompute(theta, 1.5, lambda: torch.ones_like(theta))
    assert torch.equal(loss.loss_and_gradient(theta.clone())[1], true)
    assert torch.equal(loss.loss_and_gradient(theta, torch.arange(len(loss.tensors[1])))[1], true)
    told, gradient = loss.loss_and_gradient(theta)
    assert (told, float(gradient.min())) == (1.5, 1.0)
    assert torch.equal(loss.loss_and_gradient(theta)[1], true)


@pytest.mark.parametrize(("chunk", "passes"), [(8, [3]), (4, [2]), (3, [])])
def test_a_pass_holds_no_more_samples_than_a_chunk(chunk: int, passes: list[int]) -> None:
    module = build_model("logistic", (5,), 4, seed=0)
    losses = clients(module, (5,), chunk=chunk)  # 3, 1 and 4 samples
    made: list[int] = []

    class Counting(JointPass):
        def run(self, theta: Tensor, losses: object) -> list[tuple[float, Callable[[], Tensor]]]:
            found = super().run(theta, losses)  # type: ignore[arg-type]
            made.append(len(found))
            return found

    precompute(Counting(FlatModel(module, CPU)), losses[0].model.theta, losses)
    assert made == passes


def test_the_same_pass_gives_the_same_bits() -> None:
    module = build_model("cnn", (3, 8, 8), 4, seed=3)
    losses = clients(module, (3, 8, 8))
    joint = JointPass(FlatModel(module, CPU))
    one, other = ([make().numpy() for _, make in joint.run(losses[0].model.theta, losses)] for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class Tied(nn.Module):
    """One matrix for two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.second(self.first(x)))
        return logits


class Twice(Tied):
    """A layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.first(self.first(x)))
        return logits


class Mixing(nn.Module):
    """Centres its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(x - x.mean(dim=0))
        return logits


def in_place() -> nn.Module:
    """A layer whose output is written over."""
    return nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Linear(5, 4))


class Bypass(nn.Module):
    """Uses a layer's matrix beside the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(x) + x @ self.head.weight.t()
        return logits


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Tied, "share parameters"),
        (Twice, "is not called once"),
        (Mixing, "mixes samples"),
        (in_place, "in place"),
        (Bypass, "outside of their layers"),
        (lambda: build_model("char-lstm", (5,), 4, seed=0), "LSTM is not called once"),
    ],
)
def test_a_model_that_cannot_be_taken_apart_is_refused(build: Callable[[], nn.Module], reason: str) -> None:
    torch.manual_seed(0)
    module = build()
    losses = clients(module, (5,)) if not hasattr(module, "lstm") else []
    if not losses:
        tokens = torch.zeros(2, 5, dtype=torch.int64), torch.tensor([0, 1])
        losses = [LocalLoss(FlatModel(module, CPU), tokens) for _ in range(2)]
    theta = losses[0].model.theta
    with pytest.raises(ModelError, match=reason) as caught:  # noqa: PT012  # whichever of the three finds out
        joint = JointPass(FlatModel(module, CPU))
        joint.check(theta, losses[:2])
        precompute(joint, theta, losses)
    assert "set local.together 0" in str(caught.value)
