"""The test on data that nobody trained on: whether a client's held-out loss rose beyond what its samples can tell.

A client compares the losses l_i of its n held-out samples at a candidate with those at an earlier model of the
federation, pair by pair (Student 1908): with d_i = l_i - l_i', the loss has risen where

    mean(d) > t sd(d) / sqrt(n),   t the quantile 1 - level of Student's distribution with n - 1 degrees of freedom.

The earlier models are the one that the step starts from and, so that many small rises cannot add up unnoticed (the
Ladder of Blum and Hardt, ICML 2015), one for each doubling of the rounds: the first that the client knows of rounds 1,
2 to 3, 4 to 7, 8 to 15 and so on. A step is refused where the loss has risen above one of them.

**The level of a comparison.** The same samples answer again and again. In a run of any length, a client whose loss
never rises must be the cause of a refusal with a probability of at most alpha. Its answers j = 1, 2, ... have

    alpha_j = alpha H / ((H + j - 1) (H + j)),   sum_j alpha_j = alpha,

of which H = 100 answers spend half, and an answer that compares with m models gives alpha_j / m to each. Until its
first refusal a client's answers are all the same and say nothing of its samples, so the candidates are chosen without
them, and so are the models compared with: the union bound holds although samples are used again. Each comparison is
exact for normal d_i; where falls are rare and large it refuses more often (`docs/results/held-out.md`).

The best model so far, as in the Ladder, would be chosen by the samples themselves. Its losses are low by luck: with
normal losses three of four clients that were never harmed refused within 200 answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr

from dqnfed_flwr.guarantee.harm import resolution
from dqnfed_flwr.types import Float64Array

FEWEST = 10
"""Held-out samples of a client that can judge: with fewer, hardly any rise is beyond doubt at the levels of a run."""
HALF = 100
"""H, answers that spend half of alpha."""


def level(alpha: float, answer: int) -> float:
    """alpha_j of a client's answer number j = `answer`, from 1, where all of a run together may err with `alpha`."""
    return alpha * HALF / ((HALF + answer - 1) * (HALF + answer))


def block(round_number: int) -> int:
    """The number of the doubling of the rounds, from 0, in which a round is."""
    return round_number.bit_length() - 1


def rises_above_any(losses: Float64Array, earlier: Sequence[Float64Array], at_level: float) -> bool:
    """Whether `losses` [n] of some samples are above those at one of the `earlier` models, at least one."""
    return any(rises(losses, before, at_level / len(earlier)) for before in earlier)


def rises(losses: Float64Array, before: Float64Array, at_level: float) -> bool:
    """Whether `losses` [n] of some samples are above those `before` [n], of the same samples, by more than chance.

    Where all differences are equal there is no chance in them: they are a rise where they are above the tolerance of
    `guarantee.harm`. One sample alone has no spread, and tells a rise in the same way. Losses that are not finite are a
    rise above such as are, and nothing is a rise above such as are not.
    """
    if not np.isfinite(before).all():
        return False
    if not np.isfinite(losses).all():
        return True
    differences = losses - before
    rise = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(differences.size) if np.ptp(differences) else 0.0
    if error == 0:
        return rise > resolution(float(before.mean()))
    return rise > 0 and float(stdtr(differences.size - 1, -rise / error)) < at_level
