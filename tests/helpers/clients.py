"""What a client computes with, made from settings outside of a client."""

from __future__ import annotations

import torch

from dqnfed_flwr.client.device import DTYPES
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client, to_model_input
from dqnfed_flwr.models import build_model


def local_loss(settings: Settings, number: int = 0) -> LocalLoss:
    """The loss of client `number` on its training samples, at the first model of the run."""
    data, dtype = load_client(settings, number), DTYPES[settings.dtype]
    module = build_model(settings.model, data.input_shape, data.num_classes, seed=settings.seed, dtype=dtype)
    samples = to_model_input(data.x_train, dtype), torch.tensor(data.y_train)
    return LocalLoss(FlatModel(module, torch.device("cpu")), samples)
