"""What harm is: a rise of a client's loss above what it is entitled to.

With an entitlement e, a client whose loss is above e must not rise, and no client may be lifted above e:

    f_k(theta^t) <= max(f_k(theta^{t-1}), e)

e = 0 is the paper's strict form, in which no loss may rise at all (Hamidi and Ye, TMLR 2025, (29) with rho = 1).

Losses are compared with one stated tolerance, the same for a client's vote, for the event of a round and for every
figure made of events: a loss f counts as not above another f' where f <= f' + `resolution`(f'). The vote on a step of a
float64 model alone is finer: a fall that float32 could not tell must be seen there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import ClientTask, Float64Array

TOLERANCE = {"float32": (1e-6, 1e-9), "float64": (1e-12, 1e-15)}
"""Relative and absolute tolerance of losses of a model: what its rounding can do to a mean of cross-entropies."""
OUTLIER = 100.0
"""A loss so many times the median counts as no more than that in the typical loss."""
Losses = Sequence[float] | Float64Array


def entitlement(losses: Losses, level: float, share: float, liars: int, before: float = math.inf) -> float:
    """e of a round: `level`, or a share of the round's typical loss; never above `before`, e of the round before.

    `losses` are f_k(theta^{t-1}) of the participants that did not contradict themselves [K]. One of `level` and `share`
    is 0. The typical loss is the mean without the f = `liars` largest, so that f clients cannot raise it. No loss
    counts as more than `OUTLIER` times the median.
    """
    honest = np.sort(np.asarray(losses, np.float64))[: max(len(losses) - liars, 0)]
    if share and honest.size:
        level = share * float(np.minimum(honest, OUTLIER * np.median(honest)).mean())
    return min(level, before)


def resolution(loss: float, dtype: str = "float32") -> float:
    """By how much another loss of a model of this dtype may exceed this one and count as equal."""
    relative, absolute = TOLERANCE[dtype]
    return relative * abs(loss) + absolute


def ceiling(loss: float, entitlement: float, dtype: str = "float32") -> float:
    """The largest loss after a step that does a client no harm whose loss is `loss` before it."""
    return max(loss + resolution(loss, dtype), entitlement)


def not_above(after: Losses, before: Losses, entitlement: float = 0.0) -> NDArray[np.bool_]:
    """Which losses [K] are at most `ceiling` of the losses before; NaN is above everything."""
    first = np.asarray(before, np.float64)
    relative, absolute = TOLERANCE["float32"]
    most = np.maximum(first + relative * abs(first) + absolute, entitlement)
    return np.asarray(np.asarray(after, np.float64) <= most)


def holds(loss: float, factor: float, task: ClientTask, armijo: float, dtype: str = "float32") -> bool:
    """Whether a client with the loss f(a) = `loss` accepts theta^{t-1} - a * step, a = `factor`.

    A loss below the entitlement e may rise up to it. Any other must fall by armijo * factor * slope, up to the
    tolerance of losses of a model of this `dtype`:

        f0 <= e:  f(a) <= e           f0 > e:  f(a) <= f0 - armijo * a * max(g_k . step, 0) + resolution(f0)

    NaN and infinities do not hold. The task brings f0 = `reference_loss`, e = `entitlement` and g_k . step = `slope`.
    """
    start = task.reference_loss
    if not math.isfinite(loss) or loss > ceiling(start, task.entitlement, dtype):
        return False
    promised = armijo * factor * max(task.slope, 0.0)
    return start <= task.entitlement or loss <= start - promised + resolution(start, dtype)
