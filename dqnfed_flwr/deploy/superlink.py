"""A connection to a SuperLink, and what its failures mean: away for a while, unsure what it did, or a plain no."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dqnfed_flwr.deploy.files import at_home, is_there
from dqnfed_flwr.deploy.plan import PLAN
from dqnfed_flwr.engine.flwr_command import CONNECTION, FlwrCommand, TimedOutError, flwr_environment
from dqnfed_flwr.errors import ConfigError, RunError

OPERATOR_FLWR = [sys.executable, "-P", str(Path(__file__).with_name("as_operator.py"))]
"""How Flower's `flwr` is started as an operator."""
CONFIG = "config.toml"
UNAVAILABLE = "is unavailable"
SERVER_ERRORS = ("Server error '5", "Internal server error")
"""Flower's words for an answer with a status of 500 or more: that of a gate before the SuperLink, and its own."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before a SuperLink that is away is asked again, at first and at most."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SuperLink:
    """A connection to a SuperLink: Flower's command, and the name by which it finds the connection."""

    flwr: FlwrCommand
    connection: str

    def text(self, *arguments: str) -> str:
        """What Flower's command prints; a failure is of the kind that tells whether to ask again."""
        with _classified():
            return self.flwr(*arguments)

    def ask(self, *arguments: str) -> dict[str, Any]:
        """What Flower's command answers as JSON, where it answers with success.

        The last line of its complaint says most. That of a server error only names a page on the web; there the line
        with the status is shown. `ConfigError` if there is no such connection; other failures are of the kind that
        tells whether to ask again.
        """
        with _classified():
            answer = self.flwr.json(*arguments)
            if answer.get("success"):
                return answer
            lines = [line.strip() for line in str(answer.get("error-message") or answer).splitlines() if line.strip()]
            said = " ".join(word for word in arguments if os.sep not in word)
            most = next(filter(_blames_server, lines), lines[-1] if lines else "failed without a reason")
            words = f"flwr {said}: {most}"
            if "not found in the Flower configuration file" in words:
                raise ConfigError(f"{words} CONNECTION may also be the folder of `dqnfed deploy init`")
            raise RunError(words)


def link_of(directory: Path) -> SuperLink:
    """The connection of a federation's first operator."""
    return SuperLink(as_operator(directory / "operator"), CONNECTION)


def as_operator(home: Path | None = None) -> FlwrCommand:
    """The `flwr` command that shows the certificate in `home`, by default Flower's own directory."""
    return FlwrCommand(flwr_environment(home), OPERATOR_FLWR)


def operator_folder(place: str) -> Path | None:
    """The operator's folder that `place` means: its own, or that in a federation; None if it is neither."""
    folder = at_home(place).absolute()
    if is_there(folder / PLAN):
        return folder / "operator"
    return folder if is_there(folder / CONFIG) else None


def connect(place: str) -> SuperLink:
    """The connection that `place` means: the folder of a federation or operator, or a name in Flower's config.toml.

    `ConfigError` if it looks like a folder, but there is no federation, or it is another user's.
    """
    if (home := operator_folder(place)) is not None:
        return SuperLink(as_operator(home), CONNECTION)
    if os.sep in place or at_home(place).is_dir():
        raise ConfigError(f"{place}: no {PLAN} there; name the folder of `dqnfed deploy init`, or a Flower connection")
    return SuperLink(as_operator(), place)


class AwayError(RunError):
    """The SuperLink cannot be reached, which may pass."""


class UnsureError(AwayError):
    """It was reached and gave no answer, or an error of its own: it may have done what it was asked."""


def patiently(ask: Callable[[], T], seconds: float, say: Callable[[str], None] = lambda _: None) -> T:
    """What `ask` answers, asked again for up to `seconds` while the SuperLink is away or overloaded.

    Where it has to be asked again, `say` is told so once. After that time its `AwayError` is raised.
    """
    pause, since, told = FIRST_PAUSE, time.monotonic(), False
    while True:
        try:
            return ask()
        except AwayError:
            if time.monotonic() - since > seconds:
                raise
        if not told:
            say(f"the SuperLink does not answer yet; asked again for up to {seconds:.0f} s")
            told = True
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def _classified() -> Iterator[None]:
    """Make a failure of Flower's command one of the kind that it means."""
    try:
        yield
    except RunError as error:
        words = str(error)
        if isinstance(error, TimedOutError) or _blames_server(words):
            raise UnsureError(words) from None
        raise (AwayError if UNAVAILABLE in words else RunError)(words) from None


def _blames_server(words: str) -> bool:
    return any(error in words for error in SERVER_ERRORS)
