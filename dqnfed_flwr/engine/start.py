"""The model that round 1 begins at: drawn from the seed, read from a file, or trained on one client's data alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord

from dqnfed_flwr import wire
from dqnfed_flwr.client.numpy_client import DQNFedClient
from dqnfed_flwr.config import KNOWN, Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.engine.weights import read_weights
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.types import ClientTask


def initial_model(settings: Settings, roster: Roster) -> ArrayRecord:
    """The model that the run begins at, in the form that the members' data ask for.

    A run that is resumed goes on from its checkpoint: no file is read and nobody is trained for it.

    Raises
    ------
    ConfigError
        If `start.model` cannot be read, or does not fit the model.
    DataError
        If members disagree on the shape of a sample, with no majority for either, or the data of `start.client`
        cannot be used.
    """
    form = roster.form
    dtype = torch.float64 if settings.dtype == "float64" else torch.float32
    module = build_model(settings.model, form.input_shape, form.num_classes, seed=settings.seed, dtype=dtype)
    spec = ParamSpec.of(module)
    if settings.start.model and not settings.resume:
        read_weights(Path(settings.start.model).expanduser(), module, settings.model)
    theta = spec.flatten(module).numpy()
    buffers: wire.Buffers = {name: value.numpy() for name, value in spec.read_buffers(module).items()}
    if settings.start.epochs and not settings.resume:
        alone = _alone(settings)
        client = DQNFedClient(alone, settings.start.client, load_client(alone, settings.start.client))
        reply = client.work(ClientTask(exchange=1, round=1, num_classes=form.num_classes), theta, None, buffers)
        theta, buffers = theta - np.asarray(reply.gradient), reply.buffers
    return wire.encode_model(theta, buffers)


def _alone(settings: Settings) -> Settings:
    """FedAvg's local work, on this run's data and model, with the epochs, rate and mini-batch of `start`.

    The rest is left out, so that all methods begin alike.
    """
    start, flat = settings.start, settings.flat()
    shared = {key: value for key, value in flat.items() if KNOWN[key].about in ("data", "model", "machine")}
    own = {"local.epochs": start.epochs, "local.lr": start.lr, "local.batch-size": start.batch_size}
    return Settings.from_mapping({**shared, **own, "method": "fedavg"})
