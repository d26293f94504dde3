"""ResNet-18 for small images, with GroupNorm in place of BatchNorm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from dqnfed_flwr.errors import ModelError

GROUPS = 2
WIDTHS = (64, 128, 256, 512)


def resnet18_gn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet-18 with a 3x3 stem of stride 1 and no pooling before the blocks; 11,173,962 parameters at 10 classes.

    He et al., "Deep residual learning for image recognition" (2016), with the normalisation in two groups of Reddi et
    al., "Adaptive federated optimization" (2021): statistics of a batch say little where clients differ.

    Raises
    ------
    ModelError
        If the samples are no images (channels, height, width).
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
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

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
