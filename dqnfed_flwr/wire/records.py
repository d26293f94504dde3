"""What all messages share: names of records, records of one kind, keys that are expected, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from dqnfed_flwr.errors import WireError
from dqnfed_flwr.types import FloatArray
from dqnfed_flwr.wire.arrays import size

MODEL, TASK, VECTORS, FIGURES, PROPERTIES = "model", "task", "vectors", "figures", "properties"
MEMORY = "memory"
BUFFER, EXTRA, DIRECTIVE = "buffer.", "extra.", "directive."
Buffers = Mapping[str, NDArray[np.generic]]
_Record = TypeVar("_Record", ArrayRecord, MetricRecord, ConfigRecord)


def of_kind(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """The records of one kind; Flower's own views of them are dictionaries built and checked anew at every look."""
    return {key: record for key, record in content.items() if isinstance(record, kind)}


def check_keys(what: str, found: set[str], expected: set[str]) -> None:
    """Refuse, with `missing-key` or `extra-key`, what has other keys than it should.

    Raises
    ------
    WireError
        Naming the keys.
    """
    if missing := expected - found:
        raise WireError("missing-key", f"{what} without {sorted(missing)[:8]}")
    if extra := found - expected:
        raise WireError("extra-key", f"{what} with {sorted(extra)[:8]}")


def floats(values: NDArray[np.generic]) -> FloatArray:
    """`values` as an array of floats.

    Raises
    ------
    WireError
        If they are of another kind.
    """
    if values.dtype.kind != "f":
        raise WireError("bad-dtype", f"dtype {values.dtype}; need a float")
    return cast(FloatArray, values)


def payload(content: RecordDict) -> int:
    """Bytes of arrays and figures in a message, without framing."""
    arrays = sum(size(array) for record in of_kind(content, ArrayRecord).values() for array in record.values())
    values = (value for record in of_kind(content, MetricRecord).values() for value in record.values())
    figures = sum(len(value) if isinstance(value, list) else 1 for value in values)
    settings = sum(len(record) for record in of_kind(content, ConfigRecord).values())
    return arrays + 8 * (figures + settings)
