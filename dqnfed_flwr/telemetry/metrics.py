"""All metrics, of runs and of exporters: names, kinds, units, labels and meanings, after Prometheus' conventions.

Every name begins with `dqnfed_`. Units are base units and stand at the end of the name; shares lie in [0, 1] and end in
`_ratio`; what only rises ends in `_total`. The round is a value, never a label, and no label names a client but those
of `CLIENT_METRICS`, which are written only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram", "info"]

STATES = (
    "running",
    "paused",
    "finished",
    "pareto-stationary",
    "line-search-failed",
    "early-stopped",
    "held-out-stationary",
    "stopped",
    "failed",
)
"""States of a run; one that waits for room on a disk is `paused`, one that an operator or a signal ended is `stopped`.
A run that was killed stays `running`, and its last round grows old."""
REASONS = (
    "absent",
    "owing",
    "late",
    "client-error",
    "unreadable",
    "missing-key",
    "extra-key",
    "bad-dtype",
    "bad-shape",
    "bad-array",
    "not-finite",
    "bad-buffer",
    "bad-loss",
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

    @property
    def family(self) -> str:
        """Name of the family in the exposition: a counter's without `_total`, an info's without `_info`."""
        return self.name.removesuffix("_total").removesuffix("_info")


def _gauge(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"dqnfed_{name}", "gauge", unit, meaning, labels)


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"dqnfed_{name}_total", "counter", unit, meaning, labels)


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
    _gauge("round", "", "Rounds settled"),
    _gauge("moved_rounds", "", "Those of them that moved the model"),
    _gauge("rounds", "", "Rounds the run was asked for"),
    _gauge("asked_clients", "", "Clients that were asked for a gradient in the last round"),
    _gauge("participants", "", "Those of them whose loss is known"),
    _gauge("heard_clients", "", "Those of them whose gradients made the step"),
    _counter("clients_dropped", "", "Replies that did not count, by reason", "reason"),
    _gauge("model_moved", "", "1 where the last round moved the model, 0 where the model stayed"),
    _gauge("improved_clients_ratio", "ratio", "rho: clients asked whose training loss did not rise in the last round"),
    _gauge("unharmed_clients_ratio", "ratio", "Participants that answered again and were not harmed in the last round"),
    _gauge("entitlement", "", "Training loss up to which a participant may rise without harm"),
    _gauge("low_ratio_rounds", "", "Moved rounds in a row, up to the last, whose ratio of unharmed was below 0.9"),
    _counter("clients_harmed", "", "Participants that were harmed, over all rounds"),
    _counter("clients_overruled", "", "Participants whose vote was set aside for a round, over all rounds"),
    _counter("clients_refused", "", "Participants that turned a candidate down, over all rounds"),
    _counter("clients_refused_by_test", "", "The same by the test that did so, see step.judge", "test"),
    _gauge("unable_clients", "", "Participants of the last round that could not judge by a held-out part"),
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
    _gauge("step_factor", "", "alpha with which it was applied; 0 when the model stayed"),
    _counter("step_misses", "", "Candidates that were not accepted"),
    _counter("unmoved_rounds", "", "Rounds that left the model as it was"),
    _counter("exchanges", "", "Exchanges with the clients"),
    _counter("superlink_errors", "", "Calls repeated because the SuperLink answered with an error of its own"),
    _counter("solves", "", "Rounds by how the solve ended", "status"),
    _gauge("gramian_rank", "", "Numerical rank of the unit-diagonal Gramian; 0 where nothing is solved"),
    _gauge("gramian_condition", "", "Its condition number over the eigenvalues kept"),
    _gauge("solve_residual", "", "Relative residual of what the step should meet"),
    _counter("curvature_pairs_kept", "", "Curvature pairs behind the rates"),
    _counter("curvature_pairs_rejected", "", "Curvature pairs turned away"),
    _counter("received_bytes", "bytes", "Payload of records from clients"),
    _counter("sent_bytes", "bytes", "Payload of records to clients"),
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
