"""Tasks of a user's own: what is at fault in one is named, with the client and the line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from dqnfed_flwr.client.app import app, forget_clients
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import ConfigError, DataError, DQNFedError, ModelError, QuorumError
from dqnfed_flwr.tasks import Datasets, Task, task_of
from tests.helpers.own_task import Line, whole

SETTINGS: dict[str, str | int | float] = {"clients": 2, "rounds": 1, "local.threads": 1}
OWN = "tests.helpers.own_task"


def losing(make: Callable[[Any, nn.Module, Any], Any]) -> type[Task]:
    """A task whose losses are made of those of `Line`, the model and the batch."""

    class Own(Line):
        def losses(self, model: nn.Module, batch: Any) -> Any:
            return make(super().losses(model, batch), model, batch)

    return Own


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    return (model(x) - y).square()[:, 0]


class NoSample(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        found = super().datasets(partition, clients, seed)
        return Datasets(TensorDataset(torch.zeros(0, 3), torch.zeros(0, 1)), found.test)


class Endless(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Iterator[Any]:
                return iter(())

        return Datasets(Stream(), super().datasets(partition, clients, seed).test)  # type: ignore[arg-type]


class Unread(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        class Broken(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                raise OSError("scan 7 is cut short")

        found = super().datasets(partition, clients, seed)
        return Datasets(Broken(*whole(found.train)), found.test)


class Changing(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        class Noisy(TensorDataset):
            def __getitem__(self, index: Any) -> Any:
                x, y = (each[index] for each in self.tensors)
                return x + torch.randn(x.shape), y

        found = super().datasets(partition, clients, seed)
        return Datasets(Noisy(*whole(found.train)), found.test)


class DataRaise(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        raise KeyError("clinic")


class DataElse(Line):
    def datasets(self, partition: int, clients: int, seed: int) -> Any:
        return [1, 2], [3]


class Dropping(Line):
    @staticmethod
    def collate(samples: list[Any]) -> Any:
        return default_collate(samples[: max(1, len(samples) - 1)])


class ModelRaises(Line):
    def model(self) -> nn.Module:
        raise FileNotFoundError("weights.pt")


class ModelElse(Line):
    def model(self) -> Any:
        return "resnet"


class ModelLazy(Line):
    def model(self) -> nn.Module:
        return nn.LazyLinear(1)


class MetricsElse(Line):
    def metrics(self) -> Any:
        return ["mae"]


class MetricsRaise(Line):
    def metrics(self) -> Any:
        raise ImportError("no torchmetrics")


class Words(Line):
    def metrics(self) -> Any:
        class Word:
            def update(self, predictions: Tensor, targets: Tensor) -> None:
                pass

            def compute(self) -> Any:
                return torch.ones(3)

        return {"word": Word()}


class Tripled(Line):
    def predictions(self, model: nn.Module, batch: Any) -> Any:
        return 1, 2, 3

    def metrics(self) -> Any:
        from tests.helpers.own_task import Picky

        return {"picky": Picky()}


class Unfinished(Task):
    def model(self) -> nn.Module:
        return nn.Linear(3, 1)


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (
            losing(lambda losses, *_: losses.mean()),
            DataError,
            r"client 0: losses gave \(\) for a batch of 8 samples; give one loss a sample, \[8\]",
        ),
        (losing(lambda *_: 1.5), DataError, "client 0: losses gave float for a batch of 8 samples"),
        (
            losing(lambda losses, *_: losses.reshape(-1, 2)),
            DataError,
            r"client 0: losses gave \(4, 2\) for a batch of 8",
        ),
        (
            losing(lambda losses, *_: losses / 0),
            DataError,
            r"client 0: the loss is not finite at sample 0 \(inf\).*clean their inputs and targets",
        ),
        (
            losing(lambda _, model, batch: squares(model, batch[0] - batch[0].mean(0), batch[1])),
            DataError,
            r"client 0: 8 samples have a loss of .* in one batch and of .* one by one",
        ),
        (
            losing(lambda _, model, batch: squares(model, nn.functional.dropout(batch[0], 0.5), batch[1])),
            ModelError,
            r"client 0: the same samples have another loss .* draw no random numbers in losses\(\)",
        ),
        (
            losing(lambda losses, *_: losses * random.random()),
            ModelError,
            "client 0: the same samples have another loss each time",
        ),
        (
            losing(lambda _, model, batch: batch["nothing"]),
            DataError,
            r"client 0: losses\(\) raised TypeError: .* \(test_own.py, line \d+\), for samples of ",
        ),
        (
            losing(lambda losses, *_: (losses, torch.ones(3))),
            DataError,
            r"client 0: losses are \(8,\) and their weights \(3,\)",
        ),
        (
            losing(lambda losses, *_: (losses, torch.zeros_like(losses))),
            DataError,
            "client 0: the weights of the client's losses add up to nothing",
        ),
        (NoSample, DataError, "client 0: the train data set has no sample; give it at least one"),
        (Endless, DataError, "client 0: the train data set, of type Stream, has no length; give a map-style one"),
        (Unread, DataError, "client 0: .*OSError: scan 7 is cut short"),
        (Changing, DataError, "client 0: sample 0 .*is another one each time it is read"),
        (DataRaise, DataError, r"client 0: datasets\(\) raised KeyError: 'clinic' \(test_own.py, line \d+\)"),
        (DataElse, DataError, r"client 0: datasets\(\) returned tuple; it must return dqnfed_flwr.tasks.Datasets"),
        (Dropping, DataError, r"client 0: losses gave \(7,\) for a batch of 8 samples; .*collate that keeps every"),
        (ModelRaises, ModelError, r"task: model\(\) raised FileNotFoundError: weights.pt \(test_own.py, line \d+\)"),
        (ModelElse, ModelError, r"task: model\(\) returned str; it must return a torch.nn.Module"),
        (ModelLazy, ModelError, r"task: model\(\) has lazy layers, whose shapes are not known; give them their"),
        (Words, DataError, r"client 0: metric 'word' gave a tensor of shape \[3\]; its compute\(\) must give one"),
        (Tripled, DataError, r"client 0: predictions\(\) raised .*; it must give predictions, targets"),
        (MetricsElse, ConfigError, r"task: metrics\(\) returned \['mae'\]; it must return counters with update"),
        (MetricsRaise, ConfigError, r"metrics\(\) raised ImportError: no torchmetrics \(test_own.py, line \d+\)"),
        (Unfinished, ConfigError, r"object:Unfinished does not say datasets\(\), losses\(\); a task has model\(\)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_of_a_task_ends_the_run_with_its_name(task: type[Task], error: type[DQNFedError], message: str) -> None:
    with pytest.raises(error, match=message):
        run(SETTINGS, task=task)


def test_a_loss_may_have_any_sign() -> None:
    class Linear(Line):
        def losses(self, model: nn.Module, batch: Any) -> Any:
            return model(batch[0])[:, 0]

    module = nn.Linear(3, 1)
    nn.init.zeros_(module.weight)
    nn.init.ones_(module.bias)
    loss = LocalLoss(FlatModel(module, torch.device("cpu")), (torch.ones(4, 3), torch.ones(4, 1)), task=Linear())
    theta = loss.model.theta.clone()
    assert loss.loss(theta) == 1
    assert loss.loss(-theta) == loss.loss_and_gradient(-theta)[0] == -1


def on_nodes(task: str, **more: str | int | float) -> RunResult:
    """A run of three clients that may fail by themselves, as on real nodes."""
    settings = Settings.from_mapping({**SETTINGS, "clients": 3, "rounds": 2, "deadline": 1.0, "task": task, **more})
    forget_clients()
    return serve(InProcessGrid(app, 3, settings.flat()), settings)


def test_a_client_without_data_costs_only_itself() -> None:
    result = on_nodes(f"{OWN}:BadDataOfOne")
    assert result.status == "finished"
    assert [event.participants for event in result.events] == [[0, 2], [0, 2]]
    (why,) = result.left_out.values()
    assert "task: client 1: datasets() raised FileNotFoundError: no scans here (own_task.py, line" in why


def test_a_client_whose_figure_raises_costs_only_itself() -> None:
    result = on_nodes(f"{OWN}:BadMetricOfOne")
    assert result.status == "finished"
    assert sorted(result.accuracies) == [0, 2]
    (why,) = result.left_out.values()
    assert "task: client 1: metric 'picky' raised ValueError: too large (own_task.py, line" in why


class Curve(Line):
    """Its figure needs both kinds of targets, and the first of the test samples are alike."""

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        found = super().datasets(partition, clients, seed)
        y = torch.cat([torch.zeros(20, 1), torch.ones(20, 1)])
        return Datasets(found.train, TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(1)), y))

    def metrics(self) -> Any:
        class Both:
            def __init__(self) -> None:
                self.seen: set[float] = set()

            def update(self, predictions: Tensor, targets: Tensor) -> None:
                self.seen |= set(targets.flatten().tolist())

            def compute(self) -> float:
                if len(self.seen) < 2:
                    raise ValueError("one class only")
                return 0.5

        return {"both": Both()}


def test_a_figure_that_a_few_samples_do_not_give_is_no_fault() -> None:
    assert run(SETTINGS, task=Curve()).accuracies == {0: 0.5, 1: 0.5}


class Later(Line):
    """A figure that fails when the model has moved."""

    def predictions(self, model: nn.Module, batch: Any) -> Any:
        now = float(dict(model.named_parameters())["bias"])
        self._first = getattr(self, "_first", now)
        if now != self._first:
            raise ArithmeticError("moved")
        return batch[1], batch[1]

    def metrics(self) -> Any:
        from tests.helpers.own_task import Picky

        return {"picky": Picky()}


def test_a_figure_that_fails_for_all_on_the_way_ends_the_run_with_its_words() -> None:
    with pytest.raises(QuorumError, match=r"predictions\(\) raised ArithmeticError: moved \(test_own.py, line"):
        run({**SETTINGS, "rounds": 2}, task=Later())


def test_a_model_that_is_kept_is_copied_for_every_client() -> None:
    kept = nn.Linear(3, 1)

    class Keeping(Line):
        def model(self) -> nn.Module:
            return kept

    before = [parameter.detach().clone() for parameter in kept.parameters()]
    result = run({**SETTINGS, "rounds": 3}, task=Keeping())
    assert all(torch.equal(one, other) for one, other in zip(before, kept.parameters(), strict=True))
    assert result.events[0].losses_before != result.events[-1].losses_after


def test_predictions_and_counters_that_change_what_they_are_given() -> None:
    class Summing:
        def __init__(self) -> None:
            self.total = 0.0

        def update(self, predictions: Tensor, targets: Tensor) -> None:
            self.total += float(targets.sum())
            targets.zero_()

        def compute(self) -> float:
            return self.total

    class InPlace(Line):
        def predictions(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
            predictions, targets = super().predictions(model, batch)
            return predictions, targets.mul_(2.0)

        def metrics(self) -> dict[str, Any]:
            return {"first": Summing(), "second": Summing()}

    torch.manual_seed(0)
    inputs, targets = torch.ones(4, 3), torch.ones(4, 1)
    loss = LocalLoss(FlatModel(nn.Linear(3, 1), torch.device("cpu")), (inputs, targets), task=InPlace())
    found = [loss.evaluate(loss.model.theta, loss.samples).figures for _ in range(3)]
    assert found == [{"first": 8.0, "second": 8.0}] * 3
    assert torch.equal(targets, torch.ones(4, 1))


def test_a_task_that_brings_its_data_sets_leaves_the_setting_unread() -> None:
    own, named = (task_of(Settings.from_mapping({"task": task})).source for task in (f"{OWN}:Line", "classification"))
    assert (own.kind, own.is_code, own.fingerprint()) == ("task", True, None)
    assert (named.kind, named.is_code) == ("package", False)
    assert named.fingerprint()
