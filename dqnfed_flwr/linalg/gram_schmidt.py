"""The paper's server step as printed: the sequential recursion (7), (8), weights (12) and length (17).

This is the oracle of the tests and the yardstick of the benchmarks. About K^2/2 passes over rows of size D, each
waiting for the one before; in float32 its result depends on the order of the clients. Training uses
`dqnfed_flwr.linalg.min_norm.two_sided_weights`, which gives the same step.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.errors import DQNFedError, ShapeError
from dqnfed_flwr.linalg.min_norm import checked_vector
from dqnfed_flwr.types import Float64Array, FloatArray


def newton_rate_step(grads: FloatArray, rates: Float64Array) -> tuple[FloatArray, float]:
    """Step eta * direction with grads @ step = rates, by orthogonalising one client after another.

    Parameters
    ----------
    grads : FloatArray
        g_k, [K, D], float32 or float64, linearly independent.
    rates : Float64Array
        d_k, [K]; not 0.

    Returns
    -------
    FloatArray
        The step [D] in the dtype of `grads`, in which everything of size D is computed.
    float
        eta (17).

    Raises
    ------
    ShapeError
        If an array has another shape or dtype, or `rates` is not finite.
    DQNFedError
        If a denominator of (8) or a norm is zero: the paper does not treat these cases.
    """
    if grads.ndim != 2 or grads.dtype not in (np.float32, np.float64) or 0 in grads.shape:
        raise ShapeError(f"gradients of shape {grads.shape} and dtype {grads.dtype}; need [K, D], float32 or float64")
    rates = checked_vector("rates", rates, len(grads))
    orthogonal = np.empty_like(grads)  # g~_k
    squares = np.zeros(len(grads))  # |g~_k|^2
    for k, gradient in enumerate(grads):
        remainder, denominator = gradient.copy(), float(rates[k])
        for i in range(k):
            a = float(gradient @ orthogonal[i]) / squares[i]
            remainder -= grads.dtype.type(a) * orthogonal[i]
            denominator -= a
        if denominator == 0:
            raise DQNFedError(f"the denominator of (8) is zero at client {k}; use two_sided_weights")
        orthogonal[k] = remainder / grads.dtype.type(denominator)
        squares[k] = float(orthogonal[k] @ orthogonal[k])
        if squares[k] == 0:
            raise DQNFedError(f"gradient {k} depends on those before it, or is zero; use two_sided_weights")
    eta = float((1 / squares).sum())
    shares = 1 / squares / eta  # lambda_k
    direction = shares.astype(grads.dtype) @ orthogonal
    return grads.dtype.type(eta) * direction, eta
