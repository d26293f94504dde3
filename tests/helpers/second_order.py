"""Small convex federations for second-order methods: clients, their server, and the optimum as SciPy finds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.optimize import root
from scipy.special import softmax

from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData
from dqnfed_flwr.linalg.rows import RowSet
from dqnfed_flwr.methods._base import Method, RoundRows
from dqnfed_flwr.strategy.solve import Solved, solve
from dqnfed_flwr.types import ClientReply, ClientTask, Float64Array
from tests.helpers.hearings import batch_of

CLASSES, FEATURES, RIDGE = 3, 4, 0.05
DIM = CLASSES * (FEATURES + 1)


def client_data(number: int, samples: int = 20) -> ClientData:
    """Random samples whose classes overlap; each client has its own mixture and its own count."""
    rng = np.random.default_rng(number)
    labels = rng.choice(CLASSES, samples + 5 * number, p=rng.dirichlet([1.0] * CLASSES))
    labels[:CLASSES] = np.arange(CLASSES)
    inputs = rng.standard_normal((len(labels), FEATURES)) + np.eye(CLASSES, FEATURES)[labels]
    return ClientData(inputs, labels, inputs[:0], labels[:0], inputs[:1], labels[:1], num_classes=CLASSES)


def settings_of(clients: int, mapping: Mapping[str, Any]) -> Settings:
    """Settings of logistic regression with a ridge, in float64."""
    defaults = {"clients": clients, "model": "logistic", "dtype": "float64", "ridge": RIDGE, "local.threads": 1}
    return Settings.from_mapping({**defaults, **mapping})


def gradient_at(theta: Float64Array, data: ClientData) -> Float64Array:
    """Gradient [D] of the mean cross-entropy plus RIDGE / 2 |theta|^2, without torch."""
    errors = softmax(_logits(theta, data), axis=1) - np.eye(CLASSES)[data.y_train]
    weights = errors.T @ data.x_train / len(errors)
    return np.concatenate([weights.ravel(), errors.mean(axis=0)]) + RIDGE * theta


def hessian_at(theta: Float64Array, data: ClientData) -> Float64Array:
    """The Hessian [D, D] by central differences of the gradient, good to about 1e-9."""
    columns = [
        (gradient_at(theta + 1e-5 * unit, data) - gradient_at(theta - 1e-5 * unit, data)) / 2e-5 for unit in np.eye(DIM)
    ]
    return np.array(columns)


def optimum(parts: list[ClientData]) -> Float64Array:
    """The minimum of the mean loss by sample share."""
    counts = np.array([len(part.y_train) for part in parts])
    shares = counts / counts.sum()

    def slope(theta: Float64Array) -> Float64Array:
        return np.asarray(shares @ [gradient_at(theta, part) for part in parts])

    found = root(slope, np.zeros(DIM), method="hybr", options={"xtol": 1e-14})
    return np.asarray(found.x)


def _logits(theta: Float64Array, data: ClientData) -> Float64Array:
    weights = theta[: CLASSES * FEATURES].reshape(CLASSES, FEATURES)
    return np.asarray(data.x_train @ weights.T + theta[CLASSES * FEATURES :])


def row_of(reply: ClientReply) -> Float64Array:
    """The row of a client that trained, in float64."""
    assert reply.row is not None
    return np.asarray(reply.row, np.float64)


class Rounds:
    """Clients and a method, driven round by round without a transport; every step is taken in full."""

    def __init__(self, settings: Settings, parts: list[ClientData], method: Method, theta: Float64Array) -> None:
        self.settings, self.method, self.theta = settings, method, theta
        self.clients = [DQNFedClient(settings, number, part) for number, part in enumerate(parts)]
        self.round, self.step = 0, np.zeros_like(theta)

    def replies(self, present: list[int] | None = None) -> dict[int, ClientReply]:
        """What clients answer in the coming round."""
        number = self.round + 1
        sent = self.step if self.round else None
        return {
            k: self.clients[k].work(
                ClientTask(number, number, factor=float(self.round > 0), directives=self.method.directives(number, k)),
                self.theta,
                sent,
            )
            for k in (range(len(self.clients)) if present is None else present)
        }

    def go(self, rounds: int = 1, present: list[int] | None = None) -> Solved:
        """Take rounds, with the clients `present` in each."""
        for _ in range(rounds):
            solved = self.decide(self.replies(present))
            self.theta, self.step = self.theta - solved.step.numpy(), solved.step.numpy()
            self.method.step_taken(solved.step, 1.0)
        return solved

    def decide(self, replies: dict[int, ClientReply]) -> Solved:
        """The step of the coming round."""
        self.round += 1
        dim = len(self.theta)
        held = RowSet(len(replies) + self.method.reference_rows, dim, torch.float64)
        for slot, reply in enumerate(replies.values()):
            held.put(slot, row_of(reply))
        names = self.method.extras(dim).vectors
        vectors = {name: tuple(reply.vectors[name] for reply in replies.values()) for name in names}
        rows = RoundRows(held, tuple(range(len(replies))), vectors)
        batch = batch_of(replies, rows, self.round, theta_norm=float(np.linalg.norm(self.theta)))
        return solve(self.method, batch, rows)
