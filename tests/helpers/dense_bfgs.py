"""BFGS with dense D x D matrices: the oracle of the limited-memory form in `lbfgs`, for small D."""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.types import Float64Array


def hessian_update(hessian: Float64Array, s: Float64Array, y: Float64Array) -> Float64Array:
    """Update a Hessian approximation B by the pair (s, y), equation (19).

    Parameters
    ----------
    hessian : Float64Array
        B, [D, D], symmetric positive definite.
    s, y : Float64Array
        Displacement and difference of gradients [D], s.y > 0.

    Returns
    -------
    Float64Array
        [D, D], with (new B) s = y.
    """
    image = hessian @ s
    return np.asarray(hessian + np.outer(y, y) / (y @ s) - np.outer(image, image) / (s @ image))


def inverse_update(inverse: Float64Array, s: Float64Array, y: Float64Array) -> Float64Array:
    """Update an inverse-Hessian approximation H by the pair (s, y): the inverse form of (19).

    Parameters
    ----------
    inverse : Float64Array
        H, [D, D], symmetric positive definite.
    s, y : Float64Array
        Displacement and difference of gradients [D], s.y > 0.

    Returns
    -------
    Float64Array
        [D, D], with (new H) y = s.
    """
    curvature = y @ s
    project = np.eye(len(s)) - np.outer(s, y) / curvature
    return np.asarray(project @ inverse @ project.T + np.outer(s, s) / curvature)
