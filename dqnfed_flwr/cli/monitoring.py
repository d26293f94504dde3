"""The commands that show how runs are doing: `exporter` and `dashboard`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from dqnfed_flwr.cli.command import reported
from dqnfed_flwr.errors import ConfigError

MetricsDirectory = Annotated[Path, typer.Argument(hidden=True)]
Connection = Annotated[str | None, typer.Argument(hidden=True)]
Bind = Annotated[
    str, typer.Option("--bind", metavar="ADDRESS", show_default=False, help="Listen there; 127.0.0.1 by default.")
]
WebConfigFile = Annotated[
    Path | None,
    typer.Option("--web-config", metavar="FILE", help="TLS and passwords, as in Prometheus' web configuration."),
]


def add_commands(app: typer.Typer) -> None:
    """Put the commands to the others."""
    app.command()(exporter)
    app.command()(dashboard)


@reported
def exporter(
    directory: MetricsDirectory,
    connection: Connection = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, show_default=False, help="9464 by default, 0 for any.")
    ] = 9464,
    bind: Bind = "127.0.0.1",
    web_config: WebConfigFile = None,
    keep_days: Annotated[
        float,
        typer.Option(
            metavar="DAYS", min=0.01, show_default=False, help="Remove files of runs unchanged for so long; 14."
        ),
    ] = 14.0,
    max_runs: Annotated[
        int, typer.Option(metavar="N", min=1, show_default=False, help="Serve the latest N runs; 50 by default.")
    ] = 50,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, max=86_400.0, show_default=False, help="Between two polls; 30 by default."
        ),
    ] = 30.0,
    node_series: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=10_000, show_default=False, help="A series for each of N nodes; none."),
    ] = 0,
    certificate: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Certificate whose end is reported; again and again.")
    ] = None,
    disk: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="Place whose free space is reported, beside DIR's.")
    ] = None,
) -> None:
    """Serve the metrics of all runs to Prometheus, and a page of them to browsers.

    DIR is the directory that the runs' setting `metrics` names. With CONNECTION, the folder of `dqnfed deploy init` or
    a SuperLink connection as `flwr list` takes it, the state of nodes and runs is added.

    \b
    Examples:
      dqnfed exporter /var/lib/dqnfed/metrics
      dqnfed exporter metrics /srv/federation --bind 0.0.0.0 --web-config web.yml
      dqnfed exporter metrics my-federation --certificate server.pem --disk /var/lib/dqnfed

    \b
    Paths: /metrics, /health, and / for the page.
    Exit status: 0 ended by SIGTERM, 2 an option is at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.exporter import serve_metrics
    from dqnfed_flwr.exporter.exporter import ExporterOptions

    for option, given in (("--keep-days", keep_days), ("--interval", interval)):
        if math.isnan(given):
            raise ConfigError(f"{option}: found nan; give a number")
    options = ExporterOptions(
        directory, keep_days, max_runs, node_series, interval, tuple(certificate or ()), tuple(disk or ())
    )
    serve_metrics(options, connection, bind, port, web_config)


@reported
def dashboard(
    directory: MetricsDirectory,
    connection: Connection = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, show_default=False, help="8080 by default, 0 for any.")
    ] = 8080,
    bind: Bind = "127.0.0.1",
    web_config: WebConfigFile = None,
) -> None:
    """Serve one live page about the runs of a directory; it needs no network beyond this server.

    The page shows who improved round by round, how accuracies spread, the worst clients, what was dropped and why, and
    with CONNECTION the nodes. DIR is the directory that the runs' setting `metrics` names.

    \b
    Examples:
      dqnfed dashboard metrics
      dqnfed dashboard /var/lib/dqnfed/metrics my-federation --bind 0.0.0.0 --web-config web.yml
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.exporter import check_directory, serve_metrics
    from dqnfed_flwr.exporter.exporter import ExporterOptions

    check_directory(directory)
    serve_metrics(ExporterOptions(directory), connection, bind, port, web_config, page=True)
