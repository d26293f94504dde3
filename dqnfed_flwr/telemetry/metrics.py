"""All metrics, of runs and of exporters: names, kinds, units, labels and meanings; their values, and these as text.

Every name begins with `dqnfed_`. Units are base units and stand at the end of the name; shares lie in [0, 1] and end in
`_ratio`; what only rises ends in `_total`. The round is a value, never a label, and no label names a client but those
of `CLIENT_METRICS`, which are written only when asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dqnfed_flwr.telemetry.events import RunStatus

Kind = Literal["gauge", "counter", "histogram", "info"]

STATES = (*get_args(RunStatus), "paused", "stopped", "failed")
"""States of a run; one that waits for room on a disk is `paused`, one that an operator or a signal ended is `stopped`.
A run that was killed stays `running`, and its last round grows old."""
REASONS = (
    "absent",
    "owing",
    "late",
    "client-error",
    "lost-model",
    "unreadable",
    "missing-key",
    "extra-key",
    "bad-dtype",
    "bad-shape",
    "bad-array",
    "not-finite",
    "bad-buffer",
    "bad-loss",
    "below-floor",
    "bad-rate",
    "bad-count",
    "bad-figure",
    "bad-probe",
    "zero-gradient",
    "contradiction",
    "set-aside",
    "overruled",
    "other-form",
    "other-frozen",
    "other-version",
    "repeated-fault",
    "unfit-data",
)
"""Known reasons for leaving a client out; each begins at 0, so that the first one counts as a rise."""
SOLVES = (
    "converged",
    "stationary",
    "line-search-failed",
    "held-out",
    "contested",
    "bvls",
    "not-converged",
    "relaxed",
    "unjudged",
    "not-finite",
    "no-step",
    "last-step-again",
)
"""Known ends of a solve."""
TESTS = ("training", "held-out")
"""What a client judges a candidate by."""
PHASES = ("exchange", "solve", "step")
PERCENTILES = (10, 25, 50, 75, 90)
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds of the histograms' buckets."""
WHEN = ("before", "after")
LOW_RATIO = 0.9
"""Below it, `dqnfed_low_ratio_rounds` counts a round that moved the model."""
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """What stands in the documents about a metric.

    Its name is as a query writes it; an `info` is a gauge that is always 1. The unit is `seconds`, `bytes`, `ratio`,
    `radians`, `nats`, or empty, `help` one line. The exporter adds the label `run`.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    of: str = ""
    """Of `RoundEvent`, whose value it is, or which a counter adds up; of a list its length. Empty for other metrics."""

    @property
    def family(self) -> str:
        """Name of the family in the exposition: a counter's without `_total`, an info's without `_info`."""
        return self.name.removesuffix("_total").removesuffix("_info")


def _gauge(name: str, unit: str, meaning: str, *labels: str, of: str = "") -> Metric:
    return Metric(f"dqnfed_{name}", "gauge", unit, meaning, labels, of)


def _counter(name: str, unit: str, meaning: str, *labels: str, of: str = "") -> Metric:
    return Metric(f"dqnfed_{name}_total", "counter", unit, meaning, labels, of)


RUN_METRICS = (
    Metric(
        "dqnfed_run_info",
        "info",
        "",
        "Method, step rule and version of the run, and its number at the SuperLink, empty without one; always 1",
        ("method", "step_rule", "version", "run_id"),
    ),
    _gauge("run_state", "", "1 for the state the run is in, 0 for the others", "state"),
    _gauge("run_start_timestamp_seconds", "seconds", "When this process began the run, since 1970"),
    _gauge("last_round_timestamp_seconds", "seconds", "When the last round was settled, since 1970"),
    _gauge("round", "", "Rounds settled", of="round"),
    _gauge("moved_rounds", "", "Those of them that moved the model"),
    _gauge("rounds", "", "Rounds the run was asked for"),
    _gauge("asked_clients", "", "Clients that were asked for a gradient in the last round", of="asked"),
    _gauge("participants", "", "Those of them whose loss is known", of="participants"),
    _gauge("heard_clients", "", "Those of them whose gradients made the step", of="votes.heard"),
    _counter("clients_dropped", "", "Replies that did not count, by reason", "reason"),
    _gauge("model_moved", "", "1 where the last round moved the model, 0 where the model stayed", of="moved"),
    _gauge(
        "improved_clients_ratio",
        "ratio",
        "rho: clients asked whose training loss did not rise in the last round",
        of="improved_of_asked",
    ),
    _gauge(
        "unharmed_clients_ratio",
        "ratio",
        "Participants that answered again and were not harmed in the last round",
        of="unharmed_ratio",
    ),
    _gauge("moved_improved_clients_ratio", "ratio", "The mean of rho over the rounds that moved the model alone"),
    _gauge("moved_unharmed_clients_ratio", "ratio", "The same of the participants that were not harmed"),
    _gauge("unmoved_streak_rounds", "", "Rounds in a row, up to the last, that left the model as it was"),
    _gauge("entitlement", "", "Training loss up to which a participant may rise without harm", of="entitlement"),
    _gauge("low_ratio_rounds", "", "Moved rounds in a row, up to the last, whose ratio of unharmed was below 0.9"),
    _counter("clients_harmed", "", "Participants that were harmed, over all rounds", of="harmed"),
    _counter("clients_overruled", "", "Participants whose vote was set aside, over all rounds", of="votes.overruled"),
    _counter("clients_refused", "", "Participants that turned a candidate down, over all rounds", of="votes.refused"),
    _counter("clients_refused_by_test", "", "The same by the test that did so, see step.judge", "test"),
    _gauge("unable_clients", "", "Participants who could not judge by a held-out part", of="votes.unable"),
    _gauge("train_loss_mean", "", "Mean training loss of the participants before and after the round", "when"),
    _gauge("train_loss_min", "", "Smallest of them", "when"),
    _gauge("train_loss_max", "", "Largest of them", "when"),
    _gauge("train_loss_percentile", "", "Their percentiles over participants", "when", "percentile"),
    _counter("nonfinite_losses", "", "Losses of participants that were infinite or NaN"),
    _gauge("test_loss_mean", "", "Mean test loss over the clients evaluated"),
    _gauge("evaluated_round", "", "Round of the last evaluation, whose figures stand until the next"),
    _gauge("evaluated_clients", "", "Clients in it"),
    _gauge("test_accuracy_mean_ratio", "ratio", "Mean test accuracy over clients"),
    _gauge("test_accuracy_stddev_ratio", "ratio", "Its standard deviation over clients, sigma"),
    _gauge("test_accuracy_min_ratio", "ratio", "Test accuracy of the worst client"),
    _gauge("test_accuracy_worst10_ratio", "ratio", "Mean test accuracy of the lowest 10 % of clients"),
    _gauge("test_accuracy_best10_ratio", "ratio", "Mean test accuracy of the highest 10 % of clients"),
    _gauge("test_accuracy_jain_ratio", "ratio", "Jain's index of the test accuracies"),
    _gauge("test_accuracy_angle_radians", "radians", "Angle between the test accuracies and equal ones"),
    _gauge("test_accuracy_kl_uniform_nats", "nats", "KL divergence of the test accuracies from equal ones"),
    _gauge("validation_accuracy_mean_ratio", "ratio", "Mean validation accuracy over clients"),
    _gauge(
        "clients_without_figure", "", "Clients evaluated that have no such figure; absent while all have it", "part"
    ),
    _gauge("test_figure_mean", "", "Mean over clients of what the task is evaluated by, in its unit", "figure"),
    _gauge("test_figure_stddev", "", "Its standard deviation over clients, sigma", "figure"),
    _gauge("test_figure_worst", "", "That of the worst client: the highest where less is better", "figure"),
    _gauge("test_figure_worst10", "", "Its mean over the worst 10 % of clients", "figure"),
    _gauge("test_figure_best10", "", "Its mean over the best 10 % of clients", "figure"),
    _gauge("test_figure_higher_is_better", "", "1 where more of it is better, 0 where less is", "figure"),
    _gauge("validation_figure_mean", "", "Mean over clients of their validation parts", "figure"),
    _gauge("step_norm", "", "|u|, length of the combined direction"),
    _gauge("step_factor", "", "alpha with which it was applied; 0 when the model stayed", of="factor"),
    _counter("step_misses", "", "Candidates that were not accepted", of="cost.misses"),
    _counter("unmoved_rounds", "", "Rounds that left the model as it was"),
    _counter("exchanges", "", "Exchanges with the clients", of="cost.exchanges"),
    _counter(
        "superlink_errors",
        "",
        "Calls repeated because the SuperLink answered with an error of its own",
        of="cost.repeated_calls",
    ),
    _counter("solves", "", "Rounds by how the solve ended", "status"),
    _gauge("gramian_rank", "", "Numerical rank of the unit-diagonal Gramian; 0 where nothing is solved", of="rank"),
    _gauge("gramian_condition", "", "Its condition number over the eigenvalues kept", of="condition"),
    _gauge("solve_residual", "", "Relative residual of what the step should meet", of="residual"),
    _counter("curvature_pairs_kept", "", "Curvature pairs behind the rates", of="pairs_kept"),
    _counter("curvature_pairs_rejected", "", "Curvature pairs turned away", of="pairs_rejected"),
    _counter("received_bytes", "bytes", "Payload of records from clients", of="cost.bytes_up"),
    _counter("sent_bytes", "bytes", "Payload of records to clients", of="cost.bytes_down"),
    Metric("dqnfed_round_seconds", "histogram", "seconds", "Seconds of a whole round"),
    Metric("dqnfed_phase_seconds", "histogram", "seconds", "Seconds of a round by phase", ("phase",)),
)

CLIENT_METRICS = (
    _gauge("client_train_loss", "", "Training loss of a client before and after its last round", "client", "when"),
    _gauge("client_test_accuracy_ratio", "ratio", "Test accuracy of a client", "client"),
    _gauge("client_test_figure", "", "What a client is evaluated by, in its unit", "client", "figure"),
    _counter("client_dropped", "", "Rounds in which the client's reply did not count", "client"),
)
"""Written only for clients 0 to N - 1 with `metrics-clients: N`."""

EXPORTER_METRICS = (
    Metric("dqnfed_exporter_info", "info", "", "Version of the exporter; always 1", ("version",)),
    _gauge("exporter_runs", "", "Runs whose metrics are served"),
    _gauge("exporter_damaged_files", "", "Metrics files that could not be read and are left out"),
    _gauge("exporter_withheld_runs", "", "Older runs beyond the bound on their number, left out"),
    _counter("exporter_pruned_files", "", "Files of old runs that were removed"),
    _gauge("exporter_collect_seconds", "seconds", "Seconds it took to put the runs' files together"),
    _gauge("disk_free_bytes", "bytes", "Free space where the metrics and results lie", "path"),
    _gauge("disk_size_bytes", "bytes", "Size of that file system", "path"),
    _gauge(
        "certificate_expiry_timestamp_seconds",
        "seconds",
        "When a certificate ends, since 1970; NaN where it cannot be read",
        "file",
    ),
    _gauge("superlink_up", "", "1 when the last poll of the SuperLink succeeded"),
    _counter("superlink_polls", "", "Polls by result, ok or failed", "result"),
    _gauge("superlink_last_poll_timestamp_seconds", "seconds", "When it last succeeded, since 1970"),
    _gauge("superlink_poll_seconds", "seconds", "Seconds of the last poll"),
    _gauge("nodes", "", "SuperNodes by state; absent while the SuperLink cannot be asked", "state"),
    _gauge("node_online", "", "1 for a node that is online; only with --node-series", "node", "name"),
    _gauge("flower_runs", "", "The latest runs the SuperLink knows, by state", "state"),
)
"""What an exporter adds to the metrics of the runs."""


class SeriesValues:
    """The current value of every series of some metrics; a name that is not among theirs is a KeyError."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in self._metrics}
        self._observed: dict[str, dict[Labels, list[float]]] = {name: {} for name in self._metrics}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Give a gauge or an info its value; labels in their declared order."""
        self._values[name][labels] = float(value)

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Raise a counter, which begins at 0."""
        series = self._values[name]
        series[labels] = series.get(labels, 0.0) + amount

    def observe(self, name: str, value: float | None, *labels: str) -> None:
        """Count a value in a histogram; None only makes the series appear."""
        counts = self._observed[name].setdefault(labels, [0.0] * (len(SECONDS) + 1) + [0.0])
        if value is not None:
            counts[bisect_left(SECONDS, value)] += 1
            counts[-1] += value

    def forget(self, name: str) -> None:
        """Drop all series of a metric."""
        self._values[name].clear()

    def not_below(self, earlier: str) -> None:
        """Raise counters and histograms to what an exposition of an earlier process says: Prometheus sees none fall.

        ValueError or KeyError if it is no exposition, or that of other metrics.
        """
        for family in text_string_to_metric_families(earlier):
            for sample in family.samples:
                metric = self._metrics.get(sample.name)
                if metric is not None and metric.kind == "counter":
                    labels, series = _labels(metric, sample), self._values[metric.name]
                    series[labels] = max(series.get(labels, 0.0), sample.value)
            metric = self._metrics.get(family.name)
            if metric is not None and metric.kind == "histogram":
                for labels, counts in _counted(metric, family.samples).items():
                    mine = self._observed[metric.name].get(labels, [0.0])
                    if sum(counts[:-1]) > sum(mine[:-1]):
                        self._observed[metric.name][labels] = counts

    def collect(self) -> Iterator[Family]:
        """The families, as prometheus-client asks for them; metrics without a series are left out."""
        for metric in self._metrics.values():
            if observed := self._observed[metric.name]:
                yield _histogram(metric, observed)
            elif values := self._values[metric.name]:
                yield _plain(metric, values)

    def exposition(self) -> bytes:
        """Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)


def _plain(metric: Metric, series: dict[Labels, float]) -> Family:
    if metric.kind == "info":
        info = InfoMetricFamily(metric.family, metric.help)
        for labels in series:
            info.add_metric([], dict(zip(metric.labels, labels, strict=True)))
        return info
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Family = make(metric.family if metric.kind == "counter" else metric.name, metric.help)
    for labels, value in series.items():
        family.add_sample(metric.name, dict(zip(metric.labels, labels, strict=True)), value)
    return family


def _histogram(metric: Metric, series: dict[Labels, list[float]]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, counts in series.items():
        bounds = (*map(str, SECONDS), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(counts[:-1]), strict=True)), counts[-1])
    return family


def _labels(metric: Metric, sample: Sample) -> Labels:
    return tuple(sample.labels[label] for label in metric.labels)


def _counted(metric: Metric, samples: Sequence[Sample]) -> dict[Labels, list[float]]:
    """What `Samples.observe` keeps, by labels, from the samples of a histogram."""
    buckets: dict[Labels, list[float]] = {}
    sums = {_labels(metric, sample): sample.value for sample in samples if sample.name == f"{metric.name}_sum"}
    for sample in samples:
        if sample.name == f"{metric.name}_bucket":
            buckets.setdefault(_labels(metric, sample), []).append(sample.value)
    if any(len(found) != len(SECONDS) + 1 for found in buckets.values()):
        raise ValueError(f"{metric.name} has other buckets")
    return {
        labels: [now - before for before, now in pairwise([0.0, *found])] + [sums[labels]]
        for labels, found in buckets.items()
    }
