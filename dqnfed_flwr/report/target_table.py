"""Samples and targets of every client, as a table for the screen and as a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dqnfed_flwr.report.class_table import LONGEST, cut_notes, sizes_note, write_rows
from dqnfed_flwr.report.table import print_fitting

if TYPE_CHECKING:
    from dqnfed_flwr.data.target_summary import TargetSummary


def print_targets(console: Console, clients: Sequence[TargetSummary], title: str) -> None:
    """Print a row a client, of the first `LONGEST`, below a title; where there is no room, without the targets."""
    print_fitting(console, _table(clients, title, figures=True), _table(clients, title, figures=False))


def _table(clients: Sequence[TargetSummary], title: str, *, figures: bool) -> Table:
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("k", "train", "validation", "test", *(clients[0].figures if figures else ())):
        table.add_column(heading, justify="right")
    for number, client in enumerate(clients[:LONGEST]):
        counts = (number, client.train, client.validation, client.test)
        shown = [f"{value:.4g}" for value in client.figures.values()] if figures else []
        table.add_row(*map(str, counts), *shown)
    return table


def notes(clients: Sequence[TargetSummary]) -> list[str]:
    """What one should know before training."""
    return [sizes_note([client.train for client in clients]), *cut_notes(len(clients))]


def write_csv(clients: Sequence[TargetSummary], path: Path) -> Path:
    """Write one row a client: samples of each part, and figures of its training targets.

    Raises
    ------
    RunError
        If the file cannot be written.
    """
    rows = [
        [number, client.train, client.validation, client.test, *client.figures.values()]
        for number, client in enumerate(clients)
    ]
    return write_rows(path, ["client", "train", "validation", "test", *clients[0].figures], rows)
