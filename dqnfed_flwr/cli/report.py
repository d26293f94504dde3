"""`dqnfed report`: a page about what lies in a folder."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dqnfed_flwr.cli.single import show_files


def make_report(directory: Path, output: Path | None) -> None:
    """Carry out `dqnfed report`."""
    from dqnfed_flwr.report.page import write_report

    show_files(Console(), write_report(directory.expanduser().resolve(), output))
