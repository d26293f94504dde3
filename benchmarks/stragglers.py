"""How long a federation with slow clients takes: simulated seconds to the accuracy at which synchronous FedAvg ends.

Ten clients whose speeds are lognormal (sigma 1), one message in ten brings nothing back. The clock is simulated
(`_slow_clients`); clients, server, quorum and deadline are the package's own. FedBuff (Nguyen et al., AISTATS 2022) is
a loop of its own here: all clients are always at work, each on the newest model when it began; after every K updates
theta <- theta - (1/K) sum_k row_k / sqrt(1 + tau_k), tau_k steps having been made meanwhile.

After every step all clients are asked, outside of the clock, for accuracy and loss, the absent ones too: `unharmed` is
the share of clients, over all steps, whose loss rose neither above what it was nor above the entitlement. For DQN-Fed
that is the entitlement of the round, else half of the mean loss, which never rises. Of a run with `guarantee.confirm`
only confirmed models count, when they are confirmed: its result is one of them.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks._clock import Clock
from benchmarks._common import WHOLE, Bar, Json, arguments, quiet, report, settings_of
from benchmarks._fedbuff import FedBuff
from benchmarks._slow_clients import Law, SlowGrid, simulated
from dqnfed_flwr import wire
from dqnfed_flwr.client.app import app, forget_clients
from dqnfed_flwr.client.parts import open_client
from dqnfed_flwr.config import Settings
from dqnfed_flwr.data import load_client
from dqnfed_flwr.data.dataset import to_model_input
from dqnfed_flwr.engine.start import initial_model, model_for
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.guarantee.harm import entitlement, not_above
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.strategy.strategy import GradientStrategy
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.types import Float64Array, FloatArray, on_host

SETTINGS: Mapping[str, Any] = {
    **{"data": "digits", "partition": "dirichlet", "split.alpha": 0.1, "model": "mlp", "clients": 10},
    **{"local.batch-size": 32, "local.lr": 0.1, "local.threads": 1, "evaluate-every": 0},
}
PASS_SECONDS = 10.0
"""Of a pass over the mean number of samples, at the median speed."""
PATIENT = 1e5
"""A deadline that nobody reaches."""
LAST = 5
"""Rounds whose mean accuracy is where FedAvg ends."""
FEDAVG, DQN_FED = (
    {"method": "fedavg", "guarantee.voters": 0.1},
    {"method": "dqn-fed", "dqn-fed.absent-rounds": 40, **WHOLE},
)
GRADIENTS = {**DQN_FED, "dqn-fed.anchor-work": "gradient"}
QUORUM, ALL = {"quorum": 0.6}, {"quorum": 0.999}
"""The second closes no exchange of ten before its deadline."""
RUNS: Mapping[str, Mapping[str, Any]] = {
    "FedAvg": FEDAVG,
    "FedAvg, quorum": {**FEDAVG, "quorum": 0.7},
    "FedAvg, deadline": {**FEDAVG, "deadline": 2 * PASS_SECONDS},
    "DQN-Fed": DQN_FED,
    "DQN-Fed, quorum, late rows discarded": {**DQN_FED, **QUORUM, "dqn-fed.absent-rounds": 0},
    "DQN-Fed, quorum": {**DQN_FED, **QUORUM},
    "DQN-Fed, deadline": {**DQN_FED, **ALL, "deadline": 4 * PASS_SECONDS},
    "gradients": GRADIENTS,
    "gradients, quorum, late rows discarded": {**GRADIENTS, **QUORUM, "dqn-fed.absent-rounds": 0},
    "gradients, quorum": {**GRADIENTS, **QUORUM},
    "gradients, quorum, confirmed": {**GRADIENTS, **QUORUM, "guarantee.confirm": 20},
    "gradients, deadline": {**GRADIENTS, **ALL, "deadline": 2 * PASS_SECONDS},
}
"""The first is the baseline, and is run to its end; the others have the time that it took."""
BUFFERS = (1,)
"""K of FedBuff."""
BARRED = "gradients, quorum, confirmed"
BARS = (Bar("over_fedavg", "<=", 0.4), Bar("unharmed", ">=", 1.0))


@dataclass(frozen=True)
class Part:
    """One part of the samples of all clients: inputs, labels and owners [N]."""

    inputs: Tensor
    labels: Tensor
    owners: NDArray[np.int64]
    clients: int

    @classmethod
    def of(cls, found: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Part:
        """From the inputs and labels of each client."""
        owners = np.repeat(np.arange(len(found)), [len(y) for _, y in found])
        inputs, labels = (np.concatenate(each) for each in zip(*found, strict=True))
        return cls(to_model_input(inputs, torch.float32), torch.from_numpy(labels).long(), owners, len(found))

    def means(self, model: nn.Module) -> tuple[Float64Array, Float64Array]:
        """Mean cross-entropy and share of right answers of each client [K]; NaN for one without a sample."""
        with torch.no_grad():
            logits = model(self.inputs).double()
        each = nn.functional.cross_entropy(logits, self.labels, reduction="none"), logits.argmax(1) == self.labels
        counts = np.bincount(self.owners, minlength=self.clients)
        sums = (np.bincount(self.owners, of.double().numpy(), self.clients) for of in each)
        with np.errstate(invalid="ignore"):
            losses, right = (total / counts for total in sums)
        return losses, right


def parameters_of(model: nn.Module, theta: FloatArray) -> None:
    """Give a model the parameters `theta` [D]."""
    nn.utils.vector_to_parameters(torch.from_numpy(np.array(theta)), model.parameters())


class _Over(Exception):
    """The target is reached, or the budget spent."""


@dataclass
class Watch(Listener):
    """What all clients have of the models of a run, and when."""

    settings: Settings
    target: float
    budget: float
    seconds: list[float] = field(default_factory=list)
    accuracies: list[Float64Array] = field(default_factory=list)
    unharmed: list[float] = field(default_factory=list)
    level: float = math.inf
    """The entitlement of the round."""
    promises: bool = False
    """Whether the run says what it is."""
    confirms: bool = False
    """Whether only those models count that the run says are confirmed."""

    def meet(self, form: Form) -> None:
        """Take the samples of all clients, and a model for data of this `form`."""
        found = [load_client(self.settings, client) for client in range(self.settings.clients)]
        self._model = model_for(self.settings, form)
        self._parts = Part.of([(d.x_train, d.y_train) for d in found]), Part.of([(d.x_test, d.y_test) for d in found])
        self._losses: Float64Array | None = None
        self._models: dict[int, FloatArray] = {}
        self._confirmed = -1

    @property
    def means(self) -> list[float]:
        """Mean accuracy over all clients, by model."""
        return [float(each.mean()) for each in self.accuracies]

    @property
    def reached(self) -> float:
        """When the target was reached; infinite if it was not."""
        return next((s for s, mean in zip(self.seconds, self.means, strict=True) if mean >= self.target), math.inf)

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""

    def on_round(self, event: RoundEvent) -> None:
        """Take note of what the run allows its clients to rise to, and of the model that they have confirmed."""
        if self.promises:
            self.level = event.entitlement
        self._confirmed = int(event.notes.get("confirmed", -1))

    def over(self, number: int, theta: FloatArray, seconds: float) -> None:
        """A round is over: `see` its model, or one that was confirmed in it."""
        if not self.confirms:
            self.see(theta, seconds)
            return
        self._models[number] = theta
        if (found := self._models.pop(self._confirmed, None)) is not None:
            self._models = {later: model for later, model in self._models.items() if later > self._confirmed}
            self.see(found, seconds)

    def see(self, theta: FloatArray, seconds: float) -> None:
        """Ask everybody about a model; `_Over` at the target, and after the budget, where the model does not count."""
        if seconds > self.budget:
            raise _Over
        parameters_of(self._model, theta)
        losses, (_, right) = self._parts[0].means(self._model)[0], self._parts[1].means(self._model)
        if self._losses is not None:
            if not self.promises:
                self.level = entitlement(self._losses, 0.0, 0.5, 0, self.level)
            self.unharmed.append(float(not_above(losses, self._losses, self.level).mean()))
        self._losses = losses
        self.seconds.append(seconds)
        self.accuracies.append(right[np.isfinite(right)])  # a client without a test part has none
        if self.means[-1] >= self.target:
            raise _Over


@dataclass
class Race:
    """One federation of slow clients, in which one run after the other has its try."""

    keys: Mapping[str, Any]
    seed: int
    sigma: float
    drop: float
    rounds: int

    def run(self, changes: Mapping[str, Any], target: float = math.inf, budget: float = math.inf) -> Watch:
        """A run of the package, with further settings; for `rounds` rounds where there is no budget."""
        endless = 10**6 if math.isfinite(budget) else self.rounds
        keys = {**self.keys, "seed": self.seed, "deadline": PATIENT, "rounds": endless, **changes}
        judged, confirms = keys["method"] == "dqn-fed", bool(keys.get("guarantee.confirm"))
        settings, clock = Settings.from_mapping(keys), Clock()
        with simulated(clock), quiet():
            forget_clients()
            grid = SlowGrid(app, self._law(settings), clock, settings, forward=judged)
            since = clock.now
            watch = Watch(settings, target, budget, promises=judged and not confirms, confirms=confirms)
            strategy = GradientStrategy(settings, listeners=[watch])
            strategy.registry.wait(grid)
            watch.meet(strategy.registry.form)

            def see(number: int, arrays: ArrayRecord) -> None:
                # the last exchange of a round tries its step: a method that has none to try knew its model before that
                theta, _, _ = wire.decode_model(arrays)
                watch.over(number, np.array(on_host(theta)), (clock.now if judged else grid.pushed) - since)

            with suppress(_Over):
                strategy.start(grid, initial_model(settings, strategy.registry), evaluate_fn=see)
        return watch

    def buffered(self, size: int, target: float, budget: float) -> Watch:
        """FedBuff with K = `size`."""
        settings = Settings.from_mapping({**self.keys, "seed": self.seed, **FEDAVG})
        clock = Clock()
        with simulated(clock), quiet():
            forget_clients()
            grid = SlowGrid(app, self._law(settings), clock, settings, forward=False)
            since = clock.now
            watch, strategy = Watch(settings, target, budget), GradientStrategy(settings)
            strategy.registry.wait(grid)
            watch.meet(strategy.registry.form)
            theta, _, _ = wire.decode_model(initial_model(settings, strategy.registry))
            loop = FedBuff(grid, clock, np.array(theta), size, strategy.registry.form.num_classes)
            with suppress(_Over):
                watch.see(loop.theta, 0.0)
                while True:
                    loop.step()
                    watch.see(loop.theta, clock.now - since)
        return watch

    def _law(self, settings: Settings) -> Law:
        samples = [open_client(settings, client).count("train") for client in range(settings.clients)]
        unit = PASS_SECONDS / statistics.fmean(samples)
        return Law.lognormal(settings.clients, unit, sigma=self.sigma, drop=self.drop, seed=self.seed)


def figures_of(watch: Watch) -> dict[str, Json]:
    """One run: when it reached the target, and what its last model has."""
    fair = fairness_report(watch.accuracies[-1])
    return {
        "seconds": watch.reached,
        "steps": len(watch.unharmed),
        "mean": fair["mean"],
        "worst_10": fair["worst10"],
        "unharmed": statistics.fmean(watch.unharmed or [1.0]),
    }


def race(keys: Mapping[str, Any], options: Any, seed: int) -> dict[str, dict[str, Json]]:
    """All runs of one seed, by name: the first gives target and budget."""
    federation = Race(keys, seed, options.sigma, options.drop, options.rounds)
    name, *others = RUNS
    first = federation.run(RUNS[name])
    first.target, budget = statistics.fmean(first.means[-LAST:]), first.seconds[-1]
    runs = {name: first}
    runs |= {f"FedBuff, K = {size}": federation.buffered(size, first.target, budget) for size in BUFFERS}
    runs |= {other: federation.run(RUNS[other], first.target, budget) for other in others}
    return {
        run: {"run": run, "seed": seed, **figures_of(watch), "over_fedavg": watch.reached / first.reached}
        for run, watch in runs.items()
    }


def over_seeds(found: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """The same run in several seeds: means, and in how many the target was reached."""
    keys = ("over_fedavg", "steps", "mean", "worst_10", "unharmed")
    means = {key: float(np.mean([row[key] for row in found])) for key in keys}
    means["median_over_fedavg"] = float(
        np.median([row["over_fedavg"] for row in found])
    )  # also where some never arrive
    return {"run": found[0]["run"], "reached": sum(math.isfinite(row["seconds"]) for row in found), **means}  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run, report."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=30, metavar="T", help="of synchronous FedAvg")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="seeds at a time")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the lognormal speeds")
    parser.add_argument("--drop", type=float, default=0.1, help="share of messages that bring nothing back")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="further settings of the runs")
    options = parser.parse_args(argv)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    one = partial(race, {**SETTINGS, **settings_of(options.set)}, options)
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            races = [*pool.map(one, seeds)]
    else:
        races = [one(seed) for seed in seeds]
    runs: list[Json] = [row for each in races for row in each.values()]
    means = {name: over_seeds([each[name] for each in races]) for name in races[0]}
    barred = {bar.figure: means[BARRED][bar.figure] for bar in BARS}
    report("stragglers", {**barred, "means": [*means.values()], "runs": runs}, BARS, options.json)


if __name__ == "__main__":
    main(sys.argv[1:])
