"""Figures of a reply, read with their range checked."""

from __future__ import annotations

import math

from flwr.app import MetricRecord, RecordDict

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.wire.records import FIGURES, VECTORS, of_kind

MAX_EXAMPLES = 10**9
FigureValues = dict[str, int | float | list[int] | list[float]]
"""Figures as they are written."""


class Figures:
    """Reads the figures of one reply; each method checks one range and raises `WireError` outside it.

    Parameters
    ----------
    record : MetricRecord
        As received.
    """

    def __init__(self, record: MetricRecord) -> None:
        self._record = record

    def __contains__(self, key: str) -> bool:
        """Whether there is such a figure."""
        return key in self._record

    def scalar(self, key: str) -> float:
        """Any one number, NaN and Inf among them."""
        value = self._value(key)
        if isinstance(value, list):
            raise WireError("bad-shape", f"{key} is a list of {len(value)}; need one number")
        return float(value)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.scalar(key)
        if not math.isfinite(value):
            raise WireError("not-finite", f"{key} is {value}")
        return value

    def within(self, key: str, limits: tuple[float, float] | None) -> float:
        """A finite number between two limits, which are allowed; None for any."""
        value = self.number(key)
        if limits is not None and not limits[0] <= value <= limits[1]:
            raise WireError("bad-figure", f"{key} is {value}; need {limits[0]:g} to {limits[1]:g}")
        return value

    def loss(self, key: str) -> float:
        """A finite loss."""
        return _not_negative(key, self.number(key))

    def any_loss(self, key: str) -> float:
        """A loss; infinite where the model diverges."""
        value = self.scalar(key)
        return _not_negative(key, value) if math.isfinite(value) else math.inf

    def losses(self, key: str) -> list[float]:
        """One loss or more; infinite where the model diverges."""
        value = self._value(key)
        found = [float(number) for number in value] if isinstance(value, list) else [float(value)]
        return [_not_negative(key, number) if math.isfinite(number) else math.inf for number in found]

    def count(self, key: str, least: int = 0) -> int:
        """A whole number from `least` to `MAX_EXAMPLES`."""
        value = self.number(key)
        if value != int(value) or not least <= value <= MAX_EXAMPLES:
            raise WireError("bad-count", f"{key} is {value}; need a whole number from {least} to {MAX_EXAMPLES}")
        return int(value)

    def flag(self, key: str) -> bool:
        """0 or 1."""
        value = self.number(key)
        if value not in (0, 1):
            raise WireError("bad-count", f"{key} is {value}; need 0 or 1")
        return value == 1

    def _value(self, key: str) -> int | float | list[int] | list[float]:
        if key not in self._record:
            raise WireError("missing-key", f"figures {sorted(self._record)[:20]}; need {key!r}")
        return self._record[key]


def figures_of(content: RecordDict) -> Figures:
    """The figures of a reply.

    Raises
    ------
    WireError
        If it has none.
    """
    figures = of_kind(content, MetricRecord).get(FIGURES)
    if figures is None:
        raise WireError("missing-key", f"records {sorted(content)[:8]}; need {VECTORS!r} and {FIGURES!r}")
    return Figures(figures)


def _not_negative(key: str, loss: float) -> float:
    if loss < 0:
        raise WireError("bad-loss", f"{key} is {loss}; cross-entropy and ridge are not negative")
    return loss
