"""Flower's own strategies over the package's clients, driven in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedTrimmedAvg, Krum

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.types import ClientTask, FloatArray

STOCK: dict[str, Callable[[], FedAvg]] = {
    "Flower FedAvg": FedAvg,
    "Flower Krum": lambda: Krum(num_malicious_nodes=3),
    "Flower trimmed mean": lambda: FedTrimmedAvg(beta=0.3),
}


@dataclass(slots=True)
class StockRun:
    """What a run of a stock strategy left."""

    theta: FloatArray
    ended: str = ""
    losses: list[dict[int, float]] = field(default_factory=list)
    accuracies: dict[int, float] = field(default_factory=dict)

    def improved(self, without: Collection[int], number: int) -> float:
        """rho of a round over the clients but those in `without`; a loss that is not finite is no improvement."""
        before, after = self.losses[number], self.losses[number + 1]
        both = (set(before) & set(after)) - set(without)
        return sum(math.isfinite(after[k]) and after[k] <= before[k] for k in both) / len(both) if both else math.nan


def stock_run(name: str, settings: Settings, grid: InProcessGrid) -> StockRun:
    """Train with a stock strategy until the rounds are over or it raises.

    A client's displacement becomes the model that it would send; whatever else is in its reply stays as it is.
    """
    registry = ClientRegistry(settings.clients, settings.clients, settings.deadline)
    registry.wait(grid)
    model, _, buffers = wire.decode_model(initial_model(settings, registry))
    run = StockRun(np.array(model))
    nodes = {member.node_id: client for client, member in registry.members.items()}
    strategy = STOCK[name]()
    for number in range(1, settings.rounds + 2):
        last = number > settings.rounds
        task = ClientTask(number, number, train=True, evaluate=last, num_classes=registry.form.num_classes)
        replies = _ask(grid, nodes, task, run.theta, buffers)
        run.losses.append({nodes[reply.metadata.src_node_id]: _loss(reply) for reply in replies})
        if last:
            run.accuracies = {nodes[reply.metadata.src_node_id]: _accuracy(reply) for reply in replies}
            return run
        try:
            sent = [_as_stock(reply, run.theta) for reply in replies]
            arrays, _ = strategy.aggregate_train(number, sent)
            if arrays is not None:
                run.theta = _taken(arrays, run.theta)
        except Exception as error:  # whatever ends the run is the figure
            run.ended = type(error).__name__
            return run
    return run


def _ask(
    grid: InProcessGrid, nodes: dict[int, int], task: ClientTask, theta: FloatArray, buffers: wire.Buffers
) -> list[Message]:
    content = wire.encode_task(task, wire.encode_model(theta, buffers))
    with torch.random.fork_rng():
        return grid.send_and_receive([Message(content, node, MessageType.TRAIN, group_id="1") for node in nodes])


def _as_stock(reply: Message, theta: FloatArray) -> Message:
    """A client's reply as Flower's strategies expect it: its model, and figures."""
    if reply.has_error():
        return reply
    arrays = ArrayRecord()
    for key, array in reply.content.array_records[wire.VECTORS].items():
        row = array.numpy()
        arrays[key] = Array(theta - row if row.shape == theta.shape else row)
    figures = reply.content.metric_records[wire.FIGURES]
    kept = MetricRecord({key: figures[key] for key in ("num-examples", "loss") if key in figures})
    return Message(RecordDict({"arrays": arrays, "metrics": kept}), reply_to=_question(reply))


def _question(reply: Message) -> Message:
    asked = Message(RecordDict(), reply.metadata.src_node_id, MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = "1"
    return asked


def _taken(arrays: ArrayRecord, theta: FloatArray) -> FloatArray:
    model = arrays["gradient"].numpy()
    if model.shape != theta.shape or np.iscomplexobj(model):
        raise ValueError(f"the next model has shape {model.shape} and dtype {model.dtype}")
    return np.asarray(model, theta.dtype)


def _loss(reply: Message) -> float:
    if reply.has_error():
        return math.nan
    value = reply.content.metric_records[wire.FIGURES].get("loss", math.nan)
    return float(value) if isinstance(value, int | float) else math.nan


def _accuracy(reply: Message) -> float:
    if reply.has_error():
        return 0.0
    figures = reply.content.metric_records[wire.FIGURES]
    return float(str(figures["test-correct"])) / float(str(figures["test-examples"]))
