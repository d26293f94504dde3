"""What a task wants to hear about each sample: the forms that the arrays `y_train` and `y_test` may have.

| form | stored | the model's outputs |
|---|---|---|
| `classes` | integers [N] from 0 | one logit a class |
| `values` | numbers [N] or [N, T] | T values |
| `flags` | 0 or 1, [N, C] | one logit a flag |
| `places` | integers [N, ...] from 0, -1 where nothing is asked | one logit a class at every place |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dqnfed_flwr.errors import DataError

Array = NDArray[Any]
TargetForm = Literal["classes", "values", "flags", "places"]
IGNORED = -1
"""A place without a class."""
_MEANT: Mapping[TargetForm, str] = {
    "values": "finite numbers, one or a row of them a sample, [N] or [N, T]",
    "flags": "0 or 1 for each flag, [N, C]",
    "places": "integers, [N, ...], from 0, or -1 where nothing is asked",
}


def checked_targets(y: Array, form: TargetForm, key: str, name: str) -> Array:
    """Targets of a form other than `classes` as they are stored, [N, T], [N, C] or [N, ...]; none of them is copied.

    `DataError` names the set `name`, the array `key`, what was found and what is allowed.
    """
    fits = {"values": _are_values, "flags": _are_flags, "places": _are_places}[form]
    if not fits(y):
        least = f", from {y.min()}" if y.size and y.dtype.kind in "iuf" else ""
        raise DataError(
            f"data: {name}: {key} has dtype {y.dtype} and shape {y.shape}{least}; this task needs {_MEANT[form]}"
        )
    return y.reshape(len(y), -1) if form == "values" else y


def used_targets(y: Array, form: TargetForm) -> Array:
    """Some of them as a client uses them: int64 [n, ...], float32 [n, T] or uint8 [n, C]."""
    return np.asarray(y, dtype={"values": np.float32, "flags": np.uint8}.get(form, np.int64))


def outputs_of(y: Array, form: TargetForm) -> int:
    """How many outputs these targets ask of a model, at each place where there are places."""
    return 1 + int(y.max(initial=0)) if form == "places" else int(y.shape[1])


def strata(y: Array, form: TargetForm) -> NDArray[np.int64]:
    """The classes [N] by which samples are dealt out and split; all in one where a sample has no class of its own."""
    return y if form == "classes" else np.zeros(len(y), dtype=np.int64)


def _are_values(y: Array) -> bool:
    return y.ndim in (1, 2) and y.dtype.kind in "fiu" and y.size > 0 and bool(np.isfinite(y).all())


def _are_flags(y: Array) -> bool:
    return y.ndim == 2 and y.dtype.kind in "biu" and y.shape[1] > 0 and bool(np.isin(y, (0, 1)).all())


def _are_places(y: Array) -> bool:
    return y.ndim >= 2 and y.dtype.kind in "iu" and y.size > 0 and bool(y.min() >= IGNORED)
