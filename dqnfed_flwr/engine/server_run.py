"""The server's side of a run, the same for every grid: clients, model, training, results, metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from logging import WARNING
from pathlib import Path

from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.supercore.exit import add_exit_handler

from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.data.own_folder import module_folders
from dqnfed_flwr.engine.notices import LEFT_OUT, LeftOutWatch, early_end, held_up, left_out
from dqnfed_flwr.engine.result import RunResult, start_loss
from dqnfed_flwr.engine.run_folder import prepare_output
from dqnfed_flwr.engine.start import initial_model, notes_on_model
from dqnfed_flwr.errors import ConfigError, RunError
from dqnfed_flwr.run_files import RUN
from dqnfed_flwr.strategy.checkpoint import Provenance, output_directory
from dqnfed_flwr.strategy.compatibility import Form
from dqnfed_flwr.strategy.strategy import GradientStrategy
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.telemetry.event_log import EventLog, Patience
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from dqnfed_flwr.telemetry.metric_files import RunMetrics, make_directory, run_name
from dqnfed_flwr.telemetry.run_samples import RunCard
from dqnfed_flwr.types import on_host
from dqnfed_flwr.version import package_commit, package_version


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
        Called for every round, as the event log is.
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
    if metrics and run_id:  # Flower ends a stopped ServerApp after 5 s, often before its exception comes to us
        add_exit_handler(lambda: metrics.conclude("stopped"))
    provenance = Provenance(fingerprint, (package_commit(),))
    try:
        result = _train(grid, settings, provenance, output, metrics, listeners)
    except BaseException as error:
        if metrics:
            metrics.conclude("stopped" if _was_asked_to(error) else "failed")
        raise
    if metrics:
        metrics.conclude(result.status)
    _warn(result, on_superlink=bool(run_id))
    return result


def metrics_of(settings: Settings, run_id: str = "") -> RunMetrics | None:
    """The listener that writes the run's metrics; None where `settings.metrics` names no directory.

    `run_id` is the SuperLink's number; empty without a SuperLink. `ConfigError` if the directory cannot be written.
    """
    if not settings.metrics:
        return None
    directory = Path(settings.metrics).expanduser()
    try:
        make_directory(directory)
    except OSError as error:
        raise ConfigError(f"metrics: cannot write to {directory} ({error.strerror}); name another directory") from None
    began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    card = RunCard(
        name=run_name(output_directory(settings), f"{settings.method}-{began}-{os.getpid()}"),
        method=settings.method,
        step_rule=resolve(settings).rule.name,
        version=package_version(),
        run_id=run_id,
        figure=task_of(settings).figure,
    )
    return RunMetrics(directory, card, settings.metrics_clients)


def _warn(result: RunResult, *, on_superlink: bool) -> None:
    """Log who held up the others, and on a SuperLink, where the log is all that is seen, why the run ended as it did.

    That is said of one that ended early or stands still.
    """
    if words := held_up(result.totals):
        log(WARNING, "A client that refuses steps in most rounds holds up the others: %s", words)
    if words := left_out(result):
        log(WARNING, "%s%s", LEFT_OUT, words)
    if on_superlink and (words := early_end(result)):
        log(WARNING, "%s", words)


def _was_asked_to(error: BaseException) -> bool:
    """Whether a run ended on request: Ctrl-C, or Flower's exit after SIGTERM, whose status is 0."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code)


def _train(
    grid: Grid,
    settings: Settings,
    provenance: Provenance,
    output: Path | None,
    metrics: RunMetrics | None,
    listeners: Sequence[Listener],
) -> RunResult:
    """The run itself, and its results written to `output`."""
    since = time.perf_counter()
    watching: list[Listener] = [*([metrics] if metrics else []), LeftOutWatch(), *listeners]
    patience = Patience(watching)
    beginning = _Beginning(output / RUN if output else None)
    event_log: list[Listener] = [EventLog(output, patience)] if output else []
    strategy = GradientStrategy(settings, listeners=[beginning, *event_log, *watching], provenance=provenance)
    strategy.registry.wait(grid)
    tell_of_model(settings, strategy.registry.form)
    strategy.start(grid, initial_model(settings, strategy.registry))
    outcome = strategy.outcome
    if outcome is None:
        raise RunError("the strategy ended without an outcome")
    result = RunResult(
        settings=settings,
        status=outcome.status,
        theta=on_host(outcome.theta),
        events=outcome.events,
        accuracies=dict(sorted(outcome.accuracy.items())),
        validation=dict(sorted(outcome.validation.items())),
        seconds=beginning.earlier_seconds + time.perf_counter() - since,
        buffers=outcome.buffers,
        form=strategy.registry.form,
        provenance=strategy.provenance,
        left_out=strategy.registry.refused,
        modules=module_folders(settings),
        figure=outcome.figure,
        without_figure=outcome.without_figure,
        start_loss=start_loss(outcome.events),
        confirmed=outcome.confirmed,
    )
    if output:
        patience.write(output / RUN, lambda: result.write(output))
    return result


def tell_of_model(settings: Settings, form: Form) -> None:
    """Log, before round 1 of a new run, what is worth knowing of the user's model."""
    for note in [] if settings.resume else notes_on_model(settings, form):
        log(WARNING, "%s", note)


class _Beginning(Listener):
    """Takes note of the beginning of the run, or of its resumption, in its folder.

    It removes the `record` of the run before, which could be read as this one's; None where nothing is written.
    """

    def __init__(self, record: Path | None) -> None:
        self._record = record
        self.earlier_seconds = 0.0
        """What the rounds before a resumption took."""

    def on_start(self, rounds: int, done: list[RoundEvent]) -> None:
        """Remove the record: settings and checkpoint were accepted, so this run is the folder's now."""
        if self._record:
            self._record.unlink(missing_ok=True)
        self.earlier_seconds = sum(event.cost.seconds.get("total", 0.0) for event in done)
