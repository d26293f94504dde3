"""What a client does for one task, on torch tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature, Point, Rate
from dqnfed_flwr.client.curvature_state import CurvatureState, StateArrays
from dqnfed_flwr.client.device import DTYPES, choose_device, prepare_torch
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss, Samples
from dqnfed_flwr.client.local_work import Turn, lbfgs_passes, mini_batch, sgd
from dqnfed_flwr.client.probing import probe
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import ClientData, to_model_input
from dqnfed_flwr.errors import DataError, ShapeError
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec, line_point
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, FloatArray, Probe

Vector = FloatArray | Tensor
Buffers = Mapping[str, NDArray[Any]]


class Worker:
    """A client's model, samples and memory on one device.

    Parameters
    ----------
    settings : Settings
        Of the run.
    partition : int
        Number of the client.
    data : ClientData
        Its samples; they are moved to the device once, test and validation part when first asked for.
    num_classes : int
        Outputs of the model.
    state : Mapping[str, NDArray]
        What `export_state` gave in an earlier life; empty for a new client.

    Raises
    ------
    ConfigError
        If the device is absent.
    DataError
        If there is no training sample, or a label does not fit the classes.
    ShapeError
        If the state is that of another model.
    """

    def __init__(
        self, settings: Settings, partition: int, data: ClientData, num_classes: int, state: StateArrays
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._data = data
        self._num_classes = num_classes
        self._dtype = DTYPES[settings.dtype]
        self._device = choose_device(settings.device, settings.dtype)
        prepare_torch(settings.local.threads, self._device)
        module = build_model(settings.model, data.input_shape, num_classes, seed=settings.seed, dtype=self._dtype)
        self._model = FlatModel(module, self._device)
        train = self._samples(data.x_train, data.y_train)
        self._loss = LocalLoss(self._model, train, ridge=settings.ridge, chunk=settings.local.chunk)
        self._state = CurvatureState(self.spec.dim, self._dtype, self._device)
        self._state.load(state)
        self._curvature = Curvature(settings.curvature, settings.local.lr, self._loss, self._state)
        self._held_out: dict[str, Samples] = {}

    @property
    def spec(self) -> ParamSpec:
        """Order of parameters and buffers."""
        return self._model.spec

    def export_state(self) -> StateArrays:
        """The client's memory as named arrays, its own."""
        return self._state.export()

    def restore_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `export_state` gave; an empty mapping is that of a new client."""
        self._state.load(state)

    def perform(self, task: ClientTask, theta: Vector, step: Vector | None, buffers: Buffers | None) -> ClientReply:
        """Do what `task` asks at `theta` [D]; see `DQNFedClient.work`."""
        started = time.perf_counter()
        line = _Line(self._vector(theta), step, task.factor, self._vector)
        if buffers is not None:
            self._model.spec.write_buffers({name: torch.tensor(b) for name, b in buffers.items()}, self._model.module)
        point = self._visit(task, line) if task.train else None
        probed = self._probe(task, line, None if point is None else point.loss) if task.probe else None
        test = self._evaluate("test", line.theta) if task.evaluate else None
        validated = task.evaluate and len(self._data.y_validation) > 0
        validation = self._evaluate("validation", line.theta) if validated else None
        row, update, rate = self._train(task, point) if point is not None else (None, None, Rate(float("nan")))
        return ClientReply(
            num_examples=self._loss.num_examples,
            gradient=_shared(row),
            update=_shared(update),
            buffers=self._buffers() if task.train else {},
            loss=float("nan") if point is None else point.loss,
            rate=rate.value,
            probe=probed,
            test=test,
            validation=validation,
            pairs_kept=rate.pairs_kept,
            pairs_rejected=rate.pairs_rejected,
            seconds=time.perf_counter() - started,
        )

    def _visit(self, task: ClientTask, line: _Line) -> Point:
        """Loss over all samples, and for gradient work the gradient, of the round's mini-batch if there is one."""
        settings = self._settings
        if settings.local_work == "sgd":
            return Point(task.exchange, line.theta, torch.empty(0), self._loss.loss(line.theta))
        batch_size = 0 if settings.wants_update else settings.local.batch_size  # there it is that of the local passes
        rows = mini_batch(self._loss, batch_size, self._turn(task))
        loss, gradient = self._loss.loss_and_gradient(line.theta, rows)
        if rows is not None:
            loss = self._loss.loss(line.theta)
        recomputes = settings.curvature.kind == "secant" and settings.curvature.previous == "recomputed"
        previous = line.at(0.0) if recomputes and line.known else None
        return Point(task.exchange, line.theta, gradient, loss, previous, rows)

    def _train(self, task: ClientTask, point: Point) -> tuple[Tensor, Tensor | None, Rate]:
        """Row, reference update and rate."""
        settings = self._settings
        if settings.local_work == "sgd":
            row = sgd(self._loss, point.theta, settings.local, self._turn(task))
            return row, None, self._curvature.rate(row, float("nan"), 0, 0)
        seen = self._curvature.observe(point)
        if settings.local_work == "lbfgs" and settings.local.epochs > 1:
            row, rate = lbfgs_passes(self._loss, self._curvature, point, seen, settings.local)
            return row, None, rate
        update = sgd(self._loss, point.theta, settings.local, self._turn(task)) if settings.wants_update else None
        return point.gradient, update, seen.rate

    def _probe(self, task: ClientTask, line: _Line, loss: float | None) -> Probe:
        def loss_at(factor: float) -> float:
            return loss if loss is not None and factor == task.factor else self._loss.loss(line.at(factor))

        return probe(loss_at, task, self._settings.step.armijo, torch.finfo(self._dtype).eps)

    def _evaluate(self, part: str, theta: Tensor) -> Evaluation:
        if part not in self._held_out:
            data = self._data
            x, y = (data.x_test, data.y_test) if part == "test" else (data.x_validation, data.y_validation)
            self._held_out[part] = self._samples(x, y)
        return self._loss.evaluate(theta, self._held_out[part])

    def _samples(self, x: NDArray[Any], y: NDArray[Any]) -> Samples:
        if len(y) and not 0 <= y.min() <= y.max() < self._num_classes:
            raise DataError(
                f"labels from {y.min()} to {y.max()} in the data of client {self._partition}; {self._num_classes} "
                f"classes allow 0..{self._num_classes - 1}; set num-classes"
            )
        return to_model_input(x, self._dtype).to(self._device), torch.tensor(y, dtype=torch.int64, device=self._device)

    def _vector(self, vector: Vector) -> Tensor:
        """A copy of `vector` of its own, on the device and in the dtype of the model."""
        if isinstance(vector, Tensor):
            copy = vector.detach().to(self._device, self._dtype, copy=True)
        else:
            copy = torch.tensor(vector, dtype=self._dtype, device=self._device)
        if tuple(copy.shape) != (self.spec.dim,):
            raise ShapeError(f"a vector of shape {tuple(copy.shape)} was sent; this model needs ({self.spec.dim},)")
        return copy

    def _buffers(self) -> dict[str, NDArray[Any]]:
        return {name: value.cpu().numpy() for name, value in self.spec.read_buffers(self._model.module).items()}

    def _turn(self, task: ClientTask) -> Turn:
        return Turn(self._settings.seed, task.round, self._partition)


class _Line:
    """theta^{t-1} - a * step through the candidate `theta`; the step is read when it is first needed."""

    def __init__(self, theta: Tensor, step: Vector | None, factor: float, read: Callable[[Vector], Tensor]) -> None:
        self.theta = theta
        self.known = step is not None and factor > 0
        self._factor = factor
        self._sent = step
        self._read = read
        self._step: Tensor | None = None

    def at(self, factor: float) -> Tensor:
        if factor == self._factor:
            return self.theta
        if self._sent is None:
            raise ShapeError("the task asks for losses along the step, but no step was sent; send it with the model")
        if self._step is None:
            self._step = self._read(self._sent)
        return line_point(self.theta, self._step, self._factor, factor)


def _shared(vector: Tensor | None) -> FloatArray | None:
    """The vector as a read-only array: the client keeps gradients without a copy."""
    if vector is None:
        return None
    array = cast(FloatArray, vector.cpu().numpy())
    array.flags.writeable = False
    return array
