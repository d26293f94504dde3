"""The runs behind `benchmarks/guarantee.py`: federations, rivals, and one run of each to its figures."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks._common import WHOLE, quiet
from benchmarks._lies import LIES, liars, times
from benchmarks._unlike import CLIENTS, OTHER, UNLIKE
from client_app.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.in_process import InProcessGrid
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.run import run
from dqnfed_flwr.engine.server_run import serve
from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.guarantee.overrule import CONTRADICTION

Values = Mapping[str, Any]
SGD: Values = {"local.batch-size": 32, "local.lr": 0.3}
PLAIN: Values = {"local.threads": 1, "checkpoint-every": 0, **WHOLE}
RIVALS: dict[str, Values] = {
    "FedAvg": {"method": "fedavg", **SGD},
    "Krum": {"method": "krum", "krum.keep": 1, **SGD},
    "trimmed mean": {"method": "trimmed-mean", **SGD},
    "median": {"method": "median", **SGD},
}
SETUPS = {"1 of 10": (1, 10), "3 of 10": (3, 10), "1 of 4": (1, 4), "2 of 7": (2, 7)}
ABSENT, NONE = "absent", "none"
"""In place of a lie: hostile clients send nothing usable; and they are honest."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; accuracies in per cent, of the clients that are judged.

    Attributes
    ----------
    ended : str
        Why it ended before its rounds were done; empty if it did not.
    mean, worst10, worst : float
        Test accuracy over clients, averaged over the last evaluations; NaN where the run raised an error.
    rho, unharmed : float
        Means over rounds.
    harmed : int
        Times that a judged client was harmed.
    overruled : int
        Times that a judged client was overruled.
    left_out : int
        Times that a judged client was left out for any other reason.
    named : int
        First round in which a client that is not judged contradicted itself; 0 for never.
    moved, rounds, exchanges : int
        Rounds that moved the model, all rounds, exchanges.
    other_loss, other_accuracy : float
        Of `_unlike.OTHER` at the end.
    seconds : float
        Of the whole run.
    """

    ended: str
    mean: float
    worst10: float
    worst: float
    rho: float
    unharmed: float
    harmed: int
    overruled: int
    left_out: int
    named: int
    moved: int
    rounds: int
    exchanges: int
    other_loss: float
    other_accuracy: float
    seconds: float

    def row(self) -> dict[str, Any]:
        """As a line of a CSV."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def unlike(case: str, seed: int, settings: Values) -> Figures:
    """A federation with one client unlike the others, begun at a model trained on client 0 alone."""
    start = {"start.epochs": 150, "start.client": 0, "evaluate-every": 0, "rounds": 60}
    data = f"benchmarks._unlike:{UNLIKE[case].__name__}"
    return measured({"data": data, "clients": CLIENTS, "seed": seed, **PLAIN, **start, **settings})


def measured(settings: Values) -> Figures:
    """An ordinary run, every client judged."""
    since = time.perf_counter()
    with quiet():
        result = run(dict(settings), jobs=1)
    return _figures(result, range(result.settings.clients), time.perf_counter() - since)


def with_liars(setup: str, lie: str, seed: int, settings: Values) -> Figures:
    """Digits, Dirichlet 0.5, with the last clients hostile; the honest ones are judged."""
    bad, clients = SETUPS[setup]
    hostile = range(clients - bad, clients)
    base = {"data": "digits", "partition": "dirichlet", "clients": clients, "rounds": 60, "evaluate-every": 0}
    found = Settings.from_mapping({**base, "seed": seed, **PLAIN, **_sized(settings, bad, clients)})
    since = time.perf_counter()
    try:
        with quiet():
            result = serve(InProcessGrid(_app(hostile, lie), clients, found.flat()), found)
    except DQNFedError as error:
        return _failed(type(error).__name__, time.perf_counter() - since)
    return _figures(result, range(clients - bad), time.perf_counter() - since)


def _app(hostile: Collection[int], lie: str) -> Any:
    if lie == NONE:
        return app
    if lie == ABSENT:
        LIES.setdefault(ABSENT, (times(math.nan), LIES["copied row"][1]))
    return liars(app, hostile, lie)


def _sized(settings: Values, bad: int, clients: int) -> dict[str, Any]:
    """The rivals' settings for so many hostile clients."""
    found = dict(settings)
    if found.get("method") == "krum":
        found["krum.byzantine"] = bad
    if found.get("method") == "trimmed-mean":
        found["trimmed-mean.share"] = bad / clients
    return found


def _figures(result: RunResult, judged: Collection[int], seconds: float) -> Figures:
    events = result.events
    last = [event.evaluated.test for event in events if event.evaluated.test][-5:] or [result.accuracies]
    kept = [[100 * accuracy[client] for client in judged if client in accuracy] for accuracy in last if accuracy]
    drops = [(event.round, drop) for event in events for drop in event.dropped]
    other = next((list(event.participants).index(OTHER) for event in events[-1:] if OTHER in event.participants), None)
    ratios = [(event.improved_ratio, event.unharmed_ratio) for event in events if not math.isnan(event.improved_ratio)]
    known = ("contradiction", "overruled", "set-aside")
    return Figures(
        ended="" if result.status == "finished" else result.status,
        mean=_mean([_mean(values) for values in kept]),
        worst10=_mean([_mean(sorted(values)[: max(1, len(values) // 10)]) for values in kept]),
        worst=_mean([min(values) for values in kept]),
        rho=_mean([rho for rho, _ in ratios]),
        unharmed=_mean([unharmed for _, unharmed in ratios]),
        harmed=sum(client in judged for event in events for client in event.harmed),
        overruled=sum(client in judged for event in events for client in event.votes.overruled),
        left_out=sum(drop.client in judged and drop.reason not in known for _, drop in drops),
        named=min((number for number, drop in drops if drop.reason == CONTRADICTION), default=0),
        moved=sum(event.moved for event in events),
        rounds=len(events),
        exchanges=sum(event.cost.exchanges for event in events),
        other_loss=math.nan if other is None else events[-1].losses_after[other],
        other_accuracy=100 * result.accuracies.get(OTHER, math.nan),
        seconds=seconds,
    )


def _failed(error: str, seconds: float) -> Figures:
    return Figures(
        ended=error,
        mean=math.nan,
        worst10=math.nan,
        worst=math.nan,
        rho=math.nan,
        unharmed=math.nan,
        harmed=0,
        overruled=0,
        left_out=0,
        named=0,
        moved=0,
        rounds=0,
        exchanges=0,
        other_loss=math.nan,
        other_accuracy=math.nan,
        seconds=seconds,
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else math.nan
