"""A Flower app with Flower's own FedAvg, whose clients compute what DQN-Fed's do: one gradient at the model received.

It starts from the same model. A constant one would not do: Flower sends equal parts of an array once, and the gradient
of equal units is as repetitive, so that a fraction of the bytes would go over the wire.

`benchmarks/deployed.py` lays it out as an app of its own. The module also has the model and the data of that benchmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

    from dqnfed_flwr.client.numpy_client import DQNFedClient
    from dqnfed_flwr.config import Scalar

OWN = ("strategy-rounds", "times", "nodes")
"""Keys of this app's run config; the others are settings of dqnfed-flwr."""
SAMPLES, SIDE, CLASSES = 16, 8, 10
FEATURES = SIDE**2
HIDDEN = 11_000_000 // (FEATURES + 1 + CLASSES)
LR = 0.01
server_app = ServerApp()
client_app = ClientApp()


def few(settings: Mapping[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """A few samples of noise, so that the time goes into the exchange."""
    del settings, clients
    random = np.random.default_rng(partition)
    x = random.random((2 * SAMPLES, SIDE, SIDE), dtype=np.float32)
    return {"x_train": x, "y_train": np.arange(2 * SAMPLES) % CLASSES}


def wide(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A perceptron of 11 million parameters: 44 MB."""
    del input_shape
    return _perceptron(HIDDEN, num_classes)


def ten_million(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A perceptron of 10 million parameters: 40 MB."""
    del input_shape
    return _perceptron(10_000_000 // (FEATURES + 1 + CLASSES), num_classes)


def _perceptron(hidden: int, num_classes: int) -> nn.Module:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg without evaluation; the end of each round adds a line to the file `times`."""
    config = context.run_config
    nodes = int(config["nodes"])

    def note(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del arrays
        with Path(str(config["times"])).open("a") as times:
            times.write(f"{server_round}\n")
        return MetricRecord()

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    initial = ArrayRecord({"theta": Array(first_model(str(config["model"])))})
    strategy.start(grid, initial, num_rounds=int(config["strategy-rounds"]), evaluate_fn=note)


def first_model(name: str) -> NDArray[np.float32]:
    """The parameters [D] that a run of DQN-Fed with these data starts from."""
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.models import build_model
    from dqnfed_flwr.params import ParamSpec

    module = build_model(name, (SIDE, SIDE), CLASSES, seed=Settings().seed)
    theta: NDArray[np.float32] = ParamSpec.of(module).flatten(module).numpy()
    return theta


@lru_cache(maxsize=4)
def client_of(settings: tuple[tuple[str, Scalar], ...], partition: int) -> DQNFedClient:
    """The client of a partition, built once."""
    from dqnfed_flwr.client.numpy_client import DQNFedClient
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.data import load_client

    read = Settings.from_mapping(dict(settings))
    return DQNFedClient(read, partition, load_client(read, partition))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One full-batch gradient step."""
    from dqnfed_flwr.types import ClientTask, on_host

    settings = tuple((key, value) for key, value in context.run_config.items() if key not in OWN)
    theta = message.content.array_records["arrays"]["theta"].numpy()
    client = client_of(settings, int(context.node_config["partition-id"]))
    task = ClientTask(exchange=1, round=1, train=True, probe=False, evaluate=False, num_classes=CLASSES)
    reply = client.work(task, theta)
    if reply.row is None:
        raise ValueError("a task to train brings a gradient")
    arrays = ArrayRecord({"theta": Array(theta - np.float32(LR) * on_host(reply.row))})
    metrics = MetricRecord({"num-examples": reply.num_examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
