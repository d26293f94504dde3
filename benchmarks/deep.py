"""Deep networks that two cores train in minutes: CIFAR-10 at 16 x 16, ten clients, a ResNet of 14 layers.

Writes `deep.npz` and `deep.yaml` to a folder; `dqnfed compare` does the rest.

    python benchmarks/deep.py --data cifar10.npz --images 2000 --output runs/deep
    OMP_NUM_THREADS=1 dqnfed compare runs/deep/deep.yaml

The file has x_train [N, 32, 32, 3] as uint8, y_train [N], x_test and y_test, as torchvision's sets give them;
CIFAR-100's will do. `--model vit` takes a transformer in place of the ResNet. For a card, `--model resnet18-gn` takes
images as they are, ResNet-18 and batches of 64, with `--set local.autocast=bf16` in bfloat16:

    python benchmarks/deep.py --data cifar10.npz --model resnet18-gn --images 15000 --output runs/large
    dqnfed diagnose runs/large/deep.yaml --every 3 --output runs/large-diagnosis
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

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
model: {model}
local: {{batch-size: {batch}, lr: 0.05, epochs: 1, threads: 1}}
rounds: {rounds}
"""
MODELS = {"resnet14": "benchmarks.deep:resnet14", "vit": "benchmarks.deep:vit", "resnet18-gn": "resnet18-gn"}
"""By name, as the settings have them; the last is for a card."""


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


class PatchTransformer(nn.Module):
    """Images [n, channels, side, side] to logits: patches of 4 x 4 pixels, places learnt, the tokens' mean."""

    def __init__(self, channels: int, side: int, num_classes: int, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn((side // 4) ** 2, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, classes]."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return logits


def vit(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Four layers of attention, each 64 wide with four heads: 138,826 values for ten classes."""
    return PatchTransformer(input_shape[0], input_shape[1], num_classes)


def scaled(images: NDArray[np.uint8], by: int) -> NDArray[np.float32]:
    """Images [N, 32, 32, 3] as [N, 3, 32 / by, 32 / by]: means of by x by pixels, in units of a channel's spread."""
    side = 32 // by
    pixels = images.reshape(len(images), side, by, side, by, 3).mean((2, 4)) / 255.0
    moved = (pixels - np.array(MEAN)) / np.array(SPREAD)
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2), np.float32)


def write(data: Path, images: int, rounds: int, output: Path, model: str = "resnet14") -> Path:
    """`deep.npz`, of images drawn with seed 0, a quarter as many of them for tests, and `deep.yaml`, which is named."""
    draw, parts, large = np.random.default_rng(0), dict[str, Any](), model == "resnet18-gn"
    with np.load(data) as found:
        for part, count in (("train", images), ("test", max(images // 4, 1000))):
            chosen = draw.permutation(len(found[f"y_{part}"]))[:count]
            parts[f"x_{part}"] = scaled(found[f"x_{part}"][chosen], 1 if large else 2)
            parts[f"y_{part}"] = found[f"y_{part}"][chosen]
    output.mkdir(parents=True, exist_ok=True)
    with replacing(output / "deep.npz") as file:
        np.savez(file, **parts)
    settings = output / "deep.yaml"
    batch, data = 64 if large else 32, (output / "deep.npz").resolve()
    settings.write_text(FEDERATION.format(data=data, rounds=rounds, model=MODELS[model], batch=batch))
    return settings


def main() -> None:
    """Write both files and say what to do with them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="an .npz file of CIFAR-10")
    parser.add_argument("--images", type=int, default=2000, help="training images of all clients together")
    parser.add_argument("--model", choices=MODELS, default="resnet14")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path("runs/deep"))
    given = parser.parse_args()
    settings = write(given.data, given.images, given.rounds, given.output, given.model)
    print(f"wrote {settings}; train it with: dqnfed run {settings}, or dqnfed compare {settings}")


if __name__ == "__main__":
    main()
