"""The same round of full gradients by others: a plain loop over clients, and pfl-research's simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks._common import median
from dqnfed_flwr.linalg.min_norm import one_sided_weights
from dqnfed_flwr.models import build_model

LR = 0.1
SHAPE, CLASSES = (3, 32, 32), 10
Client = tuple[NDArray[np.float32], NDArray[np.int64]]


def loop_seconds(clients: Sequence[Client], rounds: int) -> float:
    """Median seconds of a round of one client after the other: gradients into rows, one-sided DQN-Fed step."""
    samples = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in clients]
    model = build_model("mlp", SHAPE, CLASSES, seed=0)
    parameters = list(model.parameters())
    rows = torch.empty(len(samples), sum(parameter.numel() for parameter in parameters))

    def one_round() -> None:
        for row, (inputs, labels) in zip(rows, samples, strict=True):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, parameters)], out=row)
        gram = (rows @ rows.T).double().numpy()
        weights = one_sided_weights(gram, LR * np.diag(gram)).weights
        step = torch.mv(rows.T, torch.from_numpy(weights).float())
        _descend(parameters, step)

    return _median_seconds(one_round, rounds)


def _descend(parameters: Sequence[nn.Parameter], step: Tensor) -> None:
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(step, [p.numel() for p in parameters]), strict=True):
            parameter.sub_(part.view(parameter.shape), alpha=0.01)


def _median_seconds(one_round: Any, rounds: int) -> float:
    one_round()
    seconds = []
    for _ in range(rounds):
        since = time.perf_counter()
        one_round()
        seconds.append(time.perf_counter() - since)
    return median(seconds)


def pfl_seconds(clients: Sequence[Client], rounds: int) -> float | None:
    """Median seconds of a round of pfl-research's FedAvg with one full-batch step a client; None where it is absent.

    Its evaluation is switched off, and its server step is a mean: less work than that of the others.
    """
    if find_spec("pfl") is None:
        return None
    parts: dict[str, Any] = {
        name: import_module(f"pfl.{name}")
        for name in (
            *("algorithm.base", "algorithm.federated_averaging", "aggregate.simulate", "callback.base"),
            *("data.dataset", "data.federated_dataset", "data.sampling", "hyperparam", "model.pytorch"),
        )
    }
    clock = _clock(parts["callback.base"].TrainingProcessCallback)
    users = {
        str(number): parts["data.dataset"].Dataset([torch.from_numpy(x), torch.from_numpy(y)])
        for number, (x, y) in enumerate(clients)
    }
    sampler = parts["data.sampling"].get_user_sampler("minimize_reuse", list(users))
    population = parts["data.federated_dataset"].FederatedDataset(users.__getitem__, sampler)
    backend = parts["aggregate.simulate"].SimulatedBackend(training_data=population, val_data=None)
    module = _PflModule()
    model = parts["model.pytorch"].PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=0.01),
    )
    parts["algorithm.federated_averaging"].FederatedAveraging().run(
        parts["algorithm.base"].NNAlgorithmParams(
            central_num_iterations=rounds + 2,
            evaluation_frequency=10**6,
            train_cohort_size=len(clients),
            val_cohort_size=None,
        ),
        backend,
        model,
        parts["hyperparam"].NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=LR),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    return median(np.diff(cast(Any, clock).times)[1:].tolist())


def _clock(base: type) -> Any:
    def note(self: Any, *_: object, **__: object) -> tuple[bool, Any]:
        self.times.append(time.perf_counter())
        return False, import_module("pfl.metrics").Metrics()

    clock = type("Clock", (base,), {"after_central_iteration": note})()
    clock.times = []
    return clock


class _PflModule(nn.Module):
    """The network with the two methods that pfl-research asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("mlp", SHAPE, CLASSES, seed=0)

    def loss(self, inputs: Tensor, labels: Tensor, **_: object) -> Tensor:
        """Mean cross-entropy."""
        return nn.functional.cross_entropy(self.inner(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor, **_: object) -> dict[str, Any]:
        """None."""
        del inputs, labels
        return {}
