"""The acceptance test of the probed step, made by the client on its own losses."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from dqnfed_flwr.types import ClientTask, Probe

ROUNDING = 4
"""Units of rounding of f_k by which the sufficient decrease may be missed: losses of one model dtype are no finer."""


def holds(loss: float, factor: float, task: ClientTask, armijo: float, unit: float) -> bool:
    """Whether a client accepts theta^{t-1} - `factor` * step.

    Its loss must not rise, and must fall by armijo * factor * slope up to a few units of rounding:

        f(a) <= f0   and   f(a) <= f0 - armijo * a * (g_k . step) + ROUNDING * unit * |f0|

    Parameters
    ----------
    loss : float
        f_k there; NaN and infinities do not hold.
    factor : float
        a.
    task : ClientTask
        Brings f0 = `reference_loss` and g_k . step = `slope`.
    armijo : float
        beta of the test.
    unit : float
        Rounding unit of the model's dtype.
    """
    start = task.reference_loss
    allowance = ROUNDING * unit * max(abs(start), sys.float_info.min)
    return math.isfinite(loss) and loss <= start and loss <= start - armijo * factor * task.slope + allowance


def probe(loss_at: Callable[[float], float], task: ClientTask, armijo: float, unit: float) -> Probe:
    """Test the candidate, then twice its factor if asked to and it holds, or its halves if it does not.

    Where the task asks for the rungs of a ladder, the losses there come along, whatever the test says. A client that no
    half suits, or only the last, also says what its loss is as far the other way: the loss of one whose gradient is
    true rises there as well, see `admission.votes`.

    Parameters
    ----------
    loss_at : Callable[[float], float]
        f_k(theta^{t-1} - a * step) for a factor a; called once for each rung.
    task : ClientTask
        With the `factor` of the candidate, `grow`, `halvings` and `rungs`.
    armijo, unit : float
        As in `holds`.

    Returns
    -------
    Probe
        `grown_holds` is None where twice the factor was not tried: not asked for, or the candidate fails already.
    """
    known = cache(loss_at)
    tested = _test(known, task, armijo, unit)
    return replace(tested, losses=tuple(known(factor) for factor in task.rungs))


def _test(loss_at: Callable[[float], float], task: ClientTask, armijo: float, unit: float) -> Probe:
    loss = loss_at(task.factor)
    if holds(loss, task.factor, task, armijo, unit):
        twice = 2 * task.factor
        return Probe(loss, True, holds(loss_at(twice), twice, task, armijo, unit) if task.grow else None)
    rungs = [task.factor * 0.5**rung for rung in range(1, task.halvings + 1)]
    for factor in rungs:
        back_loss = loss_at(factor)
        if holds(back_loss, factor, task, armijo, unit):
            behind = loss_at(-factor) if factor == rungs[-1] else None
            return Probe(loss, False, back_factor=factor, back_loss=back_loss, behind_loss=behind)
    return Probe(loss, False, behind_loss=loss_at(-rungs[-1]) if rungs else None)
