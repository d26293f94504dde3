"""The server of FedNL; `methods/fednl` names the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.hessian_blocks import MAX_DENSE, check_dense, make_compressor, solve_projected, solve_shifted
from dqnfed_flwr.methods._base import LayerMethod, RoundRows, VectorMethod
from dqnfed_flwr.methods.fednl import FedNlSettings
from dqnfed_flwr.methods.fednl.ledger import Contribution, HessianLedger
from dqnfed_flwr.schema.run import RunSettings
from dqnfed_flwr.types import Extras, RoundBatch

LARGEST = 1e30
"""Of what a client says of its Hessian, at most: sums and their eigenvalues stay finite."""


@dataclass(frozen=True, slots=True)
class _System:
    """What a step solves: columns [B, m], mean H_k [B, m, m], mean l_k [B], and the continued gradient [1, m]."""

    columns: NDArray[np.int64]
    matrix: Tensor
    shift: Tensor
    gradient: Tensor | None


class FedNl(VectorMethod):
    """step = [H]_mu^-1 g (`projection`) or (H + l I)^-1 g (`shift`), H, l and g the means of H_k, l_k and g_k.

    H_k is client k's approximation of its Hessian: H_k += alpha C(grad^2 f_k - H_k) once a round, C a Rank-R or Top-K
    compressor, and l_k the Frobenius norm of grad^2 f_k - H_k. Both are those before the round's correction, as in
    Algorithm 1; with `fresh`, or with sampling, those after it, as in FedNL-PP. Forms: `exact`, one block of all D
    parameters; `diagonal`, D blocks of one. With sampling the exact form is FedNL-PP: the gradient of an absent client
    is continued by its last H_k + l_k I, while the diagonal takes the mean gradient of the clients present.

    Deviations from the paper: means are by sample share, over the clients that took part so far; H_k starts at 0
    (`shift`) or at a multiple of the identity (`projection`), for a whole Hessian has no place in the messages; a
    matrix that is not positive definite (networks) has its eigenvalues raised to mu, and is counted in the notes; the
    diagonal form is not in the paper. Deviations from published code: the norm is Frobenius, not spectral.
    """

    reads_products = False

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        settings = self._settings = run.group_of(FedNlSettings)
        sampled = run.sampled < run.clients
        self._lr = run.local.lr
        self._diagonal = settings.form == "diagonal"
        self._damping = settings.damping if settings.form == "last-layer" else 0.0
        self._continues = sampled and settings.form == "exact"
        self._fresh = settings.fresh or sampled
        self._compressor = make_compressor(settings.form, settings.compressor, settings.size)
        self._ledger = HessianLedger(self._compressor, settings.alpha, continues=self._continues)
        self._memories = (self._ledger,)
        self._system: _System | None = None
        self._notes: dict[str, float] = {}

    def columns(self, dim: int) -> NDArray[np.int64]:
        """Columns of the blocks, int64 [B, m].

        Raises
        ------
        ConfigError
            If the form does not fit the model.
        """
        if self._settings.form == "diagonal":
            return np.arange(dim)[:, None]
        check_dense(dim)
        return np.arange(dim)[None]

    def extras(self, dim: int) -> Extras:
        """The correction and its error; for FedNL-PP the gradient that is replaced.

        Raises
        ------
        ConfigError
            If the form does not fit the model.
        """
        blocks, width = self.columns(dim).shape
        shapes = self._compressor.shapes(blocks, width)
        shapes["errors"] = (1 if self._diagonal else blocks,)
        if self._continues:
            shapes["expected"] = (dim,)
        return Extras(shapes, ("anew", "start"), {"anew": (0.0, 1.0), "start": (0.0, LARGEST)})

    def directives(self, round_number: int, client: int) -> Mapping[str, float]:
        """Which reply of the client counted last."""
        return self._ledger.taken.directives(client)

    def observe(self, batch: RoundBatch, rows: RoundRows) -> None:
        """Correct the Hessians, and fix the system that the round's step solves."""
        columns = self.columns(rows.basis.dim)
        given = self._contributions(batch, rows, columns)
        counted, forgot = self._ledger.admit(given, columns.shape)
        self._notes = {
            "hessian_clients": float(self._ledger.clients),
            "new_clients": float(sum(one.start is not None for one in counted)),
            "bad_corrections": float(len(batch.clients) - len(given)),
            "left_out": float(len(given) - len(counted)),
            "restarts": float(forgot),
        }
        self._system = None
        if not counted:
            return
        matrix = None if self._fresh else self._ledger.mean()
        self._ledger.correct(counted, batch.round)
        gradient = self._ledger.mean_gradient() if self._continues else None
        matrix = self._ledger.mean() if matrix is None else matrix
        self._system = _System(columns, matrix, self._ledger.mean_error(), gradient)
        self._notes["hessian_error"] = float(torch.linalg.vector_norm(self._system.shift))

    def step(self, batch: RoundBatch, rows: RoundRows) -> Tensor:
        """Newton's step on the columns of the blocks, eta g on the others; eta g where no Hessian came at all."""
        gradient = rows.combine(batch.shares)
        step = self._lr * gradient
        system = self._system
        if system is None:
            self._notes["no_hessian"] = 1.0
            return step
        right = gradient.double()[system.columns] if system.gradient is None else system.gradient
        if self._settings.option == "shift":
            solved, raised = solve_shifted(system.matrix, system.shift + self._damping, right, self._settings.mu)
        else:
            solved, raised = solve_projected(system.matrix, right, max(self._settings.mu, self._damping))
        self._notes["raised"] = float(raised)
        step[system.columns] = solved.to(step.dtype)
        return step

    def notes(self) -> Mapping[str, float]:
        """Clients known and new, error of their Hessians, eigenvalues or blocks raised to mu, and what went wrong."""
        return dict(self._notes)

    def step_taken(self, step: Tensor, factor: float) -> None:
        """FedNL-PP: continue the gradients to the new model."""
        if self._continues and factor and self._ledger.clients:
            self._ledger.move(-factor * step.double()[self.columns(len(step))])

    def _contributions(self, batch: RoundBatch, rows: RoundRows, columns: NDArray[np.int64]) -> list[Contribution]:
        """What each client adds; those whose figures or corrections make no sense are left out."""
        gradients = rows.columns(slice(0, rows.basis.dim)) if self._continues else None
        names, given = self._compressor.shapes(*columns.shape), []
        for k, client in enumerate(batch.clients):
            anew, start = (float(batch.figures[name][k]) for name in ("anew", "start"))
            message = {name: rows.vectors[name][k] for name in names}
            error = rows.vectors["errors"][k]
            if not self._compressor.valid(message, columns.shape[1]) or _too_large(*message.values(), error):
                continue
            news = None
            if gradients is not None:
                news = torch.from_numpy(gradients[k] - rows.vectors["expected"][k])[None]
            given.append(Contribution(client, float(batch.examples[k]), start if anew else None, message, error, news))
        return given


def _too_large(*arrays: NDArray[np.generic]) -> bool:
    return any(np.abs(values).max(initial=0) > LARGEST for values in arrays)


class LastLayerFedNl(FedNl, LayerMethod):
    """FedNL on the last layer, the other layers taking eta g: the form `last-layer`.

    One block where the last layer has at most 2,000 values, else a block for each output class; the Hessian of the
    cross-entropy in a linear last layer is exact and positive semi-definite either way. With sampling the step takes
    the mean gradient of the clients present, because other layers move between a client's rounds.
    """

    def columns(self, dim: int) -> NDArray[np.int64]:
        """Columns of the last layer, class by class."""
        if not self.head.size:
            raise ConfigError("fednl.form: last-layer needs a model that ends in a linear layer; use another form")
        return self.head if self.head.size > MAX_DENSE else self.head.reshape(1, -1)


def fednl(run: RunSettings) -> FedNl:
    """The form that the settings name."""
    return LastLayerFedNl(run) if run.group_of(FedNlSettings).form == "last-layer" else FedNl(run)
