from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dqnfed_flwr.linalg.hessian_blocks import (
    Compressor,
    RankR,
    TopK,
    Whole,
    block_norms,
    solve_projected,
    solve_shifted,
)

COMPRESSORS: list[Compressor] = [RankR(1), RankR(3), TopK(1), TopK(2)]


def symmetric(seed: int, blocks: int = 2, width: int = 6) -> Tensor:
    draw = torch.from_numpy(np.random.default_rng(seed).standard_normal((blocks, width, width)))
    return draw + draw.mT


@pytest.mark.parametrize("compressor", COMPRESSORS)
@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_compressors_are_contractive_and_keep_symmetry(compressor: Compressor, seed: int) -> None:
    matrices = symmetric(seed)
    messages = compressor.compress(matrices)
    assert {name: tuple(m.shape) for name, m in messages.items()} == compressor.shapes(2, 6)
    assert compressor.valid({name: m.numpy() for name, m in messages.items()}, 6)
    made = compressor.expand(messages, 6)
    np.testing.assert_allclose(made, made.mT, atol=1e-12)
    # Rank-R has delta = R / m; Top-K of K entries of the upper triangle at least K of the 21 there.
    share = 1 / 6 if isinstance(compressor, RankR) else 6 / 21
    assert (block_norms(matrices - made) ** 2 <= (1 - share) * block_norms(matrices) ** 2 + 1e-9).all()


def test_full_rank_and_all_entries_lose_nothing() -> None:
    matrices = symmetric(1)
    for compressor in (RankR(6), RankR(99), TopK(6)):
        np.testing.assert_allclose(compressor.expand(compressor.compress(matrices), 6), matrices, atol=1e-12)


def test_rank_one_keeps_the_largest_absolute_eigenvalue() -> None:
    # Eigenvalues 3 along (1, 1) and -1 along (1, -1): what is kept is 3/2 everywhere.
    matrices = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]]).double()
    np.testing.assert_allclose(RankR(1).expand(RankR(1).compress(matrices), 2), np.full((1, 2, 2), 1.5), rtol=1e-12)


def test_top_k_counts_an_entry_off_the_diagonal_twice() -> None:
    # 2 on the diagonal against 1.5 beside it: 2^2 < 2 * 1.5^2, so the pair beside it goes first.
    matrices = torch.tensor([[[2.0, 1.5], [1.5, 0.0]]]).double()
    compressor = TopK(1)
    compressor._count = lambda width: 1  # type: ignore[method-assign]
    assert compressor.expand(compressor.compress(matrices), 2).tolist() == [[[0.0, 1.5], [1.5, 0.0]]]


@pytest.mark.parametrize("place", [-1.0, 6.0, 2.5])
def test_places_outside_the_block_are_not_valid(place: float) -> None:
    compressor = TopK(1)
    messages = {name: m.numpy() for name, m in compressor.compress(symmetric(0)).items()}
    messages["places"][1, 0, 3] = place
    assert not compressor.valid(messages, 6)


def test_places_of_wide_blocks_survive_float32() -> None:
    width = 4099  # width^2 is beyond the whole numbers of float32
    matrices = torch.zeros(1, width, width)
    matrices[0, 4097, 4098] = matrices[0, 4098, 4097] = 5.0
    messages = {name: m[..., :1] for name, m in TopK(1).compress(matrices).items()}
    assert messages["places"].flatten().tolist() == [4097, 4098]
    assert torch.equal(TopK(1).expand(messages, width), matrices)


def test_a_diagonal_is_sent_whole() -> None:
    blocks = torch.arange(4.0).view(4, 1, 1)
    assert torch.equal(Whole().expand(Whole().compress(blocks), 1), blocks)
    assert Whole().shapes(4, 1) == {"values": (4,)}


@pytest.mark.parametrize("width", [1, 5])
def test_shifted_systems_are_solved(width: int) -> None:
    blocks, shift = symmetric(3, 3, width), torch.tensor([20.0, 30.0, 40.0]).double()
    right = symmetric(4, 3, width)[:, 0]
    found, raised = solve_shifted(blocks, shift, right, 1e-3)
    for k in range(3):
        expected = np.linalg.solve(blocks[k].numpy() + float(shift[k]) * np.eye(width), right[k].numpy())
        np.testing.assert_allclose(found[k], expected, rtol=1e-10)
    assert raised == 0


def test_a_block_that_is_not_positive_is_raised_to_the_floor() -> None:
    # Shifted by 1: eigenvalues 3, -1 and 2, 5. The -1 becomes 0.5, the other block is left alone.
    blocks = torch.stack([torch.diag(torch.tensor([2.0, -2.0])), torch.diag(torch.tensor([1.0, 4.0]))]).double()
    found, raised = solve_shifted(blocks, torch.ones(2).double(), torch.ones(2, 2).double(), 0.5)
    np.testing.assert_allclose(found, [[1 / 3, 2], [1 / 2, 1 / 5]], rtol=1e-12)
    assert raised == 1


@pytest.mark.parametrize("width", [1, 2])
def test_a_small_positive_block_is_left_alone_whatever_its_width(width: int) -> None:
    blocks = torch.stack([5e-4 * torch.eye(width).double(), -torch.eye(width).double()])
    found, raised = solve_shifted(blocks, torch.zeros(2).double(), torch.ones(2, width).double(), 1e-3)
    np.testing.assert_allclose(found, np.array([[2000.0] * width, [1000.0] * width]), rtol=1e-12)
    assert raised == 1


@pytest.mark.parametrize("width", [1, 5])
def test_projection_is_the_nearest_matrix_with_that_floor(width: int) -> None:
    blocks, right = symmetric(5, 2, width), symmetric(6, 2, width)[:, 0]
    found, raised = solve_projected(blocks, right, 0.7)
    count = 0
    for k in range(2):
        values, vectors = np.linalg.eigh(blocks[k].numpy())
        count += int((values < 0.7).sum())
        cut = vectors @ np.diag(np.maximum(values, 0.7)) @ vectors.T
        np.testing.assert_allclose(cut @ found[k].numpy(), right[k], rtol=1e-9, atol=1e-12)
    assert raised == count
