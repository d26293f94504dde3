"""The command `dqnfed`."""

from __future__ import annotations

import errno
import os
import sys
from io import TextIOWrapper


def main() -> None:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # for terminals without Greek letters
    from dqnfed_flwr.cli.app import app

    try:
        try:
            app(prog_name="dqnfed")
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python tries once more as it ends
        sys.exit(f"dqnfed: the output cannot be written: {error.strerror}")
