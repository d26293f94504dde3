"""Tasks that are no classification: DQN-Fed beside FedAvg and each client by itself, on three problems.

| problem | task | client | figure |
|---|---|---|---|
| diabetes | regression | a quarter of the patients by age | mean absolute error of the standardised progress |
| cancer | multi-label, one flag | a quarter of the tumours by texture | AUROC |
| foreground | segmentation | a kind of garment of Fashion-MNIST, in noise | mean IoU of garment and background |

    DQNFED_DATA=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.tasks --output runs/tasks

FOLDER holds `fashion-mnist.npz`; the other two come with scikit-learn. The step length `local.lr` of every row is
searched alike on samples kept for that. `--output` gets a folder for each problem, with `comparison.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import Tensor, nn

from benchmarks._common import Bar, Json, arguments, quiet, report
from dqnfed_flwr.compare import compare
from dqnfed_flwr.data.store import data_root

METHODS = ("dqn-fed", "dqn-fed@guarantee.entitlement=0", "fedavg", "local")
"""The second row is the strict guarantee: no loss may rise, however low it is."""
GRID = "local.lr=0.03,0.1,0.3"
IMAGES, SEEN = 60, 40
"""Images of a kind of garment; a pixel belongs to it from this grey value on."""
Arrays = dict[str, NDArray[Any]]


def standardised(x: NDArray[Any]) -> NDArray[np.float32]:
    """Features of mean 0 and deviation 1 over all samples."""
    found: NDArray[np.float32] = ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)
    return found


def quarters(values: NDArray[Any]) -> NDArray[np.int64]:
    """To which quarter of all each value belongs, 0 to 3."""
    found: NDArray[np.int64] = np.digitize(values, np.quantile(values, (0.25, 0.5, 0.75)))
    return found


def diabetes() -> Arrays:
    """442 patients, grouped by age."""
    found = load_diabetes()
    return {
        "x_train": standardised(found.data),
        "y_train": standardised(found.target),
        "groups_train": quarters(found.data[:, list(found.feature_names).index("age")]),
    }


def cancer() -> Arrays:
    """569 tumours, grouped by texture."""
    found = load_breast_cancer()
    texture = found.data[:, list(found.feature_names).index("mean texture")]
    return {
        "x_train": standardised(found.data),
        "y_train": found.target[:, None].astype(np.int64),
        "groups_train": quarters(texture),
    }


def foreground() -> Arrays:
    """Garments in noise, grouped by kind; the noise is drawn once."""
    with np.load(data_root() / "fashion-mnist.npz") as stored:
        x, kinds = stored["x_train"], stored["y_train"]
    taken = np.concatenate([np.flatnonzero(kinds == kind)[:IMAGES] for kind in range(10)])
    clean = x[taken].reshape(len(taken), 28, 28)
    noise = np.random.default_rng(0).normal(0, 60, clean.shape)
    return {
        "x_train": np.clip(clean + noise, 0, 255).astype(np.uint8),
        "y_train": (clean >= SEEN).astype(np.int64),
        "groups_train": kinds[taken].astype(np.int64),
    }


class Pixels(nn.Module):
    """Three convolutions that keep the size of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 2, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, 2, H, W]."""
        found: Tensor = self.layers(images)
        return found


@dataclass(frozen=True)
class Problem:
    """Data, and what the settings need beside them."""

    data: Callable[[], Arrays]
    settings: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)


PROBLEMS: Mapping[str, Problem] = {
    "diabetes": Problem(diabetes, {"task": "regression", "clients": 4}),
    "cancer": Problem(cancer, {"task": "multi-label", "clients": 4}),
    "foreground": Problem(foreground, {"task": "segmentation", "clients": 10}, {"model": Pixels}),
}


def compared(name: str, output: Path, rounds: int, seeds: int) -> dict[str, Json]:
    """Carry out one problem and print its tables.

    Returns
    -------
    dict
        ``{name}_strict_rho``: the least ρ of a round with the strict guarantee, its mean over the seeds.
    """
    problem = PROBLEMS[name]
    settings = {
        **{"partition": "groups", "rounds": rounds, "evaluate-every": 5, "split.validation-fraction": 0.2},
        **{"local.epochs": 1, "local.batch-size": 16, "local.threads": 1},
        **problem.settings,
    }
    with quiet():
        found = compare(
            settings,
            METHODS,
            seeds=range(seeds),
            output=output / name,
            data=problem.data(),
            grids=[GRID],
            last=3,
            **problem.given,
        )
    print(found)
    return {f"{name}_strict_rho": found.figures["methods"][1]["figures"]["rho_min"]["mean"]}


def main(argv: Sequence[str]) -> None:
    """All problems, or those asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(argv)
    figures: dict[str, Json] = {}
    for name in given.problems.split(","):
        figures |= compared(name, given.output, given.rounds, given.seeds)
    report("tasks", figures, [Bar(name, ">=", 1.0) for name in figures], given.json)


if __name__ == "__main__":
    main(sys.argv[1:])
