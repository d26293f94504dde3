"""The client's side of FedNL; `methods/fednl` names the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.work import ClientContext, LocalRequest, LocalResult, LocalWork
from dqnfed_flwr.client.work.second_order import (
    GaussNewton,
    dense_hessian,
    frobenius_norm,
    gauss_newton_diagonal,
    head_hessian,
)
from dqnfed_flwr.linalg.hessian_blocks import MAX_DENSE, block_norms, make_compressor
from dqnfed_flwr.methods.fednl import FedNlSettings
from dqnfed_flwr.types import under

_PROBES, _ERROR = 5, 6
"""Streams of the seed; those below belong to other work."""
PROBES = 1
"""Random vectors behind an estimate of the form `diagonal`; what is learned averages over rounds."""
_MESSAGE = "message."


@dataclass(frozen=True, slots=True)
class _Learned:
    """What client and server agree on: H_k [B, m, m], and for FedNL-PP the last error [B], model and gradient [D]."""

    round: int
    hessian: Tensor
    last: Mapping[str, Tensor]


class FedNlWork(LocalWork):
    """Row: the gradient g_k, with a compressed correction of H_k and the Frobenius norm l_k of its error.

    H_k begins at 0 (option `shift`), or at |H| I with |H| the largest absolute eigenvalue of the first Hessian
    (`projection`, which divides by H_k as it stands). The server says which reply of this client it took in last. Only
    then does the correction in that reply belong to H_k; otherwise H_k is as it was before. If neither fits, because
    either of the two lost its memory, the client begins anew and says so.
    """

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        settings = context.plan.settings
        self._nl = settings.group_of(FedNlSettings)
        self._compressor = make_compressor(self._nl.form, self._nl.compressor, self._nl.size)
        self._sampled = settings.sampled < settings.clients
        self._after = self._nl.fresh or self._sampled

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """g_k, the correction and its error."""
        number, current = request.task.round, self._hessian(request, point)
        learned = self._resume(request)
        start = self._start(current) if learned is None else 0.0
        if learned is None:
            learned = _Learned(0, start * torch.eye(current.shape[-1]).to(current).expand_as(current).clone(), {})
        message = self._compressor.compress(current - learned.hessian)
        after = self._corrected(learned.hessian, message)
        error = self._error(request, point, current, after if self._after else learned.hessian)
        expected = self._expected(learned, point)
        last = {"error": error, "theta": point.theta, "gradient": point.gradient} if expected else {}
        self._memory.keep(number, self._tensors(learned, number, message, last))
        vectors = message | expected | {"errors": error}
        figures = {"anew": float(not learned.round), "start": start}
        return LocalResult(point.gradient, self.plain_rate(point.gradient), vectors, figures)

    def _hessian(self, request: LocalRequest, point: Point) -> Tensor:
        """The blocks of the Hessian at the received model [B, m, m]."""
        if self._nl.form == "exact":
            return dense_hessian(self._loss, point.theta, point.rows)[None]
        if self._nl.form == "last-layer":
            by_class = self._loss.model.spec.head.size > MAX_DENSE
            return head_hessian(self._loss, point.theta, by_class=by_class, rows=point.rows)
        generator = request.key.generator(_PROBES)
        return gauss_newton_diagonal(self._loss, point.theta, generator, PROBES).view(-1, 1, 1)

    def _error(self, request: LocalRequest, point: Point, current: Tensor, known: Tensor) -> Tensor:
        """Frobenius norm of what is not known of the Hessian: of each block [B], or of all but the diagonal [1]."""
        if self._nl.form != "diagonal":
            return block_norms(current - known)
        diagonal, product = known.reshape(-1), GaussNewton(self._loss, point.theta)

        def unknown(vector: Tensor) -> Tensor:
            return product(vector) - diagonal * vector

        generator = request.key.generator(_ERROR)
        return diagonal.new_tensor([frobenius_norm(unknown, point.theta, generator, PROBES)])

    def _start(self, current: Tensor) -> float:
        if self._nl.option == "shift":
            return 0.0
        if current.shape[-1] == 1:
            return float(current.abs().max())
        return float(torch.linalg.eigvalsh(current).abs().max())

    def _corrected(self, hessian: Tensor, message: Mapping[str, Tensor]) -> Tensor:
        return hessian + self._nl.alpha * self._compressor.expand(message, hessian.shape[-1])

    def _expected(self, learned: _Learned, point: Point) -> dict[str, Tensor]:
        """FedNL-PP: the gradient that the server goes on by for this client, g + (H_k + l_k I)(theta - w); 0 if new."""
        if self._nl.form != "exact" or not self._sampled:
            return {}
        if not learned.last:
            return {"expected": torch.zeros_like(point.theta)}
        moved = point.theta - learned.last["theta"]
        return {"expected": learned.last["gradient"] + learned.hessian[0] @ moved + learned.last["error"][0] * moved}

    def _resume(self, request: LocalRequest) -> _Learned | None:
        kept = self._memory.before(request.task.round)
        taken = int(request.task.directives.get("taken", 0))
        if not kept or not taken:
            return None
        if int(kept["round"]) == taken:
            hessian = self._corrected(kept["hessian"], under(_MESSAGE, kept))
            return _Learned(taken, hessian, under("after.", kept))
        if int(kept["agreed"]) == taken:
            return _Learned(taken, kept["hessian"], under("before.", kept))
        return None

    @staticmethod
    def _tensors(
        learned: _Learned, number: int, message: Mapping[str, Tensor], last: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {
            "round": torch.tensor(number),
            "agreed": torch.tensor(learned.round),
            "hessian": learned.hessian,
            **{_MESSAGE + name: tensor for name, tensor in message.items()},
            **{"before." + name: tensor for name, tensor in learned.last.items()},
            **{"after." + name: tensor for name, tensor in last.items()},
        }
