"""The server's half: a strategy around another one."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Iterable, Sequence
from logging import INFO
from pathlib import Path
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.guarded.loop import EvaluateFn, Given, GuardedRounds
from dqnfed_flwr.guarded.records import ARMIJO
from dqnfed_flwr.run_files import EVENTS, RUN, private_folder
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.telemetry.metric_files import RunMetrics, make_directory, run_name
from dqnfed_flwr.telemetry.run_samples import RunCard
from dqnfed_flwr.version import package_version


class Guaranteed(Strategy):
    """Any strategy of Flower's, or of the user's, with the guarantee that none of its steps harms a client.

    Each round the strategy makes its model as ever. The step to it is changed as little as needed so that, to first
    order, the loss of no participant rises above what it is entitled to. Then the participants test it by their own
    losses, and it is shortened until nobody is harmed. A step that needs no change is taken over bit for bit.

    The clients' train function needs the mod `dqnfed_flwr.guard`. The strategy must send clients the model that it is
    given, and make the next one from their replies. `start` is to be called on this object.

    Parameters
    ----------
    strategy : Strategy
        The strategy to be guarded.
    entitlement : str
        Training loss up to which a client may rise: a share of the round's typical loss, or a loss; "0" lets no loss
        rise at all. See `guarantee.entitlement`.
    tolerate : float
        Clients of a round that may lie, a number or a share below 1. See `guarantee.tolerate`.
    voters : float
        Share of a round's participants that must judge its step. See `guarantee.voters`.
    demand : float
        Where the step must be changed: how fast the losses of clients above their entitlement fall then, as a share of
        the mean rate at which the strategy's own step lowers them; 0 only keeps them from rising at first order.
    halvings : int
        How often a client halves a step that does not suit it, in one exchange.
    min_move : float
        Smallest move of the model, as a share of its norm, that is still tried.
    output : str | Path
        Folder for the event log, `events.jsonl`; empty for none. It must not hold a run.
    metrics : str | Path
        Folder for Prometheus' metrics, which `dqnfed exporter` serves; empty for none.
    listeners : Sequence[Listener]
        Called with the event of every round.

    Attributes
    ----------
    events : list[RoundEvent]
        One a round, of the last `start`. Clients are Flower's node ids.

    Raises
    ------
    ConfigError
        If a setting is out of range, or `strategy` is no strategy or guarded already.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from dqnfed_flwr import Guaranteed
    >>> strategy = Guaranteed(FedAvg(fraction_evaluate=1.0), entitlement="40%")
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        entitlement: str | float = "50%",
        tolerate: float = 0.0,
        voters: float = 0.5,
        demand: float = 1.0,
        halvings: int = 6,
        min_move: float = 1e-7,
        output: str | Path = "",
        metrics: str | Path = "",
        listeners: Sequence[Listener] = (),
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategy: found {type(strategy).__name__}; give a flwr.serverapp.strategy.Strategy")
        if isinstance(strategy, Guaranteed):
            raise ConfigError("strategy: it is guarded already; wrap it once")
        if isinstance(demand, bool) or not isinstance(demand, int | float) or not 0 <= demand < math.inf:
            raise ConfigError(f"demand: found {demand!r}; give a number of at least 0")
        self.strategy = strategy
        self.events: list[RoundEvent] = []
        self._settings = Settings.from_mapping(
            {
                "guarantee.entitlement": entitlement,
                "guarantee.tolerate": tolerate,
                "guarantee.voters": voters,
                "step.halvings": halvings,
                "step.min-move": min_move,
                "step.armijo": ARMIJO,
                "step.max-factor": 1.0,
                "step.grow-every": 1,
            }
        )
        self._demand, self._listeners = float(demand), tuple(listeners)
        self._output = Path(output).expanduser() if str(output) else None
        self._metrics = Path(metrics).expanduser() if str(metrics) else None

    @property
    def name(self) -> str:
        """What it is called in logs and metrics."""
        return f"Guaranteed({type(self.strategy).__name__})"

    def summary(self) -> None:
        """Log the settings of the guarantee, and those of the strategy."""
        guarantee = self._settings.guarantee
        log(INFO, "\t├──> Guarantee:")
        log(INFO, "\t│\t├── Entitlement: %s | may lie: %g", guarantee.entitlement, guarantee.tolerate)
        log(INFO, "\t│\t└── Demand: %g | halvings: %d", self._demand, self._settings.step.halvings)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the federation; parameters and result are those of Flower's `Strategy.start`.

        Configurations, evaluation on clients and server, and metrics are as without the guarantee. A step is judged in
        the exchange of the next round, so that evaluation and `evaluate_fn` of a round follow when that round's replies
        have come.

        Raises
        ------
        RunError
            If no client can take part in the first round: none runs the mod, or all fail.
        ConfigError
            If the output folder holds a run or cannot be written, or the strategy sends clients another model.
        """
        log(INFO, "Starting %s strategy:", self.name)
        log(INFO, "\t├── Number of rounds: %d", num_rounds)
        self.summary()
        result, since = Result(arrays=initial_arrays), time.time()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        given = Given(grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if evaluate_fn and (figures := evaluate_fn(0, initial_arrays)) is not None:
            log(INFO, "Initial global evaluation results: %s", figures)
            result.evaluate_metrics_serverapp[0] = figures
        self.events = []
        metrics, listening = self._open()
        for listener in listening:
            listener.on_start(num_rounds, [])

        def on_round(event: RoundEvent) -> None:
            self.events.append(event)
            for listener in listening:
                listener.on_round(event)

        status = "failed"
        try:
            GuardedRounds(self.strategy, self._settings, self._demand, given, result, on_round).run(initial_arrays)
            status = "finished"
        finally:
            for listener in listening:
                listener.on_end()
            if metrics:
                metrics.conclude(status)
        log(INFO, "Strategy execution finished in %.2fs", time.time() - since)
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.strip("\n"))
        return result

    def _open(self) -> tuple[RunMetrics | None, list[Listener]]:
        """The writer of metrics, where they are asked for, and all who listen."""
        listening: list[Listener] = []
        try:
            if self._output:
                private_folder(self._output)
                if any((self._output / name).exists() for name in (EVENTS, RUN)):
                    raise ConfigError(f"output: {self._output} holds a run; name another folder")
                listening.append(EventLog(self._output))
            if self._metrics:
                make_directory(self._metrics)
        except OSError as error:
            raise ConfigError(f"output, metrics: {error.filename} cannot be written ({error.strerror})") from None
        metrics = None
        if self._metrics:
            began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            name = run_name(self._output, f"{self.name}-{began}-{os.getpid()}")
            metrics = RunMetrics(self._metrics, RunCard(name, self.name, "probed", package_version()))
            listening.append(metrics)
        return metrics, [*listening, *self._listeners]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not to be called: a guarded round needs the loop of `start`."""
        _refuse()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not to be called, as `configure_train`."""
        _refuse()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not to be called, as `configure_train`."""
        _refuse()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Not to be called, as `configure_train`."""
        _refuse()


def _refuse() -> NoReturn:
    raise ConfigError(
        "a guarded strategy runs its own loop: call its start, and wrap last: Guaranteed(Other(FedAvg())), not "
        "Other(Guaranteed(FedAvg()))"
    )
