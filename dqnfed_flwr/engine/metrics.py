"""The metrics listener that the settings ask for."""

from __future__ import annotations

import os
import time
from pathlib import Path

from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.strategy.checkpoint import output_directory
from dqnfed_flwr.telemetry.metric_files import RunMetrics, make_directory, run_name
from dqnfed_flwr.telemetry.run_samples import RunCard
from dqnfed_flwr.version import package_version


def metrics_of(settings: Settings, run_id: str = "") -> RunMetrics | None:
    """The listener that writes the run's metrics; None where `settings.metrics` names no directory.

    Parameters
    ----------
    settings : Settings
        Of the run.
    run_id : str
        The SuperLink's number for it; empty without a SuperLink.

    Raises
    ------
    ConfigError
        If the directory cannot be written.
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
        step_rule=settings.rule,
        version=package_version(),
        run_id=run_id,
    )
    return RunMetrics(directory, card, settings.metrics_clients)
