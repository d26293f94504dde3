"""Hessians that travel in compressed form: symmetric blocks [B, m, m], their compressors, and solves with them.

Client and server use the same `expand`, so that both know the same approximation.

Safaryan, Islamov, Qian and Richtarik, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", ICML 2022:
Rank-R and Top-K of symmetric matrices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.types import FloatArray

MAX_DENSE = 2000
"""Largest side of a matrix that is formed: its eigenvalues take seconds."""

Messages = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def check_dense(dim: int) -> None:
    """Refuse a dense Hessian of more than `MAX_DENSE` rows with a `ConfigError`."""
    if dim > MAX_DENSE:
        raise ConfigError(
            f"form: exact forms the Hessian of all {dim} parameters, at most {MAX_DENSE} are allowed; use another "
            "form of the method, or a smaller model"
        )


class Compressor(ABC):
    """C of symmetric matrices, split into what is sent and what is made of it."""

    @abstractmethod
    def shapes(self, blocks: int, width: int) -> Shapes:
        """Shapes of the messages for matrices [blocks, width, width]."""

    @abstractmethod
    def compress(self, matrices: Tensor) -> dict[str, Tensor]:
        """The messages for matrices [B, m, m]."""

    @abstractmethod
    def expand(self, messages: Messages, width: int) -> Tensor:
        """The matrices [B, m, m] that messages stand for."""

    def valid(self, messages: Mapping[str, FloatArray], width: int) -> bool:
        """Whether finite messages of the right shapes can be expanded."""
        del messages, width
        return True


class RankR(Compressor):
    """The `rank` eigenpairs of largest absolute eigenvalue of each block: contractive with delta = rank / m."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def shapes(self, blocks: int, width: int) -> Shapes:
        """Eigenvalues [B, R], eigenvectors [B, R, m]."""
        rank = min(self._rank, width)
        return {"values": (blocks, rank), "vectors": (blocks, rank, width)}

    def compress(self, matrices: Tensor) -> dict[str, Tensor]:
        """Cut the eigendecomposition off."""
        rank = min(self._rank, matrices.shape[-1])
        values, vectors = torch.linalg.eigh(matrices)
        kept = values.abs().argsort(dim=1, descending=True, stable=True)[:, :rank]
        chosen = torch.take_along_dim(vectors, kept[:, None, :], dim=2).mT.contiguous()
        return {"values": torch.take_along_dim(values, kept, dim=1), "vectors": chosen}

    def expand(self, messages: Messages, width: int) -> Tensor:
        """Sum of values times vector vector^T."""
        vectors = messages["vectors"]
        return (vectors * messages["values"][:, :, None]).mT @ vectors


class TopK(Compressor):
    """The `size` * m entries of each block of largest absolute value, those of the upper triangle standing for both."""

    def __init__(self, size: int) -> None:
        self._size = size

    def shapes(self, blocks: int, width: int) -> Shapes:
        """Rows and columns of the entries [B, 2, K], and their values [B, K]."""
        count = self._count(width)
        return {"places": (blocks, 2, count), "values": (blocks, count)}

    def compress(self, matrices: Tensor) -> dict[str, Tensor]:
        """Pick the entries; places are sent in the dtype of the values."""
        width = matrices.shape[-1]
        flat = matrices.triu().flatten(1)
        weights = flat.abs() * (2 - torch.eye(width, dtype=flat.dtype, device=flat.device)).flatten().sqrt()
        places = weights.argsort(dim=1, descending=True, stable=True)[:, : self._count(width)]
        pairs = torch.stack([places // width, places % width], dim=1)
        return {"places": pairs.to(matrices.dtype), "values": torch.take_along_dim(flat, places, dim=1)}

    def expand(self, messages: Messages, width: int) -> Tensor:
        """Write the entries to both triangles."""
        values, (rows, columns) = messages["values"], messages["places"].long().unbind(1)
        places = rows * width + columns
        upper = values.new_zeros(len(values), width * width).scatter_(1, places, values).view(-1, width, width)
        return upper + upper.mT - torch.diag_embed(upper.diagonal(dim1=1, dim2=2))

    def valid(self, messages: Mapping[str, FloatArray], width: int) -> bool:
        """Whether the places are whole numbers within the block."""
        places = messages["places"]
        return bool(((places == np.floor(places)) & (places >= 0) & (places < width)).all())

    def _count(self, width: int) -> int:
        return min(self._size * width, width * (width + 1) // 2)


class Whole(Compressor):
    """No compression of blocks of one value: a diagonal."""

    def shapes(self, blocks: int, width: int) -> Shapes:
        """The values [B]."""
        return {"values": (blocks,)}

    def compress(self, matrices: Tensor) -> dict[str, Tensor]:
        """The values."""
        return {"values": matrices.reshape(-1)}

    def expand(self, messages: Messages, width: int) -> Tensor:
        """As blocks [B, 1, 1]."""
        return messages["values"].view(-1, 1, 1)


def make_compressor(form: str, name: str, size: int) -> Compressor:
    """The compressor of FedNL's settings; a diagonal is not compressed."""
    if form == "diagonal":
        return Whole()
    return RankR(size) if name == "rank" else TopK(size)


def block_norms(matrices: Tensor) -> Tensor:
    """Frobenius norm [B] of each block [m, m]."""
    norms: Tensor = torch.linalg.vector_norm(matrices, dim=(1, 2))
    return norms


def solve_shifted(blocks: Tensor, shift: Tensor, right: Tensor, floor: float) -> tuple[Tensor, int]:
    """(blocks + shift I)^-1 right, with eigenvalues raised to `floor` where a block is not positive definite.

    Blocks [B, m, m] are symmetric, shift is [B], right [B, m], all float64. Returns [B, m], and how many blocks were
    repaired.
    """
    width = blocks.shape[-1]
    if width == 1:
        diagonal = blocks.view(-1) + shift
        wrong = ~(diagonal > 0)
        return right / diagonal.masked_fill(wrong, floor)[:, None], int(wrong.sum())
    shifted = blocks + shift[:, None, None] * torch.eye(width, dtype=blocks.dtype)
    factors, failed = torch.linalg.cholesky_ex(shifted)
    bad = failed > 0
    if not bad.any():
        return torch.cholesky_solve(right[:, :, None], factors)[:, :, 0], 0
    out = torch.empty_like(right)
    good = ~bad
    out[good] = torch.cholesky_solve(right[good][:, :, None], factors[good])[:, :, 0]
    out[bad] = solve_projected(shifted[bad], right[bad], floor)[0]
    return out, int(bad.sum())


def solve_projected(blocks: Tensor, right: Tensor, floor: float) -> tuple[Tensor, int]:
    """[blocks]_floor^-1 right, the eigenvalues of each block [m, m] cut at `floor` from below; and how many were."""
    if blocks.shape[-1] == 1:
        diagonal = blocks.view(-1)
        return right / diagonal.clamp(min=floor)[:, None], int((diagonal < floor).sum())
    values, vectors = torch.linalg.eigh(blocks)
    along = (vectors.mT @ right[:, :, None])[:, :, 0] / values.clamp(min=floor)
    return (vectors @ along[:, :, None])[:, :, 0], int((values < floor).sum())
