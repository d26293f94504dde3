from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

from dqnfed_flwr.client import samples as chunks
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import HeldSamples, choose_chunk
from dqnfed_flwr.errors import DataError, ModelError, ShapeError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.tasks.classification import CrossEntropy

CPU = torch.device("cpu")
SHAPES = {"logistic": (6,), "mlp": (5,), "cnn": (1, 8, 8), "resnet18-gn": (3, 8, 8), "char-lstm": (9,)}


class TinyLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.lstm = nn.LSTM(3, 3, num_layers=2, batch_first=True, dropout=0.5)
        self.head = nn.Linear(3, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0][:, -1])
        return logits


class Forgetful(nn.Module):
    """Drops half of what it sees, whatever mode it is in or only while it trains."""

    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.head, self.always = nn.Linear(6, 5), always

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(nn.functional.dropout(inputs, 0.5, training=self.always or self.training))
        return logits


class TinyAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layer = nn.TransformerEncoderLayer(
            4, 2, dim_feedforward=5, dropout=0.5, activation="gelu", batch_first=True
        )
        self.head = nn.Linear(4, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embedding(tokens)).mean(dim=1))
        return logits


def tiny(kind: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model of a few dozen parameters in float64, with 11 samples of 4 classes."""
    torch.manual_seed(3)
    labels = torch.arange(11) % 4
    models: dict[str, tuple[nn.Module, Tensor]] = {
        "dense": (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(11, 3)),
        "conv": (
            nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)),
            torch.randn(11, 1, 5, 5),
        ),
        "lstm": (TinyLstm(), torch.randint(0, 5, (11, 6))),
        "attention": (TinyAttention(), torch.randint(0, 5, (11, 6))),
    }
    module, inputs = models[kind]
    return module.double(), (inputs.double() if inputs.is_floating_point() else inputs, labels)


def named(name: str, dtype: torch.dtype, n: int = 23, classes: int = 5) -> tuple[FlatModel, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = SHAPES[name]
    if name == "char-lstm":
        inputs = torch.randint(0, classes, (n, *shape), generator=generator)
    else:
        inputs = torch.randn(n, *shape, generator=generator).to(dtype)
    model = FlatModel(build_model(name, shape, classes, seed=0, dtype=dtype), CPU)
    return model, (inputs, torch.randint(0, classes, (n,), generator=generator))


def test_loss_and_gradient_of_logistic_regression_are_the_closed_form() -> None:
    model, (x, y) = named("logistic", torch.float64)
    theta = torch.linspace(-1, 1, model.spec.dim, dtype=torch.float64)
    loss, gradient = LocalLoss(model, (x, y), ridge=0.3, chunk=4).loss_and_gradient(theta)

    weight, bias = theta[:30].reshape(5, 6).numpy(), theta[30:].numpy()
    logits = x.numpy() @ weight.T + bias
    expected = np.mean(logsumexp(logits, axis=1) - logits[np.arange(23), y]) + 0.15 * float(theta @ theta)
    residual = (softmax(logits, axis=1) - np.eye(5)[y]) / 23
    slope = np.concatenate([(residual.T @ x.numpy()).ravel(), residual.sum(0)]) + 0.3 * theta.numpy()
    assert loss == pytest.approx(expected, rel=1e-14)
    np.testing.assert_allclose(gradient.numpy(), slope, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", ["dense", "conv", "lstm", "attention"])
def test_gradient_and_hessian_product_agree_with_differences_of_the_loss(kind: str) -> None:
    module, samples = tiny(kind)
    loss = LocalLoss(FlatModel(module, CPU), samples, ridge=0.1, chunk=3)
    theta = loss.model.theta.clone()
    generator = torch.Generator().manual_seed(0)
    _, gradient = loss.loss_and_gradient(theta)
    for _ in range(3):
        v = torch.randn(len(theta), generator=generator, dtype=torch.float64)
        v, h = v / v.norm(), 1e-5
        slope = (loss.loss(theta + h * v) - loss.loss(theta - h * v)) / (2 * h)
        assert float(gradient @ v) == pytest.approx(slope, rel=1e-7, abs=1e-9)
        turn = (loss.loss_and_gradient(theta + h * v)[1] - loss.loss_and_gradient(theta - h * v)[1]) / (2 * h)
        np.testing.assert_allclose(loss.hessian_product(theta, v).numpy(), turn.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["dense", "conv", "lstm"])
def test_hessian_product_is_the_dense_hessian_times_the_vector(kind: str) -> None:
    module, (x, y) = tiny(kind)
    loss = LocalLoss(FlatModel(module, CPU), (x, y), ridge=0.2, chunk=4)
    theta = loss.model.theta.clone()

    def mean_loss(vector: Tensor) -> Tensor:
        logits = torch.func.functional_call(module, loss.model.spec.split(vector), (x,))
        return nn.functional.cross_entropy(logits, y) + 0.1 * vector @ vector

    dense = torch.autograd.functional.hessian(mean_loss, theta)  # type: ignore[no-untyped-call]
    v = torch.cos(torch.arange(len(theta), dtype=torch.float64))
    np.testing.assert_allclose(loss.hessian_product(theta, v).numpy(), (dense @ v).numpy(), rtol=1e-10, atol=1e-12)


def test_hessian_product_of_a_linear_loss_is_zero() -> None:
    model = FlatModel(nn.Linear(2, 1, bias=False).double(), CPU)  # one class: the loss is constant
    loss = LocalLoss(model, (torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)))
    assert loss.hessian_product(model.theta.clone(), torch.ones(2, dtype=torch.float64)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["dense", "conv", "lstm"])
@pytest.mark.parametrize("chunk", [1, 4, 10, 11, 12])
def test_results_do_not_depend_on_the_chunk(kind: str, chunk: int) -> None:
    module, samples = tiny(kind)
    model = FlatModel(module, CPU)
    theta, v = model.theta.clone(), torch.ones(model.spec.dim, dtype=torch.float64)
    whole, parts = (LocalLoss(model, samples, ridge=0.1, chunk=size) for size in (100, chunk))
    assert parts.loss(theta) == pytest.approx(whole.loss(theta), rel=1e-13)
    for a, b in (
        (whole.loss_and_gradient(theta)[1], parts.loss_and_gradient(theta)[1]),
        (whole.hessian_product(theta, v), parts.hessian_product(theta, v)),
    ):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-14)
    one, other = whole.evaluate(theta, HeldSamples(samples)), parts.evaluate(theta, HeldSamples(samples))
    assert (one.correct, one.examples) == (other.correct, other.examples)
    assert one.loss == pytest.approx(other.loss, rel=1e-13)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18-gn", "char-lstm"])
@pytest.mark.parametrize(("dtype", "chunk"), [(torch.float32, 7), (torch.float64, 0)])
def test_the_loss_has_the_same_bits_with_and_without_the_gradient(name: str, dtype: torch.dtype, chunk: int) -> None:
    model, samples = named(name, dtype)
    loss = LocalLoss(model, samples, ridge=1e-3, chunk=chunk)
    theta = model.theta * 1.5
    before = loss.loss(theta)
    with_gradient, gradient = loss.loss_and_gradient(theta)
    assert before == with_gradient == loss.loss(theta.clone())
    again = loss.loss_and_gradient(theta)[1]
    assert torch.equal(gradient, again)
    assert gradient.dtype == dtype


def test_attention_gives_the_loss_the_same_bits_with_and_without_the_gradient() -> None:
    module, (inputs, labels) = tiny("attention")
    loss = LocalLoss(FlatModel(module.float(), CPU), (inputs, labels))
    for scale in (1.0, 1.5, 3.0):
        theta = loss.model.theta * scale
        assert loss.loss(theta) == loss.loss_and_gradient(theta)[0] == loss.loss(theta)


def test_float32_losses_show_decreases_below_one_float32_unit() -> None:
    model, samples = named("mlp", torch.float32, n=200)
    loss = LocalLoss(model, samples)
    theta = model.theta.clone()
    before, gradient = loss.loss_and_gradient(theta)
    last = torch.zeros_like(theta)
    last[-1] = 1e-7 / gradient[-1]  # to first order the loss falls by 1e-7 * 0.2
    after = loss.loss(theta - 0.2 * last)
    assert np.float32(before) == np.float32(after)
    assert before - after == pytest.approx(2e-8, rel=0.2)


def test_a_gradient_is_a_vector_of_its_own() -> None:
    model, samples = named("mlp", torch.float32)
    loss = LocalLoss(model, samples)
    theta = model.theta.clone()
    _, first = loss.loss_and_gradient(theta)
    kept = first.clone()
    loss.loss_and_gradient(theta + 1)
    assert torch.equal(first, kept)
    assert torch.equal(theta, build_theta("mlp"))


def build_theta(name: str) -> Tensor:
    return named(name, torch.float32)[0].theta


def test_rows_choose_a_mini_batch() -> None:
    model, (x, y) = named("mlp", torch.float64)
    rows = torch.tensor([2, 3, 11])
    theta = model.theta.clone()
    batch, alone = LocalLoss(model, (x, y), ridge=0.1), LocalLoss(model, (x[rows], y[rows]), ridge=0.1)
    value, gradient = batch.loss_and_gradient(theta, rows)
    expected, expected_gradient = alone.loss_and_gradient(theta)
    assert value == pytest.approx(expected, rel=1e-14)
    np.testing.assert_allclose(gradient.numpy(), expected_gradient.numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        batch.hessian_product(theta, gradient, rows).numpy(),
        alone.hessian_product(theta, gradient).numpy(),
        rtol=1e-10,
        atol=1e-14,
    )
    with pytest.raises(DataError, match="at least one"):
        batch.loss_and_gradient(theta, torch.tensor([], dtype=torch.int64))


def test_batchnorm_uses_running_statistics_and_keeps_its_buffers() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)).double()
    model = FlatModel(module, CPU)
    model.spec.write_buffers(
        {
            "1.running_mean": torch.arange(4.0),
            "1.running_var": torch.full((4,), 2.0),
            "1.num_batches_tracked": torch.tensor(9),
        },
        module,
    )
    x, y = tiny("dense")[1]
    loss = LocalLoss(model, (x, y), chunk=2)
    theta = model.theta.clone()
    value, _ = loss.loss_and_gradient(theta)
    hidden = (module[0](x) - torch.arange(4)) / math.sqrt(2 + 1e-5)
    assert value == pytest.approx(nn.functional.cross_entropy(module[3](hidden), y).item(), rel=1e-12)
    assert loss.loss(theta) == value
    assert int(module.state_dict()["1.num_batches_tracked"]) == 9


def test_evaluation_counts_right_answers_without_the_ridge() -> None:
    model = FlatModel(nn.Linear(2, 2, bias=False).double(), CPU)
    samples = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1]], torch.tensor([0, 1, 1, 1])
    loss = LocalLoss(model, samples, ridge=5.0)
    found = loss.evaluate(torch.tensor([2.0, 0.0, 0.0, 2.0], dtype=torch.float64), HeldSamples(samples))
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert (found.correct, found.examples) == (3, 4)
    assert found.loss == pytest.approx((3 * right + wrong) / 4, rel=1e-14)
    nothing = loss.evaluate(torch.zeros(4, dtype=torch.float64), HeldSamples((samples[0][:0], samples[1][:0])))
    assert (nothing.correct, nothing.examples, nothing.loss) == (0, 0, 0.0)


@pytest.mark.parametrize("size", [1, 5, 23])
def test_no_pass_sees_more_samples_than_the_chunk(size: int) -> None:
    model, samples = named("mlp", torch.float32)
    loss = LocalLoss(model, samples, chunk=size)
    seen: list[int] = []
    model.module.register_forward_hook(lambda _module, inputs, _output: seen.append(len(inputs[0])))
    theta = model.theta.clone()
    (
        loss.loss(theta),
        loss.loss_and_gradient(theta),
        loss.hessian_product(theta, theta),
        loss.evaluate(theta, HeldSamples(samples)),
    )
    assert max(seen) == size
    assert sum(seen) == 4 * 23


def test_the_chosen_chunk_bounds_the_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = named("cnn", torch.float32)
    held = HeldSamples(samples), CrossEntropy()
    activations = 64 + 3 * 32 * 64 + 3 * 64 * 16 + 2048  # floats that a sample must leave behind, at the least
    monkeypatch.setitem(chunks.CHUNK_BYTES, "cpu", 64 * 4 * activations)
    assert 8 <= choose_chunk(model, *held) <= 64
    monkeypatch.setitem(chunks.CHUNK_BYTES, "cpu", 1)
    assert choose_chunk(model, *held) == chunks.FEWEST
    monkeypatch.setattr(chunks, "MOST_CHUNK_BYTES", 8 * 4 * activations)
    assert 1 < choose_chunk(model, *held) <= 8
    monkeypatch.setattr(chunks, "MOST_CHUNK_BYTES", 1)
    assert choose_chunk(model, *held) == 1
    monkeypatch.setitem(chunks.CHUNK_BYTES, "cpu", 2**60)
    assert choose_chunk(model, *held) == chunks.MAX_CHUNK


def test_under_autocast_a_sample_may_leave_more_behind_and_a_chunk_holds_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, GroupNorm is computed in float32, and the next layer keeps bfloat16: 10 bytes a value in place of 8.

    An H100, of which a 32nd is 2.65e9 bytes, had chunks of 512 and 256. On a processor it stays in bfloat16.
    """
    plain = torch.nn.GroupNorm.forward
    monkeypatch.setattr(torch.nn.GroupNorm, "forward", lambda layer, inputs: plain(layer, inputs.float()))
    monkeypatch.setitem(chunks.CHUNK_BYTES, "cpu", 2_650_000_000)
    samples, found = HeldSamples((torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))), []
    for bf16 in (False, True):
        module = build_model("resnet18-gn", (3, 32, 32), 4, seed=0)
        found.append(choose_chunk(FlatModel(module, torch.device("cpu"), bf16=bf16), samples, CrossEntropy()))
    assert found == [512, 256]


def test_unfit_vectors_and_empty_data_are_refused() -> None:
    model, (x, y) = named("mlp", torch.float32)
    with pytest.raises(DataError, match="no training sample"):
        LocalLoss(model, (x[:0], y[:0]))
    loss = LocalLoss(model, (x, y))
    for theta in (model.theta[1:], model.theta.double()):
        with pytest.raises(ShapeError, match="this model needs"):
            loss.loss(theta)


@pytest.mark.parametrize(
    ("module", "inputs", "message"),
    [
        (
            nn.Linear(3, 5),
            torch.ones(4, 6),
            r"Linear raised RuntimeError: mat1 .*3x5.* in Linear\(in_features=3, .* of float32, for samples of \[6\]",
        ),
        (nn.Linear(6, 1), torch.ones(4, 6), r"gave \(1, 1\); need one logit a class, \[1, 5\]"),
        (nn.Sequential(nn.Linear(6, 5), nn.Flatten(0)), torch.ones(4, 6), r"gave \(5,\); need one logit a class"),
        (
            nn.Linear(6, 5),
            torch.ones(4, 6).long(),
            r"samples of \[6\] int64; .*: store samples as float, or build ",
        ),
        (Forgetful(always=True), torch.ones(4, 6), r"other logits each time.* dropout\(x, training=self.training\)"),
    ],
)
@pytest.mark.parametrize("chunk", [0, 2])
def test_a_model_that_does_not_fit_is_told_in_one_line(
    module: nn.Module, inputs: torch.Tensor, message: str, chunk: int
) -> None:
    with pytest.raises((DataError, ModelError), match=message) as raised:
        LocalLoss(FlatModel(module, CPU), (inputs, torch.zeros(4, dtype=torch.int64)), chunk=chunk, outputs=5)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("unknown", [-1, 5])
def test_a_token_that_the_model_has_no_row_for_is_told_wherever_it_stands(unknown: int) -> None:
    tokens = torch.tensor([[1, 2], [0, 4], [3, unknown], [1, 1]])
    with pytest.raises(DataError, match=rf"tokens, here {min(0, unknown)} to {max(4, unknown)}: .*so many tokens$"):
        LocalLoss(FlatModel(TinyLstm(), CPU), (tokens, torch.zeros(4, dtype=torch.int64)))


class Keeping(nn.Linear):
    """A layer that makes a mask once for every size of batch."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(self.__dict__.get("mask", ())) != len(inputs):
            self.mask = torch.ones(len(inputs), 1)
        return super().forward(inputs * self.mask) * self.mask


def test_a_model_may_keep_what_it_made_in_a_pass_without_gradients() -> None:
    loss = LocalLoss(FlatModel(Keeping(6, 3), CPU), (torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)))
    theta = loss.model.theta
    assert loss.loss(theta) == loss.loss_and_gradient(theta)[0]


def test_a_model_that_draws_in_training_alone_is_taken() -> None:
    model = FlatModel(Forgetful(always=False), CPU)
    assert model.draws
    LocalLoss(model, (torch.full((4, 6), torch.nan), torch.zeros(4, dtype=torch.int64)), outputs=5)


def test_the_trial_of_a_model_draws_from_nobodys_random_state() -> None:
    class Noisy(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs + torch.rand(6))

    model = FlatModel(Noisy(6, 5), CPU)
    before = torch.random.get_rng_state()
    with pytest.raises(ModelError, match="Noisy gives the same samples other logits each time"):
        LocalLoss(model, (torch.ones(4, 6), torch.zeros(4, dtype=torch.int64)), chunk=2, outputs=5)
    assert torch.equal(torch.random.get_rng_state(), before)
