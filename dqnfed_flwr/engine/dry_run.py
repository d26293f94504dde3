"""What a run would be, without it: its data, its model, and the bytes and seconds of a round, as a few have them.

A federation of a few of the run's clients, with the same data, model, method and share of them asked, goes through
two rounds in this process, or more until one has no miss; two clients are asked in each, or as many as a masked sum
needs. Bytes are those of a round without a miss. Seconds are an estimate, for they depend on the machine, on who is
asked, and on what the server does with the rows of all. A `Line` says how long the bytes take on a client's line.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from dqnfed_flwr.client.app import app, forget_clients
from dqnfed_flwr.client.parts import count_samples
from dqnfed_flwr.config import AttackSettings, Settings, resolve
from dqnfed_flwr.data.clients import TargetSummary
from dqnfed_flwr.engine.in_process import OneSourceGrid
from dqnfed_flwr.engine.run import choose_jobs, tell_of_tables, usable_cores
from dqnfed_flwr.engine.server_run import tell_of_model
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.masked import PEERS
from dqnfed_flwr.strategy.masked_group import check_samples
from dqnfed_flwr.strategy.strategy import GradientStrategy
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.telemetry.events import Listener, RoundEvent

ASKED, ROUNDS, MORE = 2, 2, 4
"""Clients asked in a round, rounds that are measured, and further ones while none was without a miss."""
UNITS = {"bit": 1.0, "kbit": 1e3, "Mbit": 1e6, "Gbit": 1e9}
"""Bits a second, by names that `tc` has as well."""
_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Line:
    """How fast a client's line is: bits a second to the client, and from it."""

    down: float
    up: float

    @classmethod
    def of(cls, text: str) -> Line:
        """The line that `--line` names: one rate for both ways, as `10Mbit`, or down and up, as `50Mbit/10Mbit`.

        Raises
        ------
        ConfigError
            If it names none.
        """
        rates = [_bits(part.strip()) for part in text.split("/")]
        if len(rates) > 2 or not all(rates):
            raise ConfigError(
                f"--line: found {text!r}; allowed is a number above 0 with {', '.join(UNITS)} (bits a second), for "
                "both ways or for down/up; give 10Mbit, or 50Mbit/10Mbit"
            )
        return cls(rates[0], rates[-1])

    def __str__(self) -> str:
        down, up = (_rate_in_words(rate) for rate in (self.down, self.up))
        return down if down == up else f"{down} down, {up} up"


def _bits(text: str) -> float:
    """Bits a second; 0 where the text says none."""
    units, match = {unit.lower(): size for unit, size in UNITS.items()}, _RATE.fullmatch(text)
    return float(match[1]) * units.get(match[2].lower(), 0.0) if match else 0.0


def _rate_in_words(rate: float) -> str:
    unit, size = next((item for item in reversed(UNITS.items()) if rate >= item[1]), ("bit", 1.0))
    return f"{rate / size:g} {unit}/s"


@dataclass(frozen=True, slots=True)
class DryRun:
    """A run that did not take place.

    Attributes
    ----------
    settings : Settings
        Of the run.
    clients : Sequence[TargetSummary]
        Samples of every client, in their order.
    own : bool
        Whether model and data sets are the task's own, not those of the settings.
    dim : int
        D, trainable parameters of the model.
    measured : int
        Clients asked in a round that was measured.
    exchanges : int
        Of a round without a miss: a masked sum, or a probe that goes out before the rows, is one more.
    bytes_up, bytes_down : float
        Of one client that is asked, in such a round: from it, and to it.
    seconds : float
        A client's share of such a round.
    jobs : int
        Clients that compute at the same time in process.
    """

    settings: Settings
    clients: Sequence[TargetSummary]
    own: bool
    dim: int
    measured: int
    exchanges: int
    bytes_up: float
    bytes_down: float
    seconds: float
    jobs: int

    @property
    def left_out(self) -> dict[int, str]:
        """Clients whose own data cannot be used, which have no sample here, with the reasons."""
        return {place: client.fault for place, client in enumerate(self.clients) if client.fault}

    @property
    def step_rule(self) -> str:
        """The step rule, by name."""
        return resolve(self.settings).rule.name

    @property
    def rounded(self) -> str:
        """What travels in fewer bits than it has, in words."""
        return resolve(self.settings).rounded

    @property
    def round_seconds(self) -> float:
        """Estimated seconds of a round in process."""
        return self.seconds * self.settings.sampled / self.jobs

    def on_line(self, line: Line) -> tuple[float, float]:
        """Seconds that the bytes of a client in a round take on its `line`, down and up, which are not at once."""
        return 8 * self.bytes_down / line.down, 8 * self.bytes_up / line.up


def dry_run(settings: Settings) -> DryRun:
    """Build data and model of a run and measure a round of it; nothing is written.

    Raises
    ------
    DQNFedError
        Whatever the run itself would raise before its first round, or in its first rounds.
    """
    tell_of_tables(settings)
    clients, few = count_samples(settings), _few(settings)
    forget_clients()
    if resolve(settings).masked:
        check_samples([client.train for client in clients], settings)
    grid = OneSourceGrid(app, few.clients, {**settings.flat(), "privacy.min-samples": few.privacy.min_samples})
    watch = _Watch()
    strategy = GradientStrategy(few, listeners=[watch])
    try:
        strategy.registry.wait(grid)
        tell_of_model(settings, strategy.registry.form)
        with suppress(_Enough):
            strategy.start(grid, initial_model(few, strategy.registry))
    finally:
        forget_clients()
    usual = watch.usual()
    cost, asked = usual.cost, max(usual.asked, 1)
    share = (cost.exchanges - cost.misses) / cost.exchanges / asked  # of a client, without what misses cost
    measured = clients[: few.clients]
    scale = _mean(clients) / max(_mean(measured), 1.0)
    return DryRun(
        settings=settings,
        clients=clients,
        own=task_of(settings).source.kind == "task",
        dim=strategy.registry.form.dim,
        measured=asked,
        exchanges=cost.exchanges - cost.misses,
        bytes_up=cost.bytes_up * share,
        bytes_down=cost.bytes_down * share,
        seconds=watch.seconds[usual.round] * share * scale,
        jobs=choose_jobs(settings, usable_cores()),
    )


def _few(settings: Settings) -> Settings:
    """The same with so few clients that `ASKED` are asked, and everybody is evaluated as often for each of these."""
    asked = min(PEERS + 1 if resolve(settings).masked else ASKED, settings.sampled)
    clients = min(settings.clients, max(asked, round(asked * settings.clients / settings.sampled)))
    changes = {"clients": clients, "participation": min(1.0, asked / clients), "min_clients": 1}
    changes |= {"rounds": max(settings.rounds, ROUNDS + MORE + 1), "evaluate_every": int(settings.evaluate_every == 1)}
    still = {"output": "", "metrics": "", "resume": False, "early_stopping": 0, "attack": AttackSettings()}
    start = settings.start.model_copy(update={"epochs": 0})
    # a length that grows after a probe trains at once, for the next round
    kept = {"max_factor": settings.step.start} if settings.step.probe_first else {}
    still |= {"start": start, "privacy": settings.privacy.model_copy(update={"min_samples": 1})}
    return settings.model_copy(update={**changes, **still, "step": settings.step.model_copy(update=kept)})


def _mean(clients: Sequence[TargetSummary]) -> float:
    """Mean number of training samples."""
    return sum(client.train for client in clients) / len(clients)


class _Enough(Exception):
    """Ends the rounds."""


class _Watch(Listener):
    """Keeps the rounds and what each took."""

    def __init__(self) -> None:
        self.events: list[RoundEvent] = []
        self.seconds: dict[int, float] = {}
        self._since = time.perf_counter()

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Begin to take the time."""
        self._since = time.perf_counter()

    def on_round(self, event: RoundEvent) -> None:
        """Note a round."""
        now = time.perf_counter()
        self.seconds[event.round] = now - self._since
        self._since = now
        self.events.append(event)
        if event.round >= ROUNDS and (not self._misses(-1) or event.round == ROUNDS + MORE):
            raise _Enough

    def usual(self) -> RoundEvent:
        """A round with as few misses as there is; not the first, which builds everything, where there is another."""
        if not self.events:
            raise RunError("no round came to its end")
        return self.events[min(range(1, len(self.events)), key=self._misses, default=0)]

    def _misses(self, place: int) -> int:
        """Those of a round and of the one before, whose last exchange may have trained for it."""
        return sum(event.cost.misses for event in self.events[: place + 1 or None][-2:])
