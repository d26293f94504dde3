"""The line of models that a message names, and the acceptance test that a client makes there on its own losses.

The line goes through the candidate along the step; the losses on it are those of the probed step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.params import line_point
from dqnfed_flwr.types import ClientTask, FloatArray, Probe

Vector = FloatArray | Tensor


class Line:
    """theta^{t-1} - a * step through the candidate `theta`; the step is read when it is first needed.

    Attributes
    ----------
    theta : Tensor
        The candidate [D].
    known : bool
        Whether a step was sent that leads there.
    """

    def __init__(self, theta: Tensor, step: Vector | None, factor: float, read: Callable[[Vector], Tensor]) -> None:
        self.theta = theta
        self.known = step is not None and factor > 0
        self._factor = factor
        self._sent = step
        self._read = read
        self._step: Tensor | None = None

    @property
    def step(self) -> Tensor:
        """The step [D].

        Raises
        ------
        ShapeError
            If none was sent.
        """
        if self._sent is None:
            raise ShapeError("the task needs the line through the model, but no step was sent; send it with the model")
        if self._step is None:
            self._step = self._read(self._sent)
        return self._step

    def at(self, factor: float) -> Tensor:
        """The model theta^{t-1} - `factor` * step [D].

        Raises
        ------
        ShapeError
            If it is not the candidate, and no step was sent.
        """
        return self.theta if factor == self._factor else line_point(self.theta, self.step, self._factor, factor)


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
