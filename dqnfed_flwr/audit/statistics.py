"""Paired tests of two models on the samples of one client, and their correction over clients.

Accuracy: McNemar's test in its exact form, a binomial test on the samples that one of the two answers rightly alone.

Loss: the mean of paired differences by a Bayesian bootstrap (Rubin 1981) to whose samples one is added that lies at the
bound (Gaffke 2005; Learned-Miller and Thomas, arXiv 1905.06208). Losses have long tails: where a model fails badly on
one sample in twenty, many clients hold no such sample. A bootstrap of their samples alone, percentile or studentised,
then finds the other model worse in far more than 5 % of the cases. With the added sample the error rate holds for every
bounded loss as far as is known: coverage is conjectured, and no counterexample is known. SciPy has no such bootstrap.

Correction: Holm (1979), over the tests that could have any result at all (Tarone 1990).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.stats import binomtest

from dqnfed_flwr.types import Float64Array

INTERVAL = 0.95
"""Coverage of the bounds of a mean difference, of each by itself."""
BLOCK = 2**22
"""Weights drawn at a time."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """One-sided p-values that the first of two models is worse, or better; `smallest` is the least that was possible.

    Swapping the models swaps `worse` and `better`.
    """

    worse: float
    better: float
    smallest: float

    @property
    def two_sided(self) -> float:
        """Twice the smaller of the two, at most 1."""
        return min(1.0, 2 * min(self.worse, self.better))


@dataclass(frozen=True, slots=True)
class MeanDifference:
    """A mean of paired differences, with the bounds of its interval and the one-sided p-values of a mean above 0.

    `worse` is that of a mean above 0 (a higher loss), `better` that of one below.
    """

    mean: float
    low: float
    high: float
    worse: float
    better: float


def mcnemar(only_first: int, only_second: int) -> PairedTest:
    """McNemar's exact test of accuracy, from the samples that only the first, or only the second model has right.

    The first is worse where the second has more of them: P(X >= only_second) for X ~ Bin(n, 1/2), n the sum of both.
    """
    n = only_first + only_second
    if not n:
        return PairedTest(1.0, 1.0, 1.0)
    worse = binomtest(only_second, n, alternative="greater").pvalue
    better = binomtest(only_first, n, alternative="greater").pvalue
    return PairedTest(float(worse), float(better), 0.5**n)


def mean_difference(differences: Float64Array, bound: float, resamples: int, rng: Generator) -> MeanDifference:
    """The mean of paired differences [n], n >= 1, each in [-bound, bound], by the Bayesian bootstrap described above.

    With e_0 .. e_n standard exponential, the mean is above 0 with

        p = P(sum e_i d_i <= e_0 bound),

    estimated by `resamples` draws as (1 + hits) / (1 + draws). The bounds are quantiles of the weighted mean with the
    added sample at -bound, and at +bound. Differences of the other sign, with the same generator, give the same
    figures mirrored.
    """
    below, above = np.empty(resamples), np.empty(resamples)
    rows = max(1, BLOCK // (len(differences) + 1))
    for start in range(0, resamples, rows):
        part = slice(start, min(start + rows, resamples))
        draws = rng.standard_exponential((part.stop - part.start, len(differences) + 1))
        middle, added = draws[:, 1:] @ differences, draws[:, 0] * bound
        total = draws.sum(axis=1)
        below[part], above[part] = (middle - added) / total, (middle + added) / total
    tail = (1 - INTERVAL) / 2
    return MeanDifference(
        mean=float(differences.mean()),
        low=float(np.quantile(below, tail)),
        high=float(np.quantile(above, 1 - tail)),
        worse=float(1 + np.count_nonzero(below <= 0)) / (1 + resamples),
        better=float(1 + np.count_nonzero(above >= 0)) / (1 + resamples),
    )


def smallest_of_mean(samples: int, resamples: int) -> float:
    """The least p-value that `mean_difference` can give: every difference at the bound, P(sum e_i <= e_0) = 2^-n."""
    return max(0.5**samples, 1 / (1 + resamples)) if samples else 1.0


def resamples_for(tests: int, level: float) -> int:
    """Draws with which the smallest p-value is a tenth of what Holm's strictest step asks of so many tests."""
    return max(9_999, math.ceil(10 * tests / level) - 1)


def needed(smallest: Float64Array, level: float) -> float:
    """The p-value with which a test of the family counts by itself, by the smallest p-values possible [m] (Tarone).

    It is level / k for the least k such that at most k tests can reach it. A test whose smallest p-value is above it
    could have had no result that counts; those tests are no part of the family, and nobody pays for them.
    """
    for k in range(1, len(smallest) + 1):
        if np.count_nonzero(smallest <= level / k) <= k:
            return level / k
    return level


def holm(p: Float64Array) -> Float64Array:
    """Holm's corrected p-values [m], in the order given: those at most `level` hold together with that error rate."""
    order = np.argsort(p, kind="stable")
    factors = len(p) - np.arange(len(p))
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return corrected


def corrected(p: Float64Array, smallest: Float64Array, level: float) -> Float64Array:
    """Corrected p-values [m], NaN for tests that are no part of the family."""
    judged = smallest <= needed(smallest, level)
    found = np.full(len(p), np.nan)
    found[judged] = holm(p[judged])
    return found
