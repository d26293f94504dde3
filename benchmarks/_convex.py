"""Convex problems as federations: data, local losses, and runs that are followed model by model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor

from client_app.app import app
from dqnfed_flwr import wire
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.functional import minimum_norm_point
from dqnfed_flwr.models import build_model
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.types import Float64Array

RIDGE = 1e-3
COMMON: Mapping[str, Any] = {
    "model": "logistic",
    "dtype": "float64",
    "ridge": RIDGE,
    "evaluate-every": 0,
    "local.threads": 1,
    "step.min-move": 1e-14,  # the default is meant for float32 models
}
"""Settings of every run here."""


class _Enough(Exception):
    """The run has come as far as was asked."""


@dataclass(slots=True)
class Trace:
    """A run, model by model.

    Attributes
    ----------
    models : list[Tensor]
        theta^0, theta^1, ... [D].
    measures : list[float]
        What was followed, at each.
    events : list[RoundEvent]
        One a round.
    seconds : float
        Without those spent on following it.
    status : str
        `reached`, or how the run ended.
    """

    models: list[Tensor]
    measures: list[float]
    events: list[RoundEvent]
    seconds: float
    status: str

    @property
    def rounds(self) -> int:
        """Rounds made."""
        return len(self.measures) - 1

    @property
    def all_fell(self) -> bool:
        """Whether no participant's loss rose in any round that moved the model (29)."""
        return all(event.improved_ratio == 1.0 for event in self.events if event.factor > 0)


def write_problem(source: Path, target: Path, samples: int) -> None:
    """Write the first `samples` samples of an .npz or LIBSVM file (0: all) as an .npz that is its own test part."""
    if source.suffix == ".npz":
        with np.load(source, allow_pickle=False) as archive:
            x, y = archive["x_train"], archive["y_train"]
    else:
        from sklearn.datasets import load_svmlight_file

        matrix, labels = load_svmlight_file(str(source))
        x, y = matrix.toarray(), np.unique(labels, return_inverse=True)[1]
    count = samples or len(y)
    x, y = np.asarray(x[:count], dtype=np.float32), np.asarray(y[:count], dtype=np.int64)
    np.savez(target, allow_pickle=False, x_train=x, y_train=y, x_test=x, y_test=y)


def local_losses(settings: Settings) -> list[LocalLoss]:
    """The losses of the clients of a run; one alone where all hold the same data."""
    losses = []
    for client in range(1 if settings.partition == "file" else settings.clients):
        data = load_client(settings, client)
        module = build_model(
            settings.model, data.input_shape, data.num_classes, seed=settings.seed, dtype=torch.float64
        )
        model = FlatModel(module, torch.device("cpu"))
        samples = to_model_input(data.x_train, torch.float64), torch.tensor(data.y_train)
        losses.append(LocalLoss(model, samples, ridge=settings.ridge))
    return losses


def gradients(losses: Sequence[LocalLoss], theta: Tensor) -> Float64Array:
    """Gradients [K, D] at `theta` [D]."""
    rows: NDArray[np.float64] = torch.stack([loss.loss_and_gradient(theta)[1] for loss in losses]).numpy()
    return rows


def mean_gradient_norm(losses: Sequence[LocalLoss], theta: Tensor) -> float:
    """|mean gradient|."""
    return float(np.linalg.norm(gradients(losses, theta).mean(axis=0)))


def pareto_measure(losses: Sequence[LocalLoss], theta: Tensor) -> float:
    """Norm of the minimum-norm point of the gradients' hull: 0 where no direction lowers every loss."""
    return float(np.linalg.norm(minimum_norm_point(gradients(losses, theta)).step))


def follow(settings: Settings, measure: Callable[[Tensor], float], enough: Callable[[Sequence[float]], bool]) -> Trace:
    """Run in process until `enough` of the measures so far, or to the end."""
    trace = Trace([], [], [], 0.0, "")
    following = 0.0

    def on_model(round_number: int, record: ArrayRecord) -> MetricRecord | None:
        nonlocal following
        since = time.perf_counter()
        theta = torch.from_numpy(np.array(wire.decode_model(record)[0]))
        trace.models.append(theta)
        trace.measures.append(measure(theta))
        following += time.perf_counter() - since
        if enough(trace.measures):
            raise _Enough
        return None

    grid = InProcessGrid(app, settings.clients, settings.flat())
    strategy = DQNFed(settings, listeners=[_Events(trace.events)])
    strategy.registry.wait(grid)
    initial = initial_model(settings, strategy.registry)
    since = time.perf_counter()
    try:
        strategy.start(grid, initial, evaluate_fn=on_model)
        trace.status = "" if strategy.outcome is None else strategy.outcome.status
    except _Enough:
        trace.status = "reached"
    trace.seconds = time.perf_counter() - since - following
    return trace


class _Events:
    """Keeps the events of a run."""

    def __init__(self, events: list[RoundEvent]) -> None:
        self._events = events

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Nothing to keep yet."""

    def on_round(self, event: RoundEvent) -> None:
        """Keep it."""
        self._events.append(event)

    def on_end(self) -> None:
        """Nothing to keep any more."""


def smoothness(loss: LocalLoss, iterations: int = 200) -> float:
    """L, the largest eigenvalue of the Hessian, by power iteration at 0, where that of logistic regression peaks."""
    theta = torch.zeros(loss.model.spec.dim, dtype=torch.float64)
    vector = torch.randn(len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    size = 0.0
    for _ in range(iterations):
        vector = loss.hessian_product(theta, vector / torch.linalg.vector_norm(vector))
        size = float(torch.linalg.vector_norm(vector))
    return size


def gradient_descent(loss: LocalLoss, rate: float, limit: float, most: int) -> tuple[int, float]:
    """Rounds of FedSGD from 0 until |gradient| <= limit, `most` at most, and the last norm.

    Clients that hold the same data have the same gradient, so FedSGD on them is gradient descent on one.
    """
    theta = torch.zeros(loss.model.spec.dim, dtype=torch.float64)
    norm = float("inf")
    for done in range(most + 1):
        gradient = loss.loss_and_gradient(theta)[1]
        norm = float(torch.linalg.vector_norm(gradient))
        if norm <= limit:
            return done, norm
        theta = theta - rate * gradient
    return most, norm


def minimiser(loss: LocalLoss, start: Tensor, steps: int = 3) -> Tensor:
    """theta*, by a few Newton steps, each solved with conjugate gradients, from a model close to it."""
    theta = start
    dim = loss.model.spec.dim
    for _ in range(steps):
        at = theta

        def product(vector: Float64Array, at: Tensor = at) -> Float64Array:
            hessian_vector: Float64Array = loss.hessian_product(at, torch.tensor(vector.ravel())).numpy()
            return hessian_vector

        operator = LinearOperator((dim, dim), matvec=product, dtype=np.float64)
        newton, _ = cg(operator, loss.loss_and_gradient(theta)[1].numpy(), rtol=1e-10, maxiter=4 * dim)
        theta = theta - torch.from_numpy(newton)
    return theta
