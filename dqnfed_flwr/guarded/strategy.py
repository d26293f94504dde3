"""The server's half: a strategy around another one."""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dqnfed_flwr.config import Settings, StepSettings, resolve
from dqnfed_flwr.errors import ConfigError, StalledError
from dqnfed_flwr.guarantee.harm import Judge
from dqnfed_flwr.guarded.records import ARMIJO
from dqnfed_flwr.guarded.side import StrategySide
from dqnfed_flwr.guarded.wrapped import Given
from dqnfed_flwr.methods._base import Memory
from dqnfed_flwr.run_files import CHECKPOINT, EVENTS, RUN, private_folder
from dqnfed_flwr.steps import make_rule
from dqnfed_flwr.strategy.checkpoint import Provenance
from dqnfed_flwr.strategy.checkpointer import Checkpointer
from dqnfed_flwr.strategy.loop import EvaluateFn, OwnLoop, RoundLoop
from dqnfed_flwr.tasks import check_floor
from dqnfed_flwr.telemetry.event_log import EventLog, Patience
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.telemetry.metric_files import RunMetrics, make_directory, run_name
from dqnfed_flwr.telemetry.run_samples import RunCard
from dqnfed_flwr.telemetry.standstill import stalled_words
from dqnfed_flwr.telemetry.totals import Totals
from dqnfed_flwr.version import package_version

PATIENCE = StepSettings().patience


class Guaranteed(OwnLoop):
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
    floor : float | None
        The least value that the clients' loss can have, from which a share counts; None where it is not known. Then it
        counts as 0, and no loss may rise at all from the round on in which one is below that.
    window : int
        W: a loss above the entitlement may come up to the largest of that client's last W losses. See
        `guarantee.window`.
    tolerate : float
        Clients of a round that may lie, a number or a share below 1. See `guarantee.tolerate`.
    voters : float
        Share of a round's participants that must judge its step. See `guarantee.voters`.
    quorum : float
        Share of the nodes asked whose replies close an exchange. A node that owes a reply is not asked again until it
        has come, or some timeouts are over. See `quorum`.
    judge : str
        Losses by which clients judge a step: "training", "held-out", those of the part that their `LocalTask` holds
        out, or "both". See `step.judge`.
    held_out_level : float
        Chance that a client that is never harmed on its held-out part is the cause of a refusal in a run.
    demand : float
        Where the step must be changed: how fast the losses of clients above their entitlement fall then, as a share of
        the mean rate at which the strategy's own step lowers them; 0 only keeps them from rising at first order.
    probe_first : bool
        Have clients test each first candidate before anybody trains at it: two exchanges a round, and no training lost
        at a step that is turned down. See `step.probe-first`.
    halvings : int
        How often a client halves a step that does not suit it, in one exchange.
    min_move : float
        Smallest move of the model, as a share of its norm, that is still tried.
    patience : int
        Rounds in a row in which the model does not move, and nothing shows that it is stationary, after which the run
        ends as stalled; so does one that never moved it. 0 for never. See `step.patience`.
    output : str | Path
        Folder for the event log, `events.jsonl`, and a checkpoint after each round; empty for none. It must not hold a
        run, but for one to resume.
    resume : bool
        Go on with the run in `output`, from its last round; where no round was over yet, begin. The strategy takes up
        what it remembered: see docs/guarded.md. A round under way when the run was cut off is made again.
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
        floor: float | None = None,
        window: int = 1,
        tolerate: float = 0.0,
        voters: float = 0.5,
        quorum: float = 1.0,
        judge: Judge = "training",
        held_out_level: float = 0.1,
        demand: float = 1.0,
        probe_first: bool = False,
        halvings: int = 6,
        min_move: float = 1e-7,
        patience: int = PATIENCE,
        output: str | Path = "",
        resume: bool = False,
        metrics: str | Path = "",
        listeners: Sequence[Listener] = (),
    ) -> None:
        if not isinstance(strategy, Strategy):
            raise ConfigError(f"strategy: found {type(strategy).__name__}; give a flwr.serverapp.strategy.Strategy")
        if isinstance(strategy, Guaranteed):
            raise ConfigError("strategy: it is guarded already; wrap it once")
        if isinstance(strategy, OwnLoop):
            name = type(strategy).__name__
            raise ConfigError(f"strategy: {name} runs its own loop; its step rule probed gives the guarantee")
        if isinstance(demand, bool) or not isinstance(demand, int | float) or not 0 <= demand < math.inf:
            raise ConfigError(f"demand: found {demand!r}; give a number of at least 0")
        check_floor(floor, "floor")
        self.strategy = strategy
        self._floor = floor
        self.events: list[RoundEvent] = []
        self._settings = Settings.from_mapping(
            {
                "quorum": quorum,
                "output": str(output),
                "resume": resume,
                "guarantee.entitlement": entitlement,
                "guarantee.window": window,
                "guarantee.tolerate": tolerate,
                "guarantee.voters": voters,
                "guarantee.held-out-level": held_out_level,
                "split.validation-fraction": 0.0 if judge == "training" else 0.5,  # which clients decide
                "step.judge": judge,
                "step.probe-first": probe_first,
                "step.halvings": halvings,
                "step.min-move": min_move,
                "step.patience": patience,
                "step.armijo": ARMIJO,
                "step.max-factor": 1.0,
                "step.grow-every": 1,
                "step.on-stationary": "stay",
                "messages.row": 32,
                "messages.step": 32,  # they are the strategy's own
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
        step = self._settings.step
        log(INFO, "\t│\t└── Demand: %g | halvings: %d | judge: %s", self._demand, step.halvings, step.judge)
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
        StalledError
            If the model stood still (`patience`), when all was written; the text has the likeliest causes, and `result`
            what was reached.
        QuorumError
            If time and again none of those is there who must judge a step, and no other node is either.
        CheckpointError
            If the run to resume is damaged, or of other settings, strategies or models.
        RunError
            If no client can take part in the first round: none runs the mod, or all fail; or if later all fail, each
            three times in a row in the same way.
        DataError
            If a loss is below the `floor`.
        ConfigError
            If the output folder holds a run or cannot be written, or the strategy sends clients another model.
        """
        log(INFO, "Starting %s strategy:", self.name)
        log(INFO, "\t├── Number of rounds: %d", num_rounds)
        self.summary()
        result, since = Result(arrays=initial_arrays), time.time()
        train_config = ConfigRecord() if train_config is None else train_config
        given = Given(grid, train_config, ConfigRecord() if evaluate_config is None else evaluate_config, evaluate_fn)
        self.events = []
        if num_rounds > 0:
            self._train(given, result, {"rounds": num_rounds, "deadline": timeout, "resume": self._goes_on()})
        else:
            _evaluate_first(given, result)
        log(INFO, "Strategy execution finished in %.2fs", time.time() - since)
        for line in io.StringIO(str(result)):
            log(INFO, "\t%s", line.strip("\n"))
        return result

    def _train(self, given: Given, result: Result, changes: Mapping[str, float]) -> None:
        """All rounds; what they give goes into `result`."""
        settings = Settings.from_mapping({**self._settings.flat(), **changes})
        metrics, listening = self._open()
        plan, patience = resolve(settings), Patience(listening)
        rule = make_rule(plan)
        side = StrategySide(self.strategy, plan, demand=self._demand, floor=self._floor, given=given, result=result)
        parts: dict[str, Memory] = {"method": side.method, "side": side}
        checkpointer = Checkpointer(settings, parts, rule, grid=given.grid, patience=patience)
        side.state, self.events, _ = checkpointer.start(lambda: side.state, Provenance())
        if not side.state.round:
            _evaluate_first(given, result)
        for listener in listening:
            listener.on_start(settings.rounds, list(self.events))

        def on_round(event: RoundEvent) -> None:
            checkpointer.finish()  # no event lies further ahead of it than one round
            self.events.append(event)
            for listener in listening:
                listener.on_round(event)

        def save() -> None:
            checkpointer.save(replace(side.state, pending=None), Provenance())

        status = "failed"
        try:
            with checkpointer:
                RoundLoop(plan, side.state, side, rule, on_round, save).run()
                side.finish()
            status = side.state.status
        finally:
            for listener in listening:
                listener.on_end()
            if metrics:
                metrics.conclude(status)
        log(INFO, "%s", Totals.of(self.events).moved_words)
        if status != "finished":
            raise StalledError(stalled_words(self.events, settings.rounds), result)

    def _goes_on(self) -> bool:
        """Whether there is a run to resume."""
        if self._output is None or not self._settings.resume or (self._output / CHECKPOINT).exists():
            return self._settings.resume
        log(WARNING, "%s holds no checkpoint: the run begins", self._output)
        return False

    def _check_output(self, folder: Path) -> None:
        """Refuse a folder whose run would be lost: one is there, and is not resumed, or has no checkpoint to resume."""
        log_file = folder / EVENTS
        begun = log_file.exists() and len(log_file.read_bytes().splitlines()) > 1  # not cut off in its first round
        if self._settings.resume and ((folder / CHECKPOINT).exists() or not (begun or (folder / RUN).exists())):
            return
        if any((folder / name).exists() for name in (EVENTS, RUN)):
            lacking = ", without a checkpoint" if self._settings.resume else ""
            raise ConfigError(f"output: {folder} holds a run{lacking}; name another folder")

    def _open(self) -> tuple[RunMetrics | None, list[Listener]]:
        """The writer of metrics, where they are asked for, and all who listen."""
        listening: list[Listener] = []
        try:
            if self._output:
                private_folder(self._output)
                self._check_output(self._output)
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


def _evaluate_first(given: Given, result: Result) -> None:
    """Evaluation on the server before the first round."""
    if given.evaluate_fn and (figures := given.evaluate_fn(0, result.arrays)) is not None:
        log(INFO, "Initial global evaluation results: %s", figures)
        result.evaluate_metrics_serverapp[0] = figures
