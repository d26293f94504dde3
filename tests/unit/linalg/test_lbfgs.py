"""The two-loop recursion against dense BFGS, SciPy's operator and quadratics; the filter, damping and the buffer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LbfgsInvHessProduct
from torch import Tensor

from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.linalg.lbfgs import DAMPING_SHARE, LBFGSHistory
from dqnfed_flwr.types import Float64Array
from tests.helpers.dense_bfgs import hessian_update, inverse_update

seeds = st.integers(0, 2**32 - 1)


def quadratic(rng: np.random.Generator, dim: int) -> Float64Array:
    """Hessian with eigenvalues in [0.5, 5]."""
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return np.asarray((basis * rng.uniform(0.5, 5.0, dim)) @ basis.T)


def curvature_pairs(rng: np.random.Generator, count: int, dim: int) -> list[tuple[Float64Array, Float64Array]]:
    """Random displacements and the change of the gradient of one quadratic: s.y >= 0.5 |s|^2."""
    hessian = quadratic(rng, dim)
    return [(s, hessian @ s) for s in rng.standard_normal((count, dim))]


def filled(history: LBFGSHistory, pairs: list[tuple[Float64Array, Float64Array]]) -> LBFGSHistory:
    for s, y in pairs:
        assert history.push(torch.from_numpy(s), torch.from_numpy(y))
    return history


def materialised(history: LBFGSHistory, dim: int) -> Float64Array:
    return np.column_stack([history.inverse_product(unit).numpy() for unit in torch.eye(dim, dtype=torch.float64)])


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(seeds, st.integers(1, 6), st.integers(1, 6))
def test_inverse_form_is_the_inverse_of_the_printed_update(seed: int, dim: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    hessian, inverse = np.eye(dim), np.eye(dim)
    for s, y in curvature_pairs(rng, count, dim):
        hessian, inverse = hessian_update(hessian, s, y), inverse_update(inverse, s, y)
        np.testing.assert_allclose(hessian @ s, y, atol=1e-8 * float(np.linalg.norm(y)))
    np.testing.assert_allclose(hessian @ inverse, np.eye(dim), atol=1e-7)


@given(seeds, st.integers(1, 8), st.integers(1, 12))
def test_same_matrix_as_dense_bfgs_over_the_pairs_kept(seed: int, memory: int, pushed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = curvature_pairs(rng, pushed, 9)
    history = filled(LBFGSHistory(memory), pairs)
    kept = pairs[-memory:]
    s, y = kept[-1]
    dense = np.eye(9) * (s @ y) / (y @ y)
    for s, y in kept:
        dense = inverse_update(dense, s, y)
    assert len(history) == len(kept)
    np.testing.assert_allclose(materialised(history, 9), dense, atol=1e-10 * np.abs(dense).max())


@given(seeds, st.integers(1, 8))
def test_same_operator_as_scipy_from_the_identity(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = curvature_pairs(rng, count, 9)
    history = filled(LBFGSHistory(10, initial_scale=1.0), pairs)
    s, y = (np.array(side) for side in zip(*pairs, strict=True))
    dense = LbfgsInvHessProduct(s, y).todense()
    np.testing.assert_allclose(materialised(history, 9), dense, atol=1e-10 * np.abs(dense).max())


@given(seeds, st.integers(1, 6))
def test_newest_pair_is_met_and_the_product_is_a_positive_form(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = curvature_pairs(rng, count, 7)
    history = filled(LBFGSHistory(4), pairs)
    s, y = pairs[-1]
    np.testing.assert_allclose(history.inverse_product(torch.from_numpy(y)).numpy(), s, atol=1e-10 * np.abs(s).max())
    assert np.linalg.eigvalsh(materialised(history, 7)).min() > 0


@given(seeds, st.integers(1, 6))
def test_conjugate_pairs_give_the_exact_inverse_of_a_quadratic(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    hessian = quadratic(rng, dim)
    directions = np.linalg.eigh(hessian)[1].T
    history = filled(LBFGSHistory(dim), [(s, hessian @ s) for s in directions])
    gradient = rng.standard_normal(dim)
    product = history.inverse_product(torch.from_numpy(gradient)).numpy()
    np.testing.assert_allclose(product, np.linalg.solve(hessian, gradient), rtol=1e-9, atol=1e-10)


def test_one_pair_by_hand() -> None:
    # s = (1,0), y = (2,0), gamma = 1/2: H = I/2
    history = LBFGSHistory(3)
    assert history.push(tensor(1, 0), tensor(2, 0))
    assert history.inverse_product(tensor(4, 6)).tolist() == [2.0, 3.0]


@pytest.mark.parametrize(("scale", "expected"), [(None, 3.0), (0.5, 1.5)])
def test_without_a_pair_the_product_is_the_start(scale: float | None, expected: float) -> None:
    v = tensor(3.0)
    product = LBFGSHistory(2, initial_scale=scale).inverse_product(v)
    assert product.tolist() == [expected]
    assert product.data_ptr() != v.data_ptr()


@pytest.mark.parametrize(
    ("s", "y"),
    [
        ((1.0, 0.0), (-1.0, 0.0)),
        ((1.0, 0.0), (0.0, 1.0)),
        ((1.0, 0.0), (1e-9, 1.0)),
        ((0.0, 0.0), (1.0, 0.0)),
        ((1.0, 0.0), (0.0, 0.0)),
        ((1.0, 0.0), (float("nan"), 0.0)),
        ((float("inf"), 0.0), (1.0, 0.0)),
    ],
)
def test_unfit_pair_is_counted_and_changes_nothing(s: tuple[float, float], y: tuple[float, float]) -> None:
    history = LBFGSHistory(2)
    history.push(tensor(1, 1), tensor(3, 2))
    before = history.inverse_product(tensor(1, 2))
    assert not history.push(tensor(*s), tensor(*y))
    assert (len(history), history.rejected) == (1, 1)
    assert torch.equal(history.inverse_product(tensor(1, 2)), before)


def test_filter_is_the_cosine_of_the_pair() -> None:
    s, y = tensor(1, 0), tensor(1, 1)  # cosine 0.707
    assert not LBFGSHistory(1, curvature_filter=0.71).push(s, y)
    assert LBFGSHistory(1, curvature_filter=0.70).push(s, y)


def test_pairs_are_copies() -> None:
    history, s, y = LBFGSHistory(1), tensor(1, 0), tensor(2, 1)
    history.push(s, y)
    s.zero_()
    y.zero_()
    assert [side.tolist() for side in history.pairs[0]] == [[1.0, 0.0], [2.0, 1.0]]


@given(seeds, st.integers(1, 5))
def test_damping_lifts_curvature_to_its_share(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    history = LBFGSHistory(3, damping=True, initial_scale=0.5)
    s = torch.from_numpy(rng.standard_normal(dim))
    assert history.push(s, -float(rng.uniform(0.1, 2.0)) * s)
    kept_s, kept_y = history.pairs[0]
    assert history.damped == 1
    assert float(kept_s @ kept_y) == pytest.approx(DAMPING_SHARE * float(s @ s) / 0.5, rel=1e-12)


@given(seeds)
def test_damping_keeps_every_product_positive(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = LBFGSHistory(3, damping=True)
    for s, y in rng.standard_normal((8, 2, 6)):
        history.push(torch.from_numpy(s), torch.from_numpy(y))
    assert len(history) == 3
    assert all(float(s @ y) > 0 for s, y in history.pairs)
    v = torch.from_numpy(rng.standard_normal(6))
    assert float(v @ history.inverse_product(v)) > 0


@given(seeds, st.floats(-6, 6))
def test_damping_does_not_depend_on_units(seed: int, power: float) -> None:
    pairs = np.random.default_rng(seed).standard_normal((4, 2, 5))
    plain, scaled, unit = LBFGSHistory(3, damping=True), LBFGSHistory(3, damping=True), 10.0**power
    for s, y in pairs:
        plain.push(torch.from_numpy(s), torch.from_numpy(y))
        scaled.push(torch.from_numpy(s), torch.from_numpy(unit * y))
    assert scaled.damped == plain.damped
    v = torch.from_numpy(pairs[0, 0])
    np.testing.assert_allclose(unit * scaled.inverse_product(v), plain.inverse_product(v), rtol=1e-8, atol=1e-12)


def test_the_first_pair_is_damped_below_a_cosine_of_a_fifth() -> None:
    for across, damped in ((4.0, 0), (6.0, 1)):  # cosines 1/sqrt(17) and 1/sqrt(37)
        history = LBFGSHistory(1, damping=True)
        assert history.push(tensor(1, 0), tensor(1, across))
        assert history.damped == damped
    s, y = history.pairs[0]
    assert float(s @ y) == pytest.approx(DAMPING_SHARE * np.sqrt(37))  # s.B s = |s| |y|


def test_a_gradient_that_does_not_change_is_no_curvature_to_damp() -> None:
    assert not LBFGSHistory(1, damping=True).push(tensor(1, 0), tensor(0, 0))


def test_damping_leaves_good_pairs_alone() -> None:
    history = LBFGSHistory(2, damping=True)
    history.push(tensor(1, 0), tensor(2, 1))
    assert history.damped == 0
    assert history.pairs[0][1].tolist() == [2.0, 1.0]


@pytest.mark.parametrize("length", [1e-8, 1.0, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_length_of_pair_and_vector(length: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(5)
    pairs = curvature_pairs(rng, 3, 30)
    history, plain = LBFGSHistory(3), filled(LBFGSHistory(3), pairs)
    for s, y in pairs:
        assert history.push(torch.from_numpy(s * length).to(dtype), torch.from_numpy(y * length).to(dtype))
    v = torch.from_numpy(rng.standard_normal(30))
    product = history.inverse_product((v * length).to(dtype))
    assert product.dtype == dtype
    difference = product.double() / length - plain.inverse_product(v)
    assert float(difference.norm() / v.norm()) < (1e-5 if dtype == torch.float32 else 1e-13)


def test_float32_products_are_summed_in_float64() -> None:
    # s.y = 2^24 + 2000, but to float32 adding 1 to 2^24 changes nothing; gamma = s.y / y.y shows which sum it was.
    s = torch.ones(1001)
    s[0] = 4096.0
    y = torch.ones(1001)
    y[0] = 4096.0
    y[1:] = 2.0
    history = LBFGSHistory(1)
    history.push(s, y)
    assert history.scale == (2**24 + 2000) / (2**24 + 4000)


def test_clear_forgets_pairs_only() -> None:
    history = LBFGSHistory(3)
    history.push(tensor(1, 0), tensor(2, 1))
    history.push(tensor(1, 0), tensor(-2, 1))
    history.clear()
    assert (len(history), history.rejected) == (0, 1)
    assert history.inverse_product(tensor(1, 2, 3)).tolist() == [1.0, 2.0, 3.0]


def test_vectors_that_do_not_fit_are_refused() -> None:
    history = LBFGSHistory(2)
    with pytest.raises(ShapeError, match="float32 or float64"):
        history.push(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(ShapeError, match="float32 or float64"):
        history.push(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64))
    with pytest.raises(ShapeError, match="alike"):
        history.push(tensor(1, 0), tensor(1, 0, 0))
    history.push(tensor(1, 0), tensor(2, 1))
    with pytest.raises(ShapeError, match="alike"):
        history.inverse_product(torch.ones(2))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="memory"):
        LBFGSHistory(0)
    with pytest.raises(ConfigError, match="curvature_filter"):
        LBFGSHistory(1, curvature_filter=-1.0)
    with pytest.raises(ConfigError, match="initial_scale"):
        LBFGSHistory(1, initial_scale=0.0)
