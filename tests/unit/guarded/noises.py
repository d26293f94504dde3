"""A module of a user's that holds a generator."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(8)
