"""The server of FedNL: what it knows of its clients, and the step; `methods/fednl` names the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.linalg.hessian_blocks import (
    MAX_DENSE,
    Compressor,
    check_dense,
    make_compressor,
    solve_projected,
    solve_shifted,
)
from dqnfed_flwr.methods._base import LayerMethod, RoundRows, State, VectorMethod
from dqnfed_flwr.methods.absent import Taken
from dqnfed_flwr.methods.fednl import FedNlSettings
from dqnfed_flwr.schema.plan import RunPlan
from dqnfed_flwr.types import Extras, FloatArray, RoundBatch, Sees

MOST_RESTARTS = 3
"""How often a client may lose its Hessian, and with it those of all; one that always does would keep them at 0."""
MU = 1e-3
"""Smallest eigenvalue that a step divides by; the paper's is the strong convexity of the loss, which networks lack."""
DAMPING = 0.5
"""Ridge on the learned Hessian of a last layer. It is ours: without it runs diverge."""
LARGEST = 1e30
"""Of what a client says of its Hessian, at most: sums and their eigenvalues stay finite."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one client sent: C(grad^2 f_k - H_k) as `message`, the error l_k, one a block [B] or one for all [1].

    Its weight n_k is `samples`. The H_k of a client that begins anew is `start` times the identity; None for others.
    Where gradients are continued, `gradient` is g_k less what the sum held for it [1, m], float64.
    """

    client: int
    samples: float
    start: float | None
    message: Mapping[str, FloatArray]
    error: FloatArray
    gradient: Tensor | None


class HessianLedger:
    """Sums over the clients known: sum n_k H_k [B, m, m], n_k, l_k [B].

    For FedNL-PP (`continues`) also sum n_k (g_k + (H_k + l_k I)(theta - w_k)), w_k the model of client k's last round.
    """

    def __init__(self, compressor: Compressor, alpha: float, *, continues: bool) -> None:
        self.taken = Taken()
        self._compressor, self._alpha = compressor, alpha
        self._continues = continues
        self._samples: dict[int, float] = {}
        self._errors: dict[int, Tensor] = {}
        self._restarts: dict[int, int] = {}
        self._total = self._gradients = torch.zeros(0, dtype=torch.float64)

    @property
    def clients(self) -> int:
        """Clients whose Hessians are in the sum."""
        return len(self._samples)

    def admit(self, given: Sequence[Contribution], shape: tuple[int, int]) -> tuple[list[Contribution], bool]:
        """Take new clients up, for blocks of a shape (B, m): who counts in this round, and whether all was forgotten.

        A known client that begins anew has lost its H_k, which cannot be taken out of the sum: all clients begin anew
        then, the others from their next reply on. It may do so `MOST_RESTARTS` times in a run. After that its H_k
        stays as it was, and what it sends is left out.
        """
        again = {one.client for one in given if one.start is not None and one.client in self._samples}
        worn_out = {client for client in again if self._restarts.get(client, 0) >= MOST_RESTARTS}
        given = [one for one in given if one.client not in worn_out]
        lost = bool(again - worn_out)
        for client in again - worn_out:
            self._restarts[client] = self._restarts.get(client, 0) + 1
        if lost:
            self._samples.clear()
            self.taken.forget()
        if not self._samples:
            self._errors.clear()
            self._total = torch.zeros(*shape, shape[1], dtype=torch.float64)
            self._gradients = torch.zeros(1, shape[1] if self._continues else 0, dtype=torch.float64)
        counted = [one for one in given if one.start is not None or one.client in self._samples]
        for one in counted:
            if one.start is not None:
                self._samples[one.client] = one.samples
                self._total.diagonal(dim1=1, dim2=2).add_(one.samples * one.start)
        return counted, lost

    def correct(self, counted: Sequence[Contribution], round_number: int) -> None:
        """H_k += alpha C(...), and the errors and gradients that go with it."""
        for one in counted:
            samples = self._samples[one.client]
            message = {name: torch.tensor(values, dtype=torch.float64) for name, values in one.message.items()}
            matrices = self._compressor.expand(message, self._total.shape[-1])
            self._total.add_(matrices, alpha=self._alpha * samples)
            self._errors[one.client] = torch.tensor(one.error, dtype=torch.float64)
            if one.gradient is not None:
                self._gradients.add_(one.gradient, alpha=samples)
        self.taken.note((one.client for one in counted), round_number)

    def mean(self) -> Tensor:
        """Mean of the H_k [B, m, m]."""
        return self._total / sum(self._samples.values())

    def mean_error(self) -> Tensor:
        """Mean of the l_k [B]."""
        return self._sum_of_errors() / sum(self._samples.values())

    def mean_gradient(self) -> Tensor:
        """Mean of the continued gradients [1, m]."""
        return self._gradients / sum(self._samples.values())

    def move(self, change: Tensor) -> None:
        """Continue the gradients along a change of the model [1, m], by H_k + l_k I."""
        bent = torch.einsum("bij,bj->bi", self._total, change)
        self._gradients += bent + self._sum_of_errors()[:, None] * change

    def _sum_of_errors(self) -> Tensor:
        return torch.stack([self._samples[client] * error for client, error in sorted(self._errors.items())]).sum(dim=0)

    def export_state(self) -> dict[str, NDArray[np.generic]]:
        """The sums, which go on changing here, and what is known of each client."""
        clients = sorted(self._samples)
        errors = [self._errors[client].numpy() for client in clients]
        return {
            **self.taken.export_state(),
            "clients": np.array(clients, np.int64),
            "samples": np.array([self._samples[client] for client in clients]),
            "errors": np.array(errors, np.float64),
            "restarts": np.array(sorted(self._restarts.items()), np.int64).reshape(-1, 2),
            "hessians": self._total.numpy().copy(),
            "gradients": self._gradients.numpy().copy(),
        }

    def restore_state(self, state: State) -> None:
        """Inverse of `export_state`."""
        self.taken.restore_state(state)
        self._restarts = {int(client): int(count) for client, count in np.asarray(state["restarts"], np.int64)}
        clients = [int(client) for client in np.asarray(state["clients"], np.int64)]
        self._samples = dict(zip(clients, map(float, np.asarray(state["samples"], np.float64)), strict=True))
        errors = torch.tensor(np.asarray(state["errors"], np.float64))
        self._errors = dict(zip(clients, errors, strict=True))
        self._total = torch.tensor(np.asarray(state["hessians"], np.float64))
        self._gradients = torch.tensor(np.asarray(state["gradients"], np.float64))


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

    def __init__(self, run: RunPlan) -> None:
        super().__init__(run)
        settings = self._settings = run.group_of(FedNlSettings)
        sampled = run.settings.sampled < run.settings.clients
        self._lr = run.settings.local.lr
        self._diagonal = settings.form == "diagonal"
        self._damping = DAMPING if settings.form == "last-layer" else 0.0
        self._continues = sampled and settings.form == "exact"
        self.sees = Sees.SUM | Sees.COLUMNS if self._continues else Sees.SUM
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
        columns = self.columns(rows.dim)
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
        right = gradient.double()[system.columns].cpu() if system.gradient is None else system.gradient
        if self._settings.option == "shift":
            solved, raised = solve_shifted(system.matrix, system.shift + self._damping, right, MU)
        else:
            solved, raised = solve_projected(system.matrix, right, max(MU, self._damping))
        self._notes["raised"] = float(raised)
        step[system.columns] = solved.to(step)
        return step

    def notes(self) -> Mapping[str, float]:
        """Clients known and new, error of their Hessians, eigenvalues or blocks raised to mu, and what went wrong."""
        return dict(self._notes)

    def step_taken(self, step: Tensor, factor: float) -> None:
        """FedNL-PP: continue the gradients to the new model."""
        if self._continues and factor and self._ledger.clients:
            self._ledger.move(-factor * step.double()[self.columns(len(step))].cpu())

    def _contributions(self, batch: RoundBatch, rows: RoundRows, columns: NDArray[np.int64]) -> list[Contribution]:
        """What each client adds; those whose figures or corrections make no sense are left out."""
        gradients = rows.columns(slice(0, rows.dim)) if self._continues else None
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


def fednl(run: RunPlan) -> FedNl:
    """The form that the settings name."""
    return LastLayerFedNl(run) if run.group_of(FedNlSettings).form == "last-layer" else FedNl(run)
