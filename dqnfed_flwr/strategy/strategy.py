"""The Flower strategy that drives every method that combines gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings, resolve
from dqnfed_flwr.errors import ConfigError, QuorumError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.methods._base import LayerMethod, Memory, make_method
from dqnfed_flwr.params import ParamSpec
from dqnfed_flwr.steps import make_rule
from dqnfed_flwr.strategy.checkpoint import Provenance
from dqnfed_flwr.strategy.checkpointer import Checkpointer
from dqnfed_flwr.strategy.client_registry import ClientRegistry
from dqnfed_flwr.strategy.confirmation import Confirmed, KnownModel
from dqnfed_flwr.strategy.loop import EvaluateFn, OwnLoop, RoundLoop
from dqnfed_flwr.strategy.masked_clients import MaskedClients
from dqnfed_flwr.strategy.own_clients import OwnClients
from dqnfed_flwr.strategy.row_place import rows_device
from dqnfed_flwr.strategy.short_messages import ShortMessages
from dqnfed_flwr.strategy.state import STALLED, BestModel, RunState
from dqnfed_flwr.tasks import task_of
from dqnfed_flwr.tasks._base import Task
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.telemetry.events import Evaluated, Listener, RoundEvent
from dqnfed_flwr.types import ACCURACY, Figure, on_host
from dqnfed_flwr.wire import Buffers
from dqnfed_flwr.wire.codecs import LOW_RANK, WHOLE

UNKNOWN = Provenance()
Model = Callable[[], ArrayRecord]
"""The model of a round, made when somebody looks at it."""


class GradientStrategy(OwnLoop):
    """DQN-Fed, and every other method of this package that combines gradients, as a Flower strategy.

    `start` runs the one-exchange round with its own reply loop.

    Parameters
    ----------
    settings : Settings
        Of the run.
    listeners : Sequence[Listener]
        Called with the event of every round.
    provenance : Provenance
        Data and code of the run, for its checkpoints.

    Examples
    --------
    >>> from dqnfed_flwr import GradientStrategy, Settings
    >>> strategy = GradientStrategy(Settings.from_mapping({"rounds": 5, "step-rule": "clipped"}))
    >>> strategy.settings.step_rule
    'clipped'
    """

    def __init__(
        self, settings: Settings, *, listeners: Sequence[Listener] = (), provenance: Provenance = UNKNOWN
    ) -> None:
        self.settings = settings
        self.provenance = provenance
        self.outcome: Outcome | None = None
        self._listeners = tuple(listeners)
        self._plan = resolve(settings)
        self._method, self._rule = make_method(self._plan), make_rule(self._plan)
        self._registry = ClientRegistry(
            settings.clients, settings.min_clients, settings.deadline, settings.num_classes, settings.retries
        )

    @property
    def registry(self) -> ClientRegistry:
        """Who is there; `registry.wait(grid)` may be called before `start` to learn the form of the data."""
        return self._registry

    def summary(self) -> None:
        """Log the settings that differ from their defaults."""
        defaults = Settings().flat()
        changed = {key: value for key, value in self.settings.flat().items() if value != defaults[key]}
        log(INFO, "\t├──> %s with step rule %s", self.settings.method, self._plan.rule.name)
        log(INFO, "\t└──> %s", ", ".join(f"{key}={value}" for key, value in changed.items()) or "all defaults")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the federation.

        Parameters
        ----------
        grid : Grid
            Any Flower grid.
        initial_arrays : ArrayRecord
            The model to start from, from `dqnfed_flwr.wire.encode_model`.
        num_rounds : int | None
            Rounds; None takes `settings.rounds`. With 0 no client is asked, and the model stays `initial_arrays`.
        timeout : float | None
            Seconds that stand in for `settings.deadline`, if shorter; None for none.
        train_config, evaluate_config : ConfigRecord | None
            Not used: clients read the run config. Must be empty.
        evaluate_fn : Callable | None
            Called with the round number and the model before the first round and after each.

        Returns
        -------
        Result
            Flower's; `strategy.outcome` holds the events and the final accuracies.

        Raises
        ------
        ConfigError
            If a train or evaluate config is given.
        QuorumError
            If too few clients answered, time and again.
        CheckpointError
            If the run cannot be continued from its checkpoint.
        """
        if train_config or evaluate_config:
            raise ConfigError("train_config and evaluate_config are not sent to clients; use the run config")
        result = Result()

        def evaluate(number: int, model: Model) -> None:
            if evaluate_fn and (figures := evaluate_fn(number, model())):
                result.evaluate_metrics_serverapp[number] = figures

        if num_rounds is not None and num_rounds < 1:
            result.arrays = initial_arrays
            evaluate(0, lambda: initial_arrays)
            return result
        self._apply(num_rounds, timeout)
        self._registry.wait(grid)
        outcome = self._train(grid, initial_arrays, result, evaluate)
        result.arrays = wire.encode_model(on_host(outcome.theta), outcome.buffers)
        return result

    def _train(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        result: Result,
        evaluate: Callable[[int, Callable[[], ArrayRecord]], None],
    ) -> Outcome:
        """Start or resume the run and bring it to its end; the figures of its rounds go into `result`."""
        patience = Patience(self._listeners)
        short = None if self._plan.step_bits == WHOLE else ShortMessages(self._plan)
        parts: dict[str, Memory] = {"method": self._method, **({} if short is None else {"messages": short})}
        checkpointer = Checkpointer(self.settings, parts, self._rule, grid=grid, patience=patience)
        provenance = replace(self.provenance, frozen=self._registry.form.frozen or None)
        state, events, self.provenance = checkpointer.start(partial(RunState.at, initial_arrays), provenance)
        device = rows_device(self._plan, self._method, state.theta.numel(), grid)
        if device is not None:
            state.to(device)
        task = task_of(self.settings)
        self._set_layers(task, short, state.theta.numel())

        def on_round(event: RoundEvent) -> None:
            checkpointer.finish()  # no event lies further ahead of it than one round
            events.append(event)
            for listener in self._listeners:
                listener.on_round(event)
            _record_round(result, event)
            evaluate(event.round, lambda: wire.encode_model(on_host(state.theta), state.buffers))

        if state.round == 0:
            evaluate(0, lambda: initial_arrays)
        for listener in self._listeners:
            listener.on_start(self.settings.rounds, list(events))
        try:
            kind = MaskedClients if self._plan.masked else OwnClients
            side = kind(self._plan, task, state, self._method, self._registry, grid, short, patience, device)
            save = partial(checkpointer.save, state, self.provenance)
            with checkpointer:
                RoundLoop(self._plan, state, side, self._rule, on_round, save).run()
                side.settle()
                self.outcome = outcome = _final_outcome(side, state, events)
        finally:
            for listener in self._listeners:
                listener.on_end()
        return outcome

    def _set_layers(self, task: Task, short: ShortMessages | None, dim: int) -> None:
        """Give a `LayerMethod`, also one inside another, and steps in low rank the layers of the model of D = `dim`.

        A `settings.model` of another D is refused: it is not the model that is trained.
        """
        layered, low_rank = self._method.inner, self._plan.step_bits == LOW_RANK
        if not isinstance(layered, LayerMethod) and not low_rank:
            return
        form, settings = self._registry.form, self.settings
        module = task.build(form.input_shape, form.num_classes, seed=settings.seed, dtype=torch.float32)
        spec = ParamSpec.of(module)
        if spec.dim != dim:
            who = "steps in low rank go" if low_rank else f"method {settings.method!r} goes"
            raise ConfigError(
                f"model: {settings.model} has {spec.dim} parameters, the model to be trained has {dim}; {who} by "
                "its layers: name the model that is trained"
            )
        if isinstance(layered, LayerMethod):
            layered.layers, layered.head = spec.layers, spec.head
        if short is not None:
            short.shapes = spec.real_shapes

    def _apply(self, num_rounds: int | None, timeout: float | None) -> None:
        changes = {
            "rounds": self.settings.rounds if num_rounds is None else num_rounds,
            "deadline": self.settings.deadline if timeout is None else min(timeout, self.settings.deadline),
        }
        self.settings = Settings.from_mapping({**self.settings.flat(), **changes})
        self._plan = resolve(self.settings)
        self._registry.stragglers.deadline = self.settings.deadline


@dataclass(slots=True)
class Outcome:
    """What a run of the strategy leaves behind."""

    status: str  # any of `RunStatus` but `running`
    theta: torch.Tensor  # the final model [D]; the one of best validation accuracy after early stopping
    buffers: Buffers  # of that model
    events: list[RoundEvent] = field(default_factory=list)  # one a round, those before a resume included
    figure: Figure = ACCURACY  # what the clients were evaluated by
    accuracy: dict[int, float] = field(default_factory=dict)  # that figure of every client's test part at `theta`
    validation: dict[int, float] = field(default_factory=dict)
    without_figure: dict[str, list[int]] = field(default_factory=dict)  # clients that have none, by part
    confirmed: Confirmed | None = None  # which model that is, with `guarantee.confirm`


def _record_round(result: Result, event: RoundEvent) -> None:
    """Put the figures of a round into Flower's result."""
    loss = float(np.mean(event.losses_before)) if event.losses_before else math.nan
    result.train_metrics_clientapp[event.round] = MetricRecord(
        {"improved-ratio": event.improved_ratio, "factor": event.factor, "loss": loss}
    )
    if event.evaluated.test:
        report = fairness_report(event.evaluated.test, event.evaluated.figure)
        result.evaluate_metrics_clientapp[event.round] = MetricRecord({**report})


def _final_outcome(side: OwnClients, state: RunState, events: list[RoundEvent]) -> Outcome:
    """The outcome of a run that is at its end; asks for an evaluation where the last round had none."""
    outcome = Outcome(state.status, state.theta, state.buffers, events, side.figure)
    kept: BestModel | KnownModel | None = state.best
    if state.confirmation is not None:
        kept, outcome.confirmed = state.confirmation.confirmed, state.confirmation.result
        if kept is None:
            raise QuorumError("no client has confirmed any model, so there is no result; see guarantee.confirm")
        outcome.status = STALLED if outcome.status == "finished" and not kept.round else outcome.status
    if kept is not None:
        outcome.theta, outcome.buffers = kept.theta, kept.buffers
    of_round = state.round if kept is None else kept.round
    event = next((event for event in events if event.round == of_round), None)  # a log may have lost its end
    found = event.evaluated if event else Evaluated()
    if not found.test and not found.without_figure:
        state.candidate, state.buffers = outcome.theta, outcome.buffers
        found = Evaluated.of(side.evaluate())
    outcome.accuracy, outcome.validation = found.test or {}, found.validation or {}
    outcome.without_figure = found.without_figure
    return outcome


DQNFed = GradientStrategy
"""Another public name of `GradientStrategy`, after the main method."""
