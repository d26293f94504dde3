"""One of Flower's programs, run in this process, so that what it asks for can be given another form first."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib.metadata import distribution

from dqnfed_flwr.errors import ConfigError


def given(command: Sequence[str], program: str, *options: str) -> list[str]:
    """Values of options with which a program is to be started.

    `ConfigError` if it is another program, without TLS, or one of the options is missing.
    """
    if not command or command[0] != program:
        raise ConfigError(f"found {' '.join(command[:1]) or 'no command'!r}; give {program} and its options")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--insecure", action="store_true")
    for option in options:
        parser.add_argument(option, default="", dest=option)
    found = vars(parser.parse_known_args(command[1:])[0])
    if found["insecure"] or not all(found[option] for option in options):
        raise ConfigError(f"certificates say who calls: give {' and '.join(options)}, and no --insecure")
    return [found[option] for option in options]


def start(command: Sequence[str], logger: logging.Logger) -> None:
    """Be that program, which seldom returns; `logger` speaks on stderr."""
    said = logging.StreamHandler()
    said.setFormatter(logging.Formatter("dqnfed: %(message)s"))
    logger.addHandler(said)
    logger.propagate = False
    sys.argv = list(command)
    (found,) = distribution("flwr").entry_points.select(group="console_scripts", name=command[0])
    found.load()()
