"""The client as Flower knows it: a `NumPyClient` around `Worker`. Torch is imported when there is work to do.

In Flower's list protocol, tasks are configs of scalars, and replies are arrays and metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from flwr.client import NumPyClient
from flwr.common import Scalar as Metric
from numpy.typing import NDArray

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.clients import Part
from dqnfed_flwr.errors import ConfigError, ShapeError
from dqnfed_flwr.types import ClientReply, ClientTask, Evaluation, Float64Array, FloatArray, on_host
from dqnfed_flwr.version import package_version
from dqnfed_flwr.wire.codecs import DIRECTIVE, EXTRA
from dqnfed_flwr.wire.task import TASK_FIELDS

if TYPE_CHECKING:
    from dqnfed_flwr.client.gradients import Scores
    from dqnfed_flwr.client.parts import ClientSource
    from dqnfed_flwr.client.shared_models import SharedModels
    from dqnfed_flwr.client.worker import Worker
    from dqnfed_flwr.masked.records import Release
    from dqnfed_flwr.types import Vector

Arrays = list[NDArray[Any]]
HAS_STEP = "has-step"
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "bool": (bool,), "float": (int, float)}


class DQNFedClient(NumPyClient):
    """One client of DQN-Fed or of another method.

    Parameters
    ----------
    settings : Settings
        Of the run.
    partition : int
        Number of the client, from 0.
    data : ClientSource
        Its samples, as `client.parts.open_client` gives them.
    state : Mapping[str, NDArray] | None
        What `export_state` of the client's last life gave; None for a new client.

    Attributes
    ----------
    checked : int
        Outputs of the model that was found to be in order, here or in another process of the run; 0 for none.

    Notes
    -----
    `work` is the whole client. `fit` and `evaluate` adapt it to Flower's lists: parameters are [theta] or
    [theta, step], then the buffers in the order of the model's `ParamSpec`; the config holds the fields of
    `ClientTask` in kebab-case, and `has-step`.
    """

    def __init__(
        self, settings: Settings, partition: int, data: ClientSource, state: Mapping[str, NDArray[Any]] | None = None
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._data = data
        self._worker: Worker | None = None
        self._state = dict(state or {})  # until there is a worker
        self._num_classes = self.checked = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its samples, as they were read and on the device, and of its buffers; without its memory."""
        return self._data.nbytes + (0 if self._worker is None else self._worker.nbytes)

    @property
    def averaged(self) -> int:
        """Samples that its row is the mean of."""
        return self._settings.local.averaged(self._data.count("train"))

    def work(
        self,
        task: ClientTask,
        theta: Vector,
        step: Vector | None = None,
        buffers: Mapping[str, NDArray[Any]] | None = None,
        vectors: Mapping[str, Vector] | None = None,
        *,
        lasting: bool = False,
        release: Release | None = None,
    ) -> ClientReply:
        """Do what one exchange asks.

        Parameters
        ----------
        task : ClientTask
            What to do.
        theta : FloatArray | Tensor
            [D], the candidate model; copied.
        step : FloatArray | Tensor | None
            [D], where the task or the settings need the line through the candidate.
        buffers : Mapping[str, NDArray] | None
            Buffers of the global model; None leaves them as they are.
        vectors : Mapping[str, FloatArray | Tensor] | None
            Each [D], what the method sends to clients that train.
        lasting : bool
            Whether `theta` and `step` stay as they are, as arrays of a message do: clients of one process that are
            given the same array then hold one copy of it.
        release : Release | None
            With `privacy.epsilon`, the noise of this exchange; `seconds` are then not told.

        Returns
        -------
        ClientReply
            Its vectors are read-only; with `lasting` the row may be a tensor, as `rows.device` says. Loss, gradient,
            rate, probe and evaluation are those of the received model and buffers; `buffers` are what local SGD left.

        Raises
        ------
        ShapeError
            If a vector or a buffer does not fit the model, or a step is needed and absent.
        ConfigError, DataError, ModelError
            If settings, data and model do not go together.
        """
        return self._worker_for(task.num_classes).perform(
            task, theta, step, buffers, vectors, lasting=lasting, release=release
        )

    def scores(
        self, num_classes: int, theta: FloatArray, buffers: Mapping[str, NDArray[Any]], part: Part = "test"
    ) -> Scores:
        """How a model `theta` [D] answers each sample of a part of the client's data; nothing is remembered of it.

        Raises
        ------
        ShapeError
            If theta or a buffer does not fit the model with `num_classes` outputs.
        ConfigError, DataError, ModelError
            If settings, data and model do not go together.
        """
        return self._worker_for(num_classes).scores(theta, buffers, part)

    def sample_losses(
        self, num_classes: int, theta: FloatArray, buffers: Mapping[str, NDArray[Any]], part: Part = "test"
    ) -> Float64Array:
        """The loss of each sample of a part of the client's data at a model `theta` [D], float64 [n].

        Of a sample with parts it is their mean by weight; the ridge is not in it. Nothing is remembered. It raises what
        `scores` raises.
        """
        return self._worker_for(num_classes).sample_losses(theta, buffers, part)

    def evaluation(
        self, num_classes: int, theta: FloatArray, buffers: Mapping[str, NDArray[Any]], part: Part = "test"
    ) -> Evaluation:
        """The task's figures on a part of the client's data at a model `theta` [D]; as `sample_losses`."""
        return self._worker_for(num_classes).evaluation(theta, buffers, part)

    def precompute(
        self, num_classes: int, theta: Vector, buffers: Mapping[str, NDArray[Any]], others: Sequence[DQNFedClient]
    ) -> None:
        """Compute loss and gradient at `theta` [D] for this client and others of the run in one pass.

        The next `work` of each, where it asks for them at the same array, lasting, takes them up. `num_classes` is as
        in the clients' tasks. A `ModelError` is raised if the model cannot be taken apart for that.
        """
        workers = [other._worker_for(num_classes) for other in others]
        self._worker_for(num_classes).precompute(theta, buffers, workers)

    def export_state(self) -> dict[str, NDArray[Any]]:
        """What the client must be given in its next life to go on with the same bits; empty if it keeps nothing.

        The arrays are the client's own: read them, do not write to them.
        """
        return dict(self._state) if self._worker is None else self._worker.export_state()

    def restore_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `export_state` gave; an empty mapping makes a new client.

        Raises
        ------
        ShapeError
            If the arrays are no state of this client's model; a client that has not worked yet raises it at its next
            task.
        """
        if self._worker is None:
            self._state = dict(state)
        else:
            self._worker.restore_state(state)

    def fit(self, parameters: Arrays, config: Mapping[str, Any]) -> tuple[Arrays, int, dict[str, Metric]]:
        """Train, and whatever else the task asks: (gradient, the method's further arrays, buffers; n; metrics).

        An array in a few bits a value comes as two, its codes and its scales.

        Buffers come back from local work that changes them. A `ConfigError` is raised if the config is no task.
        """
        task, has_step = read_task(config)
        reply = self._work_on_lists(replace(task, train=True), parameters, has_step)
        row: Arrays = [] if reply.row is None else [on_host(reply.row)]
        packed = [part for parts in reply.packed.values() for part in parts.values()]
        arrays = [*row, *reply.vectors.values(), *packed, *reply.buffers.values()]
        return arrays, reply.num_examples, metrics_of(reply)

    def evaluate(self, parameters: Arrays, config: Mapping[str, Any]) -> tuple[float, int, dict[str, Metric]]:
        """Probe and evaluate without training: (loss, examples behind it, metrics).

        The loss is that of the test part, or of the probe where no evaluation was asked for. A `ConfigError` is raised
        if the config is no task, or asks for neither.
        """
        task, has_step = read_task(config)
        if not task.probe and not task.evaluate:
            raise ConfigError("the task asks for neither probe nor evaluate; set one of the two")
        reply = self._work_on_lists(replace(task, train=False), parameters, has_step)
        metrics = metrics_of(reply)
        if reply.test is not None:
            return reply.test.loss, reply.test.examples, metrics
        return math.nan if reply.probe is None else reply.probe.loss, reply.num_examples, metrics

    def get_properties(self, config: Mapping[str, Any]) -> dict[str, Metric]:
        """Partition, counts, shape, kind and size of samples, classes, D and frozen part of the model, version.

        Where the model is known to take such samples, nothing is computed. `num-classes` in the config, if it is a
        positive number, takes the place of the classes that settings or data name. A client that has worked describes
        the model that it worked with.
        """
        wanted = config.get("num-classes", 0)
        at_work = self._num_classes if self._worker is not None else 0
        positive = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted > 0
        classes = self._classes(wanted if positive else at_work)
        models = self._models_for(classes)
        if self._settings.privacy.epsilon:
            self._worker_for(classes)  # a model that cannot be trained so says it before round 1
        return {
            "partition": self._partition,
            "num-examples": self._data.count("train"),
            "test-examples": self._data.count("test"),
            "input-shape": ",".join(map(str, self._data.input_shape)),
            "input-kind": self._data.input_kind,
            "num-classes": classes,
            "feature-scale": 0.0 if self._settings.privacy.epsilon else self._data.feature_scale,
            "dim": models.spec.dim,
            "frozen": models.frozen.fingerprint,
            "version": package_version(),
        }

    def _work_on_lists(self, task: ClientTask, parameters: Arrays, has_step: bool) -> ClientReply:
        names = self._worker_for(task.num_classes).spec.buffers
        expected = 1 + has_step + len(names)
        if len(parameters) not in (1 + has_step, expected):
            raise ShapeError(
                f"{len(parameters)} arrays were sent; need theta{', step' if has_step else ''} and, in all or not at "
                f"all, {len(names)} buffers"
            )
        theta, *rest = parameters
        buffers = dict(zip(names, rest[has_step:], strict=True)) if len(parameters) == expected else None
        return self.work(task, theta, rest[0] if has_step else None, buffers)

    def _worker_for(self, num_classes: int) -> Worker:
        """The worker for a model with so many classes; 0 takes those of the settings or of the data."""
        wanted = self._classes(num_classes)
        if self._worker is None or wanted != self._num_classes:
            from dqnfed_flwr.client.worker import Worker

            known, state = wanted == self.checked, self.export_state()
            self._worker = Worker(self._settings, self._partition, self._data, wanted, state, known=known)
            self._num_classes = self.checked = wanted
        return self._worker

    def _classes(self, num_classes: int) -> int:
        return num_classes or self._settings.num_classes or self._data.num_classes

    def _models_for(self, classes: int) -> SharedModels:
        """The models of the run, which were found to take the client's samples."""
        from dqnfed_flwr.client.device import choose_device
        from dqnfed_flwr.client.shared_models import shared_models

        device = choose_device(self._settings.device, self._settings.dtype)
        models = shared_models(self._settings, self._data, classes, device)
        if not models.suit(self._data, classes):
            self._worker_for(classes).look_through()
        return models


def read_task(config: Mapping[str, Any]) -> tuple[ClientTask, bool]:
    """The task of a config, and whether a step comes with the model; absent keys take their default.

    `ConfigError` if `exchange` or `round` is missing, or a value is of the wrong type. Keys of others are left alone.
    """
    values: dict[str, Any] = {}
    for key, field in TASK_FIELDS.items():
        if key in config:
            kind = _KINDS[str(field.type)]
            value = config[key]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind != (bool,)):
                raise ConfigError(f"{key}: found {value!r}; the task needs {field.type}")
            values[field.name] = value
        elif key in ("exchange", "round"):
            raise ConfigError(f"{key}: missing from the task; send at least exchange and round")
    sent = {key: value for key, value in config.items() if key.startswith(DIRECTIVE)}
    if wrong := [key for key, value in sent.items() if not isinstance(value, (int, float))]:
        raise ConfigError(f"{wrong[0]}: found {sent[wrong[0]]!r}; a directive is a number")
    values["directives"] = {key.removeprefix(DIRECTIVE): float(value) for key, value in sent.items()}
    return ClientTask(**values), bool(config.get(HAS_STEP, False))


def metrics_of(reply: ClientReply) -> dict[str, Metric]:
    """The figures of a reply; those that the task did not ask for are absent."""
    metrics: dict[str, Metric] = {"seconds": reply.seconds}
    if reply.row is not None:
        metrics |= {"loss": reply.loss, "rate": reply.rate}
        metrics |= {"pairs-kept": reply.pairs_kept, "pairs-rejected": reply.pairs_rejected}
        metrics |= {EXTRA + name: value for name, value in reply.figures.items()}
    if reply.probe is not None:
        probe = asdict(reply.probe)
        metrics |= {f"probe-loss.{rung}": loss for rung, loss in enumerate(probe.pop("losses"))}
        metrics |= {f"probe-{key.replace('_', '-')}": value for key, value in probe.items() if value is not None}
    for part, counts in (("test", reply.test), ("validation", reply.validation)):
        if counts is not None:
            counted = asdict(counts)
            metrics |= {f"{part}-{key}": value for key, value in {**counted.pop("figures"), **counted}.items()}
    return metrics
