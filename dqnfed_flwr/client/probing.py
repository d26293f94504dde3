"""The acceptance test of the probed step, made by the client on its own losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.types import ClientTask, Probe


def probe(loss_at: Callable[[float], float], task: ClientTask, armijo: float) -> Probe:
    """Test the candidate, then twice its factor if asked to and it holds, or its halves if it does not.

    Where the task asks for the rungs of a ladder, the losses there come along, whatever the test says. A client that no
    half suits, or only the last, also says what its loss is as far the other way: the loss of one whose gradient is
    true rises there as well, see `guarantee.claims`.

    Parameters
    ----------
    loss_at : Callable[[float], float]
        f_k(theta^{t-1} - a * step) for a factor a; called once for each rung.
    task : ClientTask
        With the `factor` of the candidate, `grow`, `halvings` and `rungs`.
    armijo : float
        As in `holds`.

    Returns
    -------
    Probe
        `grown_holds` is None where twice the factor was not tried: not asked for, or the candidate fails already.
    """
    known = cache(loss_at)
    tested = _test(known, task, armijo)
    return replace(tested, losses=tuple(known(factor) for factor in task.rungs))


def _test(loss_at: Callable[[float], float], task: ClientTask, armijo: float) -> Probe:
    loss = loss_at(task.factor)
    if holds(loss, task.factor, task, armijo):
        twice = 2 * task.factor
        return Probe(loss, True, holds(loss_at(twice), twice, task, armijo) if task.grow else None)
    rungs = [task.factor * 0.5**rung for rung in range(1, task.halvings + 1)]
    for factor in rungs:
        back_loss = loss_at(factor)
        if holds(back_loss, factor, task, armijo):
            behind = loss_at(-factor) if factor == rungs[-1] else None
            return Probe(loss, False, back_factor=factor, back_loss=back_loss, behind_loss=behind)
    return Probe(loss, False, behind_loss=loss_at(-rungs[-1]) if rungs else None)
