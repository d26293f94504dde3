"""What a user may say of a loss: batches of no sample, counts, part of a model, layers of any kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.guarded import local_task
from dqnfed_flwr.guarded.local_loss import GuardedLoss, frozen
from dqnfed_flwr.guarded.local_task import LocalTask
from dqnfed_flwr.guarded.records import between, matched
from tests.helpers.guarded_app import skewed_digits

X, Y = skewed_digits(2)[0]
NOTHING = (torch.empty(0, 64), torch.empty(0, dtype=torch.int64))
IGNORED = (X[:5], torch.full((5,), -100))
ce = nn.CrossEntropyLoss()


def of(model: nn.Module) -> dict[str, Any]:
    state = model.state_dict()
    return {name: v.detach().numpy().copy() for name, v in state.items() if isinstance(v, Tensor)}


class Named(nn.Linear):
    """Its output is an object with attributes."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


@pytest.mark.parametrize("empty", [NOTHING, IGNORED])
@pytest.mark.parametrize("kind", [nn.Linear, Named])
def test_batches_in_which_nothing_counts_count_nothing(empty: Any, kind: type[nn.Linear]) -> None:
    def criterion(outputs: Any, targets: Tensor) -> Tensor:
        found: Tensor = ce(outputs.logits if kind is Named else outputs, targets)
        return found

    model = kind(64, 10)
    plain, with_empty = (GuardedLoss(LocalTask(model, [*more, (X, Y)], criterion)) for more in ([], [empty]))
    assert with_empty.loss_and_row()[0] == plain.loss_and_row()[0]
    assert np.array_equal(with_empty.loss_and_row()[1], plain.loss_and_row()[1])
    assert with_empty.loss() == plain.loss()
    assert with_empty.samples == plain.samples == len(Y)


@pytest.mark.parametrize("batch", [NOTHING, IGNORED])
def test_data_in_which_nothing_counts_are_refused(batch: Any) -> None:
    with pytest.raises(DataError, match="all are empty, or all their targets are ignored"):
        GuardedLoss(LocalTask(nn.Linear(64, 10), [batch, batch], ce)).loss_and_row()


def test_a_model_that_diverges_is_not_taken_for_an_empty_batch() -> None:
    model = nn.Linear(64, 10)
    nn.init.constant_(model.weight, torch.nan)
    assert np.isnan(GuardedLoss(LocalTask(model, [(X, Y), IGNORED], ce), check=False).loss())


def test_a_criterion_that_is_nan_at_these_outputs_alone_is_not_taken_for_an_empty_batch() -> None:
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    task = LocalTask(model, [(X, Y)], lambda out, y: (out * out.log()).mean())
    assert np.isnan(GuardedLoss(task, check=False).loss())


def test_batches_that_can_be_gone_through_once_are_refused() -> None:
    with pytest.raises(DataError, match="once only"):
        GuardedLoss(LocalTask(nn.Linear(64, 10), iter([(X, Y)]), ce))


def sequences() -> list[Any]:
    return [(torch.randn(6, n, 1), torch.zeros(6, n, 3)) for n in (32, 1)]


def test_a_count_weighs_batches_and_without_it_sequences_first_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    batches, model, mse = sequences(), nn.Linear(1, 3), nn.MSELoss()
    counted = GuardedLoss(LocalTask(model, batches, mse, count=lambda batch: batch[1].shape[1]))
    with torch.no_grad():
        own = sum(mse(model(x), y).item() * x.shape[1] for x, y in batches) / 33
    local_task._say.cache_clear()
    said: list[str] = []
    monkeypatch.setattr(local_task, "log", lambda level, words, *given: said.append(words % given))
    assert counted.loss() == pytest.approx(own, rel=1e-7)
    assert (counted.samples, said) == (33, [])
    for _ in range(2):
        GuardedLoss(LocalTask(model, batches, mse)).loss()
    (words,) = said
    assert "6 in every batch, while the second goes from 1 to 32" in words
    assert "count=" in words


def test_batches_of_the_loaders_size_and_classes_are_no_sign_of_sequences_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local_task._say.cache_clear()
    said: list[str] = []
    monkeypatch.setattr(local_task, "log", lambda level, words, *given: said.append(words % given))
    rows = TensorDataset(torch.randn(12, 5, 1), torch.zeros(12, 5, 3))
    for task in (
        LocalTask(nn.Linear(1, 3), DataLoader(rows, batch_size=6), nn.MSELoss()),
        LocalTask(nn.Linear(64, 10), [(X[:20], Y[:20]), (X[20:], Y[20:])], ce),
    ):
        GuardedLoss(task).loss()
    assert said == []
    GuardedLoss(LocalTask(nn.Linear(64, 10), [(X[:20], Y[:10])], lambda out, y: ce(out[:10], y))).loss()
    assert "inputs [20, 64] and targets [10]" in said[0]


@pytest.mark.parametrize("found", [-1, 1.5, True])
def test_a_count_is_a_whole_number(found: Any) -> None:
    with pytest.raises(DataError, match="count gave"):
        GuardedLoss(LocalTask(nn.Linear(64, 10), [(X, Y)], ce, count=lambda batch: found)).loss()


class Extra(nn.Linear):
    """Saves more than tensors."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


def test_what_is_no_tensor_stays_and_is_given_back() -> None:
    model = Extra(64, 10)
    model.seen = 3
    task = LocalTask(model, [(X, Y)], ce)
    with frozen(task):
        found = GuardedLoss(task)
        found.place(of(Extra(64, 10)))
        found.loss()
        assert model.seen > 3
    assert model.seen == 3


class Tied(nn.Module):
    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self.one, self.two, self.own = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.two.weight = self.one.weight.requires_grad_(trained)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.two(self.one(x)))  # type: ignore[no-any-return]


def test_only_what_is_trained_must_not_be_shared() -> None:
    found = GuardedLoss(LocalTask(still := Tied(trained=False), [(X, Y)], ce))
    found.place(of(still))
    assert "one.weight" not in found.names
    with pytest.raises(ModelError, match=r"'one\.weight', 'two\.weight'"):
        GuardedLoss(LocalTask(trained := Tied(trained=True), [(X, Y)], ce)).place(of(trained))
    once = {name: values for name, values in of(trained).items() if name != "two.weight"}
    (one := GuardedLoss(LocalTask(trained, [(X, Y)], ce))).place(once)
    assert one.names == tuple(name for name, _ in trained.named_parameters())
    aliased = Tied(trained=False)
    aliased.two.weight = nn.Parameter(aliased.one.weight.data)
    aliased.one.weight.requires_grad_(True)
    with pytest.raises(ModelError, match="share their values"):
        GuardedLoss(LocalTask(aliased, [(X, Y)], ce)).place(of(aliased))


def test_what_does_not_travel_stays_and_is_not_in_the_row() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    nn.init.constant_(model.get_parameter("1.weight"), 2.0)
    part = {name: values + 1 for name, values in of(model).items() if not name.startswith("1.")}
    task = LocalTask(model, [(X, Y)], ce)
    with frozen(task):
        found = GuardedLoss(task)
        found.place(part)
        loss, row = found.loss_and_row()
        assert found.names == ("0.weight", "0.bias", "2.weight", "2.bias")
        assert row.shape == (sum(values.size for values in part.values()),)
        model.eval()
        assert ce(model(X), Y).item() == pytest.approx(loss, rel=1e-6)
        assert (model.get_parameter("1.weight") == 2).all()
    assert all(p.requires_grad for p in model.parameters())
    with pytest.raises(ModelError, match="none of the arrays received is a trained parameter"):
        GuardedLoss(task).place({"1.running_mean": np.zeros(8, np.float32)})


def test_names_without_the_adapters_are_found_and_others_named() -> None:
    shapes = {f"base.{n}.lora_{c}.default.weight": (2, 2) for n in (0, 1) for c in "AB"} | {"base.0.weight": (2, 2)}
    sent = {name.replace(".default", ""): np.zeros((2, 2)) for name in shapes if "lora" in name}
    assert matched(sent, shapes, ()) == {key: key.replace(".weight", ".default.weight") for key in sent}
    with pytest.raises(ModelError, match=r"'lora_A\.weight'.*'base\.0\.lora_A.*load="):
        matched({"lora_A.weight": np.zeros((2, 2)), "x": np.zeros(1)}, shapes, ())


def test_load_says_where_arrays_go() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 10))

    def load(module: nn.Module, arrays: dict[str, Tensor]) -> None:
        names = {"head.w": "1.weight", "head.b": "1.bias"}
        module.load_state_dict({names[key]: value for key, value in arrays.items()}, strict=False)

    sent = {"head.b": np.ones(10, np.float32), "head.w": np.full((10, 8), 0.5, np.float32)}
    task = LocalTask(model, [(X, Y)], ce, load=load)
    before = of(model)
    with frozen(task):
        found = GuardedLoss(task)
        found.place(sent)
        assert found.names == ("head.w", "head.b")
        assert found.loss_and_row()[1].shape == (90,)
        assert (model.get_parameter("1.weight") == 0.5).all()
        assert np.array_equal(model.get_parameter("0.weight").detach(), before["0.weight"])
    assert all(np.array_equal(values, before[name]) for name, values in of(model).items())


def test_complex_parameters_are_refused_by_name_and_complex_buffers_carried() -> None:
    class Spectral(nn.Module):
        def __init__(self, *, trained: bool) -> None:
            super().__init__()
            values = torch.ones(33, dtype=torch.cfloat) * (1 + 2j)
            if trained:
                self.w = nn.Parameter(values)
            else:
                self.register_buffer("w", values)
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.w, n=64))  # type: ignore[no-any-return]

    with pytest.raises(ModelError, match="'w' is trained and complex"):
        GuardedLoss(LocalTask(model := Spectral(trained=True), [(X, Y)], ce)).place(of(model))
    model = Spectral(trained=False)
    (found := GuardedLoss(LocalTask(model, [(X, Y)], ce))).place(of(model) | {"w": np.full(33, 3j, np.complex64)})
    assert (model.w == 3j).all()
    assert found.names == ("out.weight", "out.bias")
    ends = {"w": np.array([1j], np.complex64)}, {"w": np.array([2 + 1j], np.complex64)}
    assert between(*ends, 0.5, ()) == {"w": np.array([1 + 1j])}


class Merging(nn.Linear):
    """Adds its adapter to its weight when it is set to evaluate."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.weight.requires_grad_(False)
        self.up, self.merged = nn.Parameter(torch.zeros(10, 64)), False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            with torch.no_grad():
                self.weight += -self.up if mode else self.up
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.merged else super().forward(x) + x @ self.up.T


def test_layers_that_merge_have_the_right_weights_are_named_and_given_back() -> None:
    model = Merging()
    task, before = LocalTask(model, [(X, Y)], ce), of(model)
    there = before | {"up": np.full((10, 64), 0.25, np.float32) * np.arange(10, dtype=np.float32)[:, None]}
    with torch.no_grad():
        expected = ce(X @ torch.tensor(there["weight"] + there["up"]).T + model.bias, Y).item()
    with frozen(task):
        found = GuardedLoss(task, check=False)
        for at in (there, before, there):
            found.place(at)
        assert found.loss() == pytest.approx(expected, rel=1e-5)
    assert (model.training, model.merged) == (True, False)
    assert all(np.array_equal(values, before[name]) for name, values in of(model).items())
    with frozen(task), pytest.raises(ModelError, match="built anew with them, from layer Merging on"):
        GuardedLoss(task).loss_and_row()
    model.bias.requires_grad_(False)
    with frozen(task), pytest.raises(ModelError, match="Merging changes with the mode"):
        GuardedLoss(task).loss_and_row()


def test_the_model_goes_back_as_it_was_whatever_is_raised() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    model[2].weight.data = torch.zeros(8, 10).T  # a view with strides of its own
    held = [(p, p.data_ptr(), p.stride(), p.detach().clone()) for p in (*model.parameters(), *model.buffers())]

    def fails(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ZeroDivisionError

    def look(task: LocalTask) -> None:
        with frozen(task):
            found = GuardedLoss(task)
            found.place({name: values + 1 for name, values in of(model).items()})
            found.loss()

    with pytest.raises(DataError, match="ZeroDivisionError"):
        look(LocalTask(model, [(X, Y)], fails))
    assert model.training
    for tensor, (same, pointer, strides, values) in zip((*model.parameters(), *model.buffers()), held, strict=True):
        assert tensor is same
        assert (tensor.data_ptr(), tensor.stride()) == (pointer, strides)
        assert torch.equal(tensor, values)


def test_parameters_of_two_dtypes_have_the_row_that_torch_gives() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(64, 8), nn.Linear(8, 10).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).double())  # type: ignore[no-any-return]

    model = Two()
    parts = torch.autograd.grad(ce(model(X), Y), list(model.parameters()))
    row = GuardedLoss(LocalTask(model, [(X, Y)], ce)).loss_and_row()[1]
    assert np.allclose(row, torch.cat([part.double().reshape(-1) for part in parts]).numpy(), rtol=1e-5, atol=1e-7)
    assert (model.one.weight.dtype, model.two.weight.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize("samples", [2, 7, 40])
def test_a_criterion_that_adds_up_a_batch_is_refused(samples: int) -> None:
    batch = (X[:samples], Y[:samples])
    with pytest.raises(DataError, match="adds up the losses of a batch"):
        GuardedLoss(LocalTask(nn.Linear(64, 10), [batch], nn.CrossEntropyLoss(reduction="sum"))).loss()
    for criterion in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(weight=torch.arange(1.0, 11.0))):
        assert GuardedLoss(LocalTask(nn.Linear(64, 10), [batch], criterion)).loss() > 0


def test_batches_of_an_object_that_hands_out_one_iterator_are_refused() -> None:
    class Once:
        def __init__(self) -> None:
            self.it = iter([(X, Y)])

        def __iter__(self) -> Any:
            return self.it

    with pytest.raises(DataError, match="once only"):
        GuardedLoss(LocalTask(nn.Linear(64, 10), Once(), ce))


def test_lazy_layers_are_named() -> None:
    task = LocalTask(nn.LazyLinear(10), [(X, Y)], ce)
    with pytest.raises(ModelError, match="lazy layers"), frozen(task):
        pass
