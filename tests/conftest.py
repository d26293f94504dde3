"""What holds for every test: one thread a process, quiet libraries, no calls home."""

from __future__ import annotations

import logging
import os

for variable, value in {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}.items():
    os.environ[variable] = value  # read by numpy, torch, Flower and Ray when they are imported

import numpy as np  # noqa: E402  # after the variables it reads
import pytest  # noqa: E402

# Flower sets its logger's level when it is imported; a filter outlives that.
logging.getLogger("flwr").addFilter(lambda record: record.levelno >= logging.ERROR)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in every run."""
    return np.random.default_rng(20250101)
