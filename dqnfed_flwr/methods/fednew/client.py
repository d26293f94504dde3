"""The client's side of FedNew; `methods/fednew` names the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import LocalRequest, LocalResult, LocalWork
from dqnfed_flwr.client.work.second_order import (
    PRODUCTS,
    TOLERANCE,
    conjugate_gradients,
    curvature_product,
    dense_hessian,
)
from dqnfed_flwr.methods.fednew import FedNewSettings

_QUANTISE = 4
"""Stream of the seed; those below belong to the passes."""


@dataclass(frozen=True, slots=True)
class _Solve:
    """A solution [D], its figures, and what is kept for the next round."""

    vector: Tensor
    iterations: int
    repaired: int
    kept: dict[str, Tensor]


class FedNewWork(LocalWork):
    """Row: y_k = (H_k + (alpha + rho) I)^-1 (g_k - u_k + rho y), y the step of the round before (0 in round 1).

    u_k, y_k and, in the exact form, the factor of the matrix are kept from round to round. The step of round t, which
    the next message carries, moves the dual: u_k += rho (y_k - y). This happens if the client's reply of round t
    counted, and it receives that step at once; u_k stays as it is otherwise, because y_k would be compared with the
    step of another model. Where the server has it begin anew, by the round 0 for its last reply that counted, u_k is 0.
    The ridge is part of H_k and g_k, and counts once.
    """

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row y_k, quantised if the settings ask for it."""
        settings, number = self._settings.group_of(FedNewSettings), request.task.round
        kept = self._memory.before(number)
        step = request.line.step if request.line.known else torch.zeros_like(point.theta)
        dual = self._dual(kept, request, step)
        solve = self._solve(kept, point, number, point.gradient - dual + settings.rho * step)
        row = solve.vector
        if settings.bits:
            before = kept.get("answer", torch.zeros_like(row))
            row = quantise(row, before, settings.bits, request.key.generator(_QUANTISE))
        self._memory.keep(number, {"dual": dual, "answer": row, "round": torch.tensor(number), **solve.kept})
        figures = {"iterations": float(solve.iterations), "repaired": float(solve.repaired)}
        return LocalResult(row, self.plain_rate(row), figures=figures)

    def _dual(self, kept: dict[str, Tensor], request: LocalRequest, step: Tensor) -> Tensor:
        task = request.task
        taken = int(task.directives.get("taken", 0))
        if not kept or not taken:
            return torch.zeros_like(step)
        counted = int(kept["round"]) == task.round - 1 == taken
        if not counted or not request.line.known:
            return kept["dual"]
        return kept["dual"] + self._settings.group_of(FedNewSettings).rho * (kept["answer"] - step)

    def _solve(self, kept: dict[str, Tensor], point: Point, number: int, right: Tensor) -> _Solve:
        if self._settings.group_of(FedNewSettings).form == "cg":
            return self._iterate(point, right)
        factor, drawn, repaired = self._factor(kept, point, number)
        solution = torch.cholesky_solve(right[:, None], factor)[:, 0]
        return _Solve(solution, 0, repaired, {"factor": factor, "drawn": drawn})

    def _iterate(self, point: Point, right: Tensor) -> _Solve:
        settings = self._settings.group_of(FedNewSettings)
        curvature = curvature_product(self._loss, settings.matrix, point.theta, point.rows)

        def product(vector: Tensor) -> Tensor:
            return curvature(vector).add_(vector, alpha=settings.alpha + settings.rho)

        found = conjugate_gradients(product, right, iterations=PRODUCTS, tolerance=TOLERANCE)
        stuck = found.negative and found.iterations == 1
        vector = self._settings.local.lr * right if stuck else found.vector
        return _Solve(vector, found.iterations, int(found.negative), {})

    def _factor(self, kept: dict[str, Tensor], point: Point, number: int) -> tuple[Tensor, Tensor, int]:
        """L with L L^T = H_k + (alpha + rho) I [D, D], the round of its Hessian, and whether it was repaired.

        Negative eigenvalues of H_k count as 0 where the sum has no Cholesky factor. L then comes from the eigenvalues,
        not from their sum with rounding errors of the size of the largest.
        """
        settings = self._settings.group_of(FedNewSettings)
        if "factor" in kept and not (settings.refresh and number - int(kept["drawn"]) >= settings.refresh):
            return kept["factor"], kept["drawn"], 0
        hessian = dense_hessian(self._loss, point.theta, point.rows)
        shift = settings.alpha + settings.rho
        identity = torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
        factor, failed = torch.linalg.cholesky_ex(hessian + shift * identity)
        if int(failed):
            values, vectors = torch.linalg.eigh(hessian)
            root = vectors * (values.clamp(min=0) + shift).sqrt()
            factor = torch.linalg.qr(root.mT).R.mT
        return factor, torch.tensor(number), int(int(failed) > 0)


def quantise(vector: Tensor, before: Tensor, bits: int, generator: np.random.Generator) -> Tensor:
    """Round `vector` - `before` [D] at random to one of 2^bits - 1 equal parts of its range; the mean is `vector`.

    The message of Q-FedNew: with R the largest absolute difference, each difference falls between two of 2^bits levels
    from -R to R and takes the upper one with the probability that makes the mean exact. `before` is what the server
    holds from the round before. A value costs `bits` bits, and the message one float more for R.
    """
    difference = vector - before
    reach = float(difference.abs().max())
    if reach == 0:
        return vector
    level = 2 * reach / (2**bits - 1)
    places = (difference + reach) / level
    chance = torch.from_numpy(generator.random(len(places))).to(places)
    steps = (places.floor() + (chance < places - places.floor())).clamp(max=2**bits - 1)
    quantised: Tensor = before + (steps * level - reach)
    return quantised
