"""The command line in tests, and a run that only looks like one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from dqnfed_flwr.cli.app import app
from dqnfed_flwr.config import Settings
from dqnfed_flwr.engine.result import RunResult
from dqnfed_flwr.telemetry.event_log import EventLog
from dqnfed_flwr.telemetry.events import Listener, RoundEvent
from tests.helpers.runs import changed, make_event, make_result

EVENTS = [make_event(1, (0.4, 0.5, 0.6, 0.7)), make_event(2, (0.5, 0.6, 0.7, 0.8), rho=0.75)]


class FakeRun:
    """Stands for `engine.run.run`: notes how it was called, tells its listeners of two rounds, writes as it does."""

    def __init__(self) -> None:
        self.settings: list[Settings] = []
        self.engines: list[str] = []
        self.overwrites: list[bool] = []
        self.error: BaseException | None = None
        self.saves = True
        self.events = EVENTS
        self.status = "finished"

    def __call__(
        self, settings: Settings, *, engine: str, overwrite: bool = False, listeners: Sequence[Listener] = ()
    ) -> RunResult:
        self.overwrites.append(overwrite)
        self.settings.append(settings)
        self.engines.append(engine)
        result = replace(make_result(self.events, settings=settings), status=self.status)
        log = [EventLog(Path(settings.output))] if settings.output else []
        for listener in (*log, *listeners):
            listener.on_start(2, [])
            for event in self.events:
                listener.on_round(event)
            listener.on_end()
        if settings.output and self.saves:
            (Path(settings.output) / "checkpoint.npz").touch()
        if self.error:
            raise self.error
        if settings.output:
            result.write(Path(settings.output))
        return result


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), terminal_width=100, prog_name="dqnfed")


def ended(status: str, **changes: Any) -> list[RoundEvent]:
    """A round that moved the model, and one after which the run was at its end."""
    last = changed(make_event(2, None), factor=0.0, losses_after=[1.0] * 4, status=status, **changes)
    return [EVENTS[0], last]
