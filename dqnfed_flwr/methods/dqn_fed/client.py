"""Two kinds of local work in one round: a gradient, and the row of an anchor that is fed with another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature, Point
from dqnfed_flwr.client.memory import CurvatureState, RoundMemory
from dqnfed_flwr.client.work import ClientContext, LocalRequest, LocalResult, LocalWork, make_work
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.dqn_fed.anchor import ANCHOR, OF_ANCHOR, STATE
from dqnfed_flwr.methods.dqn_fed.settings import DqnFedSettings
from dqnfed_flwr.schema.groups import WHOLE
from dqnfed_flwr.types import under


class AnchoredWork(LocalWork):
    """Row: that of `work`, the gradient; next to it the anchor's row, arrays and figures, under names of their own.

    The anchor's work has its own settings and memory. It leaves the model's buffers as they were received: the losses
    that a step is judged by are those of one function of theta.
    """

    def __init__(self, context: ClientContext, work: LocalWork) -> None:
        super().__init__(context)
        plan, settings, theta = context.plan.anchor, context.plan.settings, context.loss.model.theta
        if plan is None:
            raise ConfigError("dqn-fed.form: no step is anchored; use anchored")
        self._work = work
        state = CurvatureState(theta.numel(), theta.dtype, theta.device)
        curvature = Curvature(settings.curvature, settings.local.lr, context.loss, state)
        memory = RoundMemory(context.memory.dtype, context.memory.device)
        self._anchor = make_work(replace(context, plan=plan, curvature=curvature, memory=memory))

    def visit(self, request: LocalRequest) -> Point:
        """Loss and gradient at the received model."""
        return self._work.visit(request)

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The gradient and its rate, with what the anchor's work gives where that is asked for."""
        result = self._work.perform(request, point)
        if not request.task.directives.get(ANCHOR, 1.0):
            return result
        spec, module = self._loss.model.spec, self._loss.model.module
        received = spec.read_buffers(module)
        task = replace(request.task, directives=under(OF_ANCHOR, request.task.directives))
        vectors = under(OF_ANCHOR, request.vectors)
        of_anchor = self._anchor.perform(replace(request, task=task, vectors=vectors), point)
        spec.write_buffers(received, module)
        vectors = {ANCHOR: of_anchor.row, **_named(of_anchor.vectors)}
        bits = self._settings.group_of(DqnFedSettings).anchor_bits
        few = {} if bits == WHOLE else {ANCHOR: bits}
        return replace(result, vectors=vectors, bits=few, figures=_named(of_anchor.figures))

    def evaluated(self, request: LocalRequest) -> Tensor:
        """What the first work says."""
        return self._work.evaluated(request)

    def export(self) -> dict[str, NDArray[Any]]:
        """The memory of both."""
        return {**self._work.export(), **{STATE + name: values for name, values in self._anchor.export().items()}}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`.

        Raises
        ------
        ShapeError
            If it is the state of another model.
        """
        self._work.load({name: values for name, values in state.items() if not name.startswith(STATE)})
        self._anchor.load(under(STATE, state))


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {OF_ANCHOR + name: value for name, value in values.items()}
