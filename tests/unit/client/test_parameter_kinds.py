"""Complex parameters and sparse gradients: every derivative is that of a twin in usual kinds, to the last bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.joint_gradients import JointPass, precompute
from dqnfed_flwr.client.work import Proximal, RngKey, sgd
from dqnfed_flwr.client.work.second_order import GaussNewton, dense_hessian, gauss_newton_diagonal
from dqnfed_flwr.config import LocalSettings
from dqnfed_flwr.models.making import as_dtype
from tests.helpers.odd_models import PLACES, TOKENS, Spectral, Tokens

CPU = torch.device("cpu")
CLASSES = 3
SIZES = (5, 4)


@dataclass(frozen=True)
class Twins:
    """One model in two forms, and what it takes."""

    odd: Callable[[], nn.Module]
    usual: Callable[[], nn.Module]
    tokens: bool


def tokens_twins(kind: str) -> Twins:
    return Twins(lambda: Tokens(CLASSES, kind, sparse=True), lambda: Tokens(CLASSES, kind, sparse=False), tokens=True)


TWINS = {
    "complex": Twins(
        lambda: Spectral(PLACES, CLASSES, pairs=False), lambda: Spectral(PLACES, CLASSES, pairs=True), tokens=False
    ),
    "sparse layer": tokens_twins("layer"),
    "sparse bag": tokens_twins("bag"),
    "sparse function": tokens_twins("function"),
}


def losses_of(build: Callable[[], nn.Module], dtype: torch.dtype, *, tokens: bool) -> list[LocalLoss]:
    """Two clients with a model each, in chunks of two samples."""
    found = []
    draw = torch.Generator().manual_seed(1)
    for size in SIZES:
        torch.manual_seed(4)
        module = as_dtype(build(), dtype)
        inputs = torch.randint(0, TOKENS, (size, PLACES), generator=draw)
        values = inputs if tokens else torch.randn(size, PLACES, generator=draw, dtype=dtype)
        labels = torch.randint(0, CLASSES, (size,), generator=draw)
        found.append(LocalLoss(FlatModel(module, CPU), (values, labels), ridge=0.01, chunk=2))
    return found


def first(loss: LocalLoss, theta: Tensor, vector: Tensor) -> Tensor:
    del vector
    return loss.loss_and_gradient(theta)[1]


def passes(loss: LocalLoss, theta: Tensor, vector: Tensor) -> Tensor:
    """With ridge, momentum and a proximal term."""
    settings = LocalSettings(epochs=2, batch_size=2, lr=0.1, momentum=0.5)
    return sgd(loss, theta, settings, RngKey(0, 1, 0), proximal=Proximal(vector, 0.3))


WORK: dict[str, Callable[[LocalLoss, Tensor, Tensor], Tensor]] = {
    "gradient": first,
    "local passes": passes,
    "Hessian product": lambda loss, theta, vector: loss.hessian_product(theta, vector),
    "dense Hessian": lambda loss, theta, vector: dense_hessian(loss, theta),
    "Gauss-Newton product": lambda loss, theta, vector: GaussNewton(loss, theta)(vector),
    "Gauss-Newton diagonal": lambda loss, theta, vector: gauss_newton_diagonal(
        loss, theta, np.random.default_rng(3), 2
    ),
}


def known(name: str, work: str) -> bool:
    """Torch differentiates a bag of embeddings once only, with dense gradients too."""
    return name != "sparse bag" or work in ("gradient", "local passes", "Gauss-Newton diagonal")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "work"), [(n, w) for n in TWINS for w in WORK if known(n, w)])
def test_work_is_that_of_the_twin_to_the_last_bit(name: str, work: str, dtype: torch.dtype) -> None:
    twins = TWINS[name]
    odd, usual = (losses_of(build, dtype, tokens=twins.tokens)[0] for build in (twins.odd, twins.usual))
    theta = usual.model.theta.clone()
    vector = torch.randn(len(theta), generator=torch.Generator().manual_seed(2), dtype=dtype)
    # the twin holds its pairs before its offset, as complex parameters come first
    assert torch.equal(odd.model.theta, theta)
    assert odd.loss(theta) == usual.loss(theta)
    found, expected = (WORK[work](loss, theta.clone(), vector) for loss in (odd, usual))
    assert found.dtype == dtype
    assert found.abs().sum() > 0
    if work == "dense Hessian" and name in ("complex", "sparse function"):  # computed column by column, or by stacks
        exact = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(found, expected, rtol=exact, atol=exact)
    else:
        assert torch.equal(found, expected)


def test_a_pass_that_is_differentiated_at_a_column_of_odd_size() -> None:
    """A direction may begin at an odd place in memory, where no complex number can."""
    loss = losses_of(TWINS["complex"].odd, torch.float64, tokens=False)[0]
    theta, dim = loss.model.theta.clone(), loss.model.spec.dim
    assert dim % 2 == 1
    rows = torch.randn(2, dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.equal(loss.hessian_product(theta, rows[1]), loss.hessian_product(theta, rows[1].clone()))
    parts = loss.model.spec.split(rows[1])
    assert torch.equal(torch.view_as_real(parts["weight"]).reshape(-1), rows[1][: 2 * parts["weight"].numel()])


class Complex(nn.Sequential):
    """Layers that are called once each, one of them complex."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(PLACES, 4, dtype=torch.cdouble), nn.Linear(4, CLASSES, dtype=torch.double))

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self[1](self[0](inputs.to(torch.cdouble)).abs())
        return logits


@pytest.mark.parametrize(
    ("build", "tokens"),
    [
        *((TWINS[name].odd, True) for name in ("sparse layer", "sparse bag")),
        (Complex, False),
        (lambda: normed(torch.double), False),
    ],
)
def test_a_joint_pass_gives_the_gradient_of_each(build: Callable[[], nn.Module], tokens: bool) -> None:
    losses = losses_of(build, torch.float64, tokens=tokens)
    theta = losses[0].model.theta.clone()
    alone = [loss.loss_and_gradient(theta)[1] for loss in losses]
    for loss in losses:
        loss.chunk = 64
    precompute(JointPass(FlatModel(build().double(), CPU)), theta, losses)
    for loss, gradient in zip(losses, alone, strict=True):
        torch.testing.assert_close(loss.loss_and_gradient(theta)[1], gradient, rtol=1e-12, atol=1e-14)


def normed(dtype: torch.dtype) -> nn.Module:
    """A layer whose weight torch's older function makes anew in each pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        layer = nn.utils.weight_norm(nn.Linear(PLACES, 4))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, CLASSES)).to(dtype)
