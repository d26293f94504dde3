"""Models that tests name as `module:function`."""

from __future__ import annotations

import math

from torch import Tensor, nn


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


def pooled(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Logistic regression on means of 2x2 pixels: few enough parameters for a dense Hessian in no time."""
    channels, height, width = input_shape
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(channels * (height // 2) * (width // 2), num_classes))


def in_place_mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A small network that writes over the outputs of its first layer."""
    width = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.ReLU(inplace=True), nn.Linear(8, num_classes))


class Branching(nn.Linear):
    """A layer whose way depends on the values that it is given."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer, halved where it is large."""
        logits = super().forward(inputs.flatten(1))
        return logits / 2 if logits.abs().max() > 1e9 else logits


def branching(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A model that trains and cannot be traced."""
    return Branching(math.prod(input_shape), num_classes)


FROZEN_SCALE = 1.0
"""What the frozen layer of `half_frozen` is multiplied by: another value is another pretrained model."""


def half_frozen(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A network whose first layer stays as it was drawn."""
    width = math.prod(input_shape)
    pretrained = nn.Linear(width, 8).requires_grad_(False)
    pretrained.weight.mul_(FROZEN_SCALE)
    return nn.Sequential(nn.Flatten(), pretrained, nn.ReLU(), nn.Linear(8, num_classes))
