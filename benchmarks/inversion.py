"""Which samples can be rebuilt from what the server received, with open rows and with `privacy.mode: masked`.

A run begins in each mode, and all messages of its first exchange are kept, and of the sum after it; at a model that is
not trained yet gradients tell most. A case is a model, and clients with a few samples each. The attacks, those of
`_inversion.py`, know the model, the number of samples and, but for the algebra, their classes. They are tried on

- `open`: the gradients
- `masked`: the sum with its weights; the search also matches the Gramian of the sketches and the losses
- `masked, as if not turned`: the sketches, as if there were no rotation
- `masked, a client colludes`: the sketches turned back, as with the group's secret

beside two guesses: the mean of the class in data of nobody here, and noise. Rebuilt samples are assigned to true ones,
whoever's, so that pixels correlate most. `correlation` is that of pixels, `own` that of what differs from the mean of
the class, `rebuilt` the share of samples with a correlation above .95. Searches begin at the mean of the class, and at
noise.

Of texts, the words that occur are read off the gradient of a small model's embedding (`_words.py`), of each client with
open rows, of the sum in masked mode, beside the most frequent words in texts of nobody here: `words` is the share that
is found, `once` that of the words that occur once.

    python -m benchmarks.inversion --plot inversion.png

`--data` names an `.npz` file with x_train, uint8 [N, H, W] or [N, H, W, C], and y_train from 0 to 9; sides are halved
down to 16. `--small` only tries whether it runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import avg_pool2d

from benchmarks._common import WHOLE, Bar, Json, arguments, quiet, report
from benchmarks._inversion import correlations, descended, like_rows, like_sketches, like_sum, unmixed
from benchmarks._words import found, lengths, texts
from dqnfed_flwr import wire
from dqnfed_flwr.client.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.run import objects_of, settings_with
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.masked.sketch import LONGEST, count_sketch
from dqnfed_flwr.masked.sums import opened
from dqnfed_flwr.models import build_model
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.types import Float64Array
from dqnfed_flwr.wire.codecs import KINDS, of_kind
from dqnfed_flwr.wire.masked import ASK, decode_masked, decode_summand

BARS = (Bar("masked_over_guess", "<=", 0.0),)
MODES = ("open", "masked")
MODELS = {"mlp": "mlp", "conv": "benchmarks._inversion:conv"}
SIDE, CLASSES, SHOWN, REBUILT = 16, 10, 8, 0.95
GUESS, COLLUDES = "mean of the class", "masked, a client colludes"
BAG = "benchmarks._words:bag"
SETTINGS: dict[str, Any] = {
    "rounds": 1,
    "privacy.min-samples": 1,
    "dqn-fed.anchor": "momentum",
    "dqn-fed.anchor-work": "gradient",
}
Samples = tuple[Tensor, Tensor]
"""Images [..., C, H, W] with values from -1 to 1, and classes [...]."""


class Listening(InProcessGrid):
    """A grid that keeps what the server asked and what it received."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.heard: list[tuple[RecordDict, RecordDict]] = []
        self._asked: dict[str, RecordDict] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep what is asked."""
        messages = list(messages)
        numbers = super().push_messages(messages)
        self._asked = {number: deepcopy(each.content) for number, each in zip(numbers, messages, strict=True)}
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Keep what is answered."""
        replies = super().pull_messages(message_ids)
        self.heard += [(self._asked[each.metadata.reply_to_message_id], deepcopy(each.content)) for each in replies]
        return replies


@dataclass(frozen=True, slots=True)
class Received:
    """What the server received of the first model: rows or sketches [K, m], losses [K], a sum [D] by weights [K]."""

    exchange: int
    theta: Tensor
    rows: Tensor
    losses: Tensor
    weights: Tensor | None = None
    total: Tensor | None = None


def images(path: Path | None) -> Samples:
    """All samples: scikit-learn's digits, or those of a file, halved until no side is above `SIDE`."""
    if path is None:
        found = load_digits()
        return torch.tensor(found.images[:, None] / 8 - 1, dtype=torch.float32), torch.tensor(found.target)
    with np.load(path) as file:
        raw, labels = file["x_train"], file["y_train"]
    wide = torch.from_numpy(raw).view(*raw.shape[:3], -1).movedim(-1, 1).float() / 127.5 - 1
    while wide.shape[-1] > SIDE:
        wide = avg_pool2d(wide, 2)
    return wide, torch.from_numpy(labels).long()


def received(mode: str, model: str, clients: Samples, others: Samples, seed: int, classes: int = CLASSES) -> Received:
    """Run the federation of `clients` [K, n, ...] in a mode, and listen."""

    def data(partition: int, clients_: int, seed_: int) -> dict[str, Any]:
        parts = {"train": (clients[0][partition], clients[1][partition]), "test": (others[0][:8], others[1][:8])}
        named = {f"{'xy'[at]}_{part}": pair[at].numpy() for part, pair in parts.items() for at in (0, 1)}
        return {**named, "num_classes": classes}

    settings = {**SETTINGS, "clients": len(clients[0]), "model": model, "privacy.mode": mode, "seed": seed}
    given = Settings.from_mapping({**settings, "local.threads": 1, **WHOLE})
    with quiet(), settings_with(given, *objects_of(data=data)) as found:
        grid = Listening(app, found.clients, found.flat())
        serve(grid, found)
    return _first(grid.heard)


def _first(heard: Sequence[tuple[RecordDict, RecordDict]]) -> Received:
    """What belongs to the first model, in the order of the clients."""
    tasks = [(wire.decode_task(asked), said) for asked, said in heard if "task" in asked and "figures" in said]
    first = [(task, said) for task, said in tasks if task.task.exchange == tasks[0][0].task.exchange]
    rows = np.stack([KINDS["row"].sent(of_kind(said, ArrayRecord)[wire.VECTORS]) for _, said in first])
    losses = [wire.decode_loss(said, task.task) or math.nan for task, said in first]
    theta = torch.from_numpy(np.array(first[0][0].theta))
    seen = Received(first[0][0].task.exchange, theta, torch.from_numpy(rows).float(), torch.tensor(losses))
    sums = [(values, said) for asked, said in heard if (values := decode_masked(asked) or {}).get(ASK) == "sum"]
    own = [(values, said) for values, said in sums if values["exchange"] == seen.exchange]
    if not own:
        return seen
    total = opened([decode_summand(said, theta.numel()) for _, said in own], own[0][0]["unit"])
    weights = torch.tensor(own[0][0]["weights"], dtype=torch.float32)
    return Received(seen.exchange, theta, seen.rows, seen.losses, weights, torch.from_numpy(total).float())


class Case:
    """Clients with a few samples each, what the server received of them in both modes, and what attacks make of it.

    Attributes
    ----------
    rebuilt : dict[str, Float64Array]
        By attack, the samples [N, ...] that it gives, in the order of the true ones that they are most like.
    """

    def __init__(self, model: str, data: Samples, shape: tuple[int, int], seed: int) -> None:
        draws = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(seed))
        own, others = draws[: math.prod(shape)], draws[math.prod(shape) :]
        self.images, self.labels = (values[own].view(*shape, *values.shape[1:]) for values in data)
        rest = data[0][others], data[1][others]
        if len({*rest[1].tolist()}) < CLASSES:
            raise SystemExit(
                f"{len(data[1])} samples: too few for {shape[0]} clients and the means of {CLASSES} classes"
            )
        self.means = torch.stack([rest[0][rest[1] == label].mean(0) for label in range(CLASSES)])[self.labels]
        self.name, self.rebuilt = f"{model}, {shape[0]} x {shape[1]}", dict[str, Float64Array]()
        clients, name = (self.images, self.labels), MODELS[model]
        self._open, self._masked = (received(mode, name, clients, rest, seed) for mode in ("open", "masked"))
        self._model = build_model(name, tuple(data[0].shape[1:]), CLASSES, seed=0)
        self._draws = torch.Generator().manual_seed(seed)
        ParamSpec.of(self._model).unflatten(self._open.theta, self._model)

    def attack(self, starts: int, iterations: int) -> None:
        """Try everything."""
        rows, seen, total, weights = self._open.rows, self._masked, self._masked.total, self._masked.weights
        if total is None or weights is None or not torch.equal(seen.theta, self._open.theta):
            raise SystemExit("the first round has no sum at the first model; take another --seed")
        sketch = sketch_of(len(seen.theta), seen.exchange)
        misfits = {
            "open, search": like_rows(rows),
            "masked, search": like_sum(total, weights, seen.rows, seen.losses, sketch),
            "masked, as if not turned": like_sketches(seen.rows, sketch),
            COLLUDES: like_sketches(sketch(rows), sketch),
        }
        for name, each, samples in (("open", rows, self.labels.shape[1]), ("masked", total[None], self.labels.numel())):
            found = [part for one in each if (part := self._unmixed(one, samples)) is not None]
            if len(found) == len(each):
                self._add(f"{name}, algebra", np.concatenate(found))
        begin = [self.means, *(self._noise() for _ in range(starts - 1))]
        for name, misfit in misfits.items():
            self._add(name, _flat(descended(self._model, self.labels, misfit, begin, iterations)))
        self._add(GUESS, _flat(self.means))
        self._add("noise", _flat(self._noise()))

    def _add(self, name: str, found: Float64Array) -> None:
        true = _flat(self.images)
        self.rebuilt[name] = found[linear_sum_assignment(-correlations(true, found))[1]]

    def _noise(self) -> Tensor:
        return 2 * torch.rand(self.images.shape, generator=self._draws) - 1

    def _unmixed(self, gradient: Tensor, samples: int) -> Float64Array | None:
        """By algebra, from the gradient of `samples` samples; None where it cannot be."""
        weight, bias = list(ParamSpec.of(self._model).split(gradient.double()).values())[:2]
        found = unmixed(weight.numpy(), bias.numpy(), samples) if weight.ndim == 2 else None
        return None if found is None else found.clip(-1, 1)

    def correlation(self, name: str) -> float:
        """Of pixels, the mean over samples."""
        return float(correlations(self.rebuilt[name], _flat(self.images)).diagonal().mean())

    def best(self, mode: str) -> str:
        """The attack of a mode that gives most."""
        return max((name for name in self.rebuilt if name.startswith(mode) and name != COLLUDES), key=self.correlation)

    def line(self, name: str) -> dict[str, Json]:
        """A line of the table."""
        found, true, means = self.rebuilt[name], _flat(self.images), _flat(self.means)
        pixels = correlations(found, true).diagonal()
        return {
            "case": self.name,
            "attack": name,
            "correlation": float(pixels.mean()),
            "own": float(correlations(found - means, true - means).diagonal().mean()),
            "squared error": float(((found - true) ** 2).mean()),
            "rebuilt": float((pixels > REBUILT).mean()),
        }

    def picture(self) -> Float64Array:
        """True samples, rebuilt ones with open and masked rows, and the mean of the class, one below the other."""
        lines = _flat(self.images), *(self.rebuilt[name] for name in (self.best("open"), self.best("masked"), GUESS))
        tiles = [line[:SHOWN].reshape(-1, *self.images.shape[2:]).transpose(0, 2, 3, 1) for line in lines]
        framed = [np.pad(tile, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1) for tile in tiles]
        whole = np.concatenate([np.concatenate(list(line), 1) for line in framed])
        return np.repeat((whole + 1) / 2, 3 // whole.shape[2], 2)


def _flat(samples: Tensor) -> Float64Array:
    """Samples [K, n, ...] as [K n, d]."""
    return np.asarray(samples.detach().flatten(0, 1).flatten(1).double().numpy())


def sketch_of(dim: int, exchange: int) -> Callable[[Tensor], Tensor]:
    """Of gradients [K, D], as clients make it before they turn it [K, m]."""
    if dim <= LONGEST:
        return lambda rows: rows
    places, signs = (torch.from_numpy(np.array(each)) for each in count_sketch(dim, exchange))

    def sketch(rows: Tensor) -> Tensor:
        found = rows.new_zeros(len(rows), LONGEST).index_add(1, places, rows * signs)
        return torch.mul(found, (rows.norm(dim=1) / found.norm(dim=1))[:, None])

    return sketch


def words_read(shape: tuple[int, int], seed: int) -> list[dict[str, Json]]:
    """Lines of the table of texts: clients with so many samples."""
    lines, following, words = texts()
    draws = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed))
    own, others = draws[: math.prod(shape)], draws[math.prod(shape) :]
    clients, rest = (lines[own].view(*shape, -1), following[own].view(shape)), (lines[others], following[others])
    opened_, masked = (received(mode, BAG, clients, rest, seed, words) for mode in MODES)
    if masked.total is None:
        raise SystemExit("the first round has no sum at the first model; take another --seed")
    frequent = torch.bincount(rest[0].flatten(), minlength=words).double()
    tried = {
        "open": ([lengths(row, words) for row in opened_.rows], list(clients[0])),
        "masked": ([lengths(masked.total, words)], [clients[0]]),
        "the most frequent words": ([frequent], [clients[0]]),
    }
    shares = {name: found(*each) for name, each in tried.items()}
    case = f"words, {shape[0]} x {shape[1]}"
    return [{"case": case, "attack": name, "words": every, "once": once} for name, (every, once) in shares.items()]


def draw(cases: Sequence[Case], path: Path) -> None:
    """A picture of all cases."""
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    figure = Figure(figsize=(4 * columns, 2.1 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for spare in panels[len(cases) :]:
        spare.remove()
    for axes, case in zip(panels, cases, strict=False):
        picture = case.picture()
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(case.name, fontsize=9)
        places = (np.arange(4) + 0.5) * picture.shape[0] / 4 - 0.5
        axes.set_yticks(places, ["true", "open", "masked", "class mean"], fontsize=8)
        axes.set_xticks([])
    figure.savefig(path, dpi=90)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, attack, report."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, metavar="FILE", help="an .npz file; without it scikit-learn's digits")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--samples", default="4,16,64", help="of each client, one case each")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument(
        "--starts", type=int, default=2, help="searches: one from the mean of the class, others from noise"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    parser.add_argument("--small", action="store_true", help="one small case, few steps")
    options = parser.parse_args(argv)
    if options.small:
        options.models, options.samples, options.iterations, options.starts = "mlp", "2", 40, 1
    data, cases, read = images(options.data), [], list[dict[str, Json]]()
    for samples in options.samples.split(","):
        read += words_read((options.clients, int(samples)), options.seed)
    for model in options.models.split(","):
        for samples in options.samples.split(","):
            cases.append(Case(model, data, (options.clients, int(samples)), options.seed))
            cases[-1].attack(options.starts, options.iterations)
    if options.plot:
        draw(cases, options.plot)
    gains = {mode: [each.correlation(each.best(mode)) - each.correlation(GUESS) for each in cases] for mode in MODES}
    figures: dict[str, Json] = {f"{mode}_over_guess": max(values) for mode, values in gains.items()}
    lines = [case.line(name) for case in cases for name in case.rebuilt]
    report("inversion", {**figures, "attacks": lines, "texts": read}, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
