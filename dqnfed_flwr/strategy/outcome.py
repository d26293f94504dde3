"""What a run of the strategy leaves behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.strategy.events import evaluations
from dqnfed_flwr.strategy.inherited import metrics
from dqnfed_flwr.strategy.loop import RoundLoop
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.events import RoundEvent
from dqnfed_flwr.wire import Buffers


@dataclass(slots=True)
class Outcome:
    """What a run of the strategy leaves behind.

    Attributes
    ----------
    status : str
        `finished`, `pareto-stationary` or `early-stopped`.
    theta : Tensor
        The final model [D]; the one of best validation accuracy after early stopping.
    buffers : Buffers
        Its buffers.
    events : list[RoundEvent]
        One a round, those before a resume included.
    accuracy, validation : dict[int, float]
        Test and validation accuracy of every client at `theta`.
    """

    status: str
    theta: torch.Tensor
    buffers: Buffers
    events: list[RoundEvent] = field(default_factory=list)
    accuracy: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=dict)


def note_round(result: Result, event: RoundEvent) -> None:
    """Put the figures of a round into Flower's result."""
    loss = float(np.mean(event.losses_before)) if event.losses_before else math.nan
    result.train_metrics_clientapp[event.round] = metrics(
        {"improved-ratio": event.improved_ratio, "factor": event.factor, "loss": loss}
    )
    if event.accuracy:
        result.evaluate_metrics_clientapp[event.round] = metrics(fairness_report(event.accuracy))


def final_outcome(loop: RoundLoop, grid: Grid, state: RunState, events: list[RoundEvent]) -> Outcome:
    """The outcome of a run that `loop` brought to its end; asks for an evaluation where the last round had none."""
    outcome = Outcome(state.status, state.theta, state.buffers, events)
    best = state.best
    if best is not None:
        outcome.theta, outcome.buffers = best.theta, best.buffers
    of_round = state.round if best is None else best.round
    told = next((event for event in events if event.round == of_round), None)  # a log may have lost its end
    accuracy, validation = (told.accuracy, told.validation) if told else (None, None)
    if not accuracy:
        state.candidate, state.buffers = outcome.theta, outcome.buffers
        accuracy, validation, _ = evaluations(loop.evaluate(grid))
    outcome.accuracy, outcome.validation = accuracy or {}, validation or {}
    return outcome
