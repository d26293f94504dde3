"""Fine-tuning for roles: a small transformer learns Shakespeare's plays, then adapters learn roles of other plays.

The first stage trains the transformer in one place, on all plays but three. In the second, each of the largest roles of
these three is a client: it keeps its lines, and only the adapters travel. The figure is the share of right next
characters on lines of the role that nobody trains on. DQN-Fed stands beside FedAvg and each role by itself; `base` is
the model of the first stage. `gap` is the best client less the worst.

    DQNFED_DATA=FOLDER OMP_NUM_THREADS=1 python -m benchmarks.lora --folder runs/lora

FOLDER holds `shakespeare.json`, from each role, PLAY::NAME, to its lines. The model of the first stage is kept.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._common import Bar, Json, arguments, quiet, report, settings_of
from benchmarks._transformer import CharTransformer, adapted, merged
from dqnfed_flwr import run
from dqnfed_flwr.data.leaf_samples import ALPHABET, tokens
from dqnfed_flwr.data.store import data_root
from dqnfed_flwr.randomness import seeded
from dqnfed_flwr.tasks._base import Datasets
from dqnfed_flwr.tasks.classification import NextTokenLosses

FOLDER = "DQNFED_LORA"
"""The environment variable that names the folder of the first stage's model, for the task's sake."""
PLAYS = ("hamlet", "asyoulikeit", "henryv")
LENGTH, TRAIN, TEST = 64, 80, 200
"""Characters of a window, and most windows of a role that are trained on and, last ones of it, tested on."""
RANK = 4
BARS = (Bar("dqn_fed_rho", ">=", 1.0),)
METHODS: Mapping[str, Mapping[str, Any]] = {
    "dqn-fed": {"method": "dqn-fed"},
    "fedavg": {"method": "fedavg"},
    "local": {"method": "local"},
}


@lru_cache(maxsize=1)
def texts() -> dict[str, str]:
    """From each role to its lines."""
    found: dict[str, str] = json.loads((data_root() / "shakespeare.json").read_text("utf-8"))
    return found


def windows(text: str) -> Tensor:
    """Windows of `LENGTH` + 1 characters, side by side [n, LENGTH + 1]."""
    codes = torch.from_numpy(tokens(text)).long()
    return codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)


def roles(count: int) -> list[str]:
    """The largest roles of the three plays."""
    own = [role for role in texts() if role.split("::")[0] in PLAYS]
    return sorted(own, key=lambda role: (-len(texts()[role]), role))[:count]


class Roles(NextTokenLosses):
    """The next character in the lines of a role, by adapters of a pretrained model."""

    def model(self) -> nn.Module:
        """The model of the first stage with adapters."""
        return adapted(pretrained(), RANK)

    def datasets(self, partition: int, clients: int, seed: int) -> Datasets:
        """The first of a role's windows, and the last: at least two fifths of them."""
        pairs = [(row[:-1], row[1:]) for row in windows(texts()[roles(clients)[partition]])]
        cut = min(TRAIN, len(pairs) * 3 // 5)
        return Datasets(train=pairs[:cut], test=pairs[cut:][-TEST:])

    def merged(self, model: nn.Module) -> nn.Module:
        """The transformer, with the adapters in its weights."""
        return merged(model)


def base() -> CharTransformer:
    """The transformer of the first stage, not trained yet."""
    return CharTransformer(len(ALPHABET), LENGTH)


def pretrained() -> CharTransformer:
    """The transformer of the first stage."""
    model = base()
    model.load_state_dict(torch.load(Path(os.environ[FOLDER]) / "base.pt", weights_only=True))
    return model


def pretrain(path: Path, steps: int) -> dict[str, Json]:
    """Train the transformer on the other plays by AdamW, and keep it."""
    read = torch.cat([windows(text) for role, text in texts().items() if role.split("::")[0] not in PLAYS])
    with seeded(0):
        model, draw = base(), torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    slower = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    since, loss = time.perf_counter(), torch.zeros(())
    for _ in range(steps):
        batch = read[torch.randint(len(read), (32,), generator=draw)]
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        slower.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return {"first_stage_loss": loss.item(), "first_stage_seconds": time.perf_counter() - since}


def of_base(clients: int) -> dict[int, float]:
    """What the model of the first stage gets right, by role."""
    task, model = Roles(), pretrained().eval()
    found = {}
    for client in range(clients):
        test = task.datasets(client, clients, 0).test
        inputs, targets = (torch.stack([test[i][part] for i in range(len(test))]) for part in (0, 1))
        with torch.no_grad():
            evaluation = task.evaluate(model, [((inputs, targets), len(inputs))], len(inputs))
        found[client] = (evaluation.figures or {})["accuracy"]
    return found


def row_of(name: str, seed: int, accuracies: Mapping[int, float], **more: Json) -> dict[str, Json]:
    """A row of the table, in per cent."""
    values = [100 * value for value in accuracies.values()]
    figures = {"mean": statistics.mean(values), "worst": min(values), "gap": max(values) - min(values)}
    return {"method": name, "seed": seed, **figures, **more}


def trained(name: str, seed: int, shared: Mapping[str, Any]) -> dict[str, Json]:
    """One run, and its row."""
    since = time.perf_counter()
    result = run({**shared, **METHODS[name], "seed": seed})
    judged = [ratio for ratio in result.improved_ratio if ratio == ratio]
    rho = min(judged) if judged and result.totals.moved else None  # by itself, no role has a shared model to judge
    more: dict[str, Json] = {"rho": rho, "rounds": len(result.events), "seconds": time.perf_counter() - since}
    return row_of(name, seed, result.accuracies, **more, trained=int(result.theta.size))


def main(argv: Sequence[str]) -> None:
    """Both stages, and a report."""
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the model of the first stage is kept")
    parser.add_argument("--steps", type=int, default=300, help="steps of the first stage")
    parser.add_argument("--clients", type=int, default=8, help="roles")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(argv)
    path = given.folder / "base.pt"
    os.environ[FOLDER] = str(given.folder)
    first = pretrain(path, given.steps) if not path.exists() else {}
    shared: dict[str, Any] = {
        **{"task": "benchmarks.lora:Roles", "clients": given.clients, "rounds": given.rounds, "local.threads": 1},
        **{"local.epochs": 1, "local.batch-size": 8, "local.lr": 0.3, "evaluate-every": 0},
        **settings_of(given.set),
    }
    rows = [row_of("base", 0, of_base(given.clients), rho=None, rounds=0, seconds=0.0, trained=0)]
    with quiet():
        for seed in range(given.seeds):
            rows += [trained(name, seed, shared) for name in given.methods.split(",")]
    figures: dict[str, Json] = {**first}
    for name in given.methods.split(","):
        own = [row for row in rows if row["method"] == name]
        for key in ("mean", "worst", "gap", "rho"):
            values = [value for row in own if isinstance(value := row[key], int | float)]
            if values:
                figures[f"{name.replace('-', '_')}_{key}"] = min(values) if key == "rho" else statistics.mean(values)
    report("adapters for roles", {**figures, "runs": rows}, BARS, given.json)


if __name__ == "__main__":
    main(sys.argv[1:])
