"""The tasks that come with the package, against what torch and scikit-learn say of the same outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score, log_loss, mean_absolute_error, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional

from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.samples import HeldSamples
from dqnfed_flwr.config import Settings
from dqnfed_flwr.tasks import TASKS, task_of
from dqnfed_flwr.tasks._base import Counter, Task
from dqnfed_flwr.tasks.classification import Classification
from dqnfed_flwr.tasks.counters import MeanIou

Oracle = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """A module, 13 samples, and the mean loss over them as torch says it."""

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    mean: Oracle


class Words(nn.Module):
    """Logits for the next token, with the classes last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 3), nn.Linear(3, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.embedding(tokens)))
        return logits


def of_pixels(outputs: Tensor, targets: Tensor) -> Tensor:
    """Torch's own mean skips what is ignored."""
    return functional.cross_entropy(outputs, targets, ignore_index=-1)


def of_tokens(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.reshape(-1, 6), targets.reshape(-1), ignore_index=-1)


def of_values(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * functional.mse_loss(outputs, targets)


def case(name: str) -> Case:
    torch.manual_seed(5)
    x = torch.randn(13, 4, dtype=torch.float64)
    dense = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    places = torch.randint(-1, 3, (13, 4, 4))
    places[0] = -1  # a sample that nothing is asked of
    tokens = torch.randint(-1, 6, (13, 5))
    tokens[:, 0] = 2
    conv = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 1)).double()
    flags = functional.binary_cross_entropy_with_logits
    cases = {
        "classification": Case(dense, x, torch.arange(13) % 3, functional.cross_entropy),
        "regression": Case(dense, x, torch.randn(13, 3, dtype=torch.float64) * 2, of_values),
        "huber-regression": Case(dense, x, torch.randn(13, 3, dtype=torch.float64) * 2, functional.huber_loss),
        "multi-label": Case(dense, x, torch.randint(0, 2, (13, 3)).double(), flags),
        "segmentation": Case(conv, torch.randn(13, 1, 4, 4, dtype=torch.float64), places, of_pixels),
        "next-token": Case(Words().double(), torch.randint(0, 6, (13, 5)), tokens, of_tokens),
    }
    return cases[name]


def shipped(name: str) -> Task:
    return task_of(Settings.from_mapping({"task": name}))


def local_loss(name: str, chunk: int = 0) -> tuple[Case, LocalLoss]:
    found = case(name)
    model = FlatModel(found.module, torch.device("cpu"))
    return found, LocalLoss(model, (found.inputs, found.targets), task=shipped(name), chunk=chunk)


@pytest.mark.parametrize("name", TASKS)
def test_loss_and_gradient_are_those_of_torch(name: str) -> None:
    found, loss = local_loss(name)
    theta = loss.model.theta.clone()
    value, gradient = loss.loss_and_gradient(theta)
    mean = found.mean(found.module(found.inputs), found.targets)
    parts = torch.autograd.grad(mean, loss.model.parameters)
    torch.testing.assert_close(value, mean.item(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, loss.model.flat(parts), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("chunk", [1, 2, 5, 6, 12, 14])
def test_the_mean_is_the_same_however_chunks_are_cut(name: str, chunk: int) -> None:
    """Places without a class weigh nothing, so that chunks weigh differently."""
    whole, cut = (local_loss(name, size)[1] for size in (13, chunk))
    theta = whole.model.theta.clone()
    (value, gradient), (value_cut, gradient_cut) = whole.loss_and_gradient(theta), cut.loss_and_gradient(theta)
    assert value_cut == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(gradient_cut, gradient, rtol=1e-10, atol=1e-12)
    assert cut.loss(theta) == value_cut


@pytest.mark.parametrize("name", ["segmentation", "next-token"])
def test_a_mini_batch_is_weighted_by_its_own_places(name: str) -> None:
    found, loss = local_loss(name, chunk=3)
    rows = torch.tensor([1, 4, 5, 11, 12])
    value, _ = loss.loss_and_gradient(loss.model.theta.clone(), rows)
    mean = found.mean(found.module(found.inputs[rows]), found.targets[rows])
    assert value == pytest.approx(mean.item(), rel=1e-12)


def iou(outputs: Tensor, targets: Tensor) -> float:
    asked = targets != -1
    found, right = outputs.argmax(1)[asked], targets[asked]
    return float(jaccard_score(right, found, average="macro"))


def right_tokens(outputs: Tensor, targets: Tensor) -> float:
    asked = targets != -1
    return float(accuracy_score(targets[asked], outputs.argmax(-1)[asked]))


def auroc(outputs: Tensor, targets: Tensor) -> float:
    return float(roc_auc_score(targets.reshape(-1), outputs.reshape(-1).sigmoid()))


def error(outputs: Tensor, targets: Tensor) -> float:
    return float(mean_absolute_error(targets, outputs))


FIGURES: dict[str, tuple[str, bool, Callable[[Tensor, Tensor], float]]] = {
    "regression": ("mae", False, error),
    "huber-regression": ("mae", False, error),
    "multi-label": ("auroc", True, auroc),
    "segmentation": ("iou", True, iou),
    "next-token": ("accuracy", True, right_tokens),
}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("chunk", [1, 5, 13])
def test_figures_are_those_of_scikit_learn(name: str, chunk: int) -> None:
    found, loss = local_loss(name, chunk)
    called, higher, oracle = FIGURES[name]
    evaluation = loss.evaluate(loss.model.theta, HeldSamples((found.inputs, found.targets)))
    outputs = found.module(found.inputs).detach()
    assert evaluation.figures == {called: pytest.approx(oracle(outputs, found.targets), rel=1e-9)}
    assert evaluation.loss == pytest.approx(found.mean(outputs, found.targets).item(), rel=1e-12)
    assert evaluation.examples == 13
    figure = shipped(name).figure
    assert (figure.name, figure.higher) == (called, higher)


def test_accuracy_counts_right_answers() -> None:
    found, loss = local_loss("classification", 4)
    evaluation = loss.evaluate(loss.model.theta, HeldSamples((found.inputs, found.targets)))
    outputs = found.module(found.inputs).detach()
    assert evaluation.correct == accuracy_score(found.targets, outputs.argmax(1), normalize=False)
    assert evaluation.loss == pytest.approx(log_loss(found.targets, outputs.softmax(1)), rel=1e-9)


class Weighted(Classification):
    """Torch's class weights, and another figure; the mean that torch says is over the weights."""

    weights = torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)

    def losses_of(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return functional.cross_entropy(outputs, targets, reduction="none"), self.weights[targets]

    def metrics(self) -> Mapping[str, Counter]:
        return {"iou": MeanIou()}


class Smoothed(Classification):
    """Torch's label smoothing."""

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.3)


@pytest.mark.parametrize("chunk", [4, 13])
@pytest.mark.parametrize(
    ("task", "oracle", "name", "score"),
    [
        (Smoothed(), partial(functional.cross_entropy, label_smoothing=0.3), "accuracy", accuracy_score),
        (
            Weighted(),
            partial(functional.cross_entropy, weight=Weighted.weights),
            "iou",
            partial(jaccard_score, average="macro"),
        ),
    ],
    ids=["label smoothing", "class weights"],
)
def test_a_classification_takes_another_loss_and_figure(
    task: Classification, oracle: Oracle, name: str, score: Callable[..., float], chunk: int
) -> None:
    found = case("classification")
    model, samples = FlatModel(found.module, torch.device("cpu")), (found.inputs, found.targets)
    loss = LocalLoss(model, samples, task=task, chunk=chunk)
    value, gradient = loss.loss_and_gradient(model.theta.clone())
    outputs = found.module(found.inputs)
    mean = oracle(outputs, found.targets)
    parts = torch.autograd.grad(mean, model.parameters, retain_graph=True)
    assert value == pytest.approx(mean.item(), rel=1e-12)
    torch.testing.assert_close(gradient, model.flat(parts), rtol=1e-10, atol=1e-12)
    evaluation = loss.evaluate(model.theta, HeldSamples(samples))
    assert evaluation.loss == pytest.approx(mean.item(), rel=1e-12)
    assert evaluation.figures == {name: pytest.approx(score(found.targets, outputs.detach().argmax(1)))}
    assert task.figure.name == name


def test_auroc_of_flags_that_are_all_alike_is_not_a_number() -> None:
    found, loss = local_loss("multi-label")
    evaluation = loss.evaluate(loss.model.theta, HeldSamples((found.inputs, torch.zeros(13, 3).double())))
    assert math.isnan(evaluation.figures["auroc"])


def test_a_model_that_diverged_has_no_figure_and_the_loss_tells() -> None:
    task = shipped("multi-label")
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, torch.nan)
    batch = (torch.ones(4, 3), torch.tensor([[0.0, 1.0]] * 2 + [[1.0, 0.0]] * 2))
    evaluation = task.evaluate(module, [(batch, 4)], 4)
    assert math.isnan(evaluation.loss)
    assert math.isnan(evaluation.figures["auroc"])


def test_auroc_ranks_logits_whose_sigmoids_are_all_one() -> None:
    logits, flags = torch.tensor([[60.0], [30.0]]), torch.tensor([[1], [0]])
    scores, targets = shipped("multi-label").predictions(nn.Identity(), (logits, flags))
    counter = shipped("multi-label").metrics()["auroc"]
    counter.update(scores, targets)
    assert counter.compute() == 1.0


def test_a_huber_loss_is_linear_beyond_an_error_of_one() -> None:
    """By hand: 0.5 * 0.5^2 and 3 - 0.5."""
    outputs, targets = torch.tensor([[0.5], [3.0]]), torch.zeros(2, 1)
    of = {name: shipped(name).losses(nn.Identity(), (outputs, targets)) for name in ("regression", "huber-regression")}
    assert of["regression"].tolist() == [0.125, 4.5]  # type: ignore[union-attr]
    assert of["huber-regression"].tolist() == [0.125, 2.5]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["mlp", "logistic", "cnn"])
@pytest.mark.parametrize(("task", "outputs"), [("regression", 1), ("huber-regression", 2), ("multi-label", 1)])
def test_shipped_models_serve(name: str, task: str, outputs: int) -> None:
    settings = Settings.from_mapping({"task": task, "model": name})
    module = task_of(settings).build((1, 8, 8), outputs, seed=0, dtype=torch.float32)
    generator = np.random.default_rng(0)
    x = torch.tensor(generator.normal(size=(5, 1, 8, 8)), dtype=torch.float32)
    targets = torch.tensor(generator.integers(0, 2, (5, outputs)), dtype=torch.float32)
    make = partial(LocalLoss, FlatModel(module, torch.device("cpu")), (x, targets), task=task_of(settings))
    loss = make(outputs=outputs)
    assert math.isfinite(loss.loss(loss.model.theta))
