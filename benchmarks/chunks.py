"""What a pass over a client's samples costs in chunks of several sizes, beside the size that is chosen.

ResNet-18 on noise of CIFAR-10's shape. A pass is `LocalLoss.loss_and_gradient`, or `loss`; the sizes take turns on one
CPU thread. Medians over the turns but the first count: of processor time, or by the clock where a card computes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks._common import Bar, Json, arguments, median, report, timed
from dqnfed_flwr.client.device import prepare_torch
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.models import build_model

BARS = (Bar("small_over_chosen", ">=", 1.15),)
FEATURES, CLASSES = (3, 32, 32), 10
SMALL = 4
"""Samples of the chunk that the chosen one is compared with."""


def losses(model: FlatModel, samples: int, sizes: Sequence[int]) -> list[LocalLoss]:
    """The loss of a client with so many samples of noise, in chunks of each size; 0 has it chosen."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, *FEATURES, generator=generator)
    labels = torch.randint(0, CLASSES, (samples,), generator=generator)
    held = inputs.to(model.theta.device), labels.to(model.theta.device)
    return [LocalLoss(model, held, chunk=size) for size in sizes]


def measure(
    name: str, samples: int, sizes: Sequence[int], repeats: int, device: torch.device, *, bf16: bool = False
) -> dict[str, Json]:
    """Seconds a sample of both passes, by the size of a chunk; the chosen one last."""
    prepare_torch(1, device)
    model = FlatModel(build_model(name, FEATURES, CLASSES, seed=0), device, bf16=bf16)
    theta = model.theta.clone()
    passes = losses(model, samples, [SMALL, *sizes, 0])
    gradients: list[list[float]] = [[] for _ in passes]
    forwards: list[list[float]] = [[] for _ in passes]
    kind = 1 if device.type == "cpu" else 0  # a pass ends when its loss is known, on a card too
    for _ in range(repeats + 1):
        for loss, gradient, forward in zip(passes, gradients, forwards, strict=True):
            gradient.append(timed(partial(loss.loss_and_gradient, theta))[kind] / samples)
            forward.append(timed(partial(loss.loss, theta))[kind] / samples)
    rows: list[Json] = [
        {"chunk": loss.chunk, "gradient_seconds": median(gradient[1:]), "loss_seconds": median(forward[1:])}
        for loss, gradient, forward in zip(passes, gradients, forwards, strict=True)
    ]
    return {
        "model": name,
        "parameters": theta.numel(),
        "samples": samples,
        "chosen": passes[-1].chunk,
        "small_over_chosen": median(gradients[0][1:]) / median(gradients[-1][1:]),
        "chunks": rows,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--model", default="resnet18-gn", metavar="NAME")
    parser.add_argument("--samples", type=int, default=128, metavar="N")
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 32, 64], metavar="N", help="further chunks")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="turns of which the median counts")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true", help="forward passes under autocast")
    options = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = torch.device(options.device)
        figures = measure(options.model, options.samples, options.sizes, options.repeats, device, bf16=options.bf16)
    finally:
        torch.set_num_threads(threads)
    report("chunks", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
