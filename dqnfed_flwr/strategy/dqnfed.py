"""The Flower strategy that drives every method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from logging import INFO

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.config import Settings
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.methods.table import make_method
from dqnfed_flwr.steps import make_rule
from dqnfed_flwr.strategy.inherited import InheritedRound
from dqnfed_flwr.strategy.keeper import RunKeeper
from dqnfed_flwr.strategy.layers import tell_layers
from dqnfed_flwr.strategy.loop import RoundLoop
from dqnfed_flwr.strategy.origin import Origin
from dqnfed_flwr.strategy.outcome import Outcome, final_outcome, note_round
from dqnfed_flwr.strategy.roster import Roster
from dqnfed_flwr.strategy.state import RunState
from dqnfed_flwr.telemetry.event_log import Patience
from dqnfed_flwr.telemetry.events import Listener, RoundEvent

NOT_KNOWN = Origin()
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class DQNFed(Strategy):
    """DQN-Fed, and every other method of this package, as a Flower strategy.

    `start` runs the one-exchange round with its own reply loop. The five abstract methods serve Flower's inherited
    loop (`Strategy.start(strategy, ...)`); there, without probes, the step rule must be one that needs none.

    Parameters
    ----------
    settings : Settings
        Of the run.
    listeners : Sequence[Listener]
        Told of every round.
    origin : Origin
        Data and code of the run, for its checkpoints.

    Examples
    --------
    >>> from dqnfed_flwr import DQNFed, Settings
    >>> strategy = DQNFed(Settings.from_mapping({"rounds": 5, "step-rule": "clipped"}))
    >>> strategy.settings.rule
    'clipped'
    """

    def __init__(self, settings: Settings, *, listeners: Sequence[Listener] = (), origin: Origin = NOT_KNOWN) -> None:
        self.settings = settings
        self.origin = origin
        self.outcome: Outcome | None = None
        self._listeners = tuple(listeners)
        self._method = make_method(settings)
        self._rule = make_rule(settings)
        self._roster = Roster(
            settings.clients, settings.min_clients, settings.deadline, settings.num_classes, settings.retries
        )
        self._inherited: InheritedRound | None = None

    @property
    def roster(self) -> Roster:
        """Who is there; `roster.wait(grid)` may be called before `start` to learn the form of the data."""
        return self._roster

    def summary(self) -> None:
        """Log the settings that differ from their defaults."""
        defaults = Settings().flat()
        changed = {key: value for key, value in self.settings.flat().items() if value != defaults[key]}
        log(INFO, "\t├──> %s with step rule %s", self.settings.method, self.settings.rule)
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
            Rounds; None takes `settings.rounds`. With 0 nobody is asked, and the model stays `initial_arrays`.
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
        if num_rounds is not None and num_rounds < 1:
            result.arrays = initial_arrays
            _evaluate_first(result, initial_arrays, evaluate_fn)
            return result
        self._apply(num_rounds, timeout)
        self._roster.wait(grid)
        keeper = RunKeeper(self.settings, self._method, self._rule, grid=grid, patience=Patience(self._listeners))
        begun = keeper.begin(initial_arrays, self.origin)
        state, events, self.origin = begun.state, begun.events, begun.origin
        tell_layers(self._method, self.settings, self._roster, state.theta.numel())

        def on_round(event: RoundEvent) -> None:
            events.append(event)
            for listener in self._listeners:
                listener.on_round(event)
            note_round(result, event)
            if evaluate_fn and (figures := evaluate_fn(event.round, wire.encode_model(*_arrays(state)))):
                result.evaluate_metrics_serverapp[event.round] = figures

        if state.round == 0:
            _evaluate_first(result, initial_arrays, evaluate_fn)
        for listener in self._listeners:
            listener.on_start(self.settings.rounds, list(events))
        loop = RoundLoop(
            self.settings,
            state,
            self._method,
            self._rule,
            self._roster,
            on_round=on_round,
            save=lambda: keeper.save(state, self.origin),
        )
        try:
            loop.run(grid)
            self.outcome = final_outcome(loop, grid, state, events)
        finally:
            for listener in self._listeners:
                listener.on_end()
        result.arrays = wire.encode_model(self.outcome.theta.numpy(), self.outcome.buffers)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's sample, for Flower's inherited loop."""
        del config
        return self._inherit(server_round, arrays, grid).train_messages()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the round, and figures of it; (None, None) when too few replies are usable."""
        return self._opened(server_round).step(replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all members where an evaluation is due."""
        del config
        every = self.settings.evaluate_every
        if not every or server_round % every:
            return []
        return self._inherit(server_round, arrays, grid).evaluate_messages()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Fairness figures of the clients' accuracies."""
        return self._opened(server_round).fairness(replies)

    def _inherit(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> InheritedRound:
        if self._inherited is None:
            self._roster.wait(grid)
            tell_layers(self._method, self.settings, self._roster, wire.decode_model(arrays)[0].size)
        else:
            self._roster.refresh(grid)
        self._inherited = InheritedRound(
            self.settings,
            self._method,
            self._rule,
            self._roster,
            server_round=server_round,
            arrays=arrays,
            last=self._inherited.last if self._inherited else None,
        )
        return self._inherited

    def _opened(self, server_round: int) -> InheritedRound:
        if self._inherited is None:
            raise ConfigError(f"replies of round {server_round} came before its messages were configured")
        return self._inherited

    def _apply(self, num_rounds: int | None, timeout: float | None) -> None:
        rounds = self.settings.rounds if num_rounds is None else num_rounds
        deadline = self.settings.deadline if timeout is None else min(timeout, self.settings.deadline)
        changes = {"rounds": rounds, "deadline": deadline}
        self.settings = Settings.from_mapping({**self.settings.flat(), **changes})
        self._roster.set_deadline(self.settings.deadline)


def _evaluate_first(result: Result, arrays: ArrayRecord, evaluate_fn: EvaluateFn | None) -> None:
    if evaluate_fn and (figures := evaluate_fn(0, arrays)):
        result.evaluate_metrics_serverapp[0] = figures


def _arrays(state: RunState) -> tuple[NDArray[np.floating], wire.Buffers]:
    return state.theta.numpy(), state.buffers
