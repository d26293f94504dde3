"""What the rate d~_k = g_k . B_k g_k costs a client beside its gradient.

The CIFAR-10 perceptron (3072-200-200-10, 656,810 parameters) on 500 samples of noise, full batch. The gradient pass is
`LocalLoss.loss_and_gradient`; the curvature work is `Curvature.observe` with secant pairs of cached gradients: forming
the pair, the inner products, filter and recursion, remembering. Both take turns on one CPU thread at models that
drift from turn to turn as in training; medians over the turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks._common import Bar, Json, arguments, median, report
from dqnfed_flwr.client.curvature import Curvature, Point
from dqnfed_flwr.client.flat_model import FlatModel
from dqnfed_flwr.client.gradients import LocalLoss
from dqnfed_flwr.client.memory import CurvatureState
from dqnfed_flwr.config import CurvatureSettings
from dqnfed_flwr.models import build_model

BARS = (Bar("rate_over_gradient", "<=", 0.05),)
FEATURES, CLASSES = (3, 32, 32), 10
DRIFT = 0.05
"""Share of the gradient by which the model moves between turns."""


def local_loss(samples: int) -> LocalLoss:
    """The loss of a client with so many samples of noise."""
    generator = torch.Generator().manual_seed(0)
    model = FlatModel(build_model("mlp", FEATURES, CLASSES, seed=0), torch.device("cpu"))
    inputs = torch.randn(samples, *FEATURES, generator=generator)
    return LocalLoss(model, (inputs, torch.randint(0, CLASSES, (samples,), generator=generator)))


def measure(samples: int, memory: int, repeats: int) -> dict[str, Json]:
    """Seconds of the gradient pass and of the curvature work."""
    loss = local_loss(samples)
    theta = loss.model.theta.clone()
    state = CurvatureState(theta.numel(), theta.dtype, theta.device)
    curvature = Curvature(CurvatureSettings(kind="secant", memory=memory), 0.1, loss, state)
    gradients: list[float] = []
    rates: list[float] = []
    kept = 0
    for turn in range(repeats + memory + 2):  # the first ones fill the memory
        since = time.perf_counter()
        value, gradient = loss.loss_and_gradient(theta)
        middle = time.perf_counter()
        seen = curvature.observe(Point(turn + 1, theta, gradient, value))
        end = time.perf_counter()
        gradients.append(middle - since)
        rates.append(end - middle)
        kept = seen.rate.pairs_kept
        theta = _moved(theta, gradient)
    gradient_seconds, rate_seconds = median(gradients[-repeats:]), median(rates[-repeats:])
    return {
        "samples": samples,
        "parameters": theta.numel(),
        "memory": memory,
        "pairs_kept": kept,
        "rate_over_gradient": rate_seconds / gradient_seconds,
        "gradient_seconds": gradient_seconds,
        "rate_seconds": rate_seconds,
        "fastest_over_fastest": min(rates[-repeats:]) / min(gradients[-repeats:]),
    }


def _moved(theta: Tensor, gradient: Tensor) -> Tensor:
    return theta - DRIFT * gradient


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, report."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=500, metavar="N")
    parser.add_argument("--memory", type=int, default=1, metavar="M", help="curvature pairs kept")
    parser.add_argument("--repeats", type=int, default=101, metavar="N", help="turns of which the median counts")
    options = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = measure(options.samples, options.memory, options.repeats)
    finally:
        torch.set_num_threads(threads)
    report("client rate", figures, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
