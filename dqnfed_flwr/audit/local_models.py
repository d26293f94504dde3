"""The local-only models of a run's clients: found in a folder, or trained here and kept.

A client is trained by the local work of the method `local`, with the tasks that a run of it would send: the same start,
rounds and draws, so that the bits are those of such a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dqnfed_flwr.archives import read_npz
from dqnfed_flwr.audit.weights import LOCAL, AuditedRun, Weights, differences, experiment_of
from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import ClientSource, DeviceParts, OwnData, StoredData
from dqnfed_flwr.config import KNOWN, Scalar, Settings
from dqnfed_flwr.data.clients import Part
from dqnfed_flwr.data.dataset import Array
from dqnfed_flwr.engine.result import BUFFER
from dqnfed_flwr.errors import CheckpointError, ConfigError, RunError
from dqnfed_flwr.run_files import CHECKPOINT, RUN, UNREADABLE, private_folder, replacing
from dqnfed_flwr.strategy.checkpoint import DAMAGE, CheckpointStore
from dqnfed_flwr.strategy.schedule import sample
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.types import ClientTask, under

PARTS: tuple[Part, ...] = ("train", "validation")
_PLAIN = (str, bytes, int, float, bool, type(None))
EXPERIMENT = "experiment.json"
SAMPLES = "samples"
"""Stands beside the weights for the samples that they were trained on."""
NODE_OF_CLIENT_0 = 2
"""In a checkpoint of the in-process engine, whose node 1 is the server."""


def digest_of(settings: Settings, partition: int, data: ClientSource) -> str:
    """SHA-256 of the samples of these parts, hexadecimal; arrays have the same one wherever they are stored.

    Of data sets of a task's own, tensors, texts and numbers count. `DataError` if samples cannot be read.
    """
    found = hashlib.sha256()
    for part in PARTS:
        if isinstance(data, OwnData):
            pieces = _own(settings, partition, data, part)
        elif isinstance(data, StoredData):
            pieces = _stored(settings, data, part)
        else:
            arrays = {"train": (data.x_train, data.y_train), "validation": (data.x_validation, data.y_validation)}
            pieces = (piece for array in arrays[part] for piece in (_head(array, len(array)), _bytes(array)))
        for piece in pieces:
            found.update(piece)
    return found.hexdigest()


def _stored(settings: Settings, data: StoredData, part: Part) -> Iterator[bytes]:
    """The same bytes as of arrays in memory, read piece by piece."""
    stored = data.of(part, DTYPES[settings.dtype])
    for pieces in (stored.input_pieces, stored.target_pieces):
        for place, array in enumerate(pieces()):
            if not place:
                yield _head(array, len(stored))
            yield _bytes(array)


def _own(settings: Settings, partition: int, data: OwnData, part: Part) -> Iterator[bytes]:
    samples = DeviceParts(settings, task_of(settings), data, partition, 0, torch.device("cpu")).some(part)
    yield f"{data.count(part)}\0".encode()
    for batch, _ in samples.chunks(1) if samples is not None else ():
        yield from _leaves(batch)


def _leaves(value: Any) -> Iterator[bytes]:
    """What a sample holds, in the order in which it holds it."""
    if isinstance(value, torch.Tensor):
        array = value.numpy()
        yield _head(array, len(array)) if array.ndim else _head(array[None], 1)
        yield _bytes(array)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield repr(key).encode()
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()


def _head(array: Array, count: int) -> bytes:
    return f"{array.dtype} {(count, *array.shape[1:])}\0".encode()


def _bytes(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def local_settings(settings: Settings) -> Settings:
    """The settings of a run of `local` on the same data, start and budget as `settings`."""
    own: dict[str, Scalar] = {"method": LOCAL, "step-rule": "auto", "local.work": "auto", "local.together": 0}
    own |= {"attack.kind": "none", "output": "", "metrics": "", "resume": False}
    return Settings.from_mapping({**settings.flat(), **own})


def train_local(
    run: AuditedRun, partition: int, data: ClientSource, start: Weights, after_round: Callable[[], None]
) -> Weights:
    """Train the local-only model of one client; `after_round` is called after each of the run's rounds.

    Client `partition` trains in the rounds in which a run with all its clients asks it. One that is never asked stays
    at the start. Raises what `DQNFedClient.work` raises.
    """
    from dqnfed_flwr.methods.local.client import own_model

    settings = local_settings(run.settings)
    client = DQNFedClient(settings, partition, data)
    everybody = list(run.clients)
    for number in range(1, settings.rounds + 1):
        if partition in sample(everybody, settings.sampled, seed=settings.seed, round_number=number):
            task = ClientTask(exchange=number, round=number, num_classes=run.form.num_classes)
            client.work(task, start.theta, None, start.buffers)
        after_round()
    return _weights(own_model(client.export_state())) or start


class LocalModels:
    """Local-only models in a folder: those that an audit kept, or those of a run of `local` with its checkpoint.

    Attributes
    ----------
    differs : dict[str, str]
        Settings of theirs that differ from those that the audited run asks for, by key, in words.
    fingerprint : str | None
        Of the data that they were trained on; None where that is not known of all at once.
    """

    def __init__(self, folder: Path, run: AuditedRun) -> None:
        self._folder, self._run = folder, run
        self._states: dict[str, NDArray[Any]] | None = None
        self.differs: dict[str, str] = {}
        self.fingerprint: str | None = None
        wanted = experiment_of(local_settings(run.settings))
        if (folder / RUN).exists():
            self._states, settings = _read_checkpoint(folder)
            self.fingerprint = _fingerprint(folder)
            self.differs = differences(wanted, experiment_of(settings))
        elif (folder / EXPERIMENT).exists():
            self.differs = differences(wanted, _read_experiment(folder))

    def find(self, partition: int, data: ClientSource) -> Weights | None:
        """The model of a client; None if there is none, or one kept of other samples. `ConfigError` if damaged."""
        if self._states is not None:
            from dqnfed_flwr.methods.local.client import own_model

            node = f"clients/{partition + NODE_OF_CLIENT_0}/"
            return _weights(own_model(under(node, self._states)))
        path = self._path(partition)
        if not path.exists():
            return None
        try:
            arrays = read_npz(path)
            if str(arrays[SAMPLES]) != digest_of(self._run.settings, partition, data):
                return None
            return Weights(arrays["theta"], under(BUFFER, arrays))
        except DAMAGE as error:
            raise ConfigError(f"{path}: damaged ({error}); remove it, and the model is trained anew") from None

    def keep(self, partition: int, data: ClientSource, weights: Weights) -> None:
        """Write the model that this audit trained for a client, and what with; `RunError` if that cannot be done."""
        arrays = {BUFFER + name: value for name, value in weights.buffers.items()}
        arrays |= {"theta": weights.theta, SAMPLES: np.array(digest_of(self._run.settings, partition, data))}
        wanted = experiment_of(local_settings(self._run.settings))
        try:
            private_folder(self._folder)
            with replacing(self._folder / EXPERIMENT) as file:
                file.write(json.dumps(wanted, indent=2).encode())
            with replacing(self._path(partition)) as file:
                np.savez(file, allow_pickle=False, **arrays)
        except OSError as error:
            raise RunError(f"{self._folder}: cannot be written ({error.strerror})") from None

    def forget(self) -> None:
        """Remove the models that this audit kept: they are of another run."""
        for path in (*self._folder.glob("client-*.npz"), self._folder / EXPERIMENT):
            path.unlink(missing_ok=True)
        self.differs = {}

    def _path(self, partition: int) -> Path:
        return self._folder / f"client-{partition}.npz"


def read_given(folder: Path, run: AuditedRun) -> LocalModels:
    """The models of a folder that the user names.

    Raises
    ------
    ConfigError
        If there are none, or they are of other data or of another kind of model.
    """
    if not (folder / RUN).exists() and not (folder / EXPERIMENT).exists():
        raise ConfigError(
            f"--local: {folder} holds no local-only models; give the output folder of a run of {LOCAL}, or the folder "
            "audit/local of an audited run; left out, they are trained"
        )
    found = LocalModels(folder, run)
    of_data = [why for key, why in found.differs.items() if KNOWN[key].about in ("data", "model")]
    if of_data:
        raise ConfigError(f"--local: {folder}: models of other data (wanted, found): {'; '.join(of_data)}")
    if None not in (found.fingerprint, run.fingerprint) and found.fingerprint != run.fingerprint:
        raise ConfigError(f"--local: {folder}: models of other data: the data themselves changed since")
    return found


def _read_checkpoint(folder: Path) -> tuple[dict[str, NDArray[Any]], Settings]:
    """What the clients of a run of `local` remember, and the settings of the run."""
    try:
        record, arrays = CheckpointStore(folder / CHECKPOINT).read()
        settings = Settings.from_record(record["settings"])
    except (CheckpointError, ConfigError, *DAMAGE) as error:
        raise ConfigError(
            f"--local: {folder}: its models are in its checkpoint, which cannot be read: {error}"
        ) from None
    if settings.method != LOCAL:
        raise ConfigError(f"--local: {folder} is a run of {settings.method}; give one of {LOCAL}")
    if record["status"] == "running":
        raise ConfigError(f"--local: {folder} is a run that has not ended; go on with it first, by --resume")
    return arrays, settings


def _fingerprint(folder: Path) -> str | None:
    try:
        found = json.loads((folder / RUN).read_text("utf-8"))["fingerprint"]
    except UNREADABLE as error:
        raise ConfigError(f"--local: {folder / RUN}: damaged ({error})") from None
    return found if isinstance(found, str) else None


def _read_experiment(folder: Path) -> dict[str, Scalar]:
    try:
        kept: dict[str, Scalar] = json.loads((folder / EXPERIMENT).read_text())
        return dict(kept)
    except UNREADABLE as error:
        raise ConfigError(f"{folder / EXPERIMENT}: damaged ({error}); remove the folder") from None


def _weights(found: dict[str, NDArray[Any]]) -> Weights | None:
    return Weights(found["model"], under(BUFFER, found)) if found else None
