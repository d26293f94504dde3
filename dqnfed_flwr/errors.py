"""Exceptions raised by this package.

Every error that a user, a client or a file can cause derives from `DQNFedError`; `assert` is left to tests.
A message says what was given, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST_DETAIL = 2000


class DQNFedError(Exception):
    """Base of all errors of this package."""


class ConfigError(DQNFedError):
    """A setting is unknown, of the wrong type, out of range or in conflict with another."""


class DataError(DQNFedError):
    """A data set, a partition or a file of samples cannot be used."""


class ClientDataError(DataError):
    """One client's own samples cannot be used; those of the others may be fine, and then the run goes on without it."""


class ModelError(DQNFedError):
    """A model cannot be built, or does not fit the data or the parameters sent."""


class ShapeError(DQNFedError):
    """An array has another shape or dtype than the one asked for."""


class WireError(DQNFedError):
    """A message cannot be read; `reason` is the short name under which it is counted.

    The sender of the message may have a part in the detail, which ends up in events and logs: it is `shortened`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        detail = shortened(detail)
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class CheckpointError(DQNFedError):
    """A checkpoint is corrupt, foreign or belongs to a run with other settings."""


class QuorumError(DQNFedError):
    """Too few clients answered, again and again; the model is unchanged."""


class SumError(DQNFedError):
    """The one sum that clients give at a model cannot be had, or is none of their rows; there is no other one."""


class RunError(DQNFedError):
    """A run could not be started or did not finish."""


class StalledError(RunError):
    """The model of a run did not move any more, or never did, and nothing shows that it is stationary.

    Everything was written before. The text has the likeliest causes, a line each; `result` is what was reached: a
    Flower `Result` where a guarded strategy was started, else a `RunResult`.
    """

    def __init__(self, words: str, result: Any) -> None:
        super().__init__(words)
        self.result = result

    def __reduce__(self) -> tuple[type[StalledError], tuple[str, Any]]:
        """For processes that hand it on."""
        return type(self), (str(self), self.result)


@contextmanager
def of_one_client() -> Iterator[None]:
    """What is wrong with data here is one client's own fault: a `DataError` becomes a `ClientDataError`."""
    try:
        yield
    except ClientDataError:
        raise
    except DataError as error:
        raise ClientDataError(str(error)) from error.__cause__


@contextmanager
def writing(place: Path, remedy: str = "") -> Iterator[None]:
    """Where a file or folder is written: one that cannot be is a `RunError` that names it."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{place}: cannot be written ({error.strerror or error}){remedy}") from None


def shortened(detail: str) -> str:
    """Beginning and end of a text that came from elsewhere: the last line of a traceback says most."""
    half = LONGEST_DETAIL // 2
    return detail if len(detail) <= LONGEST_DETAIL else f"{detail[:half]} ... {detail[-half:]}"
