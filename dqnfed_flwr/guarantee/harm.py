"""What harm is: a rise of a client's loss above what it is entitled to.

With an entitlement e, a client whose loss is above e must not rise, and no client may be lifted above e:

    f_k(theta^t) <= max(f_k(theta^{t-1}), e)

A loss may have any sign. An entitlement that is a share s of the typical loss counts from the floor b, the least value
that the task's loss can have, 0 where the task names none:

    e = b + s (typical loss - b)

e = -infinity (`STRICT`) is the paper's strict form, in which no loss may rise at all (Hamidi and Ye, TMLR 2025, (29)
with rho = 1). As long as no loss is below 0, e = 0 is the same. Where the floor is not known and a loss falls below 0,
there is nothing that a share could count from, and the form is strict from then on.

Losses are compared with one stated tolerance, the same for a client's vote, for the event of a round and for every
figure made of events: a loss f counts as not above another f' where f <= f' + `resolution`(f'). The vote on a step of a
float64 model alone is finer: a fall that float32 could not tell must be seen there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.types import ClientTask, Float64Array

TOLERANCE = {"float32": (1e-6, 1e-9), "float64": (1e-12, 1e-15)}
"""Relative and absolute tolerance of losses of a model: what its rounding can do to a mean of cross-entropies.

Under autocast, too: no loss by which a client judges is taken there. Rounded to bfloat16, losses are off by what short
steps change, and a tolerance that allows for it allows for such rises (docs/results/deep.md).
"""
OUTLIER = 100.0
"""A loss so many times the median counts as no more than that in the typical loss."""
STRICT = -math.inf
"""The entitlement below every loss: none may rise."""
Losses = Sequence[float] | Float64Array
Judge = Literal["training", "held-out", "both"]
"""The losses by which a client accepts a candidate."""


def entitlement(
    losses: Losses, level: float, share: float, liars: int, before: float = math.inf, floor: float | None = 0.0
) -> float:
    """e of a round: `level`, or a share of the round's typical loss; never above `before`, e of the round before.

    `losses` are f_k(theta^{t-1}) of the participants that did not contradict themselves [K]. One of `level` and `share`
    is 0; where both are, and a loss is below 0, the form is `STRICT`. The typical loss is the mean without the f =
    `liars` largest, so that f clients cannot raise it. Above the `floor`, no loss counts as more than `OUTLIER` times
    the median. Where the floor is None, not known, it counts as 0, and more than f losses below that make the form of
    a share `STRICT`: f clients cannot.
    """
    found = np.sort(np.asarray(losses, np.float64))
    below = int((found < 0).sum())
    if (share and floor is None and below > liars) or (not share and not level and below):
        return STRICT
    honest, least = found[: max(len(found) - liars, 0)], floor or 0.0
    if share and honest.size:
        above = np.maximum(honest - least, 0.0)  # rounding, or a lie
        level = least + share * float(np.minimum(above, OUTLIER * np.median(above)).mean())
    return min(level, before)


def below_floor(loss: float, floor: float | None) -> bool:
    """Whether a loss is below the floor that its task names, by more than rounding; never where it names none."""
    return floor is not None and loss < floor - resolution(floor)


def resolution(loss: float, dtype: str = "float32") -> float:
    """By how much another loss of a model of this dtype may exceed this one and count as equal."""
    relative, absolute = TOLERANCE[dtype]
    return relative * abs(loss) + absolute


def ceiling(loss: float, entitlement: float, dtype: str = "float32") -> float:
    """The largest loss after a step that does a client no harm whose loss is `loss` before it."""
    return max(loss + resolution(loss, dtype), entitlement)


def not_above(after: Losses, before: Losses, entitlement: float = STRICT) -> NDArray[np.bool_]:
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


def accepts(judge: Judge, training: bool, held_out: bool | None) -> bool:
    """Whether a client accepts a candidate, by the test on its training losses and the one on its held-out part.

    A client that cannot judge by held-out samples (None) judges by those that it trains on.
    """
    if judge == "training" or held_out is None:
        return training
    return held_out if judge == "held-out" else training and held_out
