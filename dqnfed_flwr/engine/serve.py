"""The server's side of a run, the same for every grid."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from logging import WARNING
from pathlib import Path

from flwr.common.logger import log
from flwr.serverapp import Grid

from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.ending import early_end, held_up
from dqnfed_flwr.engine.metrics import metrics_of
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.engine.start import initial_model
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.run_files import RUN
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.strategy.dqnfed import DQNFed
from dqnfed_flwr.strategy.origin import Origin
from dqnfed_flwr.telemetry.event_log import EventLog, Patience
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.telemetry.metric_files import RunMetrics
from dqnfed_flwr.version import package_commit


def serve(
    grid: Grid,
    settings: Settings,
    *,
    listeners: Sequence[Listener] = (),
    fingerprint: str | None = None,
    run_id: str = "",
) -> RunResult:
    """Wait for the clients, build the model, train, write the results.

    Parameters
    ----------
    grid : Grid
        Any Flower grid.
    settings : Settings
        Of the run. Results go to `settings.output`, if it names a directory.
    listeners : Sequence[Listener]
        Told of every round, beside the event log.
    fingerprint : str | None
        Of the data that all clients get their samples from; None where that is not known here.
    run_id : str
        The SuperLink's number for the run, for its metrics; empty without a SuperLink.

    Raises
    ------
    DQNFedError
        If the run cannot begin or go on; what was reached is in the checkpoint.
    """
    output = prepare_output(settings)
    metrics = metrics_of(settings, run_id)
    origin = Origin(fingerprint, (package_commit(),))
    try:
        result = _train(grid, settings, origin, output, metrics, listeners)
    except BaseException as error:
        if metrics:
            metrics.conclude("stopped" if _was_asked_to(error) else "failed")
        raise
    if metrics:
        metrics.conclude(result.status)
    _tell(result, on_superlink=bool(run_id))
    return result


def _tell(result: RunResult, *, on_superlink: bool) -> None:
    """Log who held up the others, and on a SuperLink, where the log is all that is seen, that the run ended early."""
    if words := held_up(result.totals):
        log(WARNING, "A client that refuses steps in most rounds holds up the others: %s", words)
    if on_superlink and (words := early_end(result)):
        log(WARNING, "%s", words)


def _was_asked_to(error: BaseException) -> bool:
    """Whether a run ended because somebody wanted it: Ctrl-C, or Flower's exit after SIGTERM, whose status is 0."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)


def prepare_output(settings: Settings) -> Path | None:
    """Make the output directory and try it, before any training.

    Raises
    ------
    ConfigError
        If it cannot be written, or a run is to be resumed without one.
    """
    output = output_directory(settings)
    if output is None:
        if settings.resume:
            raise ConfigError("resume: needs output, the directory of the run to continue")
        return None
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output) as probe:
            os.fsync(probe.fileno())
    except OSError as error:
        raise ConfigError(f"output: cannot write to {output} ({error.strerror}); name another directory") from None
    return output


def _train(
    grid: Grid,
    settings: Settings,
    origin: Origin,
    output: Path | None,
    metrics: RunMetrics | None,
    listeners: Sequence[Listener],
) -> RunResult:
    """The run itself, and its results written to `output`."""
    since = time.perf_counter()
    told: list[Listener] = [*([metrics] if metrics else []), *listeners]
    patience = Patience(told)
    log: list[Listener] = [_Begun(output / RUN), EventLog(output, patience)] if output else []
    earlier = _Earlier()
    strategy = DQNFed(settings, listeners=[*log, earlier, *told], origin=origin)
    strategy.roster.wait(grid)
    strategy.start(grid, initial_model(settings, strategy.roster))
    outcome = strategy.outcome
    if outcome is None:
        raise RunError("the strategy ended without an outcome")
    result = RunResult(
        settings=settings,
        status=outcome.status,
        theta=outcome.theta.numpy(),
        events=outcome.events,
        accuracies=dict(sorted(outcome.accuracy.items())),
        validation=dict(sorted(outcome.validation.items())),
        seconds=earlier.seconds + time.perf_counter() - since,
        buffers=outcome.buffers,
        form=strategy.roster.form,
        origin=strategy.origin,
        left_out=strategy.roster.refused,
    )
    if output:
        patience.write(output / RUN, lambda: result.write(output))
    return result


class _Begun:
    """A listener that takes the record of the run before away, lest it be read as this one's."""

    def __init__(self, record: Path) -> None:
        self._record = record

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """The settings and the checkpoint were accepted: this run is the folder's now."""
        self._record.unlink(missing_ok=True)

    def on_round(self, event: RoundEvent) -> None:
        """Nothing."""

    def on_end(self) -> None:
        """Nothing."""


class _Earlier:
    """A listener that adds up what the rounds before a resumption took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """The rounds that the checkpoint has."""
        self.seconds = sum(event.seconds.get("total", 0.0) for event in done)

    def on_round(self, event: RoundEvent) -> None:
        """Nothing: this session's clock runs."""

    def on_end(self) -> None:
        """Nothing."""
