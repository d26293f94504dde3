from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.work.second_order import (
    GaussNewton,
    conjugate_gradients,
    dense_hessian,
    frobenius_norm,
    gauss_newton_diagonal,
    head_hessian,
)
from dqnfed_flwr.errors import ConfigError, DataError

CPU = torch.device("cpu")


class TinyLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 2, batch_first=True)
        self.head = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(inputs[:, :, None])[0][:, -1])
        return logits


class Twice(nn.Module):
    """Its last layer is its first as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.tanh(self.layer(inputs)))
        return logits


class Tied(Twice):
    """The same without calling it twice."""

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.tanh(nn.functional.linear(inputs, self.layer.weight)))
        return logits


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 2, batch_first=True)
        self.head = nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        words = torch.stack([inputs, inputs.flip(1)], dim=2)
        logits: Tensor = self.head(self.attention(words, words, words, need_weights=False)[0].mean(1))
        return logits


def without_its_bias() -> nn.Module:
    layer = nn.Linear(3, 3)
    if layer.bias is not None:
        layer.bias.requires_grad_(False)
    return layer


def problem(module: nn.Module, ridge: float = 0.1, chunk: int = 4) -> LocalLoss:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    inputs = torch.randn(10, 3, dtype=torch.float64)
    return LocalLoss(FlatModel(module.double(), CPU), (inputs, torch.arange(10) % 3), ridge=ridge, chunk=chunk)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 3))


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def by_products(loss: LocalLoss, theta: Tensor) -> Tensor:
    return torch.stack([loss.hessian_product(theta, unit) for unit in torch.eye(len(theta), dtype=theta.dtype)])


@pytest.mark.parametrize(
    "module",
    [
        linear(),
        deep(),
        TinyLstm(),
        nn.Linear(3, 3, bias=False),
        nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        Twice(),
        Tied(),
        Attending(),
        without_its_bias(),
    ],
)
@pytest.mark.parametrize("rows", [None, torch.tensor([1, 5, 6])])
def test_a_dense_hessian_has_the_products_as_columns(module: nn.Module, rows: Tensor | None) -> None:
    loss = problem(module)
    theta = loss.model.theta.clone()
    hessian = dense_hessian(loss, theta, rows)
    vector = torch.randn(len(theta), dtype=torch.float64)
    np.testing.assert_allclose(hessian @ vector, loss.hessian_product(theta, vector, rows), rtol=1e-10, atol=1e-12)
    assert torch.equal(hessian, hessian.T)


def test_a_model_too_large_for_a_dense_hessian_is_refused() -> None:
    loss = problem(nn.Sequential(nn.Linear(3, 500), nn.ReLU(), nn.Linear(500, 3)))
    with pytest.raises(ConfigError, match=r"3503 parameters, at most 2000"):
        dense_hessian(loss, loss.model.theta.clone())


def test_the_block_of_the_last_layer_is_cut_from_the_whole() -> None:
    loss = problem(deep())
    theta, head = loss.model.theta.clone(), loss.model.spec.head
    whole = by_products(loss, theta).numpy()
    columns = head.reshape(-1)
    found = head_hessian(loss, theta, by_class=False)
    np.testing.assert_allclose(found[0], whole[np.ix_(columns, columns)], rtol=1e-9, atol=1e-12)
    classes = head_hessian(loss, theta, by_class=True)
    for block, own in zip(classes, head, strict=True):
        np.testing.assert_allclose(block, whole[np.ix_(own, own)], rtol=1e-9, atol=1e-12)


def test_a_last_layer_that_is_called_twice_has_no_block_of_its_own() -> None:
    loss = problem(Twice())
    with pytest.raises(ConfigError, match="gives once; use another form"):
        head_hessian(loss, loss.model.theta.clone(), by_class=False)


def test_the_head_lists_the_last_layer_class_by_class() -> None:
    # 3 -> 2 -> 2: the first layer has columns 0-7, the last weights 8-11 and biases 12, 13.
    spec = FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), CPU).spec
    assert spec.head.tolist() == [[8, 9, 12], [10, 11, 13]]
    assert FlatModel(nn.Linear(2, 2, bias=False), CPU).spec.head.tolist() == [[0, 1], [2, 3]]
    assert not FlatModel(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), CPU).spec.head.size


@pytest.mark.parametrize("last", [nn.LayerNorm(3), nn.Softmax(dim=1)])
def test_a_model_without_a_linear_end_has_no_last_layer_form(last: nn.Module) -> None:
    loss = problem(nn.Sequential(nn.Linear(3, 3), last))
    with pytest.raises(ConfigError, match="last"):
        head_hessian(loss, loss.model.theta.clone(), by_class=True)


def jacobian_form(loss: LocalLoss, theta: Tensor) -> Tensor:
    """The mean of J^T (diag p - p p^T) J, one sample and one logit at a time."""
    loss.model.place(theta)
    total = loss.ridge * torch.eye(len(theta), dtype=theta.dtype)
    for sample in loss.tensors[0]:
        logits = loss.model.module(sample[None])[0]
        rows = [
            torch.autograd.grad(z, loss.model.parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
            for z in logits
        ]
        jacobian = torch.stack([loss.model.flat(row) for row in rows])
        p = logits.detach().softmax(dim=0)
        total = total + jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian / len(loss.tensors[0])
    return total


class Unused(nn.Module):
    """Has a parameter that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = deep(), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.body(inputs)
        return logits


@pytest.mark.parametrize("module", [deep(), TinyLstm(), Unused()])
@pytest.mark.parametrize("chunk", [4, 10])
def test_gauss_newton_products_are_those_of_the_jacobians(module: nn.Module, chunk: int) -> None:
    loss = problem(module, chunk=chunk)
    theta = loss.model.theta.clone()
    matrix, product = jacobian_form(loss, theta), GaussNewton(loss, theta)
    for vector in torch.randn(3, len(theta), dtype=torch.float64):
        np.testing.assert_allclose(product(vector), matrix @ vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("chunk", "passes"), [(4, 9), (10, 1)])
def test_samples_that_fit_into_one_chunk_are_linearised_once(chunk: int, passes: int) -> None:
    loss, calls = problem(deep(), chunk=chunk), list[None]()
    loss.model.module.register_forward_hook(lambda *_: calls.append(None))
    product = GaussNewton(loss, loss.model.theta.clone())
    for vector in torch.randn(3, len(loss.model.theta), dtype=torch.float64):
        product(vector)
    assert len(calls) == passes


def test_a_mini_batch_without_samples_has_no_curvature() -> None:
    loss = problem(deep())
    product = GaussNewton(loss, loss.model.theta.clone(), torch.tensor([], dtype=torch.int64))
    with pytest.raises(DataError, match="at least one"):
        product(loss.model.theta)


def test_for_a_linear_model_gauss_newton_is_the_hessian() -> None:
    loss = problem(linear())
    theta = loss.model.theta.clone()
    vector = torch.randn(len(theta), dtype=torch.float64)
    rows = torch.tensor([0, 4, 7])
    expected = loss.hessian_product(theta, vector, rows)
    np.testing.assert_allclose(GaussNewton(loss, theta, rows)(vector), expected, rtol=1e-9, atol=1e-12)


def test_the_diagonal_is_estimated_without_bias() -> None:
    loss = problem(deep(), chunk=10)
    theta = loss.model.theta.clone()
    exact = jacobian_form(loss, theta).diagonal()
    found = gauss_newton_diagonal(loss, theta, np.random.default_rng(0), probes=600)
    # The relative standard deviation is at most about sqrt(2 / 600) = 0.058; five of them.
    np.testing.assert_allclose(found - loss.ridge, exact - loss.ridge, rtol=0.29)
    assert float(gauss_newton_diagonal(loss, theta, np.random.default_rng(1), probes=1).min()) >= loss.ridge


def test_the_frobenius_norm_is_estimated_from_products() -> None:
    rng = np.random.default_rng(0)
    matrix = torch.from_numpy(rng.standard_normal((8, 8)))
    like = torch.zeros(8, dtype=torch.float64)
    found = frobenius_norm(lambda v: matrix @ v, like, rng, probes=4000)
    assert found == pytest.approx(float(np.linalg.norm(matrix, "fro")), rel=0.03)
    diagonal = torch.tensor([3.0, 4.0], dtype=torch.float64)  # signs do not matter: exact from one product
    assert frobenius_norm(lambda v: diagonal * v, diagonal, rng, probes=1) == pytest.approx(5.0, rel=1e-15)


def spectrum(rng: np.random.Generator, values: list[float]) -> torch.Tensor:
    basis, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return torch.from_numpy(basis @ np.diag(values) @ basis.T)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), dim=st.integers(1, 12))
def test_a_positive_definite_system_is_solved(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = spectrum(rng, list(rng.uniform(0.5, 5.0, dim)))
    right = torch.from_numpy(rng.standard_normal(dim))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=3 * dim)
    np.testing.assert_allclose(found.vector, np.linalg.solve(matrix, right), rtol=1e-9, atol=1e-10)
    assert not found.negative
    assert found.residual < 1e-12


def test_as_many_iterations_as_distinct_eigenvalues_suffice() -> None:
    rng = np.random.default_rng(0)
    matrix, right = spectrum(rng, [1.0, 1.0, 1.0, 4.0, 4.0]), torch.from_numpy(rng.standard_normal(5))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=2)
    assert found.iterations == 2
    np.testing.assert_allclose(found.vector, np.linalg.solve(matrix, right), rtol=1e-10)


def test_the_first_iterate_is_the_exact_gradient_step() -> None:
    # A = diag(1, 3), b = (1, 1): x = b (b . b) / (b . A b) = b / 2, residual (1/2, -1/2), |r| / |b| = 1/2.
    matrix, right = torch.diag(torch.tensor([1.0, 3.0])).double(), torch.ones(2).double()
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=1)
    np.testing.assert_allclose(found.vector, [0.5, 0.5], rtol=1e-15)
    assert found.residual == pytest.approx(0.5, rel=1e-15)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), tolerance=st.floats(1e-6, 0.9))
def test_a_solve_ends_at_the_first_residual_within_the_tolerance(seed: int, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    matrix = spectrum(rng, list(rng.uniform(0.1, 10.0, 8)))
    right = torch.from_numpy(rng.standard_normal(8))
    found = conjugate_gradients(lambda v: matrix @ v, right, iterations=30, tolerance=tolerance)
    residual = float(torch.linalg.vector_norm(matrix @ found.vector - right) / torch.linalg.vector_norm(right))
    assert residual == pytest.approx(found.residual, rel=1e-6)
    assert residual <= tolerance
    before = conjugate_gradients(lambda v: matrix @ v, right, iterations=found.iterations - 1)
    assert before.residual > tolerance


def test_negative_curvature_ends_the_solve() -> None:
    matrix = torch.diag(torch.tensor([2.0, -1.0, 1.0])).double()
    at_once = conjugate_gradients(lambda v: matrix @ v, torch.tensor([0.0, 1.0, 0.0]).double(), iterations=9)
    assert at_once.negative
    assert at_once.iterations == 1
    assert not at_once.vector.any()
    right = torch.tensor([1.0, 0.5, 1.0]).double()
    later = conjugate_gradients(lambda v: matrix @ v, right, iterations=9)
    assert later.negative
    assert later.iterations > 1
    assert float(later.vector @ right) > 0


def test_zero_needs_no_product() -> None:
    found = conjugate_gradients(lambda v: v / 0, torch.zeros(3), iterations=5)
    assert (found.iterations, found.residual, found.negative) == (0, 0.0, False)
    assert not found.vector.any()
