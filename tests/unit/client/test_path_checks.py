"""Checks of a loss on the path that training takes: what is refused, with the layer at fault, and what passes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.loss_checks import check_losses
from dqnfed_flwr.client.path_checks import Kept, check_path, check_training
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.errors import DataError, ModelError
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks.arrays import Regression

CPU = torch.device("cpu")
FEATURES, CLASSES = 6, 3
Build = Callable[[], nn.Module]
Two = namedtuple("Two", ["logits", "aux"])


def samples(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, FEATURES, generator=generator), torch.arange(count) % CLASSES


def check(build: Build, *, passes: bool = True, count: int = 12) -> LocalLoss:
    def fresh(dtype: torch.dtype) -> nn.Module:
        with seeded(0):
            return build().to(dtype)

    loss = LocalLoss(FlatModel(fresh(torch.float32), CPU), samples(count))
    check_path(loss, fresh, passes=passes)
    return loss


class Wrapped(nn.Module):
    """Two layers with something between."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.between(self.body(x))))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden


class Cached(Wrapped):
    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.kept is None or self.training:
            self.kept = self.body.weight.t().contiguous()
        return self.head(torch.relu(x @ self.kept + self.body.bias))


class Merging(nn.Linear):
    """An adapter that becomes part of the frozen weight when it is evaluated."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Parameter(torch.randn(2, FEATURES)), nn.Parameter(torch.randn(CLASSES, 2))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        with torch.no_grad():
            if self.merged == mode:
                self.weight += (-1 if mode else 1) * self.up @ self.down
                self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y if self.merged else y + x @ self.down.t() @ self.up.t()


class PartlyMerging(Wrapped):
    """The same beside a layer that is trained as usual, so that there is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.side = Merging()

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) + self.side(x)


class Detached(Wrapped):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.detach()


class Rounded(Wrapped):
    """A straight-through estimator: the gradient is not that of the loss."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden + (hidden.round() - hidden).detach()


class Constant(Wrapped):
    def forward(self, x: Tensor) -> Any:
        return 0 * super().forward(x)


class Remembering(Wrapped):
    """It keeps what training shows it, in no buffer."""

    mean = 0.0

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.mean = float(hidden.detach().mean()) + 1.0
        return hidden + self.mean


class Drawing(Wrapped):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (1 + 0.1 * torch.rand_like(hidden))


class Counting(Wrapped):
    """Another answer each time, without a random number."""

    calls = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden + self.calls


class Centred(Wrapped):
    """Takes the mean of the batch off."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0)


class Auxiliary(Wrapped):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return Two(logits, logits) if self.training else logits


class Narrow(Wrapped):
    """It is written for float32 alone."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) @ torch.eye(CLASSES, dtype=torch.float32)


class NarrowDetached(Narrow, Detached):
    pass


class Hidden(Wrapped):
    """Running mean in no buffer, which moves by little."""

    mean = 0.0

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9999 * self.mean + 1e-4 * float(hidden.detach().mean())
        return hidden + self.mean


class Teacher(Wrapped):
    """A frozen copy follows the trained layer in training passes, and is what evaluation asks."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Linear(FEATURES, 8).requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.body.weight, 0.01)
        return super().forward(x) + self.head(self.slow(x))


class Bounded(Wrapped):
    """Weights are cut to a norm as they are used."""

    def forward(self, x: Tensor) -> Any:
        self.body.weight.data.copy_(self.body.weight.data.clamp(-0.01, 0.01))
        return super().forward(x)


class Reentrant(Wrapped):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.body(x))
        return torch.utils.checkpoint.checkpoint(self.head, hidden, use_reentrant=True)


REFUSED: list[tuple[Build, str]] = [
    (Hidden, r"after a training pass .*register_buffer"),
    (Teacher, r"after a training pass .*register_buffer"),
    (Cached, "with other parameters the loss is .* built anew with them, from layer Cached on"),
    (Merging, r"in evaluation mode the loss of Merging does not depend .*\(Merging changes with the mode"),
    (PartlyMerging, "built anew with them, from layer Merging 'side' on"),
    (Detached, r"most for body\.(weight|bias): the gradient is not its derivative. Look for detach"),
    (NarrowDetached, "the gradient is not its derivative"),
    (Rounded, "the gradient is not its derivative"),
    (Constant, "does not depend on any parameter"),
    (Remembering, r"after a training pass .*register_buffer"),
    (Drawing, "gives the same samples other logits each time"),
    (Auxiliary, "gives Tensor of shape .3. a sample in evaluation mode and Two in training mode"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[build.__name__ for build, _ in REFUSED])
def test_a_loss_that_is_no_function_of_the_model_is_refused(build: Build, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check(build)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_gradient_that_cannot_be_asked_for_is_refused() -> None:
    with pytest.raises(ModelError, match="use_reentrant=False"):
        check(Reentrant)


def test_a_layer_that_answers_otherwise_each_time_is_refused() -> None:
    with pytest.raises(ModelError, match=r"other logits each time|another loss each time"):
        check(Counting)


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (Centred, "layer Centred"),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (3, 2)), nn.BatchNorm1d(3, track_running_stats=False), nn.Flatten()),
            "",
        ),
    ],
)
def test_statistics_of_the_batch_are_refused(build: Build, layer: str) -> None:
    def whole() -> nn.Module:
        return nn.Sequential(build(), nn.Linear(CLASSES if build is Centred else FEATURES, CLASSES))

    with pytest.raises(DataError, match=f"12|8 samples have a loss of .* one by one.*{layer}"):
        check(whole, passes=False)


class Cast(Wrapped):
    """It computes its end in float32 whatever its inputs are, as attention layers do."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).float().softmax(1).log().to(x.dtype)


class Steep(Wrapped):
    """Its logits are large, as those of pixels that nobody scaled."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(3e4 * x)


class Halved(Wrapped):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.bfloat16().to(hidden.dtype)


class Remembered(Wrapped):
    """It keeps its activations in a list, as visualisations need them."""

    def between(self, hidden: Tensor) -> Tensor:
        self.maps = [hidden, {"h": (hidden,)}]
        return hidden


class Checkpointed(Wrapped):
    def forward(self, x: Tensor) -> Any:
        hidden = torch.relu(self.body(x))
        return torch.utils.checkpoint.checkpoint(self.head, hidden, use_reentrant=False)


PASS: list[Build] = [
    Wrapped,
    Cast,
    Steep,
    Halved,
    Remembered,
    Checkpointed,
    Narrow,
    lambda: nn.Linear(FEATURES, CLASSES),
    lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES)),
    lambda: nn.Sequential(nn.Linear(FEATURES, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Linear(8, CLASSES)),
    lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(FEATURES, CLASSES)),
]


def _zeros() -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    for parameter in module.parameters():
        nn.init.zeros_(parameter)
    return module


@pytest.mark.parametrize("build", [*PASS, _zeros])
def test_ordinary_models_pass_and_are_left_as_they_were(build: Build) -> None:
    loss = check(build)
    with seeded(0):
        first = FlatModel(build(), CPU)
    assert torch.equal(loss.model.theta, first.theta)
    state, before = loss.model.module.state_dict(), first.module.state_dict()
    assert all(torch.equal(state[name], before[name]) for name in before)
    assert not loss.model.module.training


def test_a_model_that_changes_its_inputs_is_given_copies() -> None:
    class Scaling(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            x /= 4.0
            return super().forward(x)

    inputs, labels = samples()
    with seeded(0):
        loss = LocalLoss(FlatModel(Scaling(FEATURES, CLASSES), CPU), (inputs, labels))
        plain = LocalLoss(FlatModel(nn.Linear(FEATURES, CLASSES), CPU), (inputs / 4.0, labels))
    theta = plain.model.theta.clone()
    for _ in range(3):
        (one, gradient), (other, expected) = (each.loss_and_gradient(theta) for each in (loss, plain))
        assert one == other
        assert torch.equal(gradient, expected)
    assert loss.model.copies_inputs
    assert not plain.model.copies_inputs
    assert torch.equal(inputs, samples()[0])


def test_what_an_evaluation_changes_is_named() -> None:
    with seeded(0):
        model = FlatModel(Bounded(), CPU)
    kept = Kept(model)
    kept.check()
    model.module(samples()[0])
    with pytest.raises(ModelError, match=r"Bounded changes body\.weight as it is evaluated"):
        kept.check()


def test_batches_whose_entries_are_taken_out_change_no_sample() -> None:
    class Named(Regression):
        def losses(self, model: nn.Module, batch: Any) -> Any:
            targets = batch.pop("y")
            return (model(**batch) - targets).square()[:, 0]

    class Linear(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

    inputs = samples()[0]
    held = HeldSamples({"x": inputs, "y": inputs[:, :1].clone()})
    assert not check_losses(FlatModel(Linear(FEATURES, 1), CPU), held, Named())


def test_losses_that_change_their_batch_are_refused() -> None:
    class InPlace(Regression):
        def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
            targets -= 1.0
            return (outputs - targets).square()[:, 0]

    inputs = samples()[0]
    with pytest.raises(DataError, match=r"losses\(\) changes its batch in place"):
        LocalLoss(FlatModel(nn.Linear(FEATURES, 1), CPU), (inputs, inputs[:, :1].clone()), task=InPlace())


def test_one_sample_that_statistics_cannot_be_taken_of() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    loss = LocalLoss(FlatModel(module, CPU), samples(1))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(DataError, match="one training sample in a batch, on which BatchNorm1d cannot train"):
        check_training(loss, 1)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_training_pass_leaves_buffers_alone() -> None:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    loss = LocalLoss(FlatModel(module, CPU), samples())
    check_training(loss)
    assert int(module.get_buffer("1.num_batches_tracked")) == 0
