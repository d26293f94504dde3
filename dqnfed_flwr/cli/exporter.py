"""`dqnfed exporter` and `dqnfed dashboard`: the same server, for Prometheus and for a browser."""

from __future__ import annotations

import ipaddress
import logging
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import typer

from dqnfed_flwr.deploy.superlink import connect
from dqnfed_flwr.errors import ConfigError
from dqnfed_flwr.exporter.exporter import Exporter, ExporterOptions
from dqnfed_flwr.exporter.poll import Poll
from dqnfed_flwr.exporter.server import Server
from dqnfed_flwr.exporter.webconfig import WebConfig, read_web_config


def serve_metrics(
    options: ExporterOptions,
    connection: str | None,
    address: str,
    port: int,
    web_config: Path | None,
    *,
    page: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises
    ------
    ConfigError
        If an option cannot be met.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    web = read_web_config(web_config) if web_config else WebConfig()
    prepare(options.directory)
    _check_files(options.certificates)
    _check_disks(options.disks)
    exporter = Exporter(options, _poll(connection) if connection else None)
    with Server(exporter, address, port, web) as server:
        typer.echo(f"dqnfed: {'the page is at ' if page else 'metrics are at '}{server.url}{'' if page else 'metrics'}")
        if not (web.users or web.tls or _is_loopback(address)):
            typer.echo(f"dqnfed: whoever reaches {address} can read them; --web-config asks for a password", err=True)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        exporter.start()
        try:
            server.serve_forever()
        finally:
            exporter.stop()


def _poll(place: str) -> Poll:
    """Ask the SuperLink that `place` means: the folder of a federation, or a connection of Flower's.

    Raises
    ------
    ConfigError
        If there is no such folder or connection.
    """
    link = connect(place)
    poll = Poll(link.connection, environment=link.flwr.environment)
    poll.demand_connection()
    return poll


def prepare(directory: Path) -> None:
    """Make the metrics directory where it is missing: the exporter may come before the first run.

    Raises
    ------
    ConfigError
        If it cannot be made or read.
    """
    try:
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            typer.echo(f"dqnfed: made {directory}, which was not there; runs write to it as their `metrics`", err=True)
        os.listdir(directory)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be read ({error.strerror}); name the directory of `metrics`") from None


def check_directory(directory: Path) -> None:
    """Refuse a metrics directory that is not there: an empty page would not say that its name is wrong.

    Raises
    ------
    ConfigError
        If it is no directory.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; name the one that the runs' setting `metrics` names")


def _check_files(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise ConfigError(f"--certificate {file}: no such file; give certificates in PEM form")


def _check_disks(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            shutil.disk_usage(path)
        except OSError as error:
            raise ConfigError(f"--disk {path}: {error.strerror}; name a folder on the disk to be watched") from None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
