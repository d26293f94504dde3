"""The command `dqnfed`."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without Greek letters
    from dqnfed_flwr.cli.app import app

    app(prog_name="dqnfed")
