"""A client's loss and row, against torch itself."""

from __future__ import annotations

import math
import random
from operator import itemgetter

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dqnfed_flwr.errors import ConfigError, DataError, ModelError, WireError
from dqnfed_flwr.guarded.borrowed import undisturbed
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.mod import answer
from dqnfed_flwr.guarded.records import Arrays, GuardRequest, between, flatten, moved, read_request, with_task
from dqnfed_flwr.types import ClientTask
from tests.helpers.guarded_app import normed, skewed_digits

(X, Y) = skewed_digits(2)[0]


def arrays_of(model: nn.Module) -> dict[str, NDArray[np.generic]]:
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def objective(task: LocalTask, at: Arrays) -> GuardedLoss:
    found = GuardedLoss(task)
    found.place(at)
    return found


def test_loss_and_row_are_those_of_all_samples_in_evaluation_mode() -> None:
    torch.manual_seed(1)
    there = normed()
    there.get_buffer("1.running_mean").add_(0.3)
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    task = LocalTask(normed(), loader, nn.CrossEntropyLoss())
    with undisturbed(), frozen(task):
        found = objective(task, arrays_of(there))
        loss, row = found.loss_and_row()
        assert found.loss() == loss
        assert (found.samples, found.names) == (len(Y), tuple(name for name, _ in there.named_parameters()))
    there.eval()
    expected = nn.functional.cross_entropy(there(X).double(), Y)
    parts = torch.autograd.grad(expected, list(there.parameters()))
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert row.dtype == np.float32
    assert np.allclose(row, torch.cat([part.reshape(-1) for part in parts]).numpy(), rtol=1e-4, atol=1e-6)


def test_frozen_parameters_are_not_in_the_row_and_dictionaries_are_taken_apart() -> None:
    model = nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 10))
    model[0].weight.requires_grad_(False)
    batches = [{"img": X[:20], "label": Y[:20]}, {"img": X[20:], "label": Y[20:]}]
    task = LocalTask(model, batches, nn.CrossEntropyLoss(), pair=itemgetter("img", "label"))
    found = objective(task, arrays_of(model))
    assert found.names == ("0.bias", "1.weight", "1.bias")
    assert found.loss_and_row()[1].shape == (3 + 30 + 10,)


def test_models_sent_as_a_list_are_read_in_their_order() -> None:
    model = nn.Linear(64, 10)
    values = list(arrays_of(model).values())
    task = LocalTask(nn.Linear(64, 10), [(X, Y)], nn.CrossEntropyLoss())
    by_place = objective(task, {str(place): array for place, array in enumerate(values)})
    assert by_place.names == ("0", "1")
    assert by_place.loss() == objective(task, arrays_of(model)).loss()


def test_generators_modes_values_and_the_loaders_own_generator_are_as_before() -> None:
    model = normed()
    model.get_submodule("3").eval()
    own = torch.Generator().manual_seed(3)
    task = LocalTask(
        model, DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, generator=own), nn.CrossEntropyLoss()
    )
    before = (torch.get_rng_state(), own.get_state(), random.getstate(), arrays_of(model))
    modes = [layer.training for layer in model.modules()]
    with undisturbed(), frozen(task):
        found = objective(task, {name: value + 1 for name, value in arrays_of(model).items()})
        random.random()
        found.loss_and_row()
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], own.get_state())
    assert before[2] == random.getstate()
    assert modes == [layer.training for layer in model.modules()]
    assert all(np.array_equal(value, arrays_of(model)[name]) for name, value in before[3].items())


def test_recurrent_layers_are_differentiated_without_dropout() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 4, num_layers=2, dropout=0.5, batch_first=True)
            self.out = nn.Linear(4, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(x.reshape(-1, 8, 8))[0][:, -1])  # type: ignore[no-any-return]

    model = Last()
    task = LocalTask(model, [(X, Y)], nn.CrossEntropyLoss())
    with frozen(task):
        found = objective(task, arrays_of(model))
        assert found.loss() == found.loss_and_row()[0] == found.loss()
    assert model.lstm.dropout == 0.5


@pytest.mark.parametrize(
    ("task", "error", "words"),
    [
        (LocalTask(nn.Linear(64, 10), [], nn.CrossEntropyLoss()), DataError, "no batch: .*a client needs one batch"),
        (LocalTask(nn.Linear(64, 10), [X], nn.CrossEntropyLoss()), DataError, "a pair of inputs and targets"),
        (LocalTask(nn.Linear(64, 10), [{"x": X}], nn.CrossEntropyLoss()), DataError, "itemgetter"),
        (
            LocalTask(nn.Linear(64, 10), [(X, {"y": Y})], nn.CrossEntropyLoss()),
            DataError,
            "targets of a batch are dict",
        ),
        (LocalTask(nn.Linear(64, 10), [(X, Y)], nn.CrossEntropyLoss(reduction="none")), ModelError, "no scalar"),
    ],
)
def test_what_is_of_no_use_is_refused(task: LocalTask, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        objective(task, arrays_of(task.model)).loss_and_row()


def test_batches_without_a_finite_loss_are_named_when_a_client_is_first_asked() -> None:
    spoilt = X.clone()
    spoilt[20] = math.inf
    batches = [(spoilt[first : first + 16], Y[first : first + 16]) for first in range(0, len(Y), 16)]
    task = LocalTask(nn.Linear(64, 10), batches, nn.CrossEntropyLoss())
    with pytest.raises(DataError, match=r"loss is not finite at batch 1 \(nan\), of \d+; clean their inputs"):
        objective(task, arrays_of(task.model)).loss_and_row()
    later = GuardedLoss(task, check=False)
    later.place(arrays_of(task.model))
    assert math.isnan(later.loss_and_row()[0])


def test_models_that_do_not_fit_are_refused() -> None:
    still = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ModelError, match="requires a gradient"):
        GuardedLoss(LocalTask(still, [], nn.CrossEntropyLoss()))
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ModelError, match=r"1\.weight"):
        objective(LocalTask(tied, [], nn.CrossEntropyLoss()), arrays_of(tied))
    task = LocalTask(nn.Linear(64, 10), [(X, Y)], nn.CrossEntropyLoss())
    with pytest.raises(ModelError, match=r"1 of the 2 arrays received, such as 'more', are none of the 2 .*'weight'"):
        objective(task, {"weight": np.zeros((10, 64), np.float32), "more": np.zeros(3, np.float32)})
    with pytest.raises(ModelError, match="'bias' has shape"):
        objective(task, {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(9, np.float32)})


def test_the_probe_walks_down_the_line_until_its_test_holds() -> None:
    before = {"weight": np.zeros((10, 64), np.float32), "bias": np.zeros(10, np.float32)}
    task = LocalTask(nn.Linear(64, 10), [(X, Y)], nn.CrossEntropyLoss())
    found = objective(task, before)
    start, row = found.loss_and_row()
    ahead = moved(before, found.names, -400.0 * row.astype(np.float64))

    def loss_at(share: float) -> float:
        return objective(task, between(before, ahead, share, found.names)).loss()

    asked = ClientTask(1, 2, train=False, probe=True, factor=1.0, halvings=8, reference_loss=start)
    reply, *_ = answer(GuardRequest(asked, ahead, before), task)
    rungs = [0.5**k for k in range(1, 9)]
    assert reply.probe is not None
    assert loss_at(1.0) > start
    assert reply.probe.back_factor == next(rung for rung in rungs if loss_at(rung) <= start)
    assert reply.probe.back_loss == loss_at(reply.probe.back_factor)
    assert (reply.row, reply.probe.holds) == (None, False)


shares = st.floats(-1, 3, allow_nan=False)


@given(shares)
def test_only_parameters_go_beyond_the_ends_of_the_line(share: float) -> None:
    before: Arrays = {"w": np.array([1.0, 2.0], np.float32), "var": np.array([1.0], np.float32), "n": np.array(3)}
    ahead: Arrays = {"w": np.array([3.0, 1.0], np.float32), "var": np.array([0.5]), "n": np.array(4.5)}
    at = between(before, ahead, share, ("w",))
    assert np.allclose(at["w"], [1 + 2 * share, 2 - share], atol=1e-6)
    assert 0.5 <= at["var"][0] <= 1.0
    assert at["n"] == 4.5
    assert {name: values.dtype for name, values in at.items()} == {name: v.dtype for name, v in ahead.items()}


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.3, 1.0, 2.0])
def test_infinities_at_both_ends_of_the_line_stay_what_they_are(share: float) -> None:
    ends: Arrays = {"mask": np.array([0.0, -np.inf], np.float32)}
    assert np.array_equal(between(ends, dict(ends), share, ())["mask"], ends["mask"])


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=6, max_size=6))
def test_moving_by_a_difference_leads_from_one_model_to_the_other(values: list[float]) -> None:
    one: Arrays = {"a": np.zeros((2, 2), np.float64), "b": np.ones(2, np.float64), "n": np.array(1)}
    other: Arrays = {"a": np.reshape(values[:4], (2, 2)), "b": np.array(values[4:]), "n": np.array(1)}
    names = ("b", "a")
    found = moved(one, names, flatten(other, names) - flatten(one, names))
    assert np.allclose(flatten(found, names), flatten(other, names), rtol=1e-12, atol=1e-9)


def test_a_message_that_is_not_whole_is_refused() -> None:
    model = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    content = with_task(RecordDict({"arrays": model}), ClientTask(1, 1), "arrays", None)
    assert read_request(RecordDict({"arrays": model})) is None
    found = read_request(content)
    assert found is not None
    assert found.task == ClientTask(1, 1)
    del content["arrays"]
    with pytest.raises(WireError, match="need the model 'arrays'"):
        read_request(content)
    content["dqnfed.model"] = MISSING
    with pytest.raises(WireError, match=r"dqnfed\.model"):
        read_request(content)


MISSING = ArrayRecord()


def test_the_function_must_give_a_local_task() -> None:
    from dqnfed_flwr.guarded.mod import _task_of

    with pytest.raises(ConfigError, match="returned tuple"):
        _task_of((1, 2))
