"""Local work of Ditto: the passes of FedAvg, and as many for a personal model that is pulled towards the global one.

v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - theta)),    theta the global model received
"""

from __future__ import annotations

from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import BlindWork, LocalRequest, LocalResult, Proximal, sgd
from dqnfed_flwr.methods.ditto import DittoSettings
from dqnfed_flwr.types import under

MODEL, BUFFER = "model", "buffer."


class DittoWork(BlindWork):
    """Row: theta - theta_k of E epochs of SGD. Kept: the personal model v_k [D], and its buffers if the model has any.

    v_k begins at the first global model that the client trains on, with the buffers received. Its passes take the
    mini-batches, the rate and the dropout of the global passes. It is evaluated as it stands after the last round that
    the client took part in; a client that never did reports the global model.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row of FedAvg; the personal model moves on. The buffers are left as the global passes made them."""
        spec, module = self._loss.model.spec, self._loss.model.module
        received = spec.read_buffers(module)
        row = sgd(self._loss, point.theta, self._settings.local, request.key)
        shared = spec.read_buffers(module)
        kept = self._memory.before(request.task.round)
        personal = kept.get(MODEL, point.theta)
        spec.write_buffers(under(BUFFER, kept) or received, module)
        proximal = Proximal(point.theta, self._settings.group_of(DittoSettings).weight)
        personal = personal - sgd(self._loss, personal, self._settings.local, request.key, proximal=proximal)
        own = {BUFFER + name: value for name, value in spec.read_buffers(module).items()}
        self._memory.keep(request.task.round, {MODEL: personal, **own})
        spec.write_buffers(shared, module)
        return LocalResult(row, self.plain_rate(row))

    def evaluated(self, request: LocalRequest) -> Tensor:
        """The personal model, with its buffers in place; the global model for a client that has none."""
        kept = self._memory.before(request.task.round)
        if not kept:
            return request.line.theta
        self._loss.model.spec.write_buffers(under(BUFFER, kept), self._loss.model.module)
        return kept[MODEL]
