"""Data of a user whose function fails for some seeds."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import numpy as np


def data(settings: dict[str, Any], partition: int, clients: int) -> dict[str, Any]:
    """Two classes that a line parts; raises with seed 1, ends the process with seed 2."""
    del clients
    if settings["seed"] == 1:
        raise ValueError("no data with seed 1")
    if settings["seed"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    logging.getLogger("flwr").warning("made of noise")
    print(f"data of seed {settings['seed']}")
    x = np.random.default_rng(partition).standard_normal((40, 3)).astype(np.float32)
    return {"x_train": x, "y_train": (x[:, 0] > 0).astype(np.int64)}
