"""What the exporter adds to the metrics of the runs."""

from __future__ import annotations

from dqnfed_flwr.telemetry.metrics import Metric

NODE_STATES = ("online", "offline", "registered", "other")
"""`registered` nodes have never been online since they were registered; `offline` ones were, and are gone."""
RUN_STATES = ("pending", "starting", "running", "completed", "failed", "stopped", "other")

EXPORTER_METRICS = (
    Metric("dqnfed_exporter_info", "info", "", "Version of the exporter; always 1", ("version",)),
    Metric("dqnfed_exporter_runs", "gauge", "", "Runs whose metrics are served"),
    Metric("dqnfed_exporter_damaged_files", "gauge", "", "Metrics files that could not be read and are left out"),
    Metric("dqnfed_exporter_withheld_runs", "gauge", "", "Older runs beyond the bound on their number, left out"),
    Metric("dqnfed_exporter_pruned_files_total", "counter", "", "Files of old runs that were removed"),
    Metric("dqnfed_exporter_collect_seconds", "gauge", "seconds", "Seconds it took to put the runs' files together"),
    Metric("dqnfed_disk_free_bytes", "gauge", "bytes", "Free space where the metrics and results lie", ("path",)),
    Metric("dqnfed_disk_size_bytes", "gauge", "bytes", "Size of that file system", ("path",)),
    Metric(
        "dqnfed_certificate_expiry_timestamp_seconds",
        "gauge",
        "seconds",
        "When a certificate ends, since 1970; NaN where it cannot be read",
        ("file",),
    ),
    Metric("dqnfed_superlink_up", "gauge", "", "1 when the last poll of the SuperLink succeeded"),
    Metric("dqnfed_superlink_polls_total", "counter", "", "Polls by result, ok or failed", ("result",)),
    Metric("dqnfed_superlink_last_poll_timestamp_seconds", "gauge", "seconds", "When it last succeeded, since 1970"),
    Metric("dqnfed_superlink_poll_seconds", "gauge", "seconds", "Seconds of the last poll"),
    Metric("dqnfed_nodes", "gauge", "", "SuperNodes by state; absent while the SuperLink cannot be asked", ("state",)),
    Metric("dqnfed_node_online", "gauge", "", "1 for a node that is online; only with --node-series", ("node",)),
    Metric("dqnfed_flower_runs", "gauge", "", "The latest runs the SuperLink knows, by state", ("state",)),
)
