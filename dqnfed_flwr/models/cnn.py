"""The convolutional network that LEAF uses for FEMNIST."""

from __future__ import annotations

from torch import nn

from dqnfed_flwr.errors import ModelError

HIDDEN = 2048
SMALLEST = 4  # two poolings halve each side twice


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 channels, each with ReLU and 2x2 max pooling, then 2048 units.

    Caldas et al., "LEAF: a benchmark for federated settings" (2018): 6,603,710 parameters at 28x28 and 62 classes.

    Raises
    ------
    ModelError
        If the samples are no images (channels, height, width) of at least 4x4.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
        raise ModelError(f"model: cnn takes images (channels, height, width) of at least 4x4, found {input_shape}")
    channels, height, width = input_shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_classes),
    )
