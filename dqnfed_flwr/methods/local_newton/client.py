"""Local Newton steps; `methods/local_newton` names the papers."""

from __future__ import annotations

from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import LocalRequest, LocalResult, LocalWork
from dqnfed_flwr.client.work.second_order import PRODUCTS, TOLERANCE, Solution, conjugate_gradients, curvature_product
from dqnfed_flwr.methods.local_newton import LocalNewtonSettings


class NewtonWork(LocalWork):
    """Row: theta - theta_k after E local Newton steps, for E = 1 the vector H_k^-1 g_k.

    With `cg` each step solves (H_k + damping I) p = g_k by conjugate gradients, H_k the Hessian of f_k, or its
    Gauss-Newton matrix, over the samples behind the gradient. A solve that meets negative curvature ends there; if it
    does so at once, p is lr * g_k. With `lbfgs` (E = 1) p is the product of g_k with the history of the client's
    pairs, lr * g_k while there is none. The rate is lr |row|^2.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row, with figures of its solves."""
        if self._settings.group_of(LocalNewtonSettings).solver == "lbfgs":
            return self._from_history(point)
        theta, gradient, solves = point.theta, point.gradient, list[Solution]()
        for epoch in range(self._settings.local.epochs):
            if epoch:
                gradient = self._loss.loss_and_gradient(theta, point.rows)[1]
            solves.append(self._solve(theta, gradient, point.rows))
            theta = theta - self._direction(solves[-1], gradient)
        row = point.theta - theta if len(solves) > 1 else self._direction(solves[0], gradient)
        figures = {
            "iterations": float(sum(solve.iterations for solve in solves)),
            "negative": float(sum(solve.negative for solve in solves)),
            "residual": max(solve.residual for solve in solves),
        }
        return LocalResult(row, self.plain_rate(row), figures=figures)

    def _solve(self, theta: Tensor, gradient: Tensor, rows: Tensor | None) -> Solution:
        settings = self._settings.group_of(LocalNewtonSettings)
        curvature = curvature_product(self._loss, settings.matrix, theta, rows)

        def product(vector: Tensor) -> Tensor:
            return curvature(vector).add_(vector, alpha=settings.damping)

        return conjugate_gradients(product, gradient, iterations=PRODUCTS, tolerance=TOLERANCE)

    def _direction(self, solve: Solution, gradient: Tensor) -> Tensor:
        stuck = solve.negative and solve.iterations == 1
        return self._settings.local.lr * gradient if stuck else solve.vector

    def _from_history(self, point: Point) -> LocalResult:
        seen = self._curvature.observe(point)
        history = self._curvature.history(seen.pairs)
        lr, gradient = self._settings.local.lr, point.gradient
        row = history.inverse_product(gradient) if len(history) else lr * gradient
        return LocalResult(row, seen.rate, figures={"pairs": float(len(history))})
