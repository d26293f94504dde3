"""Tables of text, shown on a terminal or written as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

MARKS = {0: "{}", 1: "**{}**", 2: "_{}_"}
STYLES = {0: "", 1: "bold green", 2: "underline"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A text and its rank in the column: 1 best, 2 second best, 0 any other."""

    text: str
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """A title, headings, rows of cells, and notes below."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def markdown(found: Sequence[Table], title: str = "# Comparison") -> str:
    """Tables as Markdown, below a heading."""
    parts = [title]
    for table in found:
        lines = [_line(table.headings), "|---" * len(table.headings) + "|"]
        lines += [_line([MARKS[cell.rank].format(_escaped(cell.text)) for cell in row]) for row in table.rows]
        parts += [f"## {table.title}", "\n".join(lines)]
        if table.notes:
            parts.append("\n".join(f"- {_escaped(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def print_tables(console: Console, found: Sequence[Table]) -> None:
    """Tables on a terminal, narrowed to it; in a pipe as wide as they are."""
    for table in found:
        shown = _rich(table)
        width = console.measure(shown, options=console.options.update(max_width=10_000)).maximum
        if not console.is_terminal:
            Console(file=console.file, width=max(width, len(table.title))).print(shown)
        else:
            console.print(shown if width <= console.width else _rich(table, between="\n± "))
        for note in table.notes:
            console.print(Text(note), soft_wrap=not console.is_terminal)
        console.print()


def _rich(table: Table, between: str = " ± ") -> RichTable:
    shown = RichTable(title=Text(table.title), title_justify="left")
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="right" if place else "left", min_width=0 if place else 14)
    for row in table.rows:
        shown.add_row(*(Text(cell.text.replace(" ± ", between), style=STYLES[cell.rank]) for cell in row))
    return shown


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("_", "\\_").replace("*", "\\*")
