"""What a client does for one task, on torch tensors: its work, and the acceptance test on its own losses."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dqnfed_flwr.client.curvature import Curvature
from dqnfed_flwr.client.device import DTYPES, choose_device, may_fuse, prepare_torch, rows_stay
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss, Scores
from dqnfed_flwr.client.held_out import HeldOutTerms, HeldOutTest
from dqnfed_flwr.client.joint_gradients import JointPass, precompute
from dqnfed_flwr.client.memory import CurvatureState, RoundMemory, StateArrays
from dqnfed_flwr.client.model_checks import check_figures, check_held_out_tokens
from dqnfed_flwr.client.parts import ClientSource, DeviceParts, naming_client
from dqnfed_flwr.client.path_checks import Kept, check_training
from dqnfed_flwr.client.records import RecordLoss
from dqnfed_flwr.client.shared_models import copied, shared_models
from dqnfed_flwr.client.work import ROUNDING, ROW_ROUNDING, ClientContext, LocalRequest, LocalResult, RngKey, make_work
from dqnfed_flwr.config import Settings, protection_of, resolve
from dqnfed_flwr.data.clients import Part
from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.guarantee.harm import holds
from dqnfed_flwr.linalg.sweeps import squared_norm
from dqnfed_flwr.masked.records import Release
from dqnfed_flwr.params import Line, ParamSpec
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.tasks.arrays import ArrayTask
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, Float64Array, FloatArray, Probe, on_host, under
from dqnfed_flwr.wire.codecs import KINDS, WHOLE
from dqnfed_flwr.wire.rounding import Parts

if TYPE_CHECKING:
    from dqnfed_flwr.types import Vector

Buffers = Mapping[str, NDArray[Any]]
_Key = tuple[int, torch.dtype, torch.device]
_HELD_OUT = "held-out/"
HELD_OUT_PARTS: tuple[Part, ...] = ("validation", "test")

_COPIES: dict[_Key, tuple[weakref.ref[Any], Tensor]] = {}
_COPYING = threading.Lock()


class Worker:
    """A client's samples and memory on one device; the model is borrowed for as long as the client computes.

    The samples are moved to the device once, test and validation part when first asked for. `num_classes` is the number
    of outputs of the model; `state` is what `export_state` gave in an earlier life, empty for a new client. `known`:
    whether the model was found to be in order in this run. `models` are those of the run's clients.

    Raises
    ------
    ConfigError
        If the device is absent.
    DataError
        If there is no training sample, a label does not fit the classes, or the model does not take the samples.
    ModelError
        If the model is none that can be trained, see `docs/tasks.md`.
    ShapeError
        If the state is of another model.
    """

    def __init__(
        self,
        settings: Settings,
        partition: int,
        data: ClientSource,
        num_classes: int,
        state: StateArrays,
        *,
        known: bool = False,
    ) -> None:
        self._settings, self._plan = settings, resolve(settings)
        self._partition = partition
        self._dtype = DTYPES[settings.dtype]
        self._device = choose_device(settings.device, settings.dtype)
        self._rows_stay = rows_stay(settings, self._device)
        prepare_torch(settings.local.threads, self._device, fused=may_fuse(self._plan, self._device))
        self.models = shared_models(settings, data, num_classes, self._device)
        if known:
            self.models.trust()
        self._left = self.models.buffers  # as this client's last work left them
        task = task_of(settings)
        self._samples = DeviceParts(settings, task, data, partition, num_classes, self._device)
        with self.models.lend() as model:
            self._loss = self._checked_loss(model, task, data, num_classes)
            curvature_state = CurvatureState(self.spec.dim, self._dtype, self._device)
            curvature = Curvature(settings.curvature, settings.local.lr, self._loss, curvature_state)
            memory = RoundMemory(self._dtype, self._device)
            self._work = make_work(ClientContext(self._plan, self._loss, curvature, memory, self._samples.some))
            del self._loss.model
        terms = HeldOutTerms.of(self._plan)
        self._judge = None if terms is None else terms.judge(data.count("validation"))
        self.restore_state(state)
        self._comes_apart = False

    def _checked_loss(self, model: FlatModel, task: Task, data: ClientSource, outputs: int) -> LocalLoss:
        """The client's loss, after its samples were found to fit model and task."""
        settings, train = self._settings, self._samples.part("train")
        with naming_client(self._partition):
            kept = None if self.models.checked else Kept(model)
            loss = LocalLoss(model, train, task=task, ridge=settings.ridge, chunk=settings.local.chunk, outputs=outputs)
            if kept is not None:
                kept.check()
            self._check_path(loss)
            if not isinstance(task, ArrayTask) and data.count("test"):
                check_figures(model, self._samples.part("test"), task)
            for part in HELD_OUT_PARTS if data.input_kind == "tokens" else ():
                check_held_out_tokens(model, self._samples.part(part))
        self.models.suited(data, task)
        protection = protection_of(settings)
        return loss if protection is None else RecordLoss(loss, protection)

    def _check_path(self, loss: LocalLoss) -> None:
        """Check the loss on the path that training takes: the model once a run and node, a lone sample each time."""
        settings = self._settings
        passes = any(work.passes for work in self._plan.works)
        self.models.check(loss, passes=passes)
        size = min(settings.local.batch_size or loss.num_examples, loss.num_examples)
        if passes and size == 1 and self.spec.buffers:
            check_training(loss, size)

    def look_through(self) -> None:
        """Ask once for the loss of every training sample; `ClientDataError` where one is not finite."""
        with naming_client(self._partition), self._borrowed():
            self._loss.look_through()

    @contextmanager
    def _borrowed(self, buffers: Buffers | None = None) -> Iterator[FlatModel]:
        """A model for as long as this client computes, with these buffers, or else those that it left."""
        with self.models.lend() as model:
            self._loss.model = model
            self.spec.write_buffers(self._left, model.module)
            try:
                if buffers is not None:
                    _write_buffers(buffers, model)
                yield model
            finally:
                self._left = self.spec.read_buffers(model.module)
                del self._loss.model

    @property
    def spec(self) -> ParamSpec:
        """Order of parameters and buffers."""
        return self.models.spec

    @property
    def nbytes(self) -> int:
        """Bytes of its samples and buffers on the device, without its memory."""
        return self._samples.nbytes + sum(buffer.nbytes for buffer in self._left.values())

    def export_state(self) -> StateArrays:
        """The client's memory as named arrays, its own."""
        kept = {} if self._judge is None else self._judge.memory.export()
        return {**self._work.export(), **{_HELD_OUT + name: values for name, values in kept.items()}}

    def restore_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `export_state` gave; an empty mapping is that of a new client."""
        self._work.load({name: values for name, values in state.items() if not name.startswith(_HELD_OUT)})
        if self._judge is not None:
            self._judge.memory.load(under(_HELD_OUT, state))

    def perform(
        self,
        task: ClientTask,
        theta: Vector,
        step: Vector | None,
        buffers: Buffers | None,
        vectors: Mapping[str, Vector] | None = None,
        *,
        lasting: bool = False,
        release: Release | None = None,
    ) -> ClientReply:
        """Do what `task` asks at `theta` [D]; see `DQNFedClient.work`."""
        started = time.perf_counter()
        with self._borrowed() as model, self._releasing(release):
            reply = self._perform(model, task, theta, step, buffers, vectors or {}, lasting=lasting)
        return reply if release else replace(reply, seconds=time.perf_counter() - started)

    @contextmanager
    def _releasing(self, release: Release | None) -> Iterator[None]:
        """Give of the records what a release allows, where they are protected; else anything, and there is none."""
        if not isinstance(self._loss, RecordLoss):
            yield
            return
        if release is None:
            raise ConfigError("privacy.epsilon: work without a release; it comes from the client's ledger")
        self._loss.release = release
        try:
            yield
        finally:
            self._loss.release = None

    def _perform(
        self,
        model: FlatModel,
        task: ClientTask,
        theta: Vector,
        step: Vector | None,
        buffers: Buffers | None,
        vectors: Mapping[str, Vector],
        *,
        lasting: bool,
    ) -> ClientReply:
        copy = self._shared_vector if lasting else self._vector
        line = Line(copy(theta), step, task.factor, copy)
        if buffers is not None:
            _write_buffers(buffers, model)
        sent = {name: copy(vector) for name, vector in vectors.items()}
        request = LocalRequest(task, RngKey(self._settings.seed, task.round, self._partition), line, sent)
        point = self._work.visit(request) if task.train else None
        held_out = self._held_out_test(task, line)
        probed = self._probe(task, line, None if point is None else point.loss, held_out) if task.probe else None
        test, validation = self._evaluations(request, model) if task.evaluate else (None, None)
        reply = ClientReply(self._loss.num_examples, probe=probed, test=test, validation=validation)
        if point is not None:
            result = self._work.perform(request, point)
            vectors, packed = _to_send(result, request.key)
            row, coded, grown = self._row_to_send(result.row, task.round, stays=lasting and self._rows_stay)
            left = self.spec.read_buffers(model.module) if self._plan.work.passes else {}
            reply = replace(
                reply,
                row=row,
                coded=coded,
                vectors=vectors,
                packed=packed,
                figures=result.figures,
                buffers={name: value.cpu().numpy() for name, value in left.items()},
                loss=point.loss,
                rate=result.rate.value * grown,
                pairs_kept=result.rate.pairs_kept,
                pairs_rejected=result.rate.pairs_rejected,
            )
        return reply

    def _row_to_send(self, row: Tensor, number: int, *, stays: bool) -> tuple[Vector, Parts, float]:
        """The row of a round as the server will have it, its parts where it is rounded, and its squared norm's growth.

        The rate grows with it: a rate is one of the row that is sent. Draws are those of the round, not of the
        exchange, so that a run that goes on after its last round has the bits of a longer one.
        """
        bits = self._plan.row_bits
        if bits == WHOLE:
            return (row.detach() if stays else _read_only(row)), {}, 1.0
        exact = _read_only(row)
        draws = np.random.default_rng((self._settings.seed, number, self._partition, ROW_ROUNDING))
        codec = KINDS["row"].codecs[bits]
        coded = codec.pack(exact, draws)
        sent = codec.unpack(coded, exact.shape)
        before, after = squared_norm(exact), squared_norm(sent)
        return sent, coded, after / before if 0 < before < np.inf and 0 < after < np.inf else 1.0

    def scores(self, theta: Vector, buffers: Buffers, part: Part) -> Scores:
        """How each sample of a part of the data is answered at `theta` [D]; the memory stays as it is."""
        with self._borrowed(buffers):
            return self._loss.scores(self._vector(theta), self._samples.part(part))

    def sample_losses(self, theta: Vector, buffers: Buffers, part: Part) -> Float64Array:
        """The loss of each sample of a part of the data at `theta` [D]; the memory stays as it is."""
        with self._borrowed(buffers):
            return self._loss.sample_losses(self._vector(theta), self._samples.part(part))

    def evaluation(self, theta: Vector, buffers: Buffers, part: Part) -> Evaluation:
        """The figures of a part of the data at `theta` [D]; the memory stays as it is."""
        with self._borrowed(buffers):
            return self._loss.evaluate(self._vector(theta), self._samples.part(part))

    def precompute(self, theta: Vector, buffers: Buffers, others: Sequence[Worker]) -> None:
        """Compute loss and gradient at `theta` [D], a lasting vector, in one pass for this worker and others."""
        at, losses = self._shared_vector(theta), [self._loss, *(other._loss for other in others)]
        with self._borrowed() as model:
            joint = JointPass(FlatModel(copied(model.module), self._device))  # kept until all gradients are made
            _write_buffers(buffers, joint.model)
            if not self._comes_apart:
                joint.check(at, losses[:2])
                self._comes_apart = True
        precompute(joint, at, losses)

    def _probe(self, task: ClientTask, line: Line, loss: float | None, held_out: HeldOutTest | None) -> Probe:
        def loss_at(factor: float) -> float:
            return loss if loss is not None and factor == task.factor else self._loss.loss(line.at(factor))

        return probe(loss_at, task, self._settings.step.armijo, held_out, self._settings.dtype)

    def _held_out_test(self, task: ClientTask, line: Line) -> HeldOutTest | None:
        """The test on the held-out part, which also notes its losses at the model that the client trains on."""
        if self._judge is None:
            return None
        samples = self._samples.part("validation")
        return self._judge.visit(task, cache(lambda factor: self._loss.sample_losses(line.at(factor), samples)))

    def _evaluations(self, request: LocalRequest, model: FlatModel) -> tuple[Evaluation, Evaluation | None]:
        """Test and, where there is one, validation part at the model that the work reports on."""
        received = self.spec.read_buffers(model.module)
        theta = self._work.evaluated(request)
        test = self._loss.evaluate(theta, self._samples.part("test"))
        kept_apart = self._samples.some("validation")
        validation = None if kept_apart is None else self._loss.evaluate(theta, kept_apart)
        self.spec.write_buffers(received, model.module)
        return test, validation

    def _vector(self, vector: Vector) -> Tensor:
        """A copy of `vector` of its own, on the device and in the dtype of the model."""
        if not isinstance(vector, Tensor) and vector.dtype.kind not in "fiu":
            raise ShapeError(f"a vector of {vector.dtype}; need numbers")
        return self._fitting(_copy(vector, self._dtype, self._device))

    def _shared_vector(self, vector: Vector) -> Tensor:
        """A copy of `vector`, which never changes, for all clients of the process."""
        return self._fitting(_shared_copy(vector, self._dtype, self._device))

    def _fitting(self, vector: Tensor) -> Tensor:
        if tuple(vector.shape) != (self.spec.dim,):
            raise ShapeError(f"a vector of shape {tuple(vector.shape)} was sent; this model needs ({self.spec.dim},)")
        return vector


def probe(
    loss_at: Callable[[float], float],
    task: ClientTask,
    armijo: float,
    held_out: HeldOutTest | None = None,
    dtype: str = "float32",
) -> Probe:
    """Test the candidate, then twice its factor if asked to and it suits, or its halves if it does not.

    A factor suits where the training loss passes `holds`, with `armijo` and the model's `dtype`, and the `held_out`
    test passes, or where the latter does alone, if it is to decide alone. Where the task asks for the rungs of a
    ladder, the losses there come along, whatever the tests say. A client that no half suits, or only the last, also
    says what its loss is as far the other way: the loss of one whose gradient is true rises there as well, see
    `guarantee.overrule`.

    `loss_at` gives f_k(theta^{t-1} - a * step) for a factor a, and is called once for each rung. `grown_holds` is None
    where twice the factor was not tried: not asked for, or the candidate fails already.
    """
    known = cache(loss_at)

    def suits(factor: float) -> bool:
        if held_out is not None and held_out.alone:
            return held_out.suits(factor, known(factor))
        return holds(known(factor), factor, task, armijo, dtype) and (held_out is None or held_out.passes(factor))

    found = _test(known, task, suits)
    passed = None if held_out is None else not held_out.refused
    return replace(found, losses=tuple(known(factor) for factor in task.rungs), held_out=passed)


def _test(loss_at: Callable[[float], float], task: ClientTask, suits: Callable[[float], bool]) -> Probe:
    loss = loss_at(task.factor)
    if suits(task.factor):
        return Probe(loss, True, suits(2 * task.factor) if task.grow else None)
    for factor in task.halved:
        if suits(factor):
            behind = loss_at(-factor) if factor == task.halved[-1] else None
            return Probe(loss, False, back_factor=factor, back_loss=loss_at(factor), behind_loss=behind)
    return Probe(loss, False, behind_loss=loss_at(-task.halved[-1]) if task.halved else None)


def _write_buffers(buffers: Buffers, model: FlatModel) -> None:
    model.spec.write_buffers({name: torch.tensor(b) for name, b in buffers.items()}, model.module)


def _to_send(result: LocalResult, key: RngKey) -> tuple[dict[str, FloatArray], dict[str, Parts]]:
    """A method's further vectors: those that go as they are, and the parts of the others."""
    vectors = {name: _read_only(value) for name, value in result.vectors.items()}
    extra, draws = KINDS["extra"], key.generator(ROUNDING)
    packed = {name: extra.codecs[bits].pack(vectors.pop(name), draws) for name, bits in result.bits.items()}
    return vectors, packed


def _read_only(vector: Tensor) -> FloatArray:
    """The vector as a read-only array: the client keeps gradients without a copy, on a processor."""
    array = on_host(vector.detach())
    array.flags.writeable = False
    return array


def _copy(vector: Vector, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(vector, Tensor):
        return vector.detach().to(device, dtype, copy=True)
    return torch.tensor(vector, dtype=dtype, device=device)


def _shared_copy(vector: Vector, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy of `vector`, whose values stay as they are; one tensor, read-only, for one vector as long as it lives."""
    key = (id(vector), dtype, device)
    with _COPYING:
        if held := _COPIES.get(key):
            return held[1]
        copy = _copy(vector, dtype, device)
        _COPIES[key] = (weakref.ref(vector, lambda _: _COPIES.pop(key, None)), copy)
        return copy
