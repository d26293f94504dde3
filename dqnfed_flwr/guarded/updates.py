"""The user's own part of replies: what a strategy makes its model and its figures of.

A strategy takes for granted that replies are alike, and ends the run where one is not. Here such a one costs only its
client.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr import wire
from dqnfed_flwr.errors import ShapeError, WireError, shortened
from dqnfed_flwr.guarded.arrays import Arrays, check_alike

NOTHING = np.zeros(())
"""In place of an array that the model does not have."""
LONG_DOUBLES = "gG"
"""Kinds of numbers that some machines alone have."""
NAMED, LONGEST = 6, 60
"""Records and keys that a message names at most, and how much of a name."""
Form = frozenset[str]
"""The records of a reply by name and kind, the keys of its metrics, and how long those are that are lists."""


class Alike:
    """Checks that replies have the form that most of them have.

    Parameters
    ----------
    contents : Iterable[RecordDict]
        Of the replies of one exchange, without what the guard added, in the order of the messages: where as many have
        another form, the first counts.
    weight : str
        Key of the metric by which the strategy weighs replies; empty if it has none.
    """

    def __init__(self, contents: Iterable[RecordDict], weight: str) -> None:
        contents = list(contents)
        found = Counter(map(form_of, contents)).most_common(1)
        self._form = found[0][0] if found else None
        self._weight = weight
        self._weighed = any(0 < value < math.inf for content in contents for value in self._weights(content))

    def check(self, content: RecordDict) -> None:
        """Raise `WireError` if `content` has another form, or a weight that no mean can be made with.

        Such a weight is no finite number of at least 0; it is 0 where no other reply has more.
        """
        if self._form is not None and (found := form_of(content)) != self._form:
            if lacking := self._form - found:
                raise WireError("missing-key", f"its reply lacks what most others have: {_named(lacking)}")
            raise WireError("extra-key", f"its reply has what most others have not: {_named(found - self._form)}")
        for value in self._weights(content):
            if not 0 <= value < math.inf or not (value or self._weighed):
                raise WireError("bad-count", f"{self._weight} is {value:g}; replies are weighed by it")

    def counts(self, content: RecordDict) -> bool:
        """Whether a reply that passed `check` has weight: a strategy may divide by that of some replies alone."""
        return 0 not in self._weights(content)

    def _weights(self, content: RecordDict) -> list[float]:
        """The weights in a reply, one in each of its records of metrics; NaN in place of a list."""
        found = [record[self._weight] for record in content.metric_records.values() if self._weight in record]
        return [math.nan if isinstance(value, list) else float(value) for value in found]


def form_of(content: RecordDict) -> Form:
    """The form of a reply."""
    parts = set()
    for name, record in content.items():
        parts.add(f"{name} ({type(record).__name__})")
        if isinstance(record, MetricRecord):
            for key, value in record.items():
                parts.add(f"{name}.{key}[{len(value)}]" if isinstance(value, list) else f"{name}.{key}")
    return frozenset(parts)


def check_update(content: RecordDict, model: Arrays) -> None:
    """Check the numbers of a reply to train: a strategy would spread what is wrong in them to everybody.

    Every array must be readable and every number finite, in the dtype of the model too, but for infinities that the
    model itself holds there. Where the model is real, so is the update. Where there is one record of arrays, as
    Flower's strategies need it, it must have the model's names and shapes. `WireError` if not.
    """
    records = [record for record in content.values() if isinstance(record, ArrayRecord)]
    for record in records:
        found = {}
        for name, array in record.items():
            try:
                found[name] = array.numpy()
            except Exception as error:  # whatever bytes that a client made up can have NumPy raise
                raise WireError("bad-array", f"{name[:LONGEST]!r} in its update: {shortened(str(error))}") from None
            if found[name].dtype.kind not in "biufc":
                raise WireError("bad-dtype", f"{name[:LONGEST]!r} in its update has dtype {found[name].dtype}")
            current = model.get(name, NOTHING)
            current = current if current.shape == found[name].shape else NOTHING
            kind = found[name].dtype
            if kind.char in LONG_DOUBLES or (kind.kind == "c" and current is not NOTHING and current.dtype.kind != "c"):
                raise WireError("bad-dtype", f"{name[:LONGEST]!r} in its update has dtype {found[name].dtype}")
            if wire.strays(found[name], current) or wire.strays(_rounded(found[name], current), current):
                where = f"{name[:LONGEST]!r} in its update"
                raise WireError("not-finite", f"{where} holds NaN, or Inf where the model does not")
        if len(records) == 1:
            try:
                check_alike("its update", found, model)
            except ShapeError as error:
                raise WireError("bad-shape", str(error)) from None
    for metrics in content.values():
        if isinstance(metrics, MetricRecord) and not all(np.isfinite(value).all() for value in metrics.values()):
            raise WireError("not-finite", f"one of its metrics {sorted(metrics)[:8]} is NaN or Inf")


def _rounded(values: NDArray[np.generic], current: NDArray[np.generic]) -> NDArray[np.generic]:
    """Floating-point values in the dtype of the model, where that is narrower."""
    if values.dtype.kind != "f" or current.dtype.kind != "f" or current.dtype.itemsize >= values.dtype.itemsize:
        return values
    with np.errstate(over="ignore"):
        return values.astype(current.dtype)


def _named(parts: Form) -> str:
    words = [part[:LONGEST] for part in sorted(parts)[:NAMED]]
    more = len(parts) - len(words)
    return ", ".join(words) + (f" and {more} more" if more else "")
