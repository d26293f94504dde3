"""Local intrinsic dimension of points, by maximum likelihood.

Amsaleg et al., "Estimating Local Intrinsic Dimensionality", KDD 2015, section 4. Xu et al., "FedCorr", CVPR 2022,
take it over a model's predictions: labels that are wrong make a model spread them over more dimensions.
"""

from __future__ import annotations

import numpy as np

from dqnfed_flwr.types import Float64Array

NEIGHBOURS = 20


def local_intrinsic_dimensions(points: Float64Array, neighbours: int = NEIGHBOURS) -> Float64Array:
    """LID of each point among the others.

    With r_1 <= ... <= r_k the distances to its k nearest neighbours,

        LID = - 1 / mean_i log(r_i / r_k)

    Parameters
    ----------
    points : Float64Array
        [n, dim].
    neighbours : int
        k; n - 1 where there are no more.

    Returns
    -------
    Float64Array
        [n], above 0. NaN where nothing can be said: no neighbour, or all at one distance. Neighbours at distance 0,
        copies of the point, are left out of the mean.
    """
    count = min(neighbours, len(points) - 1)
    if count < 1:
        return np.full(len(points), np.nan)
    from scipy.spatial import cKDTree

    distances = np.asarray(cKDTree(points).query(points, k=count + 1)[0], dtype=np.float64)[:, 1:]
    apart = distances > 0
    farthest = np.where(apart[:, -1:], distances[:, -1:], 1.0)
    logs = np.log(np.where(apart, distances / farthest, 1.0)).sum(axis=1)
    return np.asarray(np.where(logs < 0, -apart.sum(axis=1) / np.where(logs < 0, logs, 1.0), np.nan))
