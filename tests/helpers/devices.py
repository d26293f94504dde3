"""Data of test devices: a share of the digits each, in a file of its own, loaded as late as a test wants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

DIGITS = "tests.helpers.devices:digits"
LATE = "tests.helpers.devices:late"
FOLDER = "DQNFED_TEST_DEVICES"
"""Environment variable of the nodes: where the files are, and files named after partitions that hold the seconds by
which these are late."""


def digits(settings: dict[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """Every `clients`-th digit, from `partition` on."""
    from sklearn.datasets import load_digits  # slow to import, and no device needs it

    del settings
    x, y = load_digits(return_X_y=True)
    return {"x_train": (x[partition::clients] / 16).astype(np.float32), "y_train": y[partition::clients]}


def write(folder: Path, clients: int) -> list[str]:
    """Write `digits` into a file for each device."""
    paths = [folder / f"site-{k}.npz" for k in range(clients)]
    for partition, path in enumerate(paths):
        np.savez(path, **digits({}, partition, clients))
    return [str(path) for path in paths]


def late(settings: dict[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """What `write` wrote, after the seconds that the test has set."""
    del settings, clients
    folder = Path(os.environ[FOLDER])
    pause = folder / str(partition)
    time.sleep(float(pause.read_text()) if pause.exists() else 0.0)
    with np.load(folder / f"site-{partition}.npz") as arrays:
        return dict(arrays)
