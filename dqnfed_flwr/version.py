"""Version of the package, also where it lies on the path without being installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "dqnfed-flwr"
UNKNOWN = "0+unknown"


@cache
def package_version() -> str:
    """As the installed distribution says; `UNKNOWN` where there is none."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return UNKNOWN
