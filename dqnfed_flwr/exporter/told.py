"""Faults that last: told in the log when they begin, and again when they come back."""

from __future__ import annotations

import logging
from collections.abc import Mapping

MOST_WORDS = 100
"""Different words for one fault that are remembered; after that they are told anew."""

logger = logging.getLogger("dqnfed")


class Told:
    """Which faults the log has already."""

    def __init__(self) -> None:
        self._told: dict[str, frozenset[str]] = {}

    def now(self, faults: Mapping[str, str]) -> None:
        """Tell what is new; what is no longer at fault is forgotten, so that it is told when it comes back.

        Parameters
        ----------
        faults : Mapping[str, str]
            All that is at fault now, and why.
        """
        before = self._told
        now = {what: before.get(what, frozenset()) | {why} for what, why in faults.items()}
        self._told = {what: words if len(words) <= MOST_WORDS else frozenset() for what, words in now.items()}
        for what, why in faults.items():
            if why not in before.get(what, ()):
                logger.warning("%s: %s", what, why)
