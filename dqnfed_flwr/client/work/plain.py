"""The local work that any method may be fed with: a gradient, L-BFGS passes, epochs of SGD."""

from __future__ import annotations

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import BlindWork, LocalRequest, LocalResult, LocalWork
from dqnfed_flwr.client.work.passes import lbfgs_passes, sgd


class GradientWork(LocalWork):
    """Row: the gradient at the received model, and the displacement of SGD passes where asked for.

    These passes leave the model's buffers as they were received: the losses that a step is judged by are those of one
    function of theta.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """g_k and d~_k, which is that of no curvature where the method reads none."""
        if not self._settings.reads_curvature:
            return LocalResult(point.gradient, self.plain_rate(point.gradient))
        seen = self._curvature.observe(point)
        if not self._settings.wants_update:
            return LocalResult(point.gradient, seen.rate)
        spec, module = self._loss.model.spec, self._loss.model.module
        received = spec.read_buffers(module)
        update = sgd(self._loss, point.theta, self._settings.local, request.key)
        spec.write_buffers(received, module)
        return LocalResult(point.gradient, seen.rate, {"update": update})


class LbfgsWork(LocalWork):
    """Row: the gradient after E L-BFGS passes, or their displacement over the rate (Algorithm 1)."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row and its rate; for E = 1 those of the plain gradient."""
        if not self._settings.reads_curvature:
            return LocalResult(point.gradient, self.plain_rate(point.gradient))
        seen = self._curvature.observe(point)
        if self._settings.local.epochs == 1:
            return LocalResult(point.gradient, seen.rate)
        return LocalResult(*lbfgs_passes(self._loss, self._curvature, point, seen, self._settings.local))


class SgdWork(BlindWork):
    """Row: the displacement theta - theta_k of E epochs of SGD."""

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """theta - theta_k, with the rate lr |row|^2."""
        row = sgd(self._loss, point.theta, self._settings.local, request.key)
        return LocalResult(row, self.plain_rate(row))
