"""A Flower app as users write it, on digits dealt out with skewed labels, plain and guarded."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp.strategy import Result, Strategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.mod import guard

Part = tuple[Tensor, Tensor]
Parts = Sequence[Part]


@cache
def skewed_digits(clients: int, seed: int = 0, labels: int = 2, samples: int = 40) -> tuple[Part, ...]:
    """Samples of each client, of a few labels drawn from `seed`."""
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    found = []
    for client in range(clients):
        own = [(client * labels + k) % 10 for k in range(labels)]
        places = draw.permutation(np.flatnonzero(np.isin(y, own)))[:samples]
        found.append((torch.tensor(x[places] / 16, dtype=torch.float32), torch.tensor(y[places])))
    return tuple(found)


def alike(clients: int, seed: int = 0) -> tuple[Part, ...]:
    """Samples of each client of one convex problem on which no client stands against the others."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(30, 4, generator=draw)
    y = (x @ torch.tensor([1.0, -2.0, 0.5, 1.5]) > 0).long()
    return tuple((x + 0.01 * torch.randn(30, 4, generator=draw), y) for _ in range(clients))


def linear(inputs: int = 64, outputs: int = 10) -> nn.Module:
    return nn.Linear(inputs, outputs)


def layered() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def normed() -> nn.Module:
    """With BatchNorm and dropout."""
    return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))


def app_on(
    parts: Parts,
    model: Callable[[], nn.Module] = linear,
    *,
    guarded: bool = True,
    epochs: int = 2,
    lr: float = 0.5,
    shuffle: bool = True,
    mods: Sequence[Mod] = (),
    held_out: Sequence[Part | None] = (),
) -> ClientApp:
    """The app; `mods` come after the guard, and `held_out` are parts that clients judge by, if they have any."""
    app = ClientApp()

    def part_of(context: Context) -> Part:
        return parts[int(context.node_config["partition-id"])]

    def local_loss(message: Message, context: Context) -> LocalTask:
        del message
        apart = held_out[int(context.node_config["partition-id"])] if held_out else None
        loader, *others = (
            DataLoader(TensorDataset(*part), batch_size=16, shuffle=shuffle)
            for part in (part_of(context), apart)
            if part is not None
        )
        return LocalTask(model(), loader, nn.CrossEntropyLoss(), held_out=others[0] if others else None)

    def train(message: Message, context: Context) -> Message:
        net = model()
        record = message.content["arrays"]
        assert isinstance(record, ArrayRecord)
        net.load_state_dict(record.to_torch_state_dict())
        net.train()
        data = TensorDataset(*part_of(context))
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        for _ in range(epochs):
            for inputs, targets in DataLoader(data, batch_size=16, shuffle=shuffle):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(data)})
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        loss = loss_at(message.content["arrays"], part_of(context), model)  # type: ignore[arg-type]
        metrics = MetricRecord({"loss": loss, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    app.train(mods=[guard(local_loss), *mods] if guarded else list(mods))(train)
    app.evaluate()(evaluate)
    return app


def loss_at(record: ArrayRecord, part: Part, model: Callable[[], nn.Module] = linear) -> float:
    """A client's training loss, computed apart from the package."""
    net = model()
    net.load_state_dict(record.to_torch_state_dict())
    net.eval()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(net(part[0]).double(), part[1]))


def initial(model: Callable[[], nn.Module] = linear, seed: int = 0) -> ArrayRecord:
    torch.manual_seed(seed)
    return ArrayRecord(model().state_dict())


class CountingGrid(InProcessGrid):
    """Counts pushes and messages by type."""

    def __init__(self, app: ClientApp | ClientAppCallable, clients: int) -> None:
        super().__init__(app, clients, {})  # type: ignore[arg-type]
        self.pushes: list[list[str]] = []

    @property
    def exchanges(self) -> list[list[str]]:
        """The pushes with messages to train, or to test."""
        return [types for types in self.pushes if MessageType.TRAIN in types]

    def push_messages(self, messages) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        messages = list(messages)
        self.pushes.append([message.metadata.message_type for message in messages])
        return super().push_messages(messages)


def trained(
    strategy: Strategy,
    app: ClientApp,
    clients: int,
    rounds: int,
    *,
    model: Callable[[], nn.Module] = linear,
    start: ArrayRecord | None = None,
    grid: InProcessGrid | None = None,
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
) -> Result:
    """A run from a fixed state of all generators."""
    start = initial(model) if start is None else start
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    grid = grid or CountingGrid(app, clients)
    return strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=evaluate)


def bits(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.numpy().tobytes() for name, array in record.items()}
