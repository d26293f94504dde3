"""Local work of FedCorr: measure and correct labels, then hand over to the work of the last stage's method.

Stage 1 minimises, by SGD with mixup,

    mixed cross-entropy + beta * noise * |theta - theta_received|^2

and reports the local intrinsic dimension of the local model's predictions. Labels are corrected at the model received,
before anything else is computed.

Deviations from published code: the cross-entropy by which samples are judged is that of the model's outputs (there of
their softmax, which bounds the losses and pushes the two groups together); the proximal norm is squared, as in the
paper (there it is not, so its pull has one strength however far the model is, and acts from the second mini-batch on);
mixup belongs to stage 1 alone (there to every stage); a client with few samples has n - 1 neighbours (there 20, or a
failure), and copies of a prediction do not make its dimension 0. Classes are those of the data everywhere. From the
paper: the two groups of losses are told apart on values scaled to variance 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import maxsize
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dqnfed_flwr.client.curvature import Point
from dqnfed_flwr.client.gradients import cross_entropy
from dqnfed_flwr.client.memory import RoundMemory
from dqnfed_flwr.client.work import (
    ClientContext,
    LocalRequest,
    LocalResult,
    LocalWork,
    Proximal,
    SgdWork,
    make_work,
    sgd,
)
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.fedcorr import (
    DECISION,
    FALLBACKS,
    LEVEL,
    LID,
    NOISE,
    RELABELLED,
    UNMEASURED,
    FedCorrSettings,
    Stages,
)
from dqnfed_flwr.methods.fedcorr.labels import (
    Labels,
    Outputs,
    correct_confident,
    correct_suspects,
    local_intrinsic_dimensions,
    noise_level,
)
from dqnfed_flwr.types import under

STREAM = 3
"""Stream of mixup, after those of the passes."""
RELABEL, CONFIDENCE, BETA = 0.5, 0.5, 5.0
"""Share of noisy samples relabelled, least confidence of a new label, proximal weight, all as in published code."""
LABELS, SUSPICION, DONE = "labels", "suspicion", "done"
LAST = "last/"


@dataclass(slots=True)
class _Knowledge:
    """What a client knows of its n labels.

    `labels` [n] as corrected so far, the losses of its last local model in stage 1 (`suspicion` [n]), the last decision
    that was acted upon (`done`), and how many labels `changed` in this round.
    """

    labels: Labels
    suspicion: NDArray[np.floating[Any]]
    done: int = 0
    changed: int = 0


class FedCorrWork(SgdWork):
    """Stages 1 and 2 here, the second with the row of FedAvg; stage 3 is the work of `last`, on the same loss.

    That work has settings and a memory of its own.
    """

    def __init__(self, context: ClientContext) -> None:
        super().__init__(context)
        memory = RoundMemory(context.memory.dtype, context.memory.device)
        self._last: LocalWork = make_work(replace(context, plan=context.plan.last, memory=memory))
        self._stages = Stages.of(context.plan.settings)
        self._given = context.loss.tensors[1].cpu().numpy().copy()
        self._known = self._recall(maxsize)

    def visit(self, request: LocalRequest) -> Point:
        """Correct labels where the server says so, then see the model as the stage does."""
        self._correct(request)
        if self._stages.stage(request.task.round) == 3:
            return self._last.visit(request)
        return super().visit(request)

    def perform(self, request: LocalRequest, point: Point) -> LocalResult:
        """The row of the stage, and the number of labels changed."""
        number = request.task.round
        perform = {1: self._measure, 2: super().perform, 3: self._last.perform}[self._stages.stage(number)]
        result, known = perform(request, point), self._known
        kept = {LABELS: known.labels, SUSPICION: known.suspicion, DONE: np.array(known.done)}
        self._memory.keep(number, {name: torch.tensor(v, device=self._memory.device) for name, v in kept.items()})
        return replace(result, figures={**result.figures, RELABELLED: float(known.changed)})

    def evaluated(self, request: LocalRequest) -> Tensor:
        """What the last stage's work says; before that stage it knows no more than the model received."""
        return self._last.evaluated(request)

    def export(self) -> dict[str, NDArray[Any]]:
        """The labels and all that the last stage's work keeps."""
        last = {LAST + name: values for name, values in self._last.export().items()}
        return {**super().export(), **last}

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `export`.

        Raises
        ------
        ShapeError
            If it is the state of another model.
        """
        super().load({name: values for name, values in state.items() if not name.startswith(LAST)})
        self._last.load(under(LAST, state))
        self._place(self._recall(maxsize))

    def _measure(self, request: LocalRequest, point: Point) -> LocalResult:
        """Stage 1: the passes, then dimension and losses of the local model."""
        own, noise = self._settings.group_of(FedCorrSettings), request.task.directives.get(NOISE, 0.0)
        proximal = Proximal(point.theta, self._settings.local.proximal + 2 * BETA * noise)
        mix = Mixup(own.mixup, request.key.generator(STREAM)) if own.mixup else None
        row = sgd(self._loss, point.theta, self._settings.local, request.key, proximal=proximal, batch_loss=mix)
        outputs = self._outputs(point.theta - row)
        dimensions = local_intrinsic_dimensions(outputs.probabilities)
        measured = dimensions[np.isfinite(dimensions)]
        level, status = noise_level(outputs.losses, self._settings.seed)
        self._known.suspicion = outputs.losses.astype(self._known.suspicion.dtype)
        figures = {
            LID: float(measured.mean()) if measured.size else 0.0,
            LEVEL: level,
            UNMEASURED: float(len(dimensions) - measured.size),
            FALLBACKS: float(status != "converged"),
        }
        return LocalResult(row, self.plain_rate(row), figures=figures)

    def _correct(self, request: LocalRequest) -> None:
        """Act upon a decision that is new to this client."""
        task = request.task
        known = self._recall(task.round)
        decision, noise = int(task.directives.get(DECISION, 0.0)), task.directives.get(NOISE, 0.0)
        labels = known.labels
        if decision > known.done and noise > 0:
            self._place(known)
            seen = self._outputs(request.line.theta).probabilities
            if decision > self._stages.passes:
                labels = correct_confident(labels, seen, confidence=CONFIDENCE)
            else:
                count = int(RELABEL * noise * len(labels))
                suspicion = known.suspicion.astype(np.float64)
                labels = correct_suspects(labels, suspicion, seen, count=count, confidence=CONFIDENCE)
        changed = int(np.count_nonzero(labels != known.labels))
        self._place(_Knowledge(labels, known.suspicion, max(decision, known.done), changed))

    def _recall(self, round_number: int) -> _Knowledge:
        """What was known before a round; the labels as given for a client that takes part for the first time."""
        kept = {name: tensor.cpu().numpy() for name, tensor in self._memory.before(round_number).items()}
        if not kept:
            return _Knowledge(self._given, np.zeros(len(self._given), dtype=self._dtype))
        return _Knowledge(kept[LABELS], kept[SUSPICION], int(kept[DONE]))

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float64 if self._memory.dtype == torch.float64 else np.float32

    def _place(self, known: _Knowledge) -> None:
        """Make these labels those of the loss."""
        self._known = known
        self._loss.relabel(torch.tensor(known.labels))

    def _outputs(self, theta: Tensor) -> Outputs:
        return Outputs.of(self._loss.logits(theta), self._known.labels)


class Mixup:
    """Loss of a mini-batch in which every sample is mixed with another one of it.

    Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018, section 2:

        c * CE(f(z), y) + (1 - c) * CE(f(z), y'),    z = c x + (1 - c) x',    c ~ Beta(alpha, alpha)

    with (x', y') the batch in another order; alpha is above 0. c is drawn once a batch.
    """

    def __init__(self, alpha: float, generator: np.random.Generator) -> None:
        self._alpha, self._generator = alpha, generator

    def __call__(self, module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of the batch, a float64 scalar.

        Raises
        ------
        ConfigError
            If the inputs are whole numbers (tokens), which cannot be mixed.
        """
        if not inputs.is_floating_point():
            raise ConfigError(f"fedcorr.mixup: found {self._alpha}, but {inputs.dtype} inputs cannot be mixed; use 0")
        share = float(self._generator.beta(self._alpha, self._alpha))
        order = torch.from_numpy(self._generator.permutation(len(labels))).to(labels.device)
        logits = module(share * inputs + (1 - share) * inputs[order])
        count = len(labels)
        return share * cross_entropy(logits, labels, count) + (1 - share) * cross_entropy(logits, labels[order], count)
