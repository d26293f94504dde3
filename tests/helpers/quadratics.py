"""A federation without data: client k's loss is a quadratic whose gradient and Hessian are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecordValues, Context, Message
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.client.worker import probe
from dqnfed_flwr.config import Settings
from dqnfed_flwr.strategy.strategy import DQNFed
from dqnfed_flwr.types import ClientReply, Evaluation, Float64Array


@dataclass(frozen=True)
class Quadratic:
    """f(theta) = 1/2 sum_i curvature_i (theta_i - center_i)^2, of a client with so many samples."""

    center: Float64Array
    curvature: Float64Array | float = 1.0
    examples: int = 10

    def loss(self, theta: Float64Array) -> float:
        """f(theta)."""
        return float(0.5 * np.sum(self.curvature * (theta - self.center) ** 2))

    def gradient(self, theta: Float64Array) -> Float64Array:
        """Gradient [D]; its squared Newton decrement is twice the loss."""
        return np.asarray(self.curvature * (theta - self.center))


@dataclass
class Federation:
    """Objectives by partition, and a record of what every client was asked."""

    objectives: Sequence[Quadratic]
    armijo: float = 1e-4
    asked: list[tuple[int, wire.Assignment]] = field(default_factory=list)

    def app(self) -> ClientApp:
        """The ClientApp that every node runs."""
        app = ClientApp()
        app.train()(self.answer)
        app.evaluate()(self.answer)
        app.query()(self.describe)
        return app

    def answer(self, message: Message, context: Context) -> Message:
        """Answer a task as the package's own client does, with exact rates."""
        client = int(context.node_config["partition-id"])
        given = wire.decode_task(message.content)
        self.asked.append((client, given))
        return Message(wire.encode_reply(self.reply(client, given)), reply_to=message)

    def reply(self, client: int, given: wire.Assignment) -> ClientReply:
        """What client `client` has to say at the model it is sent."""
        objective, task = self.objectives[client], given.task
        theta = np.asarray(given.theta, np.float64)
        step = np.zeros_like(theta) if given.step is None else np.asarray(given.step, np.float64)

        def loss_at(factor: float) -> float:
            return objective.loss(theta + (task.factor - factor) * step)

        loss = objective.loss(theta)
        return ClientReply(
            num_examples=objective.examples,
            row=objective.gradient(theta) if task.train else None,
            loss=loss if task.train else float("nan"),
            rate=2 * loss if task.train else float("nan"),
            probe=probe(loss_at, task, self.armijo, dtype=str(given.theta.dtype)) if task.probe else None,
            test=Evaluation(round(100 * np.exp(-loss)) if np.isfinite(loss) else 0, 100, loss)
            if task.evaluate
            else None,
        )

    def describe(self, message: Message, context: Context) -> Message:
        """Answer the query of a node's properties."""
        client = int(context.node_config["partition-id"])
        properties: dict[str, ConfigRecordValues] = {
            "partition": client,
            "num-examples": self.objectives[client].examples,
            "num-classes": 2,
            "input-shape": "1",
        }
        return Message(wire.encode_properties(properties), reply_to=message)


def spread_out(clients: int, dim: int = 6, seed: int = 0) -> list[Quadratic]:
    """Objectives with minima around (1, ..., 1): from 0 all can fall together for a while."""
    rng = np.random.default_rng(seed)
    return [
        Quadratic(1 + 0.3 * rng.standard_normal(dim), rng.uniform(0.5, 2.0, dim), 10 + client)
        for client in range(clients)
    ]


def opposed() -> list[Quadratic]:
    """Two objectives whose gradients at 0 are opposite: 0 is Pareto-stationary."""
    return [Quadratic(np.array([1.0, 0.0])), Quadratic(np.array([-1.0, 0.0]))]


def start_at(theta: Sequence[float] | NDArray[np.floating], dtype: str = "float64") -> ArrayRecord:
    """The record of a model without buffers."""
    return wire.encode_model(np.asarray(theta, dtype), {})


def strategy(clients: int, mapping: Mapping[str, Any] | None = None) -> DQNFed:
    """A strategy for `clients` clients in float64; unless told otherwise one-sided, and no loss may rise."""
    defaults = {
        "clients": clients,
        "rounds": 3,
        "dtype": "float64",
        "dqn-fed.form": "one-sided",
        "local.threads": 1,
        "guarantee.entitlement": 0,
    }
    return DQNFed(Settings.from_mapping({**defaults, **(mapping or {})}))
