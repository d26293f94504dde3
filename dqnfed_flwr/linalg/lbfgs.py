"""Limited-memory BFGS: products with an inverse-Hessian approximation from the last few curvature pairs.

(18) needs B_k, an approximation of the inverse Hessian, while (19) updates one of the Hessian, D x D. Here the pairs
(s, y) are kept and the product is the two-loop recursion (Nocedal and Wright, Numerical Optimization, algorithm 7.4):
2 m D values and 4 m D multiplications for m pairs, and the same matrix as dense BFGS from the same start.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.errors import ConfigError, ShapeError

SMALLEST_MOVE = 100
"""A pair is formed if |s| is at least so many rounding units of |theta|; below, rounding decides the pair."""
FILTER = 1e-8
"""A pair is kept if s.y is above this share of |s| |y|."""
DAMPING_SHARE = 0.2
"""Powell damping lifts s.y to this share of s.B s."""
BLOCK = 1024
"""Values summed in float32 before the sum is carried in float64."""
LONG = 1 << 16
"""Vectors from this length on are summed in blocks: to about 1e-8 of |a| |b|, in a sixth of the time."""


def tells_curvature(s: Tensor, theta_norm: float) -> bool:
    """Whether the move s [D] from or to a model of norm `theta_norm` is long enough for a pair."""
    return float(torch.linalg.vector_norm(s)) >= SMALLEST_MOVE * torch.finfo(s.dtype).eps * theta_norm


@dataclass(frozen=True, slots=True)
class _Pair:
    s: Tensor
    y: Tensor
    sy: float
    yy: float


class LBFGSHistory:
    """The last `memory` curvature pairs, and the inverse-Hessian approximation they define.

    A pair is turned away when it is not finite, s is zero, or s.y <= `curvature_filter` |s| |y|. With `damping`, a
    pair with s.y < 0.2 s.B s is first moved to phi y + (1 - phi) B s, phi chosen such that its curvature becomes
    0.2 s.B s (Powell 1978; Nocedal and Wright, procedure 18.2). B is here the scaled identity of the recursion,
    I / gamma with the gamma before this pair, and not the full approximation: one vector operation, and one odd pair
    cannot spoil the measure by which the next is judged. The first pair, where no `initial_scale` is given, is measured
    by itself, gamma = |s| / |y|, which has its units: it is damped where the cosine of s and y is below 0.2. The filter
    still applies to what damping leaves.

    Parameters
    ----------
    memory : int
        m, pairs kept; the oldest makes room.
    curvature_filter : float
        Smallest cosine of s and y.
    damping : bool
        Whether pairs of too little curvature are damped.
    initial_scale : float | None
        gamma of the start H0 = gamma I. None takes s.y / y.y of the newest pair, 1 while there is none.

    Raises
    ------
    ConfigError
        If a setting is out of range.
    """

    def __init__(
        self,
        memory: int,
        *,
        curvature_filter: float = FILTER,
        damping: bool = False,
        initial_scale: float | None = None,
    ) -> None:
        if memory < 1:
            raise ConfigError(f"memory: must be at least 1, found {memory!r}")
        if not 0 <= curvature_filter < 1:
            raise ConfigError(f"curvature_filter: must lie in [0, 1), found {curvature_filter!r}")
        if initial_scale is not None and not 0 < initial_scale < math.inf:
            raise ConfigError(f"initial_scale: must be positive and finite, found {initial_scale!r}")
        self._pairs: deque[_Pair] = deque(maxlen=memory)
        self._filter = curvature_filter
        self._damping = damping
        self._initial_scale = initial_scale
        self.rejected = 0
        """Pairs turned away since the start."""
        self.damped = 0
        """Pairs kept in damped form since the start."""

    def __len__(self) -> int:
        """Pairs held."""
        return len(self._pairs)

    @property
    def pairs(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """The pairs (s, y) held, oldest first, y as damped."""
        return tuple((pair.s, pair.y) for pair in self._pairs)

    @property
    def scale(self) -> float:
        """Factor gamma of the start H0 = gamma I."""
        if self._initial_scale is not None:
            return self._initial_scale
        return self._pairs[-1].sy / self._pairs[-1].yy if self._pairs else 1.0

    def push(self, s: Tensor, y: Tensor) -> bool:
        """Keep copies of the pair, unless its curvature is unfit: False when it was turned away, counted in `rejected`.

        Parameters
        ----------
        s, y : Tensor
            Displacement of the model and difference of gradients [D]; float32 or float64, alike.

        Raises
        ------
        ShapeError
            If s and y are no vectors of one size, dtype and device, or differ in this from the pairs held.
        """
        s, y = s.detach(), y.detach()
        self._check(s, y)
        pair, damped = self._admissible(s, y)
        if pair is None:
            self.rejected += 1
            return False
        self.damped += damped
        self._pairs.append(pair)
        return True

    def inverse_product(self, v: Tensor) -> Tensor:
        """H v [D], a new vector, by the two-loop recursion; gamma v while no pair is held.

        Raises
        ------
        ShapeError
            If `v` [D] has not the size, dtype and device of the pairs.
        """
        v = v.detach()
        self._check(v)
        q = v.clone()
        alphas = []
        for pair in reversed(self._pairs):
            alpha = dot(pair.s, q) / pair.sy
            q.sub_(pair.y, alpha=alpha)
            alphas.append(alpha)
        q.mul_(self.scale)
        for pair, alpha in zip(self._pairs, reversed(alphas), strict=True):
            beta = dot(pair.y, q) / pair.sy
            q.add_(pair.s, alpha=alpha - beta)
        return q

    def clear(self) -> None:
        """Forget the pairs; the counts stay."""
        self._pairs.clear()

    def _check(self, *vectors: Tensor) -> None:
        model = self._pairs[-1].s if self._pairs else vectors[0]
        for vector in vectors:
            if vector.ndim != 1 or vector.dtype not in (torch.float32, torch.float64):
                raise ShapeError(
                    f"a tensor of shape {tuple(vector.shape)} and dtype {vector.dtype}; need [D], float32 or float64"
                )
            if (vector.shape, vector.dtype, vector.device) != (model.shape, model.dtype, model.device):
                raise ShapeError(
                    f"a vector of {len(vector)} {vector.dtype} on {vector.device} beside one of {len(model)} "
                    f"{model.dtype} on {model.device}; all vectors of a history are alike"
                )

    def _admissible(self, s: Tensor, y: Tensor) -> tuple[_Pair | None, bool]:
        """Copy the pair, damped if need be, unless it fails the filter."""
        ss = dot(s, s)
        pair, damped = _measure(s, y), False
        if not all(map(math.isfinite, (ss, pair.sy, pair.yy))) or ss == 0:
            return None, False
        measured = bool(self._pairs) or self._initial_scale is not None
        energy = ss / self.scale if measured else math.sqrt(ss * pair.yy)  # s.B s
        if self._damping and pair.sy < DAMPING_SHARE * energy:
            phi = (1 - DAMPING_SHARE) * energy / (energy - pair.sy)
            pair, damped = _measure(s, phi * y + ((1 - phi) * energy / ss) * s), True
        if not pair.sy > self._filter * math.sqrt(ss * pair.yy):
            return None, False
        return _Pair(s.clone(), pair.y if damped else y.clone(), pair.sy, pair.yy), damped


def _measure(s: Tensor, y: Tensor) -> _Pair:
    return _Pair(s, y, dot(s, y), dot(y, y))


def dot(a: Tensor, b: Tensor) -> float:
    """Inner product: in float64, or of long float32 vectors in blocks whose sums are added in float64."""
    if a.dtype == torch.float64:
        return float(torch.dot(a, b))
    if len(a) < LONG or a.device.type != "cpu":
        return float(torch.dot(a.double(), b.double()))
    whole = len(a) // BLOCK * BLOCK
    blocks = np.vecdot(a[:whole].numpy().reshape(-1, BLOCK), b[:whole].numpy().reshape(-1, BLOCK))
    return float(blocks.sum(dtype=np.float64)) + float(torch.dot(a[whole:].double(), b[whole:].double()))
