"""What a run's metrics take from its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DQNFedError
from dqnfed_flwr.fairness import fairness_report
from dqnfed_flwr.telemetry.events import RoundEvent, mean
from dqnfed_flwr.telemetry.metrics import (
    CLIENT_METRICS,
    LOW_RATIO,
    PERCENTILES,
    PHASES,
    REASONS,
    RUN_METRICS,
    SOLVES,
    STATES,
    TESTS,
    WHEN,
    SeriesValues,
)
from dqnfed_flwr.types import ACCURACY, Figure

FAIRNESS = {
    "mean": "dqnfed_test_accuracy_mean_ratio",
    "std": "dqnfed_test_accuracy_stddev_ratio",
    "worst": "dqnfed_test_accuracy_min_ratio",
    "worst10": "dqnfed_test_accuracy_worst10_ratio",
    "best10": "dqnfed_test_accuracy_best10_ratio",
    "jain": "dqnfed_test_accuracy_jain_ratio",
    "angle_rad": "dqnfed_test_accuracy_angle_radians",
    "kl_uniform": "dqnfed_test_accuracy_kl_uniform_nats",
}
"""Figures of `fairness_report`, and the metric of each."""
OTHER_FAIRNESS = {
    "mean": "dqnfed_test_figure_mean",
    "std": "dqnfed_test_figure_stddev",
    "worst": "dqnfed_test_figure_worst",
    "worst10": "dqnfed_test_figure_worst10",
    "best10": "dqnfed_test_figure_best10",
}
"""The same where the run's figure is no accuracy."""
COUNTED, LATEST = (
    {metric.name: metric.of for metric in RUN_METRICS if metric.of and metric.kind == kind}
    for kind in ("counter", "gauge")
)
"""Metrics that add up a field of every event, and those that show it of the last."""
UNKNOWN_AT_FIRST = (
    *LATEST,
    "dqnfed_moved_improved_clients_ratio",
    "dqnfed_moved_unharmed_clients_ratio",
    "dqnfed_step_norm",
    "dqnfed_test_loss_mean",
    "dqnfed_last_round_timestamp_seconds",
    "dqnfed_evaluated_round",
    "dqnfed_evaluated_clients",
)


@dataclass(frozen=True, slots=True)
class RunCard:
    """What is known of a run before it begins: its name, and the labels of `dqnfed_run_info`.

    `run_id` is the SuperLink's number for it, empty without a SuperLink. A run that is resumed keeps its name and has a
    new number. `figure` is what its clients are evaluated by.
    """

    name: str
    method: str
    step_rule: str
    version: str
    run_id: str = ""
    figure: Figure = ACCURACY


class RunSamples(SeriesValues):
    """The samples of a run of so many rounds, which this process began at `at`, in seconds since 1970.

    Clients 0 to `clients` - 1 have series of their own.
    """

    def __init__(self, card: RunCard, rounds: int, at: float, clients: int = 0) -> None:
        super().__init__(RUN_METRICS + CLIENT_METRICS)
        self._clients = clients
        self.set("dqnfed_run_info", 1, card.method, card.step_rule, card.version, card.run_id)
        self.set("dqnfed_run_start_timestamp_seconds", at)
        self._figure = card.figure
        self._named = () if card.figure == ACCURACY else (card.figure.name,)
        """Label of the metrics of a figure that is no accuracy."""
        self._fairness = OTHER_FAIRNESS if self._named else FAIRNESS
        self._validation = "dqnfed_validation_figure_mean" if self._named else "dqnfed_validation_accuracy_mean_ratio"
        self._client_figure = "dqnfed_client_test_figure" if self._named else "dqnfed_client_test_accuracy_ratio"
        _make_series(self)
        for name in (*self._fairness.values(), self._validation):
            self.set(name, math.nan, *self._named)
        if self._named:
            self.set("dqnfed_test_figure_higher_is_better", card.figure.higher, *self._named)
        self.set("dqnfed_round", 0)
        self.set("dqnfed_moved_rounds", 0)
        self.set("dqnfed_unmoved_streak_rounds", 0)
        self._of_moved = np.zeros(3)  # judged rounds that moved the model, and over them the sums of two ratios
        self.set("dqnfed_rounds", rounds)
        self.set("dqnfed_low_ratio_rounds", 0)

    def state(self, current: str) -> None:
        """Put the run into a state."""
        for state in dict.fromkeys((*STATES, current)):
            self.set("dqnfed_run_state", state == current, state)

    def count(self, event: RoundEvent) -> None:
        """Raise the counters and fill the histograms."""
        for name, field in COUNTED.items():
            self.add(name, _value(event, field))
        for test, clients in zip(TESTS, (event.votes.refused_training, event.votes.refused_held_out), strict=True):
            self.add("dqnfed_clients_refused_by_test_total", len(clients), test)
        self.add("dqnfed_unmoved_rounds_total", not event.moved)
        self.add("dqnfed_moved_rounds", event.moved)
        self._count_moved(event)
        if event.moved and event.unharmed_ratio < LOW_RATIO:
            self.add("dqnfed_low_ratio_rounds", 1)
        elif event.moved and event.unharmed_ratio >= LOW_RATIO:  # NaN, where no client answered again, changes nothing
            self.set("dqnfed_low_ratio_rounds", 0)
        self.add("dqnfed_solves_total", 1, str(event.status))
        for drop in event.dropped:
            self.add("dqnfed_clients_dropped_total", 1, drop.reason)
        for client in {drop.client for drop in event.dropped}:
            if 0 <= client < self._clients:
                self.add("dqnfed_client_dropped_total", 1, str(client))
        broken = np.count_nonzero(~np.isfinite(event.losses_before)) + np.count_nonzero(np.isinf(event.losses_after))
        self.add("dqnfed_nonfinite_losses_total", float(broken))
        for phase, seconds in event.cost.seconds.items():
            if phase == "total":
                self.observe("dqnfed_round_seconds", seconds)
            else:
                self.observe("dqnfed_phase_seconds", seconds, phase)

    def _count_moved(self, event: RoundEvent) -> None:
        """Rounds since the last move, and what the rounds that moved the model did to the clients."""
        if not event.moved:
            self.add("dqnfed_unmoved_streak_rounds", 1)
            return
        self.set("dqnfed_unmoved_streak_rounds", 0)
        if not math.isnan(event.improved_ratio):
            self._of_moved += (1.0, event.improved_of_asked, event.unharmed_ratio)
            rounds, improved, unharmed = self._of_moved.tolist()
            self.set("dqnfed_moved_improved_clients_ratio", improved / rounds)
            self.set("dqnfed_moved_unharmed_clients_ratio", unharmed / rounds)

    def show(self, events: Sequence[RoundEvent]) -> None:
        """Set the gauges, from the last of these rounds and the last evaluation among them."""
        for event in events[-1:]:
            for name, field in LATEST.items():
                self.set(name, _value(event, field))
            self.set("dqnfed_step_norm", math.sqrt(max(event.step_norm_squared, 0.0)))
            for when, losses in zip(WHEN, (event.losses_before, event.losses_after), strict=True):
                values = np.asarray(losses, np.float64)
                _set_spread(self, when, values[~np.isnan(values)])
        evaluated = [
            event
            for event in events
            if event.evaluated.test or event.evaluated.validation or event.evaluated.without_figure
        ]
        for event in evaluated[-1:]:
            self._take_evaluation(event)
        if self._clients:
            for event in events:
                self._take_clients(event)

    def _take_evaluation(self, event: RoundEvent) -> None:
        if event.evaluated.test:
            self.set("dqnfed_evaluated_round", event.round)
            self.set("dqnfed_evaluated_clients", len(event.evaluated.test))
            self.set("dqnfed_test_loss_mean", event.evaluated.test_loss)
            report = _fairness(event.evaluated.test, self._figure)
            for key, name in self._fairness.items():
                self.set(name, report.get(key, math.nan), *self._named)
        if event.evaluated.validation:
            self.set(self._validation, mean(event.evaluated.validation.values()), *self._named)
        self.forget("dqnfed_clients_without_figure")
        for part, clients in event.evaluated.without_figure.items():
            self.set("dqnfed_clients_without_figure", len(clients), part)

    def _take_clients(self, event: RoundEvent) -> None:
        for when, losses in zip(WHEN, (event.losses_before, event.losses_after), strict=True):
            for client, loss in zip(event.participants, losses, strict=True):
                if client < self._clients:
                    self.set("dqnfed_client_train_loss", loss, str(client), when)
        for client, value in (event.evaluated.test or {}).items():
            if client < self._clients:
                self.set(self._client_figure, value, str(client), *self._named)


def _make_series(samples: SeriesValues) -> None:
    """Let every series appear at once: a counter must have been 0 before its first rise can be seen."""
    for name in UNKNOWN_AT_FIRST:
        samples.set(name, math.nan)
    for name in (*COUNTED, "dqnfed_unmoved_rounds_total", "dqnfed_nonfinite_losses_total"):
        samples.add(name, 0)
    for reason in REASONS:
        samples.add("dqnfed_clients_dropped_total", 0, reason)
    for test in TESTS:
        samples.add("dqnfed_clients_refused_by_test_total", 0, test)
    for status in SOLVES:
        samples.add("dqnfed_solves_total", 0, status)
    for when in WHEN:
        _set_spread(samples, when, np.empty(0))
    samples.observe("dqnfed_round_seconds", None)
    for phase in PHASES:
        samples.observe("dqnfed_phase_seconds", None, phase)


def _value(event: RoundEvent, field: str) -> float:
    found: float | Sequence[int] = attrgetter(field)(event)
    return len(found) if isinstance(found, Sequence) else found


def _set_spread(samples: SeriesValues, when: str, values: NDArray[np.float64]) -> None:
    values = values if values.size else np.full(1, math.nan)
    samples.set("dqnfed_train_loss_mean", values.mean(), when)
    samples.set("dqnfed_train_loss_min", values.min(), when)
    samples.set("dqnfed_train_loss_max", values.max(), when)
    points = np.percentile(values, PERCENTILES, method="inverted_cdf")
    for percentile, value in zip(PERCENTILES, points, strict=True):
        samples.set("dqnfed_train_loss_percentile", float(value), when, str(percentile))


def _fairness(values: Mapping[int, float], figure: Figure) -> dict[str, float]:
    try:
        return fairness_report(values, figure)
    except DQNFedError:
        return {}
