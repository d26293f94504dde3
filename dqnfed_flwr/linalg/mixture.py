"""Numbers told apart by a mixture of two Gaussians."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import Float64Array

SMALLEST_SPREAD = 1e-12
"""Values that differ by no more than this share of the largest count as one."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which values belong to which component.

    Attributes
    ----------
    upper : NDArray[np.bool_]
        [n]; whether a value more probably belongs to the component of the larger mean.
    status : str
        `converged`; `unconverged`, where the fit stopped early and counts all the same; `degenerate`, where there are
        not two different values and nothing is called upper.
    """

    upper: NDArray[np.bool_]
    status: str


def upper_component(values: Float64Array, seed: int) -> Split:
    """Fit two Gaussians to `values` [n] by expectation maximisation, and say which values belong to the upper one.

    The values are shifted and scaled to mean 0 and variance 1 first, so that scikit-learn's floor on a component's
    variance (1e-6) means the same for values of any size.

    Parameters
    ----------
    values : Float64Array
        [n], finite.
    seed : int
        Of the starting point.
    """
    spread = float(np.ptp(values)) if len(values) else 0.0
    if spread <= SMALLEST_SPREAD * float(np.abs(values).max(initial=0.0)):
        return Split(np.zeros(len(values), dtype=np.bool_), "degenerate")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    points = ((values - values.mean()) / values.std())[:, None]
    mixture = GaussianMixture(n_components=2, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the status says so
        members = mixture.fit(points).predict(points)
    upper = members == int(np.argmax(mixture.means_[:, 0]))
    return Split(np.asarray(upper, dtype=np.bool_), "converged" if mixture.converged_ else "unconverged")
