"""`dqnfed submit`, `runs`, `logs`, `stop`: runs on a SuperLink somewhere."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import (
    DryRunOption,
    EndedEarly,
    Interrupted,
    LeftOut,
    LineOption,
    Overrides,
    Stalled,
    Strict,
    ended_whole,
    line_of,
    reported,
)
from dqnfed_flwr.errors import ConfigError, RunError

if TYPE_CHECKING:
    from dqnfed_flwr.config import Settings
    from dqnfed_flwr.deploy.runs import Failure
    from dqnfed_flwr.deploy.superlink import SuperLink
    from dqnfed_flwr.engine.dry_run import Line

Where = Annotated[
    str,
    typer.Argument(
        metavar="CONNECTION", help="The folder of `dqnfed deploy init`, or a connection of Flower's config.toml."
    ),
]
Which = Annotated[str, typer.Argument(metavar="RUN", help="Number of the run; `dqnfed runs` lists them.")]


@ended_whole
@reported
def submit(
    config: Annotated[str, typer.Argument(help="A shipped experiment or a YAML file, as for dqnfed run.")],
    connection: Where,
    overrides: Overrides = None,
    output: Annotated[
        str, typer.Option(metavar="DIR", help="Folder on the server, absolute; by default one for each run there.")
    ] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in --output.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--detach", help="Show the log and wait for the end, or return at once.")
    ] = True,
    restarts: Annotated[
        int,
        typer.Option(
            min=0, help="How often a run whose server process was lost is started again, while followed, with --output."
        ),
    ] = 3,
    dry: DryRunOption = False,
    line: LineOption = "",
    strict: Strict = False,
) -> None:
    """Start a run on a SuperLink and follow it to its end.

    \b
    Examples:
      dqnfed submit digits /srv/federation --set clients=3
      dqnfed submit mine.yaml hospital --output /srv/runs/mine --detach
      dqnfed submit mine.yaml hospital --output /srv/runs/mine --resume

    Exit status: 0 completed, 1 failed or stopped, 2 misuse, 3 --strict found clients left out, 4 completed before its
    rounds were done, 5 stalled: its model did not move any more, or never did, 130 interrupted, 143 ended by SIGTERM
    (the run itself goes on).
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from dqnfed_flwr.cli.overrides import flat_config_elsewhere
    from dqnfed_flwr.deploy import runs as remote
    from dqnfed_flwr.deploy.superlink import connect, patiently

    if strict and not follow:
        raise ConfigError("--strict judges a run by its end, which --detach does not wait for; give one of the two")
    on_line = line_of(line, dry=dry)
    settings = remote.server_settings(flat_config_elsewhere(config, overrides or []), output, resume=resume)
    link = connect(connection)
    if dry:
        _show_dry(settings, on_line)
        return
    if words := remote.not_allowed(connection):
        typer.echo(f"dqnfed: {words}", err=True)
    run_id = remote.submit(link, settings)
    typer.echo(f"run {run_id} is on its way", err=not follow)
    _say_who_is_missing(link, connection, settings)
    if not follow:
        typer.echo(run_id)
        return
    left = restarts if settings.output else 0
    to_the_end = partial(_to_the_end, link, connection=connection, strict=strict)
    while (failure := to_the_end(run_id)) and left and (again := failure.next_settings(settings)):
        left -= 1
        run_id = patiently(partial(remote.submit, link, again), remote.GIVE_UP_SECONDS)
        typer.echo(f"{failure.words}\ngoes on as run {run_id}")
    if failure:
        raise RunError(failure.words)


@ended_whole
@reported
def runs(connection: Where) -> None:
    """List the runs of a SuperLink: number, state, since when, and why one failed."""
    from dqnfed_flwr.deploy import runs as remote
    from dqnfed_flwr.deploy.superlink import connect

    found = remote.runs(connect(connection))
    for run in found:
        details = " ".join(str(run.get("status-details") or "").split())
        typer.echo(f"{run['run-id']:>20}  {run['status']:<20}  {run['pending-at']}  {details[:200]}".rstrip())
    if not found:
        typer.echo("no runs yet", err=True)


@ended_whole
@reported
def logs(
    run: Which,
    connection: Where,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
) -> None:
    """Show what a run has logged; with --follow the exit status is that of the run."""
    from dqnfed_flwr.deploy import runs as remote
    from dqnfed_flwr.deploy.superlink import connect

    remote.check_number(run)
    link = connect(connection)
    if follow:
        if failure := _to_the_end(link, run, connection):
            raise RunError(failure.words)
        return
    record = remote.record_of(link, run)
    if record["status"] in remote.NO_LOG_YET:  # Flower would wait for the log, and say nothing
        typer.echo(remote.waiting(record), err=True)
        return
    typer.echo(remote.log_of(link, run))


@ended_whole
@reported
def stop(run: Which, connection: Where) -> None:
    """Stop a run; its checkpoint stays, and `dqnfed submit --resume` goes on from it."""
    from dqnfed_flwr.deploy import runs as remote
    from dqnfed_flwr.deploy.superlink import connect

    remote.check_number(run)
    remote.stop(connect(connection), run)
    typer.echo(f"run {run} is stopped")


def _show_dry(settings: Settings, line: Line | None) -> None:
    """The run as far as it is known here: where data or model are on the nodes alone, that is said."""
    from rich.console import Console

    from dqnfed_flwr.cli.run import measured
    from dqnfed_flwr.report.table import run_table

    console, where = Console(), settings.output or "by default one for each run, on the server"
    try:
        found = measured(settings)
    except ConfigError as error:
        text = f"The settings are sound. Sizes are not known here, for data or model are not: {error}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        return
    title = "Nothing was submitted; seconds and samples are those of this machine"
    console.print(run_table(title, found, where, line))


def now() -> dt.datetime:
    """The time here."""
    return dt.datetime.now()


def _say_who_is_missing(link: SuperLink, connection: str, settings: Settings) -> None:
    """Say at once which nodes the run waits for; where the SuperLink does not tell, the run's log will."""
    from dqnfed_flwr.deploy.registry import awaited, presence

    try:
        words = awaited(presence(link, connection), settings, now())
    except RunError as error:
        words = f"the SuperLink does not say which nodes are online: {error}"
    if words:
        typer.echo(words, err=True)


def _to_the_end(link: SuperLink, run_id: str, connection: str, *, strict: bool = False) -> Failure | None:
    """Follow a run; None if it completed, `EndedEarly` if it did so before its rounds were done.

    `Stalled` if its model stands still, `LeftOut` if a `strict` run names clients that had no part in most rounds.
    """
    from dqnfed_flwr.deploy import runs as remote
    from dqnfed_flwr.deploy.superlink import patiently
    from dqnfed_flwr.engine.notices import LEFT_OUT, MARK, notice_in
    from dqnfed_flwr.telemetry.standstill import STALLED_MARK

    said: dict[str, str] = {}

    def show(line: str) -> None:
        typer.echo(line)
        notice, words = notice_in(line)
        said[notice] = words

    try:
        record = remote.follow(link, run_id, show)
    except KeyboardInterrupt:
        raise Interrupted(
            f"run {run_id} goes on; see it with: dqnfed logs {run_id} {connection} --follow, "
            f"end it with: dqnfed stop {run_id} {connection}"
        ) from None
    if STALLED_MARK in said:
        raise Stalled(f"run {run_id}: {said[STALLED_MARK]}; its log has the likeliest causes")
    if record["status"] != remote.COMPLETED:
        return remote.Failure(run_id, record, patiently(lambda: remote.log_of(link, run_id), remote.GIVE_UP_SECONDS))
    typer.echo(f"run {run_id} is completed")
    if MARK in said:
        raise EndedEarly(said[MARK])
    if strict and LEFT_OUT in said:
        raise LeftOut(said[LEFT_OUT])
    return None
