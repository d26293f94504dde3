"""The line of models that a message tells: the candidate, and what lies behind and before it along the step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dqnfed_flwr.errors import ShapeError
from dqnfed_flwr.params import line_point
from dqnfed_flwr.types import FloatArray

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
