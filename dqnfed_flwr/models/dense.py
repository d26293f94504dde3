"""Models of fully connected layers, for samples of any shape."""

from __future__ import annotations

from math import prod

from torch import nn

HIDDEN = 200


def logistic(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression: one linear layer, starting at zero, convex in its parameters."""
    layer = nn.Linear(prod(input_shape), num_classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two hidden layers of 200 units with ReLU: 3072-200-200-10 on CIFAR-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_classes),
    )
