"""Models that tests name as `module:function`."""

from __future__ import annotations

import math

from torch import nn


def norm_mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A small network with BatchNorm, whose statistics are buffers."""
    width = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, num_classes))


def zeros(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logistic regression that begins at 0, as is usual in convex experiments."""
    layer = nn.Linear(math.prod(input_shape), num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
