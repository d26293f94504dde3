"""A deep network that two cores train in minutes: CIFAR-10 at 16 x 16, ten clients, a ResNet of 14 layers.

Writes `deep.npz` and `deep.yaml` to a folder; `dqnfed compare` does the rest.

    python benchmarks/deep.py --data cifar10.npz --images 2000 --output runs/deep
    OMP_NUM_THREADS=1 dqnfed compare runs/deep/deep.yaml

The file has x_train [N, 32, 32, 3] as uint8, y_train [N], x_test and y_test, as torchvision's sets give them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from dqnfed_flwr.models.architectures import GROUPS, ResidualBlock
from dqnfed_flwr.run_files import replacing

WIDTHS = (16, 32, 64)
MEAN, SPREAD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
"""Of CIFAR-10's channels."""
FEDERATION = """\
data: {data}
partition: dirichlet
split: {{alpha: 0.5}}
clients: 10
model: benchmarks.deep:resnet14
local: {{batch-size: 32, lr: 0.05, epochs: 1, threads: 1}}
rounds: {rounds}
"""


def resnet14(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Six residual blocks of 16, 32 and 64 channels with GroupNorm: 175,258 values for ten classes."""
    blocks: list[nn.Module] = []
    channels = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        blocks += [ResidualBlock(channels, width, stride=2 if stage else 1), ResidualBlock(width, width, stride=1)]
        channels = width
    stem = nn.Conv2d(input_shape[0], WIDTHS[0], 3, padding=1, bias=False)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    model = nn.Sequential(stem, nn.GroupNorm(GROUPS, WIDTHS[0]), nn.ReLU(), *blocks, *head)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def halved(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Images [N, 32, 32, 3] as [N, 3, 16, 16]: the mean of each four pixels, in units of a channel's spread."""
    pixels = images.reshape(len(images), 16, 2, 16, 2, 3).mean((2, 4)) / 255.0
    scaled = (pixels - np.array(MEAN)) / np.array(SPREAD)
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def write(data: Path, images: int, rounds: int, output: Path) -> Path:
    """`deep.npz`, of images drawn with seed 0, a quarter as many of them for tests, and `deep.yaml`, which is named."""
    draw, parts = np.random.default_rng(0), dict[str, Any]()
    with np.load(data) as found:
        for part, count in (("train", images), ("test", max(images // 4, 1000))):
            chosen = draw.permutation(len(found[f"y_{part}"]))[:count]
            parts[f"x_{part}"], parts[f"y_{part}"] = halved(found[f"x_{part}"][chosen]), found[f"y_{part}"][chosen]
    output.mkdir(parents=True, exist_ok=True)
    with replacing(output / "deep.npz") as file:
        np.savez(file, **parts)
    settings = output / "deep.yaml"
    settings.write_text(FEDERATION.format(data=(output / "deep.npz").resolve(), rounds=rounds))
    return settings


def main() -> None:
    """Write both files and say what to do with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="an .npz file of CIFAR-10")
    parser.add_argument("--images", type=int, default=2000, help="training images of all clients together")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("runs/deep"))
    given = parser.parse_args()
    settings = write(given.data, given.images, given.rounds, given.output)
    print(f"wrote {settings}; train it with: dqnfed run {settings}, or dqnfed compare {settings}")


if __name__ == "__main__":
    main()
