"""`dqnfed settings`: what can be set, for people, pipes and an app's pyproject.toml."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dqnfed_flwr.cli.command import reported
from dqnfed_flwr.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dqnfed_flwr.schema.group import Scalar


@reported
def settings(
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...", hidden=True)] = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print keys and defaults as the section of an app's pyproject.toml.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="List the expert settings as well.")] = False,
) -> None:
    """List the everyday settings with default and meaning, or all those that have a WORD in their name.

    Expert settings are marked. In a pipe each setting has a line, as a YAML file takes it.

    \b
    Examples:
      dqnfed settings
      dqnfed settings --all
      dqnfed settings guarantee
      dqnfed settings | grep "step of"
    """  # noqa: D301  # \b keeps the lines of a help text apart
    from rich.console import Console

    from dqnfed_flwr.config import KNOWN, describe, toml_defaults

    if toml and (words or everything):
        raise ConfigError("--toml prints the section whole; leave words and --all away")
    if toml:
        typer.echo(toml_defaults(), nl=False)
        return
    found = [row for row in describe() if not words or any(word in row[0] for word in words)]
    if not found:
        raise ConfigError(f"no setting has {' or '.join(words or [])} in its name; dqnfed settings --all lists all")
    shown = [row for row in found if words or everything or KNOWN[row[0]].level == "everyday"]
    marked = [(*row[:2], f"expert: {row[2]}" if KNOWN[row[0]].level == "expert" else row[2]) for row in shown]
    console = Console()
    if console.is_terminal:
        console.print(_table(marked), markup=False)
    else:
        for key, default, meaning in marked:
            typer.echo(f"{key}: {json.dumps(default)}  # {meaning}")
    if hidden := len(found) - len(shown):
        typer.echo(f"{hidden} expert settings are left out; dqnfed settings --all lists them too", err=True)


def _table(found: list[tuple[str, Scalar, str]]) -> Table:
    from rich.table import Table

    table = Table(title="Settings, for YAML files, --set and flwr run --run-config", title_justify="left")
    for heading in ("key", "default", "meaning"):
        table.add_column(heading, no_wrap=heading == "key")
    for key, default, meaning in found:
        table.add_row(key, str(default).lower() if isinstance(default, bool) else repr(default), meaning)
    return table
