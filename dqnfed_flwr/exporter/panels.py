"""The panels of the Grafana dashboards, as data; `grafana` makes JSON of them.

In a query, `[run]` stands for the selector of the chosen runs, `[exporter]` for that of the exporter's own series; what
follows inside the brackets is added. `RATE` is the range that Grafana chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RATE = "$__rate_interval"
RATIO, SECONDS, BYTES, BYTES_A_SECOND, COUNT, TIME = "percentunit", "s", "bytes", "Bps", "short", "dateTimeFromNow"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes
    ----------
    title, meaning : str
        What it says, and how to read it.
    queries : tuple[tuple[str, str], ...]
        Expression and legend of each.
    unit : str
        Grafana's name of it.
    kind : {"timeseries", "stat", "heatmap", "table"}
        How it is drawn.
    width : int
        Of 24 columns.
    limits : tuple[float, float] | None
        Of the axis.
    """

    title: str
    meaning: str
    queries: tuple[tuple[str, str], ...]
    unit: str = COUNT
    kind: Literal["timeseries", "stat", "heatmap"] = "timeseries"
    width: int = 12
    limits: tuple[float, float] | None = None


def _one(title: str, meaning: str, query: str, legend: str = "{{run}}", unit: str = COUNT) -> Panel:
    return Panel(title, meaning, ((query, legend),), unit)


def _stat(title: str, meaning: str, query: str, unit: str = COUNT, legend: str = "{{run}}") -> Panel:
    return Panel(title, meaning, ((query, legend),), unit, kind="stat", width=6)


FEDERATION = (
    _stat("Round", "Rounds settled.", "dqnfed_round[run]"),
    _stat(
        "Improved clients",
        "Share of participants whose loss did not rise.",
        "dqnfed_improved_clients_ratio[run]",
        RATIO,
    ),
    _stat("State", "The state each run is in.", "dqnfed_run_state[run] == 1", legend="{{run}}: {{state}}"),
    _stat("Last round", "When the last round was settled.", "dqnfed_last_round_timestamp_seconds[run] * 1000", TIME),
    Panel(
        "Improved and unharmed clients by round",
        "Improved: the training loss did not rise. Unharmed: that, or it is below the entitlement. Below 0.9 unharmed "
        "in five rounds that moved the model is an alert.",
        (
            ("dqnfed_improved_clients_ratio[run]", "{{run}} improved"),
            ("dqnfed_unharmed_clients_ratio[run]", "{{run}} unharmed"),
        ),
        RATIO,
        limits=(0, 1),
    ),
    Panel(
        "Progress",
        "Share of the rounds asked for, and of the rounds settled those that moved the model.",
        (
            ("dqnfed_round[run] / dqnfed_rounds[run]", "{{run}} settled"),
            ("dqnfed_moved_rounds[run] / dqnfed_round[run]", "{{run}} moved the model"),
        ),
        RATIO,
        limits=(0, 1),
    ),
    Panel(
        "Training loss",
        "Over participants, before the round: mean, least, greatest.",
        (
            ('dqnfed_train_loss_mean[run, when="before"]', "{{run}} mean"),
            ('dqnfed_train_loss_min[run, when="before"]', "{{run}} least"),
            ('dqnfed_train_loss_max[run, when="before"]', "{{run}} greatest"),
        ),
    ),
    Panel(
        "Change of the training loss",
        "Mean after the round less mean before; below 0 is progress.",
        (
            (
                'dqnfed_train_loss_mean[run, when="after"] '
                '- ignoring (when) dqnfed_train_loss_mean[run, when="before"]',
                "{{run}}",
            ),
        ),
    ),
    Panel(
        "Asked, participants and heard",
        "Clients that were asked for a gradient, those whose loss is known, and those whose gradients made the step.",
        (
            ("dqnfed_asked_clients[run]", "{{run}} asked"),
            ("dqnfed_participants[run]", "{{run}} participants"),
            ("dqnfed_heard_clients[run]", "{{run}} heard"),
        ),
    ),
    Panel(
        "Harmed, overruled and refusing clients",
        "In the chosen step: who lost, whose vote was set aside, and who turned a candidate down.",
        (
            (f"increase(dqnfed_clients_harmed_total[run][{RATE}])", "{{run}} harmed"),
            (f"increase(dqnfed_clients_overruled_total[run][{RATE}])", "{{run}} overruled"),
            (f"increase(dqnfed_clients_refused_total[run][{RATE}])", "{{run}} refusing"),
        ),
    ),
    Panel(
        "Replies that did not count",
        "By reason, in the chosen step.",
        ((f"sum by (run, reason) (increase(dqnfed_clients_dropped_total[run][{RATE}]))", "{{run}} {{reason}}"),),
    ),
    _one(
        "Losses not finite",
        "Infinite losses and losses that are no number.",
        f"increase(dqnfed_nonfinite_losses_total[run][{RATE}])",
    ),
    _one(
        "Rounds of a low ratio",
        "Rounds in a row that moved the model and left less than 0.9 unharmed.",
        "dqnfed_low_ratio_rounds[run]",
    ),
    _one("Entitlement", "Loss up to which a client may rise without harm.", "dqnfed_entitlement[run]"),
)

FAIRNESS = (
    _stat("Mean accuracy", "Over the clients evaluated.", "dqnfed_test_accuracy_mean_ratio[run]", RATIO),
    _stat("Worst 10 %", "Mean of the lowest tenth.", "dqnfed_test_accuracy_worst10_ratio[run]", RATIO),
    _stat("Deviation", "Standard deviation over clients.", "dqnfed_test_accuracy_stddev_ratio[run]", RATIO),
    _stat("Jain's index", "1 where all clients are equal.", "dqnfed_test_accuracy_jain_ratio[run]", RATIO),
    Panel(
        "Test accuracy of the clients",
        "Worst client, worst tenth, mean, best tenth.",
        (
            ("dqnfed_test_accuracy_min_ratio[run]", "{{run}} worst"),
            ("dqnfed_test_accuracy_worst10_ratio[run]", "{{run}} worst 10 %"),
            ("dqnfed_test_accuracy_mean_ratio[run]", "{{run}} mean"),
            ("dqnfed_test_accuracy_best10_ratio[run]", "{{run}} best 10 %"),
        ),
        RATIO,
        width=24,
        limits=(0, 1),
    ),
    _one("Deviation of the accuracy", "Lower is fairer.", "dqnfed_test_accuracy_stddev_ratio[run]", unit=RATIO),
    _one("Best less worst tenth", "Lower is fairer.", "run:dqnfed_test_accuracy_spread:ratio[run]", unit=RATIO),
    _one(
        "Angle to equal accuracies", "0 where all are equal.", "dqnfed_test_accuracy_angle_radians[run]", unit="radian"
    ),
    _one(
        "Divergence from equal accuracies",
        "In nats, 0 where all are equal.",
        "dqnfed_test_accuracy_kl_uniform_nats[run]",
    ),
    _one("Jain's index by round", "1 where all are equal.", "dqnfed_test_accuracy_jain_ratio[run]", unit=RATIO),
    Panel(
        "Percentiles of the training loss",
        "Over participants, after the round.",
        (('dqnfed_train_loss_percentile[run, when="after"]', "{{run}} {{percentile}} %"),),
    ),
    _one("Test loss", "Mean over the clients evaluated.", "dqnfed_test_loss_mean[run]"),
    _one("Clients evaluated", "In the last evaluation.", "dqnfed_evaluated_clients[run]"),
)

PERFORMANCE = (
    Panel(
        "Seconds of a round",
        "Median and 95 %.",
        (
            (
                f"histogram_quantile(0.5, sum by (le, run) (rate(dqnfed_round_seconds_bucket[run][{RATE}])))",
                "{{run}} median",
            ),
            (
                f"histogram_quantile(0.95, sum by (le, run) (rate(dqnfed_round_seconds_bucket[run][{RATE}])))",
                "{{run}} 95 %",
            ),
        ),
        SECONDS,
    ),
    Panel(
        "Seconds by phase",
        "Mean of a round: waiting for replies, solving, stepping.",
        (
            (
                f"sum by (run, phase) (rate(dqnfed_phase_seconds_sum[run][{RATE}])) / "
                f"sum by (run, phase) (rate(dqnfed_phase_seconds_count[run][{RATE}]))",
                "{{run}} {{phase}}",
            ),
        ),
        SECONDS,
    ),
    Panel(
        "Rounds by seconds",
        "How many rounds took how long.",
        ((f"sum by (le) (increase(dqnfed_round_seconds_bucket[run][{RATE}]))", "{{le}}"),),
        SECONDS,
        kind="heatmap",
    ),
    Panel(
        "Payload",
        "From and to clients, without framing.",
        (
            ("run:dqnfed_received_bytes:rate5m[run]", "{{run}} from clients"),
            ("run:dqnfed_sent_bytes:rate5m[run]", "{{run}} to clients"),
        ),
        BYTES_A_SECOND,
    ),
    _one("Step factor alpha", "0 when the model stayed.", "dqnfed_step_factor[run]"),
    _one("Length of the direction |u|", "Falls to 0 at a Pareto-stationary point.", "dqnfed_step_norm[run]"),
    Panel(
        "Misses and unmoved rounds",
        "Candidates not accepted, and rounds without a step.",
        (
            (f"increase(dqnfed_step_misses_total[run][{RATE}])", "{{run}} misses"),
            (f"increase(dqnfed_unmoved_rounds_total[run][{RATE}])", "{{run}} unmoved"),
        ),
    ),
    Panel(
        "Errors of the SuperLink",
        "Calls that were repeated because it answered with an error of its own, as one that is overloaded does.",
        ((f"increase(dqnfed_superlink_errors_total[run][{RATE}])", "{{run}}"),),
    ),
    Panel(
        "Exchanges a round",
        "1 when every candidate is accepted.",
        (
            (
                f"increase(dqnfed_exchanges_total[run][{RATE}]) / increase(dqnfed_round_seconds_count[run][{RATE}])",
                "{{run}}",
            ),
        ),
    ),
    Panel(
        "Rank of the Gramian",
        "Beside the number of participants; less means clients that agree.",
        (("dqnfed_gramian_rank[run]", "{{run}} rank"), ("dqnfed_participants[run]", "{{run}} participants")),
    ),
    _one("Condition of the Gramian", "Over the eigenvalues kept.", "dqnfed_gramian_condition[run]"),
    Panel(
        "Curvature pairs",
        "Kept and turned away.",
        (
            (f"increase(dqnfed_curvature_pairs_kept_total[run][{RATE}])", "{{run}} kept"),
            (f"increase(dqnfed_curvature_pairs_rejected_total[run][{RATE}])", "{{run}} turned away"),
        ),
    ),
    Panel(
        "How solves ended",
        "Rounds by status.",
        ((f"sum by (run, status) (increase(dqnfed_solves_total[run][{RATE}]))", "{{run}} {{status}}"),),
    ),
    _one("Residual of the solve", "Relative; what the step misses of its conditions.", "dqnfed_solve_residual[run]"),
)

NODES = (
    _stat("Online", "SuperNodes that are online.", 'dqnfed_nodes[exporter, state="online"]', legend="online"),
    _stat(
        "Offline",
        "SuperNodes that were online and are gone.",
        'dqnfed_nodes[exporter, state="offline"]',
        legend="offline",
    ),
    _stat("SuperLink", "1 when the last poll succeeded.", "dqnfed_superlink_up[exporter]", legend="up"),
    _stat("Runs served", "Runs whose metrics the exporter serves.", "dqnfed_exporter_runs[exporter]", legend="runs"),
    Panel("Nodes by state", "As the SuperLink counts them.", (("dqnfed_nodes[exporter]", "{{state}}"),)),
    Panel("Runs by state", "The latest runs the SuperLink knows.", (("dqnfed_flower_runs[exporter]", "{{state}}"),)),
    _one("Node by node", "1 for online; the exporter needs --node-series.", "dqnfed_node_online[exporter]", "{{node}}"),
    Panel(
        "Polls of the SuperLink",
        "By result.",
        ((f"sum by (result) (increase(dqnfed_superlink_polls_total[exporter][{RATE}]))", "{{result}}"),),
    ),
    _one("Seconds of a poll", "In the background.", "dqnfed_superlink_poll_seconds[exporter]", "poll", SECONDS),
    _one(
        "Seconds to put the files together",
        "In every scrape.",
        "dqnfed_exporter_collect_seconds[exporter]",
        "collect",
        SECONDS,
    ),
    _one(
        "Free space",
        "Below a tenth is an alert.",
        "dqnfed_disk_free_bytes[exporter] / dqnfed_disk_size_bytes[exporter]",
        "{{path}}",
        RATIO,
    ),
    _one(
        "Certificates end in",
        "Below 14 days is an alert.",
        "dqnfed_certificate_expiry_timestamp_seconds[exporter] - time()",
        "{{file}}",
        SECONDS,
    ),
    Panel(
        "Files",
        "Damaged ones, runs beyond the bound, and removals.",
        (
            ("dqnfed_exporter_damaged_files[exporter]", "damaged"),
            ("dqnfed_exporter_withheld_runs[exporter]", "withheld"),
            (f"increase(dqnfed_exporter_pruned_files_total[exporter][{RATE}])", "removed"),
        ),
    ),
)

DASHBOARDS = {
    "federation": ("DQN-Fed: federation", FEDERATION),
    "fairness": ("DQN-Fed: fairness", FAIRNESS),
    "performance": ("DQN-Fed: performance", PERFORMANCE),
    "nodes": ("DQN-Fed: nodes", NODES),
}
