"""Conjugate gradients on products with a matrix that is never formed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 100
"""So many rounding units of the right-hand side end a solve, however small the tolerance."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What conjugate gradients found: x as `vector` [D], after so many `iterations`, each with a product.

    A `negative` solve ended at a direction of curvature <= 0; x is the iterate before it, 0 where that was the first
    one. The residual is |A x - b| / |b|, 0 for b = 0.
    """

    vector: Tensor
    iterations: int
    negative: bool
    residual: float


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, *, iterations: int, tolerance: float = 0.0
) -> Solution:
    """Solve A x = b for a symmetric A that is given by its `product` with a vector [D]; b is `right` [D].

    Hestenes and Stiefel 1952, from x = 0, truncated at the first direction p with p . A p <= 0 (Nocedal and Wright,
    Numerical Optimization, algorithm 7.1). Each iterate x has x . b > 0. Inner products are summed in float64.

    The solve ends after so many `iterations`, or when |A x - b| <= tolerance |b|: the inexact Newton steps of Dembo,
    Eisenstat and Steihaug 1982.
    """
    x, residual = torch.zeros_like(right), right.clone()
    start = squared = _dot(residual, residual)
    enough = max(tolerance, ROUNDING * torch.finfo(right.dtype).eps) ** 2 * start
    direction, done, negative = residual.clone(), 0, False
    while done < iterations and squared > enough:
        image = product(direction)
        done += 1
        curvature = _dot(direction, image)
        if not curvature > 0:
            negative = True
            break
        length = squared / curvature
        x.add_(direction, alpha=length)
        residual.sub_(image, alpha=length)
        before, squared = squared, _dot(residual, residual)
        direction.mul_(squared / before).add_(residual)
    return Solution(x, done, negative, math.sqrt(squared / start) if start else 0.0)


def _dot(a: Tensor, b: Tensor) -> float:
    exact = torch.float32 if a.device.type == "mps" else torch.float64
    return float(torch.dot(a.to(exact), b.to(exact)))
