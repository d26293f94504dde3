"""One client's fault costs one client: it is left out by name, or trains without a figure, and the run goes on."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dqnfed_flwr import run
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.clients import summarise, summarise_targets
from dqnfed_flwr.engine.dry_run import dry_run
from dqnfed_flwr.engine.notices import left_out
from dqnfed_flwr.engine.run import objects_of, settings_with
from dqnfed_flwr.errors import DataError, QuorumError
from dqnfed_flwr.report.class_table import notes
from dqnfed_flwr.report.table import data_lines
from dqnfed_flwr.tasks import Datasets, Task
from tests.helpers.own_task import Line, whole

SETTINGS: dict[str, Any] = {"clients": 3, "rounds": 2, "local.threads": 1, "model": "logistic"}
Arrays = dict[str, np.ndarray[Any, Any]]


def samples(partition: int, count: int) -> Arrays:
    x = np.random.default_rng(partition).normal(size=(count, 2)).astype(np.float32)
    return {"x_train": x, "y_train": (x.sum(axis=1) > 0).astype(np.int64), "num_classes": np.array(2)}


def sized(*sizes: int) -> Any:
    """Data of clients with so many samples."""

    def data(partition: int, clients: int, seed: int) -> Arrays:
        return samples(partition, sizes[partition])

    return data


def test_a_client_without_samples_is_left_out_by_name(said: list[str]) -> None:
    result = run(SETTINGS, data=sized(20, 0, 30))

    assert result.status == "finished"
    assert sorted(result.accuracies) == result.joined == [0, 2]
    why = result.left_out["client 1"]
    assert why.startswith("unfit-data: ")
    assert "x_train has 0 samples" in why
    assert "client 1 in none (unfit-data: " in left_out(result)
    assert [drop.client for event in result.events for drop in event.dropped] == [1, 1]
    assert "Client 1 (node 3) does not take part: " in "\n".join(said)


def test_features_that_are_not_finite_cost_their_client_alone() -> None:
    def data(partition: int, clients: int, seed: int) -> Arrays:
        arrays = samples(partition, 20)
        if partition == 2:
            arrays["x_train"][:] = np.nan
        return arrays

    result = run(SETTINGS, data=data)

    assert result.joined == [0, 1]
    assert "hold NaN or infinite features" in result.left_out["client 2"]


def test_a_client_of_one_sample_trains_and_has_no_figure(said: list[str]) -> None:
    result = run(SETTINGS, data=sized(20, 1, 30))

    assert result.joined == [0, 1, 2]
    assert all(event.votes.heard == (0, 1, 2) for event in result.events)
    assert sorted(result.accuracies) == [0, 2]
    assert result.without_figure == {"test": [1]}
    assert not result.left_out
    assert "client 1 has 1 sample(s) in object:data: it trains on them" in "\n".join(said)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 0, 0), "x_train has 0 samples"),
        ((1, 1, 1), "none of 3 clients has a test sample"),
        ((0, 1, 0), "none of 1 clients has a test sample"),
    ],
)
def test_where_nobody_is_left_the_run_does_not_begin(sizes: tuple[int, ...], message: str, said: list[str]) -> None:
    with pytest.raises(DataError, match=message) as refused:
        run(SETTINGS, data=sized(*sizes))
    assert [line for line in said if str(refused.value) in line] == []  # the error says it, once


def test_the_fewest_clients_of_the_settings_stay_a_bound() -> None:
    with pytest.raises(QuorumError, match=r"2 of 3 clients .* at least 3 are needed .*unfit-data: client 1"):
        run({**SETTINGS, "min-clients": 3}, data=sized(20, 0, 30))


def test_a_fault_of_the_set_that_all_share_ends_the_run_at_the_first_client() -> None:
    asked = []

    def data(partition: int, clients: int, seed: int) -> Arrays:
        asked.append(partition)
        return samples(partition, 20)

    with pytest.raises(DataError, match="needs the array groups_train"):
        run({**SETTINGS, "partition": "groups", "data": "digits"})
    with pytest.raises(DataError, match="labels go up to 1, but 1 classes are stated"):
        run({**SETTINGS, "num-classes": 1}, data=data)
    assert asked == [0, 1, 2]  # a function may be at fault for one client alone


class Ignored(Line):
    """Client 1 has no target that counts; of the others' samples every second one does."""

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        found = super().datasets(partition, clients, seed)
        return Datasets(_marked(found.train, partition), _marked(found.test, partition))

    def losses(self, model: nn.Module, batch: Any) -> Any:
        inputs, targets, counts = batch
        losses = super().losses(model, (inputs, targets))
        return torch.where(counts > 0, losses, math_nan()), counts

    def predictions(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return super().predictions(model, batch[:2])


def math_nan() -> Tensor:
    return torch.tensor(float("nan"))


def _marked(dataset: Any, partition: int) -> Any:
    inputs, targets = whole(dataset)
    counts = torch.arange(len(inputs)) % 2 if partition != 1 else torch.zeros(len(inputs))
    return TensorDataset(inputs, targets, counts.to(inputs.dtype))


@pytest.mark.parametrize("method", ["dqn-fed", "fedavg"])
def test_a_client_whose_targets_are_all_ignored_is_left_out_by_name(method: str) -> None:
    local = (
        {"local.epochs": 2, "local.batch-size": 1}
        if method == "fedavg"
        else {"local.gradient-batch": 1, "step-rule": "fixed"}
    )
    result = run({"clients": 3, "rounds": 3, "local.threads": 1, "method": method, **local}, task=Ignored)

    assert "every target is ignored" in result.left_out["client 1"]
    assert "client 1: " in result.left_out["client 1"]
    assert sorted(result.accuracies) == [0, 2]
    assert all(event.votes.heard == (0, 2) for event in result.events)
    assert np.isfinite(result.theta).all()
    assert result.totals.moved


class Untested(Line):
    """Client 1 has no test sample."""

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        found = super().datasets(partition, clients, seed)
        return Datasets(found.train, []) if partition == 1 else found


class Spoilt(Line):
    """The clients of `which` have training samples that no loss, or no such model, can take."""

    which, how = (1,), "target"

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        found = super().datasets(partition, clients, seed)
        x, y = (torch.cat([part, part]) for part in whole(found.train))
        if partition not in self.which:
            return found
        if self.how == "target":
            y[9] = math.nan
        elif self.how == "feature":
            x[10, 0] = math.inf
        else:
            x = x.long() if self.how == "dtype" else x[:, :2]
        return Datasets(TensorDataset(x, y), found.test)


SPOILT = {
    "target": r"loss is not finite at sample 9 \(nan\), of 16; clean their .*zero_infinity=True",
    "feature": r"loss is not finite at sample 10 \(inf\), of 16;",
    "width": r"raised RuntimeError.* in Linear\(in_features=3, .* of float32, for samples of \[2\] float32, ",
    "dtype": r"raised RuntimeError.* of float32, for samples of \[3\] int64, \[1\] float32",
}


@pytest.mark.parametrize("how", list(SPOILT))
@pytest.mark.parametrize("who", [0, 1])
def test_samples_that_no_loss_can_take_cost_their_client_alone(how: str, who: int) -> None:
    task = type("Spoilt", (Spoilt,), {"which": (who,), "how": how})
    result = run({"clients": 3, "rounds": 2, "local.threads": 1}, task=task)

    assert re.match(rf"unfit-data: task: client {who}: .*{SPOILT[how]}", result.left_out[f"client {who}"])
    assert all([*event.votes.heard] == [client for client in range(3) if client != who] for event in result.events)


@pytest.mark.parametrize("how", list(SPOILT))
def test_where_all_have_such_samples_the_run_does_not_begin(how: str) -> None:
    task = type("Spoilt", (Spoilt,), {"which": (0, 1), "how": how})
    with pytest.raises(DataError, match=f"client 0: .*{SPOILT[how]}"):
        run({"clients": 2, "rounds": 2, "local.threads": 1}, task=task)


class Spelling(Line):
    """CTC on texts of several lengths; one text of client 1 is too long for its input."""

    def model(self) -> nn.Module:
        return nn.Linear(3, 4)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        generator = torch.Generator().manual_seed(partition)
        texts: list[Tensor] = [torch.tensor([1, 2])] * 12
        if partition == 1:
            texts[10] = torch.tensor([1, 1, 1, 1])
        samples = [(torch.randn(5, 3, generator=generator), text) for text in texts]
        return Datasets(samples, samples[:2])

    @staticmethod
    def collate(samples: list[tuple[Tensor, Tensor]]) -> Any:
        inputs, texts = zip(*samples, strict=True)
        return torch.stack(inputs), nn.utils.rnn.pad_sequence(list(texts), True), torch.tensor([*map(len, texts)])

    def losses(self, model: nn.Module, batch: Any) -> Any:
        inputs, texts, lengths = batch
        logits = model(inputs).log_softmax(-1).transpose(0, 1)
        steps = torch.full_like(lengths, len(logits))
        return nn.functional.ctc_loss(logits, texts, steps, lengths, reduction="none")


def test_a_text_too_long_for_its_input_costs_its_client_alone() -> None:
    result = run({"clients": 3, "rounds": 2, "local.threads": 1}, task=Spelling)

    assert "client 1: the loss is not finite at sample 10 (inf), of 12" in result.left_out["client 1"]
    assert all(event.votes.heard == (0, 2) for event in result.events)


def test_samples_with_weights_are_read_through_once_and_no_more() -> None:
    held = _marked(Line().datasets(0, 1, 0).train, 0)
    samples = HeldSamples(held.tensors)
    read = []

    def chunks(size: int) -> Any:
        read.append(size)
        return HeldSamples.chunks(samples, size)

    samples.chunks = chunks  # type: ignore[method-assign]
    loss = LocalLoss(FlatModel(Ignored().model(), torch.device("cpu")), samples, task=Ignored())
    loss.look_through()
    assert len(read) == 1
    assert loss.counting is not None
    assert loss.counting.tolist() == [False, True] * 4


def test_a_task_may_leave_a_client_without_a_test_part(said: list[str]) -> None:
    result = run({"clients": 3, "rounds": 2, "local.threads": 1}, task=Untested)

    assert result.without_figure == {"test": [1]}
    assert sorted(result.accuracies) == [0, 2]
    assert "client 1: the test data set has no sample" in "\n".join(said)


def given(data: Any, **changes: Any) -> Any:
    names, objects = objects_of(task=None, data=data, model=None)
    return settings_with(Settings.from_mapping({**SETTINGS, **changes}), names, objects)


def test_what_is_described_names_them_as_well() -> None:
    with given(sized(20, 0, 1)) as settings:
        clients = summarise(settings)

        assert [client.samples for client in clients] == [16, 0, 1]
        said = notes(clients, "own function")
    assert said[0].startswith("2 clients hold 1 to 16 training samples")
    assert said[1].startswith("a run leaves client 1 out: data: ")
    assert said[2] == "clients without a test part, so without a figure: 2"
    with given(sized(20, 0, 5), task="regression") as settings:
        found = summarise_targets(settings, "values")
    assert [client.train for client in found] == [16, 0, 4]
    assert "0 samples" in found[1].fault


def test_a_dry_run_names_them_as_well() -> None:
    with given(sized(0, 20, 30)) as settings:
        found = dry_run(settings)

    assert [client.train for client in found.clients] == [0, 16, 24]
    assert list(found.left_out) == [0]
    lines = data_lines(found)
    assert lines["left out"].startswith("client 0: data: ")
    assert lines["samples of a client"] == "16 to 24, median 20"


def test_a_mini_batch_in_which_all_is_ignored_counts_nothing() -> None:
    from dqnfed_flwr.client.work import RngKey, mini_batch
    from dqnfed_flwr.tasks.classification import Segmentation

    torch.manual_seed(0)
    model = FlatModel(nn.Conv2d(1, 2, 1).double(), torch.device("cpu"))
    targets = torch.full((6, 2, 2), -1)
    targets[4] = 1
    loss = LocalLoss(model, (torch.rand(6, 1, 2, 2).double(), targets), task=Segmentation())

    model.place(torch.ones(model.spec.dim, dtype=torch.float64))
    batches = loss.samples.batches(iter([torch.arange(2), torch.tensor([3, 4])]))
    (ignored, *count), (asked, *_) = batches
    mean = loss.mean(ignored, count[0])
    gradients = torch.autograd.grad(mean, model.parameters)
    assert mean.item() == 0
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in gradients)
    assert loss.mean(asked, 2).item() > 0
    for number in range(1, 20):
        rows = mini_batch(loss, 2, RngKey(0, number, 0))
        assert rows is not None
        assert 4 in rows.tolist()
    assert Task.evaluate(Segmentation(), model.module, iter([(ignored, 2)]), 2).figures["iou"] != 0
