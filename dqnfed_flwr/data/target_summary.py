"""Every client of a run in figures, where its targets are no classes: samples, and what their targets are like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dqnfed_flwr.config import Settings
from dqnfed_flwr.data.clients import load_client
from dqnfed_flwr.data.dataset import Array
from dqnfed_flwr.data.targets import IGNORED, TargetForm

MOST = 12
"""Targets, flags or classes that have a figure of their own; of more, one over all."""


@dataclass(frozen=True)
class TargetSummary:
    """Samples of one client by part, and figures of its training targets by what they are; see `figures_of`."""

    train: int
    validation: int
    test: int
    figures: Mapping[str, float] = field(default_factory=dict)


def summarise_targets(settings: Settings, form: TargetForm) -> list[TargetSummary]:
    """Figures of every client of a run, in their order.

    Raises
    ------
    DataError
        As `load_client`.
    """
    clients = [load_client(settings, partition, None, form) for partition in range(settings.clients)]
    outputs = max(client.num_classes for client in clients)
    return [
        TargetSummary(
            client.count("train"),
            client.count("validation"),
            client.count("test"),
            figures_of(client.y_train, form, outputs),
        )
        for client in clients
    ]


def figures_of(y: Array, form: TargetForm, outputs: int) -> dict[str, float]:
    """What training targets of `outputs` values, flags or classes are like.

    Of one value mean, standard deviation, least and most, of several the mean of each; of flags the share that is set
    of each, in per cent; of places how many are asked, and the share of each class among them, in per cent. Where there
    are more than `MOST`, all are taken together.
    """
    if form == "values":
        if outputs == 1 or outputs > MOST:
            return {"mean": y.mean(), "σ": y.std(), "min": y.min(), "max": y.max()}
        return {f"mean {place}": value for place, value in enumerate(y.mean(axis=0, dtype=np.float64))}
    if form == "flags":
        shares = 100 * y.mean(axis=0)
        if outputs > MOST:
            return {"set %": float(shares.mean())}
        return {f"flag {place} %": share for place, share in enumerate(shares)}
    asked = y[y != IGNORED]
    found = {"places": float(asked.size)}
    if outputs > MOST:
        return {**found, "classes": float(len(np.unique(asked)))}
    shares = 100 * np.bincount(asked, minlength=outputs) / max(asked.size, 1)
    return {**found, **{f"class {place} %": share for place, share in enumerate(shares)}}
