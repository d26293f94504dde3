"""The models: fully connected layers for samples of any shape, convolutions for images, LSTMs for characters."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn
from torch.nn import functional

from dqnfed_flwr.errors import ModelError

MLP_HIDDEN, CNN_HIDDEN = 200, 2048
SMALLEST_SIDE = 4
"""Of an image that `cnn` takes, since its two poolings halve each side twice."""
GROUPS = 2
WIDTHS = (64, 128, 256, 512)
EMBEDDING = 8


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
        nn.Linear(prod(input_shape), MLP_HIDDEN),
        nn.ReLU(),
        nn.Linear(MLP_HIDDEN, MLP_HIDDEN),
        nn.ReLU(),
        nn.Linear(MLP_HIDDEN, num_classes),
    )


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 5x5 convolutions of 32 and 64 channels, each with ReLU and 2x2 max pooling, then 2048 units.

    LEAF's for FEMNIST, with 6,603,710 parameters at 28x28 and 62 classes: Caldas et al., "LEAF: a benchmark for
    federated settings" (2018).
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST_SIDE:
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
        nn.Linear(64 * (height // 4) * (width // 4), CNN_HIDDEN),
        nn.ReLU(),
        nn.Linear(CNN_HIDDEN, num_classes),
    )


def resnet18_gn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet-18 for small images, with a 3x3 stem of stride 1, no pooling before the blocks, and GroupNorm.

    He et al., "Deep residual learning for image recognition" (2016), with the normalisation in two groups of Reddi et
    al., "Adaptive federated optimization" (2021) in place of BatchNorm: statistics of a batch say little where clients
    differ. It has 11,173,962 parameters at 10 classes.
    """
    if len(input_shape) != 3:
        raise ModelError(f"model: resnet18-gn takes images (channels, height, width), found {input_shape}")
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        blocks += [ResidualBlock(channels, width, stride=1 if stage == 0 else 2), ResidualBlock(width, width, stride=1)]
        channels = width
    model = nn.Sequential(
        _convolution(input_shape[0], WIDTHS[0], 3, stride=1),
        nn.GroupNorm(GROUPS, WIDTHS[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, num_classes),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(_convolution(channels, width, 3, stride), nn.GroupNorm(GROUPS, width), nn.ReLU())
        self.second = nn.Sequential(_convolution(width, width, 3, 1), nn.GroupNorm(GROUPS, width))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(_convolution(channels, width, 1, stride), nn.GroupNorm(GROUPS, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, channels, H, W] to [N, width, H / stride, W / stride]."""
        return functional.relu(self.second(self.first(x)) + self.shortcut(x))


def _convolution(channels: int, width: int, side: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, width, kernel_size=side, stride=stride, padding=side // 2, bias=False)


def char_lstm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Next character after a sequence: embedding of 8, two LSTM layers of 256, one linear layer on the last state.

    Caldas et al., "LEAF: a benchmark for federated settings" (2018). Classes and tokens share one alphabet.
    """
    _check_tokens("char-lstm", input_shape)
    return CharLstm(num_classes, hidden=256, layers=2)


def char_lstm_small(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Next character after a sequence, as `char_lstm` with one LSTM layer of 64: some 25,000 parameters, not 820,000.

    Ours; no paper has it.
    """
    _check_tokens("char-lstm-small", input_shape)
    return CharLstm(num_classes, hidden=64, layers=1)


def _check_tokens(name: str, input_shape: tuple[int, ...]) -> None:
    if len(input_shape) != 1:
        raise ModelError(f"model: {name} takes token sequences (length,), found samples of shape {input_shape}")


class CharLstm(nn.Module):
    """Logits of the token that follows, for an alphabet of `num_classes` tokens."""

    def __init__(self, num_classes: int, *, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, num_layers=layers, batch_first=True)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 tokens [N, L] to logits [N, num_classes]."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.head(states[:, -1])
        return logits
