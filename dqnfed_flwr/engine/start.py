"""The model that round 1 begins at: drawn from the seed, read from a file, or trained on one client's data alone.

Files are those that this package writes: a run's `model.npz`, `model.safetensors`, and `adapter.safetensors`. Frozen
parameters are those that the model is built with: no client would be sent others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from logging import WARNING
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.common.logger import log
from torch import Tensor, nn

from dqnfed_flwr import wire
from dqnfed_flwr.archives import read_npz
from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.model_checks import dtype_notes, left_behind_notes, model_notes, random_inputs
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import KNOWN, Settings, resolve
from dqnfed_flwr.engine.notices import listed
from dqnfed_flwr.engine.result import BUFFER
from dqnfed_flwr.errors import ClientDataError, ConfigError, ShapeError
from dqnfed_flwr.models.making import as_dtype
from dqnfed_flwr.params import ParamSpec, frozen_fingerprint, left_behind
from dqnfed_flwr.run_files import MODEL, RUN, UNREADABLE
from dqnfed_flwr.strategy.checkpoint import DAMAGE
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.types import ClientTask, FloatArray

KEY = "start.model"
FROZEN = "frozen"
"""What a file of trained parameters calls the fingerprint of the frozen ones that they belong to."""
MOST_NAMED = 4
OWN = "own"
"""The kind of samples of which a node says nothing: those of a task of the user's."""


def initial_model(settings: Settings, registry: ClientRegistry) -> ArrayRecord:
    """The model that the run begins at, in the form that the members' data ask for.

    As `first_model`; also `DataError` if members disagree on the shape of a sample, with no majority for either.
    """
    return wire.encode_model(*first_model(settings, registry.form))


def first_model(settings: Settings, form: Form) -> tuple[FloatArray, wire.Buffers]:
    """Theta [D] and buffers that a run with data of this form begins at.

    A run that is resumed goes on from its checkpoint: no file is read and no client is trained for it. `ConfigError` if
    `start.model` cannot be read, or does not fit the model; `DataError` if the data of `start.client` cannot be used.
    """
    module = model_for(settings, form)
    spec = ParamSpec.of(module)
    if form.frozen and frozen_fingerprint(module) != form.frozen:
        log(WARNING, "The frozen part of the server's model is not that of the nodes; it cannot export the model")
    if settings.start.model and not settings.resume:
        read_weights(Path(settings.start.model).expanduser(), module, settings.model)
    theta: FloatArray = spec.flatten(module).numpy()
    buffers: wire.Buffers = {name: value.numpy() for name, value in spec.read_buffers(module).items()}
    if settings.start.epochs and not settings.resume:
        own = _settings_of_one_client(settings)
        client = DQNFedClient(own, settings.start.client, open_client(own, settings.start.client))
        reply = client.work(ClientTask(exchange=1, round=1, num_classes=form.num_classes), theta, None, buffers)
        theta, buffers = theta - np.asarray(reply.row), reply.buffers
    return theta, buffers


def model_for(settings: Settings, form: Form) -> nn.Module:
    """The model of the settings for data of this form, drawn from the seed."""
    task, dtype = task_of(settings), DTYPES[settings.dtype]
    return task.build(form.input_shape, form.num_classes, seed=settings.seed, dtype=dtype)


def notes_on_model(settings: Settings, form: Form) -> list[str]:
    """What is worth knowing of a user's own model for data of this form; shipped models have no notes.

    As `model_for` raises.
    """
    name = settings.model if form.input_kind != OWN else settings.task
    if ":" not in name:
        return []
    dtype, plan = DTYPES[settings.dtype], resolve(settings)
    module = task_of(settings).build(form.input_shape, form.num_classes, seed=settings.seed, dtype=None)
    found = dtype_notes(module, dtype)
    found += left_behind_notes(as_dtype(module, dtype))
    if form.input_kind != OWN:
        inputs, works = random_inputs(form.input_shape, form.input_kind, dtype), plan.works
        # an anchor's passes leave the federation's buffers alone
        gradients, passes = any(not work.passes for work in works), plan.work.passes
        found += model_notes(module, inputs, gradients=gradients, passes=passes)
    return [f"model: {name} {note}" for note in found]


def form_here(settings: Settings) -> Form:
    """The form of the data of a run in this process, as its first usable client has it; `DataError` if none has any."""
    for partition in range(settings.clients):
        try:
            data = open_client(settings, partition)
            break
        except ClientDataError:
            if partition == settings.clients - 1:
                raise
    return Form(data.input_shape, data.input_kind, settings.num_classes or data.num_classes)


def _settings_of_one_client(settings: Settings) -> Settings:
    """FedAvg's local work, on this run's data and model, with the epochs, rate and mini-batch of `start`.

    The rest is left out, so that all methods begin alike.
    """
    start, flat = settings.start, settings.flat()
    shared = {key: value for key, value in flat.items() if KNOWN[key].about in ("data", "model", "machine")}
    own = {"local.epochs": start.epochs, "local.lr": start.lr, "local.batch-size": start.batch_size}
    return Settings.from_mapping({**shared, **own, "method": "fedavg"})


def read_weights(path: Path, module: nn.Module, model: str) -> None:
    """Write the weights of a file into `module`, cast to its dtype; errors call the module `model`, as settings do.

    The file is the `model.npz` of a run's output folder, or one of safetensors with the names of the module's
    `state_dict`. A `ConfigError` names what was found and what is needed if it is absent, damaged or of neither form,
    holds NaN, or Inf where `module` does not, or is of another model, or of one with another frozen part.
    """
    usual = {name: value.clone() for name, value in module.named_buffers()}
    if path.is_dir():
        raise ConfigError(f"{KEY}: {path} is a folder; name the file, such as {path / MODEL}")
    if not path.is_file():
        raise ConfigError(f"{KEY}: {path}: no such file on this machine; the server reads it")
    if path.suffix == ".npz":
        _from_run(path, module, model)
    elif path.suffix == ".safetensors":
        _from_safetensors(path, module, model)
    else:
        raise ConfigError(f"{KEY}: found {path.name}; give a run's {MODEL}, or a file that ends in .safetensors")
    bad = []
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.layout is torch.strided and value.dtype.itemsize > 1:
            fit = value.isfinite() if name not in usual else value.isfinite() | (value == usual[name])
            bad += [] if fit.all() else [name]
    if bad:
        raise ConfigError(f"{KEY}: {path} holds NaN or Inf, in {_some(bad)}; choose another model")


def _from_run(path: Path, module: nn.Module, model: str) -> None:
    try:
        arrays = read_npz(path)
    except DAMAGE as error:
        raise ConfigError(f"{KEY}: {path}: damaged, or no model of a run ({error}); choose another file") from None
    theta = arrays.pop("theta", np.empty(0))
    spec = ParamSpec.of(module)
    if theta.shape != (spec.dim,):
        raise ConfigError(
            f"{KEY}: {path} holds {theta.size} parameters; model {model} for these data has {spec.dim}. Set model, "
            "data and num-classes as in the run that wrote it"
        )
    _check_frozen(path, _frozen_of_run(path.with_name(RUN)), module, model)
    buffers = {name.removeprefix(BUFFER): torch.from_numpy(np.array(value)) for name, value in arrays.items()}
    try:
        spec.write_buffers(buffers, module)
    except ShapeError as error:
        raise ConfigError(f"{KEY}: {path}: {error}") from None
    spec.unflatten(torch.from_numpy(np.array(theta)), module)


def _from_safetensors(path: Path, module: nn.Module, model: str) -> None:
    if find_spec("safetensors") is None:
        raise ConfigError(f"{KEY}: {path.name} needs the package safetensors; install dqnfed-flwr[export]")
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, load_model

    try:
        found = load_file(path)
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{KEY}: {path}: damaged, or no file of safetensors ({error}); choose another file") from None
    wanted = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    _check_shapes(path, found, wanted, model)
    _check_frozen(path, about.get(FROZEN, ""), module, model)
    frozen = {name: p for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    shared = frozen.keys() & found.keys()
    if other := [name for name in shared if not torch.equal(found[name].to(frozen[name].dtype), frozen[name])]:
        raise ConfigError(_other_frozen(path, model, _some(other)))
    staying = left_behind(module)
    missing, unexpected = load_model(module, path, strict=False)
    lacks = [name for name in missing if name not in frozen and name not in staying]
    faults = [f"{word} {_some(names)}" for word, names in (("lacks", lacks), ("has also", unexpected)) if names]
    if faults:
        raise ConfigError(f"{KEY}: {path}, for model {model}: it {' and '.join(faults)}; set model as it was then")


def _frozen_of_run(record: Path) -> str:
    """The fingerprint that the record of a run names; empty where there is none."""
    try:
        return str(json.loads(record.read_text())["form"][FROZEN])
    except FileNotFoundError:
        return ""
    except UNREADABLE as error:
        raise ConfigError(f"{KEY}: {record}: damaged ({type(error).__name__}: {error}); choose another run") from None


def _check_frozen(path: Path, fingerprint: str, module: nn.Module, model: str) -> None:
    if fingerprint and fingerprint != frozen_fingerprint(module):
        raise ConfigError(_other_frozen(path, model, "those beside it"))


def _other_frozen(path: Path, model: str, names: str) -> str:
    return (
        f"{KEY}: {path}: the frozen parameters of model {model} are others than {names}, and no client is sent them; "
        "have the model built with the weights that it was trained on"
    )


def _check_shapes(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], model: str) -> None:
    wrong = [
        f"{name} {list(found[name].shape)} for {list(wanted[name].shape)}"
        for name in sorted(found.keys() & wanted.keys())
        if found[name].shape != wanted[name].shape
    ]
    if wrong:
        raise ConfigError(
            f"{KEY}: {path}, for model {model} and these data: {_some(wrong)}; set model, data and num-classes as they "
            "were then"
        )


def _some(words: Iterable[str]) -> str:
    return listed(sorted(words), MOST_NAMED)
