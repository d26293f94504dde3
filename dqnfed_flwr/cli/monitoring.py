"""`dqnfed exporter` and `dqnfed dashboard`: the same server, for Prometheus and for a browser."""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import reported
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from dqnfed_flwr.exporter.exporter import ExporterOptions

POLL_SECONDS = 20.0
"""How long a SuperLink may take to answer a call."""
MetricsDirectory = Annotated[Path, typer.Argument(hidden=True)]
Connection = Annotated[str | None, typer.Argument(hidden=True)]
Bind = Annotated[
    str,
    typer.Option(
        "--bind",
        metavar="ADDRESS",
        show_default=False,
        help="Listen there, in plain HTTP, without a password; 127.0.0.1 by default.",
    ),
]


@reported
def exporter(
    directory: MetricsDirectory,
    connection: Connection = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, show_default=False, help="9464 by default, 0 for any.")
    ] = 9464,
    bind: Bind = "127.0.0.1",
    keep_days: Annotated[
        float,
        typer.Option(
            metavar="DAYS",
            min=0.01,
            show_default=False,
            help="Remove files of runs unchanged for longer; 14 by default.",
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
        typer.Option(
            metavar="N", min=0, max=10_000, show_default=False, help="Nodes with a series of their own; 0 by default."
        ),
    ] = 0,
    certificate: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Report when this certificate ends; repeatable.")
    ] = None,
    disk: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="Report the free space here, too; repeatable.")
    ] = None,
) -> None:
    """Serve the metrics of all runs to Prometheus, and a page of them to browsers.

    DIRECTORY is what the runs' setting `metrics` names. With CONNECTION, the folder of `dqnfed deploy init` or
    a SuperLink connection as `flwr list` takes it, the state of nodes and runs is added.

    \b
    Examples:
      dqnfed exporter /var/lib/dqnfed/metrics
      dqnfed exporter metrics /srv/federation --keep-days 90
      dqnfed exporter metrics my-federation --certificate server.pem --disk /var/lib/dqnfed

    For other machines put a gate with TLS and a password before it: docs/metrics.md.

    \b
    Paths: /metrics, /health, and / for the page.
    Exit status: 0 ended by SIGTERM, 2 an option is at fault, 130 interrupted.
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.exporter.exporter import ExporterOptions

    for option, given in (("--keep-days", keep_days), ("--interval", interval)):
        if math.isnan(given):
            raise ConfigError(f"{option}: found nan; give a number")
    options = ExporterOptions(
        directory, keep_days, max_runs, node_series, interval, tuple(certificate or ()), tuple(disk or ())
    )
    serve_metrics(options, connection, bind, port)


@reported
def dashboard(
    directory: MetricsDirectory,
    connection: Connection = None,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65_535, show_default=False, help="8080 by default, 0 for any.")
    ] = 8080,
    bind: Bind = "127.0.0.1",
) -> None:
    """Serve one live page about the runs of a directory; it needs no network beyond this server.

    The page shows who improved round by round, how accuracies spread, the worst clients, what was dropped and why, and
    with CONNECTION the nodes. DIRECTORY is what the runs' setting `metrics` names.

    \b
    Examples:
      dqnfed dashboard metrics
      dqnfed dashboard /var/lib/dqnfed/metrics my-federation --port 9000
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.exporter.exporter import ExporterOptions

    if not directory.is_dir():  # an empty page would not say that its name is wrong
        raise ConfigError(f"{directory}: no such directory; name the one that the runs' setting `metrics` names")
    serve_metrics(ExporterOptions(directory), connection, bind, port, page=True)


def serve_metrics(
    options: ExporterOptions, connection: str | None, address: str, port: int, *, page: bool = False
) -> None:
    """Serve until SIGTERM or Ctrl-C; `ConfigError` if an option cannot be met."""
    from dqnfed_flwr.deploy.registry import names_of
    from dqnfed_flwr.deploy.superlink import connect
    from dqnfed_flwr.exporter.exporter import Exporter, Server
    from dqnfed_flwr.exporter.poll import Poll

    logging.basicConfig(format="%(levelname)s %(message)s")
    prepare(options.directory)
    _check_places(options)
    poll = None
    if connection:
        link = connect(connection)
        link.flwr.seconds = POLL_SECONDS
        poll = Poll(link.ask, link.connection, lambda: names_of(connection))
        poll.demand_connection()
    served = Exporter(options, poll)
    with Server(served, address, port) as server:
        typer.echo(f"dqnfed: {'the page is at ' if page else 'metrics are at '}{server.url}{'' if page else 'metrics'}")
        if not _is_loopback(address):
            typer.echo(
                f"dqnfed: whoever reaches {address} can read them, in plain HTTP and without a password; "
                "docs/metrics.md has a gate to put before it",
                err=True,
            )
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        served.start()
        try:
            server.serve_forever()
        finally:
            served.stop()


def prepare(directory: Path) -> None:
    """Make the metrics directory where it is missing: the exporter may come before the first run."""
    try:
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            typer.echo(f"dqnfed: made {directory}, which was not there; runs write to it as their `metrics`", err=True)
        os.listdir(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read ({error.strerror}); name the directory of `metrics`") from None


def _check_places(options: ExporterOptions) -> None:
    for file in options.certificates:
        if not file.is_file():
            raise ConfigError(f"--certificate {file}: no such file; give certificates in PEM form")
    for path in options.disks:
        try:
            shutil.disk_usage(path)
        except OSError as error:
            raise ConfigError(f"--disk {path}: {error.strerror}; name a folder on the disk to be watched") from None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
